"""Pipelines told apart by what their rows are asked with: sum, what follows, slowest stage, excess."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints
from planner.tolerances import BOUND_TOL

SUM, FOLLOW, SLOWEST, EXCESS, PACE = range(5)
"""Measures of a pipeline [ms]: time of all stages, longest of what follows, time of its slowest stage, by
how much a reduction exceeds at most what lies before its stage, and the longest of the longer passes of
stages that are no faster than the lower edge of the slowest (`planner.search.meshes.holding`)."""


@dataclass(frozen=True)
class Brackets:
    """Edges between which all measures of the pipelines of a row lie, [measure, least or most, row]."""

    edges: Floats

    @staticmethod
    def of_sums(low: Floats, high: Floats) -> Brackets:
        """Rows that only sums tell apart."""
        none, any_ms = np.zeros(len(low)), np.full(len(low), np.inf)
        return Brackets(np.stack([[low, high], *[[none, any_ms]] * 4]))

    def __len__(self) -> int:
        return int(self.edges.shape[2])

    def least(self, measure: int) -> Floats:
        """Lower edges, lowered by what rounding may take."""
        return np.asarray(self.edges[measure, 0] * (1 - BOUND_TOL))

    def most(self, measure: int) -> Floats:
        """Upper edges, raised by it."""
        return np.asarray(self.edges[measure, 1] * (1 + BOUND_TOL))

    def knows_slow(self) -> NDArray[np.bool_]:
        """[row] whether anything is known of the slowest stage."""
        return np.asarray((self.least(SLOWEST) > 0) | (self.least(PACE) > 0))

    def some(self, rows: NDArray[np.bool_] | Ints) -> Brackets:
        """Some of the rows."""
        return Brackets(self.edges[:, :, rows])

    def cut(self, measure: Ints, at: Floats) -> Brackets:
        """Each row in two, below and above a value of a measure, [row] both.

        Where slower stages are asked for, which of them has a pass as long as known before is not known.
        """
        rows = np.arange(len(self))
        at = np.clip(at, *self.edges[measure, :, rows].T)
        below, above = self.edges.copy(), self.edges.copy()
        below[measure, 1, rows] = above[measure, 0, rows] = at
        above[PACE, 0] = np.where(measure == SLOWEST, 0.0, above[PACE, 0])
        return Brackets(np.stack([below, above], axis=3).reshape(*self.edges.shape[:2], -1))
