"""The least recomputation with which a given split of the layers fits, found with the referee alone."""

from __future__ import annotations

from collections.abc import Callable

from planner import api
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem


def with_fitting_recompute(problem: Problem, plan: Plan) -> Plan | None:
    """The plan as it is where it fits, else with more recomputation on the stages that do not.

    None where none fits. A stage that does not fit recomputes core attention; where that is too little,
    the fewest layers in full that are enough. Kinds of recomputation that the user forbids are not tried.
    """
    short = _short_of_memory(problem, plan)
    if not short:
        return plan
    if "recompute=selective" not in problem.options.forbid:
        tried = _changed(plan, short, lambda stage: _selective(stage))
        plan, short = _better(problem, plan, tried, short)
    if short and "recompute=full" not in problem.options.forbid:
        return _in_full(problem, plan, short)
    return None if short else plan


def _better(problem: Problem, plan: Plan, tried: Plan, short: set[int]) -> tuple[Plan, set[int]]:
    """The tried stages where they fit now, the old ones elsewhere; which are still short of memory."""
    still = short & _short_of_memory(problem, tried)
    return _changed(tried, still, lambda stage: _plain(stage)), still


def _in_full(problem: Problem, plan: Plan, short: set[int]) -> Plan | None:
    """Layers in full on some stages, by halving on all of them at once."""
    low = dict.fromkeys(short, 0)
    high = {s: max(last - first + 1 for first, last in plan.stages[s].chunks) for s in short}
    if _short_of_memory(problem, _full(plan, high)):
        return None
    while open_ones := [s for s in short if high[s] - low[s] > 1]:
        middle = {s: (low[s] + high[s]) // 2 for s in open_ones}
        over = _short_of_memory(problem, _full(plan, {**high, **middle}))
        for s, count in middle.items():
            (low if s in over else high)[s] = count
    return _full(plan, high)


def _full(plan: Plan, layers: dict[int, int]) -> Plan:
    stages = list(plan.stages)
    for s, count in layers.items():
        update = {"recompute": "full", "recompute_layers": count, "recompute_piece": 1}
        stages[s] = stages[s].model_copy(update=update)
    return plan.model_copy(update={"stages": tuple(stages)})


def _short_of_memory(problem: Problem, plan: Plan) -> set[int]:
    """Stages whose peak is above their limit."""
    seen = api.predict(problem, plan).stages
    return {s for s, stage in enumerate(seen) if stage.peak_memory_gib > stage.limit_gib}


def _changed(plan: Plan, which: set[int], change: Callable[[Stage], Stage]) -> Plan:
    stages = tuple(change(stage) if s in which else stage for s, stage in enumerate(plan.stages))
    return plan.model_copy(update={"stages": stages})


def _selective(stage: Stage) -> Stage:
    return stage.model_copy(update={"recompute": "selective", "recompute_layers": 0, "recompute_piece": 1})


def _plain(stage: Stage) -> Stage:
    return stage.model_copy(update={"recompute": "none", "recompute_layers": 0, "recompute_piece": 1})
