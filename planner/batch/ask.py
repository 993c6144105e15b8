"""What a job may ask beside the best plan of a problem, and how a worker answers it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

from pydantic import Field

from planner import api
from planner.data import load
from planner.data.base import Data
from planner.data.explanation import Change, Robustness
from planner.data.problem import Problem, ProblemFile
from planner.data.result import Result
from planner.explain.budget import Budget
from planner.tolerances import GAP_TOL
from planner.units import format_percent

WITHIN = 0.05
"""How much slower than the best a plan may be that changes little, unless the entry says otherwise."""
DRAWS = 20
"""Draws of a study of robustness, unless the entry says otherwise."""


class Ask(Data):
    """Another answer than the best plan."""

    kind: Literal["least_change", "robust"]
    """The plan that changes least of the best plan of `base`; or the one with the least worst case."""
    base: ProblemFile | None = None
    """Of `least_change`: the problem before the change, its hosts named as in the problem itself."""
    within: float = Field(default=WITHIN, ge=0)
    """Of `least_change`: how much slower than the best plan it may be; 0.05 is 5%."""
    draws: int = Field(default=DRAWS, ge=1)
    """Of `robust`: how often the numbers are drawn."""


def answered(problem: Problem, ask: Ask) -> tuple[Result, dict[str, Any]]:
    """The answer, and what a list of results shows of it beside the plan.

    Where the problem has no plan that is the answer.
    """
    budget = Budget(problem)
    if ask.kind == "robust":
        return _most_robust(problem, ask, api.plan(budget.given(problem, 1 + ask.draws)), budget)
    assert ask.base is not None
    base = _base_result(ask.base, budget)
    best = api.plan(budget.given(problem, 2))
    if best.plan is None:
        return best, {}
    if base.plan is None:
        return best, {"message": f"there is no plan to change: {base.reason}"}
    from planner.explain.least_change import least_change

    result, change = least_change(problem, base.plan, best, ask.within, budget.spent_s)
    return result, {
        "behind_best": change.behind_best,
        "loaded_fraction": change.loaded_fraction,
        "change": change.model_dump(mode="json"),
        "message": change_in_words(change),
    }


def _most_robust(problem: Problem, ask: Ask, result: Result, budget: Budget) -> tuple[Result, dict[str, Any]]:
    if result.plan is None:
        return result, {}
    from planner.explain.robust import most_robust

    chosen, robustness = most_robust(problem, result, ask.draws, spent_s=budget.spent_s)
    nominal = next(plan for plan in robustness.plans if plan.nominal)
    return chosen, {
        "fits_fraction": nominal.fits_fraction,
        "best_fraction": nominal.best_fraction,
        "mean_loss": nominal.mean_loss,
        "worst_loss": nominal.worst_loss,
        "robustness": robustness.model_dump(mode="json"),
        "message": robustness_in_words(robustness),
    }


def change_in_words(change: Change) -> str:
    """What a plan keeps and what it costs, in a sentence."""
    degrees, behind = ", ".join(change.degrees_changed), format_percent(change.behind_best)
    loads, best = format_percent(change.loaded_fraction), format_percent(change.best_loaded_fraction)
    return "; ".join(
        (
            f"changes {degrees}" if degrees else "keeps all degrees",
            f"hosts load {loads} of their weights (for the best plan {best})"
            if change.loaded_fraction
            else "no weights move",
            f"{behind} behind the best" if change.behind_best > GAP_TOL else "as fast as the best",
        )
    )


def robustness_in_words(robustness: Robustness) -> str:
    """How the nominal plan fares, and whether another one stands up better."""
    nominal = next(plan for plan in robustness.plans if plan.nominal)
    fits, best = format_percent(nominal.fits_fraction), format_percent(nominal.best_fraction)
    said = f"of {robustness.draws} draws the plan as it stands fits in {fits} and stays best in {best}"
    if nominal.mean_loss is not None and nominal.worst_loss is not None:
        worst, mean = format_percent(nominal.worst_loss), format_percent(nominal.mean_loss)
        said += f"; where it fits it is up to {worst} ({mean} on average) slower than the best"
    if nominal.chosen:
        return f"{said}; no plan found stands up better"
    chosen = robustness.plans[0]
    return f"{said}; this plan stands up best: it fits in {format_percent(chosen.fits_fraction)}"


_BASES: OrderedDict[str, Result] = OrderedDict()
"""Best plans of the last problems before a change: all variants of a study ask for the same one."""
_KEPT = 8


def _base_result(file: ProblemFile, budget: Budget) -> Result:
    """The best plan before the change, worked out once for all variants that this process meets."""
    text = file.model_dump_json()
    if text not in _BASES:
        found = api.plan(budget.given(load.resolve_problem(file, ""), 3))
        if found.interrupted:
            return found
        _BASES[text] = found
    _BASES.move_to_end(text)
    while len(_BASES) > _KEPT:
        _BASES.popitem(last=False)
    return _BASES[text]
