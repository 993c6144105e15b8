"""What the loops share that solve a program again and again: time left, bound so far, cutoff."""

from __future__ import annotations

import time
from dataclasses import replace

import pulp

from formulations import solvers
from formulations.model_proto import WrittenRows
from formulations.options import SolveOptions


class BoundedLoop:
    """A program solved in rounds, each with the time that is left, until its bound reaches a cutoff."""

    def __init__(self, options: SolveOptions, cutoff_ms: float | None) -> None:
        self.options, self.cutoff_ms = options, cutoff_ms
        limit_s = options.time_limit_s
        self.deadline = None if limit_s is None else time.monotonic() + limit_s
        self.bound: float | None = None
        """Best bound of all rounds, in the unit of the objective."""
        self._written = WrittenRows()
        self.work = 0
        """Of all rounds (`Solution.work`)."""

    def solve(self, model: pulp.LpProblem) -> solvers.Solution:
        """Solve the program of a round in the time that is left."""
        solution = solvers.solve(model, self.options_left(), self._written)
        self.work += solution.work
        return solution

    def options_left(self) -> SolveOptions:
        """The options with the time that is left."""
        if self.deadline is None:
            return self.options
        return replace(
            self.options, time_limit_s=max(self.deadline - time.monotonic(), solvers.LEAST_LIMIT_S)
        )

    def closed(self) -> bool:
        """Whether the bound has reached the cutoff."""
        return self.cutoff_ms is not None and self.bound is not None and self.bound >= self.cutoff_ms

    def raise_bound(self, solution: solvers.Solution) -> None:
        """Take a round's bound where it is better."""
        if solution.bound is not None:
            self.bound = solution.bound if self.bound is None else max(self.bound, solution.bound)
