"""Ways from what lies behind a stage to what lies behind the one before it: few of all that there could be.

What lies behind is a *point*: a row and a number of ticks. Most choices keep their limits at few points, and
most points are never reached, so that ways are listed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Ways:
    """The ways of one place, arrays [way], sorted by the point that they lead to."""

    choice: Ints
    row: Ints
    behind: Ints
    """Ticks behind the stage."""
    ahead: Ints
    """Ticks behind the stage before it."""
    width: int
    """Ticks that are told apart, so that point `row * width + ticks` is one of an array."""

    @staticmethod
    def sort(choice: Ints, row: Ints, behind: Ints, ahead: Ints, width: int) -> Ways:
        """Ways in any order."""
        # Numbers that hold all of a way, each one once, so that any sort puts them into the same order.
        num_choices = int(choice.max(initial=0)) + 1
        ways = np.sort(((row * width + ahead) * num_choices + choice) * width + behind)
        ways, behind = np.divmod(ways, width)
        ways, choice = np.divmod(ways, num_choices)
        row, ahead = np.divmod(ways, width)
        return Ways(choice, row, behind, ahead, width)

    @cached_property
    def start(self) -> Ints:
        """Points that the ways start from."""
        return self.row * self.width + self.behind

    @cached_property
    def end(self) -> Ints:
        """Points that they lead to, ascending."""
        return self.row * self.width + self.ahead

    @cached_property
    def _groups(self) -> tuple[Ints, Ints]:
        """First way to each point, and these points."""
        first = np.flatnonzero(np.diff(self.end, prepend=-1))
        return first, self.end[first]

    def some(self, kept: Bools) -> Ways:
        """Some of them."""
        return Ways(self.choice[kept], self.row[kept], self.behind[kept], self.ahead[kept], self.width)

    def of_rows(self, kept: Bools) -> Ways:
        """Those of some rows, which are numbered anew."""
        mine = self.some(kept[self.row])
        row = (np.cumsum(kept) - 1)[mine.row]
        return Ways(mine.choice, row, mine.behind, mine.ahead, self.width)

    def best(self, value: Floats, worth: Floats) -> Floats:
        """Most at each point, of what its ways start with and what their choices add, arrays [row, ...]."""
        ahead = np.full(value.shape, -np.inf)
        if len(self.choice):
            first, points = self._groups
            found = value.ravel()[self.start] + worth[self.choice, self.row]
            ahead.ravel()[points] = np.maximum.reduceat(found, first)
        return ahead

    def into(self, row: int, ahead: int) -> slice:
        """The ways to a point."""
        point = row * self.width + ahead
        first, last = np.searchsorted(self.end, [point, point + 1])
        return slice(int(first), int(last))
