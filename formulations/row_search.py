"""Solve a program whose rows are too many to write down: add the violated ones, and solve again.

Shared by the linear forms of formulations with rows of `pipeline_rows`. Rows are first added to the
linear relaxation, which is cheap, then to the integer program. Stops at the gap, at a cutoff that the
bound has reached, or when its time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pulp

from formulations import solvers
from formulations.bounded_loop import BoundedLoop
from formulations.options import SolveOptions, Status
from formulations.pipeline_rows import Floats
from formulations.stage_selection_data import (
    ROW_TOL,
    PipelineRow,
    StageChoice,
    StageSelectionData,
    StageSelectionResult,
    objective_ms,
    reductions_ms,
    times_ms,
    violated_rows,
)
from formulations.written_rows import RowName

MAX_ROUNDS = 60
"""Rounds of added rows after which the bound at hand is taken: more only tighten it."""


@dataclass(frozen=True)
class RowProgram:
    """What the loop must know of a formulation: its variables by stage, how to add a row, how to read."""

    forward: Sequence[pulp.LpVariable]
    backward: Sequence[pulp.LpVariable]
    reduction: Sequence[pulp.LpVariable]
    add_row: Callable[[RowName, int], None]
    extract: Callable[[solvers.Solution], StageChoice]


def first_rows(data: StageSelectionData) -> list[PipelineRow]:
    """Work of every stage and one round trip: enough to make the program bounded and sane."""
    stages = range(data.num_stages)
    family = "partial" if data.num_microbatches >= data.num_stages + 1 else "window"
    return [(RowName(family, s, s), 0) for s in stages] + [(RowName("work", s, s), 0) for s in stages]


@contextmanager
def relaxed(model: pulp.LpProblem) -> Iterator[None]:
    """Drop integrality for a while."""
    whole = [variable for variable in model.variables() if variable.cat == pulp.LpInteger]
    for variable in whole:
        variable.cat = pulp.LpContinuous
    try:
        yield
    finally:
        for variable in whole:
            variable.cat = pulp.LpInteger


class RowSearch(BoundedLoop):
    """The loop that solves, looks for violated rows, and adds them."""

    def __init__(
        self,
        data: StageSelectionData,
        model: pulp.LpProblem,
        program: RowProgram,
        options: SolveOptions,
        cutoff_ms: float | None,
    ) -> None:
        super().__init__(options, cutoff_ms)
        self.data, self.model, self.program = data, model, program
        self.known: dict[PipelineRow, None] = {}
        self.best: tuple[StageChoice, float] | None = None

    def add(self, rows: Sequence[PipelineRow]) -> bool:
        """Add the rows that are new; whether there were any."""
        fresh = [row for row in dict.fromkeys(rows) if row not in self.known]
        for name, end_stage in fresh:
            self.known[name, end_stage] = None
            self.program.add_row(name, end_stage)
        return bool(fresh)

    def result(self, status: Status) -> StageSelectionResult:
        """What has been found so far, with the bound that holds."""
        choice, value = self.best if self.best is not None else (None, None)
        bound = self.bound
        if bound is not None and value is not None:
            bound = min(bound, value)  # above it by the solver's tolerance only
        return StageSelectionResult(status, choice, value, bound, tuple(self.known))

    def run_relaxed(self) -> StageSelectionResult | None:
        """Add rows to the relaxation; a result only where that already decides the choice."""
        for _ in range(MAX_ROUNDS):
            solution = self.solve(self.model)
            if solution.status == "infeasible":
                return self.result("infeasible")
            if solution.status != "optimal":
                return None
            self.raise_bound(solution)
            if self.closed():
                return self.result("unknown")
            forward = _values(solution, self.program.forward)
            backward = _values(solution, self.program.backward)
            after = _values(solution, self.program.reduction) + self.data.reduce_tail_ms
            if not self.add(violated_rows(self.data, forward, backward, after, solution.values["T"])):
                return None
        return None

    def run(self) -> StageSelectionResult:
        """Solve the integer program, adding rows until the best choice is within the gap."""
        gap = max(self.options.gap, ROW_TOL)
        for _ in range(MAX_ROUNDS):
            solution = self.solve(self.model)
            self.raise_bound(solution)
            if solution.status in ("infeasible", "unknown"):
                return self.result("feasible" if self.best is not None else solution.status)
            choice = self.program.extract(solution)
            value = objective_ms(self.data, choice)
            if self.best is None or value < self.best[1]:
                self.best = (choice, value)
            if solution.status == "feasible" or self.closed():
                return self.result("feasible")
            if self.bound is not None and self.best[1] - self.bound <= gap * self.best[1]:
                return self.result("optimal")
            forward, backward = times_ms(self.data, choice)
            after = reductions_ms(self.data, choice) + self.data.reduce_tail_ms
            if not self.add(violated_rows(self.data, forward, backward, after, solution.values["T"])):
                return self.result("optimal")
        return self.result("feasible")


def _values(solution: solvers.Solution, variables: Sequence[pulp.LpVariable]) -> Floats:
    return np.array([solution.values[variable.name] for variable in variables])
