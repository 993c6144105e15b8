"""Plans to change, each searched once."""

from __future__ import annotations

from functools import cache

from planner import api
from planner.data.plan import Plan


def plan_of(problem: str, pins: dict[str, int]) -> Plan:
    """The best plan of a shipped problem with some degrees pinned."""
    return _plan(problem, tuple(sorted(pins.items())))


@cache
def _plan(name: str, pins: tuple[tuple[str, int], ...]) -> Plan:
    problem = api.load_problem(name)
    options = problem.options.model_copy(update={"pin": dict(pins), "gap": 0.1, "virtual_gap": 0.1})
    plan = api.plan(problem, options).plan
    assert plan is not None
    return plan
