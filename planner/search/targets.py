"""Which search plans for which launcher, and all of them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

import planner
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.errors import InstanceError
from planner.search.clock import LEAST_SHARE_S, Clock
from planner.search.floors import Floors
from planner.search.progress import Progress

PLANNED_TARGETS: tuple[TargetName, ...] = ("megatron-bridge", "megatron-lm", "flagscale", "unrestricted")
"""Launchers that plans are made for, the narrower before the wider."""


class Search(Protocol):
    """A launcher's search, as `search_target` calls it."""

    def __call__(
        self,
        problem: Problem,
        on_progress: Callable[[Progress], None] | None,
        seeds: Sequence[Plan],
        proven_s: Mapping[TargetName, float] | None,
        beyond_s: float | None,
        floors: Floors | None,
    ) -> Result: ...


def load_search(target: TargetName) -> Search:
    """A launcher's search, whose modules are loaded now: a time limit counts their loading.

    They take a fifth of a second; a search that loaded them itself would begin with a limit that has passed.
    """
    if target == "flagscale":
        from planner.search.meshes.driver import search_meshes

        return lambda problem, tell, seeds, proven_s, beyond_s, floors: search_meshes(problem, tell, seeds)
    if target == "unrestricted":
        from planner.search.replicas.driver import search_replicas

        return lambda problem, tell, seeds, proven_s, beyond_s, floors: search_replicas(
            problem, tell, seeds, proven_s
        )
    from planner.search.driver import search

    return lambda problem, tell, seeds, proven_s, beyond_s, floors: search(
        problem, tell, seeds, beyond_s, floors
    )


def search_target(
    problem: Problem,
    on_progress: Callable[[Progress], None] | None = None,
    seeds: Sequence[Plan] = (),
    proven_s: Mapping[TargetName, float] | None = None,
    beyond_s: float | None = None,
    floors: Floors | None = None,
) -> Result:
    """The best plan for the launcher that a problem names, with a proven bound.

    Parameters
    ----------
    seeds
        Plans of other launchers; those that this one can run are where the search begins, so that its
        answer is never worse.
    proven_s
        Bounds of launchers that were searched before, by their names [s].
    beyond_s
        A step that the bound is asked to pass [s], as `planner.search.driver.search`; the searches of
        flagscale and unrestricted prove what they can all the same.
    floors
        Bounds to begin with; takes those that are proven. The same two searches begin without.

    Raises
    ------
    InstanceError, SolverError
        As `planner.search.driver.search`.
    """
    return load_search(problem.target)(problem, on_progress, seeds, proven_s, beyond_s, floors)


def search_all(
    problem: Problem,
    on_progress: Callable[[Progress], None] | None = None,
    prepare: Callable[[Problem], Problem] = lambda asked: asked,
) -> dict[TargetName, Result]:
    """The best plan for each launcher; a wider one begins with the plans of the narrower.

    The time that is left is shared evenly between those that are still to come; where a share was too short
    for a plan, the next has twice as much of it. The result of a launcher that is refused has no plan, and
    the reason.

    Parameters
    ----------
    prepare
        What is searched of the problem as a launcher has it; may refuse it by an `InstanceError`.

    Raises
    ------
    InstanceError
        Where every launcher is refused.
    """
    clock, short_s = Clock(problem.options.time_limit_s), 0.0
    results: dict[TargetName, Result] = {}
    refused: dict[TargetName, InstanceError] = {}
    for number, target in enumerate(PLANNED_TARGETS):
        left_s = clock.left_s
        share_s = None
        if left_s is not None:
            share_s = max(left_s / (len(PLANNED_TARGETS) - number), min(2 * short_s, left_s), LEAST_SHARE_S)
        options = problem.options.model_copy(update={"time_limit_s": share_s})
        asked = problem.model_copy(update={"target": target, "options": options})
        searched = {name: result for name, result in results.items() if name not in refused}
        seeds = [result.plan for result in searched.values() if result.plan is not None]
        try:
            results[target] = search_target(prepare(asked), on_progress, seeds, _proven_s(searched))
        except InstanceError as cannot:
            refused[target] = cannot
            reason = str(cannot).removeprefix(f"{cannot.where}: ")
            results[target] = Result.without_plan(
                problem.name, "infeasible", reason, problem.options.solver, planner.__version__
            )
        if results[target].stopped:
            break
        short_s = (share_s or 0.0) if results[target].termination == "no_solution_found" else 0.0
    if len(refused) == len(results):
        raise refused.get("megatron-lm", next(iter(refused.values())))
    return results


def _proven_s(results: Mapping[TargetName, Result]) -> dict[TargetName, float]:
    """What no plan of the launchers that were searched is faster than [s]."""
    return {
        name: np.inf if result.termination == "infeasible" else result.bound_s or 0.0
        for name, result in results.items()
    }
