"""Raise concave functions by cutting planes, each in a box around the best point so far.

Every value with its subgradient is a plane above the whole function. The highest point of all planes within
the box is where to look next. Where that turns out nearly as high as the planes said the box grows, where it
turns out far lower the box shrinks, and in between more planes are all that is needed.

Sets       i in I                    coordinates
           j in J                    points looked at
           p in P                    sets of coordinates that share one whole
Data       y[j]     value            value of the function at j
           g[j,i]   slope            a subgradient there
           x0[j,i]  point            the point
           l[i], h[i]                the box, within what the coordinate may be
Variables  x[i]     in [l[i], h[i]]  where to look next
           t                         how high the function may be there
Model      min  -t
           s.t. t - sum_i g[j,i] x[i] <= y[j] - sum_i g[j,i] x0[j,i]      for all j        (plane)
                sum_{i in p} x[i] <= 1                                    for all p        (whole)
Size       |I| + 1 variables, |J| + |P| rows.
Exact      once its optimum within a box is no higher than the best point: that is the top then, as the
           function is concave. Before that every value is what it is, as a Lagrangian bound needs it.
Leaves out what lies outside the box, until the box moves.
Source     R. E. Marsten, W. W. Hogan, J. W. Blankenship, "The boxstep method for large-scale optimization",
           Operations Research 23(3), 1975.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from formulations.solvers import GrowingProgram

Floats = NDArray[np.float64]

FIRST_RADIUS, LEAST_RADIUS, MOST_RADIUS = 0.15, 1e-3, 2.0
"""Half the width of the box in units of each coordinate: at first, at least and at most."""
GROWS, WAITS, SHRINKS = 2.0, 0.9, 0.6
"""What it is multiplied by where a point is about as high as promised, no better, and far lower."""
ABOUT = 0.3
"""Share of what was promised from which the box grows. All of these
are guesses: they say how soon the top is reached, never what is proven."""


class BoxPlanes:
    """One concave function of coordinates between 0 and `most`, the first of them free, and its planes."""

    def __init__(self, unit: Floats, most: Floats, wholes: tuple[tuple[int, ...], ...]) -> None:
        """`unit` are sizes of the coordinates by which the box is measured."""
        self._unit, self._most, self._top = unit, most, len(unit)
        self.program = GrowingProgram([0.0] * len(unit) + [-1.0])
        add_whole(self.program, wholes)
        self._radius = FIRST_RADIUS
        self.best, self.best_at = -np.inf, np.zeros(len(unit))
        self._limit = np.inf

    @property
    def rise(self) -> float:
        """How much higher than the best point the function may be in a box as wide as the first.

        A concave function rises no faster beyond a narrower box than within it.
        """
        return (self._limit - self.best) / min(self._radius / FIRST_RADIUS, 1.0)

    def next_point(self, point: Floats, value: float, slope: Floats) -> Floats:
        """Learn the value and a subgradient at a point, and choose the next."""
        self._resize(value)
        if value > self.best:
            self.best, self.best_at = value, point
        add_plane(self.program, point, value, slope)
        reach = self._radius * self._unit
        low = self.best_at - reach
        low[1:] = np.maximum(low[1:], 0.0)
        high = np.maximum(np.minimum(self.best_at + reach, self._most), low)
        for i, (lower, upper) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            self.program.set_bounds(i, lower, upper)
        values = self.program.solve()
        if values is None:
            return self.best_at
        self._limit = values[self._top]
        found: Floats = np.clip(values[: self._top], low, high)
        return found

    def _resize(self, value: float) -> None:
        """Let the box follow how the last point turned out."""
        promised, gained = self._limit - self.best, value - self.best
        if not np.isfinite(promised):
            return
        if gained > 0:
            grown = self._radius * (GROWS if gained > ABOUT * promised else 1.0)
            self._radius = min(grown, MOST_RADIUS)
        else:
            shrunk = self._radius * (SHRINKS if gained < -promised else WAITS)
            self._radius = max(shrunk, LEAST_RADIUS)


def add_plane(program: GrowingProgram, point: Floats, value: float, slope: Floats) -> None:
    """The function, the last variable, lies below the plane of every point that was looked at."""
    row = dict(enumerate((-slope).tolist())) | {len(slope): 1.0}
    program.add_row("plane", row, value - float(slope @ point))


def add_whole(program: GrowingProgram, wholes: Sequence[Sequence[int]]) -> None:
    """Coordinates that share one whole are no more than 1 together."""
    for number, whole in enumerate(wholes):
        program.add_row(f"whole_{number}", dict.fromkeys(whole, 1.0), 1.0)
