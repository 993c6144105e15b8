"""Both forms of `stage_selection` behind one call."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from formulations import stage_selection, stage_selection_cp
from formulations.options import SolveOptions, SolverName
from formulations.stage_selection_data import StageSelectionData, StageSelectionResult

SOLVERS: tuple[SolverName, ...] = ("highs", "scip", "cbc", "cp_sat")


def form_of(solver: SolverName) -> ModuleType:
    """The module that a solver runs."""
    return stage_selection_cp if solver == "cp_sat" else stage_selection


def solve(
    data: StageSelectionData, solver: SolverName, options: SolveOptions | None = None, **more: Any
) -> StageSelectionResult:
    """Run the integer twin for CP-SAT, the linear form for all others."""
    result: StageSelectionResult = form_of(solver).solve(
        data, replace(options or SolveOptions(), solver=solver), **more
    )
    return result


def optimum(data: StageSelectionData, solver: SolverName = "highs", **more: Any) -> float:
    """The optimal objective [ms]; inf where no choice fits."""
    result = solve(data, solver, **more)
    if result.status == "infeasible":
        return float("inf")
    assert result.status == "optimal" and result.objective_ms is not None
    return result.objective_ms
