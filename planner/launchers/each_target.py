"""The best plan for each launcher in turn; one that cannot build the network says so, and others go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

import planner
from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.errors import InstanceError
from planner.launchers.expressible import buildable, check_expressible
from planner.search.progress import Progress
from planner.search.state import LEAST_SHARE_S, Clock
from planner.search.targets import PLANNED_TARGETS, search_target


def search_each(
    problem: Problem, on_progress: Callable[[Progress], None] | None = None
) -> dict[TargetName, Result]:
    """As `planner.search.targets.search_all`, of the launchers that can run the network and the software.

    The result of another has no plan, and its reason.

    Raises
    ------
    InstanceError
        Where none can.
    """
    clock = Clock(problem.options.time_limit_s)
    results: dict[TargetName, Result] = {}
    refused: dict[TargetName, InstanceError] = {}
    for number, target in enumerate(PLANNED_TARGETS):
        left_s = clock.left_s
        share_s = None if left_s is None else max(left_s / (len(PLANNED_TARGETS) - number), LEAST_SHARE_S)
        options = problem.options.model_copy(update={"time_limit_s": share_s})
        asked = buildable(problem.model_copy(update={"target": target, "options": options}))
        searched = {name: result for name, result in results.items() if name not in refused}
        seeds = [result.plan for result in searched.values() if result.plan is not None]
        try:
            check_expressible(asked)
            results[target] = search_target(asked, on_progress, seeds, _proven_s(searched))
        except InstanceError as cannot:
            refused[target] = cannot
            results[target] = _without_plan(asked, str(cannot).removeprefix(f"{cannot.where}: "))
        if results[target].stopped:
            break
    if len(refused) == len(results):
        raise refused.get("megatron-lm", next(iter(refused.values())))
    return results


def _proven_s(results: Mapping[TargetName, Result]) -> dict[TargetName, float]:
    """What no plan of the launchers that were searched is faster than [s]."""
    return {
        name: np.inf if result.termination == "infeasible" else result.bound_s or 0.0
        for name, result in results.items()
    }


def _without_plan(problem: Problem, reason: str) -> Result:
    return Result(
        problem=problem.name,
        plan=None,
        evaluation=None,
        bound_s=None,
        gap=None,
        termination="infeasible",
        reason=reason,
        seconds=0.0,
        solver=problem.options.solver,
        version=planner.__version__,
    )
