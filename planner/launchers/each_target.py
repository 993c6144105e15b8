"""The best plan for each launcher in turn; one that cannot build the network says so, and others go on."""

from __future__ import annotations

from collections.abc import Callable

from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.launchers.expressible import buildable, check_expressible
from planner.search.progress import Progress
from planner.search.targets import search_all


def search_each(
    problem: Problem, on_progress: Callable[[Progress], None] | None = None
) -> dict[TargetName, Result]:
    """As `planner.search.targets.search_all`, of the launchers that can run the network and the software.

    Raises
    ------
    InstanceError
        Where none can.
    """
    return search_all(problem, on_progress, _expressible)


def _expressible(asked: Problem) -> Problem:
    """The problem as its launcher can build it, or its refusal."""
    found = buildable(asked)
    check_expressible(found)
    return found
