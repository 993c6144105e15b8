"""Solve the relaxation of `virtual_classes` again and again, with the longest paths at the times it finds.

The rows (wait) leave a stage between its two ends out of account: a relaxation deals its layers to chunks so
that no stage waits at either end, which costs far more in between. A path that is longest at such times cuts
them off; so does one that is longest half way to even chunks, and far more of what lies around. Rows know no
times, so that those found for one part of the space hold for all with as many stages, micro-batches and
chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pulp

from formulations import solvers
from formulations.bounded_loop import BoundedLoop
from formulations.interleaved_constraints import Passes
from formulations.interleaved_paths import Floats, PathRow, longest_paths, row_value
from formulations.options import SolveOptions
from formulations.stage_selection_data import ROW_TOL

MAX_PIECES = 2_000
"""Forwards and backwards of a stage beyond which no path is looked for: its ends count little. A guess."""
WAYS_TO_EVEN = (0.0, 0.5, 1.0)
"""Where paths are looked for: at the times found, half way to even chunks, and there. A guess."""
NEAR = 0.01
"""Part of the end by which a row may miss it and still be handed on. A guess."""
LEAST_GAIN = 2e-4
"""Part of the bound that a round must add, or it is the last. A guess."""


class ClassPathSearch(BoundedLoop):
    """The loop that solves the relaxation, looks for longest paths, and adds those that are violated."""

    def __init__(
        self,
        model: pulp.LpProblem,
        passes: Passes,
        add_row: Callable[[PathRow, int], None],
        options: SolveOptions,
    ) -> None:
        super().__init__(options, None)
        self.model, self.passes, self.add_row = model, passes, add_row
        self.known: dict[PathRow, None] = {}
        self.near: list[PathRow] = []
        """Rows that the last solution keeps, or nearly."""

    def add(self, rows: Sequence[PathRow]) -> bool:
        """Add the rows that are new; whether there were any."""
        fresh = [row for row in dict.fromkeys(rows) if row not in self.known]
        for row in fresh:
            self.add_row(row, len(self.known))
            self.known[row] = None
        return bool(fresh)

    def run(self, rounds: int) -> solvers.Solution:
        """The last solution, when nothing is violated any more, or after so many rounds of rows."""
        if self.passes.num_microbatches * 2 * self.passes.shape[1] > MAX_PIECES:
            rounds = 0
        for left in range(rounds, -1, -1):
            before = self.bound
            solution = self.solve(self.model)
            if solution.status != "optimal":
                return solution
            self.raise_bound(solution)
            times = self._times(solution)
            end = solution.values["T"] - self._after(solution)
            self.near = [row for row in self.known if row_value(row, *times) >= end * (1 - NEAR)]
            gained = before is None or self.bound is None or self.bound - before > LEAST_GAIN * self.bound
            if left == 0 or not gained or not self.add(self._violated(times, end)):
                break
        return solution

    def run_whole(self, rounds: int) -> solvers.Solution:
        """The last solution in whole numbers, after so many rounds of the paths that solutions break.

        Bounds of all rounds hold, as each only adds rows; one that leaves no solution closes the program.
        """
        for left in range(rounds, -1, -1):
            solution = self.solve(self.model)
            self.raise_bound(solution)
            if solution.status not in ("optimal", "feasible"):
                break
            times, end = self._times(solution), solution.values["T"] - self._after(solution)
            self.near = [row for row in self.known if row_value(row, *times) >= end * (1 - NEAR)]
            if solution.status == "feasible" or left == 0 or not self.add(self._violated(times, end)):
                break
        return solution

    def _times(self, solution: solvers.Solution) -> tuple[Floats, Floats, Floats]:
        """Forward and backward of every chunk, sends."""
        forward, backward = (
            np.array([[max(solution.values[v.name], 0.0) for v in row] for row in grid])
            for grid in (self.passes.forward, self.passes.backward)
        )
        sends = [
            solution.values[one.name] if isinstance(one, pulp.LpVariable) else one
            for one in self.passes.sends
        ]
        return forward, backward, np.array(sends)

    def _after(self, solution: solvers.Solution) -> float:
        """What stage 0 still does when its last backward has ended."""
        after = self.passes.after
        return float(after.constant + sum(solution.values[v.name] * factor for v, factor in after.items()))

    def _violated(self, times: tuple[Floats, Floats, Floats], end: float) -> list[PathRow]:
        """Longest paths at the times and on the way to even chunks, which the program does not keep."""
        forward, backward, send = times
        found = []
        for way in WAYS_TO_EVEN:
            dealt = [(1 - way) * one + way * one.mean(axis=1, keepdims=True) for one in (forward, backward)]
            found += longest_paths(dealt[0], dealt[1], send, self.passes.num_microbatches, [0])
        return [row for row in found if row_value(row, *times) > end * (1 + ROW_TOL)]
