"""Pipelines told apart by what their rows are asked with: sum, what follows, slowest stage, excess."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints
from planner.tolerances import BOUND_TOL

SUM, FOLLOW, SLOWEST, EXCESS = range(4)
"""Measures of a pipeline [ms]: time of all stages, longest of what follows, time of its slowest stage, and by
how much a reduction exceeds at most what lies before its stage (`planner.search.meshes.holding`)."""


@dataclass(frozen=True)
class Brackets:
    """Edges between which all measures of the pipelines of a row lie, [measure, least or most, row]."""

    edges: Floats

    @staticmethod
    def of_sums(low: Floats, high: Floats) -> Brackets:
        """Rows that only sums tell apart."""
        none, any_ms = np.zeros(len(low)), np.full(len(low), np.inf)
        return Brackets(np.stack([[low, high], *[[none, any_ms]] * 3]))

    def __len__(self) -> int:
        return int(self.edges.shape[2])

    def least(self, measure: int) -> Floats:
        """Lower edges, lowered by what rounding may take."""
        return np.asarray(self.edges[measure, 0] * (1 - BOUND_TOL))

    def most(self, measure: int) -> Floats:
        """Upper edges, raised by it."""
        return np.asarray(self.edges[measure, 1] * (1 + BOUND_TOL))

    def some(self, rows: NDArray[np.bool_] | Ints) -> Brackets:
        """Some of the rows."""
        return Brackets(self.edges[:, :, rows])

    def cut(self, measure: Ints, at: Floats) -> Brackets:
        """Each row in two, below and above a value of a measure, [row] both."""
        rows = np.arange(len(self))
        at = np.clip(at, *self.edges[measure, :, rows].T)
        below, above = self.edges.copy(), self.edges.copy()
        below[measure, 1, rows] = above[measure, 0, rows] = at
        return Brackets(np.stack([below, above], axis=3).reshape(*self.edges.shape[:2], -1))
