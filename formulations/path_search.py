"""Solve a program whose rows are the paths through an interleaved schedule: add the longest, and solve again.

Stops at the gap, at a cutoff that the bound has reached, or when its time or its nodes are up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from formulations import solvers
from formulations.bounded_loop import BoundedLoop
from formulations.interleaved_paths import PathRow, longest_paths, row_value, stage_ends
from formulations.options import SolveOptions, Status
from formulations.stage_selection_data import ROW_TOL
from formulations.virtual_selection_data import VirtualSelectionData

MAX_ROUNDS = 40
"""Rounds of added rows after which the bound at hand is taken: more only tighten it."""

MAX_RELAXED_ROUNDS = 12
"""The same of the relaxation."""

Layers = tuple[tuple[int, ...], ...]
"""Layers of every chunk, [stage][chunk]."""


@dataclass(frozen=True)
class VirtualSelectionResult:
    """Choice and bound [ms]; `layers` None where there is none (or none found in time)."""

    status: Status
    layers: Layers | None
    bound_ms: float | None
    rows: tuple[PathRow, ...]
    work: int = 0
    """Of all programs solved for it (`Solution.work`)."""


@dataclass(frozen=True)
class PathProgram:
    """What the loop must know of a formulation: its variables, how to add a row, how to read."""

    forward: Sequence[Sequence[pulp.LpVariable]]
    backward: Sequence[Sequence[pulp.LpVariable]]
    reduction: Sequence[pulp.LpVariable]
    add_row: Callable[[PathRow, int], None]
    extract: Callable[[solvers.Solution], Layers]


class PathSearch(BoundedLoop):
    """The loop that solves, looks for the longest path at the times found, and adds it if it is violated."""

    def __init__(
        self,
        data: VirtualSelectionData,
        model: pulp.LpProblem,
        program: PathProgram,
        options: SolveOptions,
        cutoff_ms: float | None,
    ) -> None:
        super().__init__(options, cutoff_ms)
        self.data, self.model, self.program = data, model, program
        self.known: dict[PathRow, None] = {}

    def add(self, rows: Sequence[PathRow]) -> bool:
        """Add the rows that are new; whether there were any."""
        fresh = [row for row in dict.fromkeys(rows) if row not in self.known]
        for row in fresh:
            self.program.add_row(row, len(self.known))
            self.known[row] = None
        return bool(fresh)

    def result(self, status: Status, layers: Layers | None) -> VirtualSelectionResult:
        """An answer with the bound that holds."""
        bound = self.bound
        if bound is not None and self.cutoff_ms is not None:
            bound = min(bound, self.cutoff_ms)  # the cuts (capacity) and (cutoff) leave nothing above it
        return VirtualSelectionResult(status, layers, bound, tuple(self.known), self.work)

    def run_relaxed(self) -> VirtualSelectionResult | None:
        """Bound the relaxation; a result only where that already decides the choice.

        The rows (wait) hold most of it; the first longest paths add two or three hundredths, and much more
        where sends are slow. They are not added to the end, which single orders of unlike classes are far
        from: 8 stages of four classes with 4 chunks each stood 4.4% below their best plan after 12 rounds,
        3.9% after 60 and 3.4% after 200, which took eighteen times as long; whole chunks close 2% of it.
        """
        for _ in range(MAX_RELAXED_ROUNDS):
            solution = self.solve(self.model)
            if solution.status == "infeasible":
                return self.result("infeasible", None)
            if solution.status != "optimal":
                return None
            self.raise_bound(solution)
            if self.closed():
                return self.result("unknown", None)
            if not self.add(self._violated(solution)):
                break
        return None

    def run(self) -> VirtualSelectionResult:
        """Solve the integer program, adding rows until its answer breaks none."""
        layers = None
        for _ in range(MAX_ROUNDS):
            solution = self.solve(self.model)
            self.raise_bound(solution)
            if solution.status in ("infeasible", "unknown"):
                status: Status = solution.status if layers is None else "feasible"
                if solution.status == "infeasible" and self.cutoff_ms is not None:
                    self.bound = self.cutoff_ms  # rows hold for all solutions: only those above it are left
                return self.result(status, layers)
            layers = self.program.extract(solution)
            if solution.status == "feasible" or self.closed():
                return self.result("feasible", layers)
            if not self.add(self._violated(solution)):
                return self.result("optimal", layers)
        return self.result("feasible", layers)

    def _violated(self, solution: solvers.Solution) -> list[PathRow]:
        """The longest path to the stage that ends last, where it ends later than the program says."""
        forward, backward = (
            np.array([[solution.values[v.name] for v in row] for row in grid])
            for grid in (self.program.forward, self.program.backward)
        )
        reduction = np.array([solution.values[v.name] for v in self.program.reduction])
        after = reduction + self.data.stage.reduce_tail_ms
        m, send, end_ms = self.data.stage.num_microbatches, self.data.send_ms, solution.values["T"]
        ends = stage_ends(forward[None], backward[None], send[None], m)[0]
        stage = int(np.argmax(ends + after))
        row = longest_paths(forward, backward, send, m, [stage])[0]
        late = row_value(row, forward, backward, send) + float(after[stage]) > end_ms * (1 + ROW_TOL)
        return [row] if late else []
