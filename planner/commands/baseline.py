"""`hetplan plan --baseline`: the search begins with the plan of today, and says what its answer gains."""

from __future__ import annotations

from pathlib import Path

from planner import api
from planner.batch.compare import Comparison, Side, compare, with_batch_cut_anew
from planner.data import load
from planner.data.problem import Problem
from planner.data.result import Result


def read(path: Path | None, problem: Problem) -> Side | None:
    """The baseline as the referee sees it on this problem, its batch cut anew; None where none is given.

    Raises
    ------
    InstanceError
        Where the file is wrong, or the plan names what the problem does not have.
    """
    if path is None:
        return None
    plan = with_batch_cut_anew(load.load_plan(path), problem)
    return Side(f"the baseline, {path}", problem, plan, api.predict(problem, plan))


def against(baseline: Side | None, problem: Problem, result: Result) -> Comparison | None:
    """What the answer changes in the baseline; None where either is missing."""
    if baseline is None or result.plan is None or result.evaluation is None:
        return None
    return compare(baseline, Side("the plan above", problem, result.plan, result.evaluation))
