"""Ways from what lies behind a stage to what lies behind the one before it: few of all that there could be.

What lies behind is a *point*: a row and a number of ticks. Each choice keeps its limits on a span of points
of every row (`planner.search.meshes.spans`), and many points are never reached, so that ways are listed one
by one, those of each row by themselves: a row that is closed takes its ways with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints

Bools = NDArray[np.bool_]
Few = NDArray[np.integer]
"""Numbers that take as few bytes as their size allows."""


@dataclass(frozen=True)
class RowWays:
    """The ways of one place and row, arrays [way], sorted by the point that they lead to."""

    choice: Few
    behind: Few
    """Ticks behind the stage."""
    first: Ints
    """[point] first way to it"""
    points: Ints
    """[point] ticks behind the stage before it, ascending; a point that no way leads to is not among them."""

    @staticmethod
    def sort(ways: Sequence[Few], useful: Bools) -> RowWays:
        """Those of the ways that lead to a useful point, [point]: their choices, points behind and ahead."""
        kept = useful[ways[2]]
        choice, behind, ahead = (values[kept] for values in ways)
        # A stable sort of few bytes counts instead of comparing.
        order = np.argsort(ahead, kind="stable")
        choice, behind, ahead = choice[order], behind[order], ahead[order]
        first = np.flatnonzero(np.concatenate([[True], ahead[1:] != ahead[:-1]])[: len(ahead)])
        return RowWays(choice, behind, first, ahead[first].astype(np.int64))

    def best(self, value: Floats, worth: Floats, ahead: Floats) -> None:
        """Write the most at each point, of where ways start and what choices add, [choice], to `ahead`."""
        if len(self.first):
            found = value.take(self.behind)
            found += worth.take(self.choice)
            ahead[self.points] = np.maximum.reduceat(found, self.first)

    def ahead(self, value: Floats) -> Floats:
        """Values, [point], at the point that each way leads to."""
        counts = np.diff(np.append(self.first, len(self.choice)))
        return np.asarray(np.repeat(value[self.points], counts))

    def some(self, kept: Bools) -> RowWays:
        """Those of the ways that are kept, [way]."""
        counts = np.add.reduceat(kept, self.first, dtype=np.int64) if len(self.first) else self.first
        reached = counts > 0
        first = (np.cumsum(counts) - counts)[reached]
        return RowWays(self.choice[kept], self.behind[kept], first, self.points[reached])

    def into(self, ahead: int) -> slice:
        """The ways to a point that some way leads to."""
        number = int(np.searchsorted(self.points, ahead))
        last = self.first[number + 1] if number + 1 < len(self.first) else len(self.choice)
        return slice(int(self.first[number]), int(last))


def list_ways(spans: tuple[Ints, Ints], reached: Bools) -> tuple[Few, Few]:
    """Choices and points of all ways that begin at a point that is reached.

    Parameters
    ----------
    spans
        [choice] first and last point of each choice; none where the first is the larger one.
    reached
        [point]
    """
    low, high = spans
    at = np.flatnonzero(reached)
    # Only points that are reached are counted, so that none has to be left out behind.
    before = np.concatenate([[0], np.cumsum(reached)])
    begin = before[np.clip(low, 0, len(reached))]
    count = np.maximum(before[np.clip(high + 1, 0, len(reached))] - begin, 0)
    choice = np.repeat(np.arange(len(low)), count)
    number = np.arange(len(choice)) - np.repeat(np.cumsum(count) - count - begin, count)
    return choice.astype(few(len(low))), at.astype(few(len(reached)))[number]


def few(count: int) -> type[np.unsignedinteger]:
    """The type of least size that holds numbers below `count`."""
    return np.uint16 if count <= np.iinfo(np.uint16).max else np.uint32


def most_covering(worth: Floats, low: Ints, high: Ints, points: int) -> Floats:
    """Largest worth of the spans that hold each point, [row, point]; all are [choice, row].

    -inf where none does. Two spans of 1, 2, 4 .. points in a row cover any; each becomes its halves.
    """
    choice, row = np.nonzero(low <= high)
    first, last, worth = low[choice, row], high[choice, row], worth[choice, row]
    level = np.log2(np.maximum(last - first + 1, 1)).astype(np.int64)
    table = np.full((low.shape[1], points), -np.inf)
    for longer in range(int(level.max(initial=0)), -1, -1):
        at = np.flatnonzero(level == longer)
        np.maximum.at(table, (row[at], first[at]), worth[at])
        np.maximum.at(table, (row[at], last[at] - 2**longer + 1), worth[at])
        if longer:
            half = 2 ** (longer - 1)
            later = table[:, half:]
            np.maximum(later, table[:, : points - half], out=later)
    return table


def most_within(value: Floats, low: Ints, high: Ints) -> Floats:
    """Largest value of each span, [choice, row]; `value` is [row, point], spans [choice, row].

    -inf where a span is empty. Of largest values of 1, 2, 4 .. points in a row two cover any span; each such
    table is read before it makes way for the next one.
    """
    choice, row = np.nonzero(low <= high)
    begin = np.clip(low[choice, row], 0, value.shape[1] - 1)
    end = np.clip(high[choice, row] + 1, begin + 1, value.shape[1])
    level = np.log2(end - begin).astype(np.int64)
    most, table = np.empty(len(choice)), value
    for longer in range(int(level.max(initial=0)) + 1):
        at = np.flatnonzero(level == longer)
        both = table[row[at], begin[at]], table[row[at], end[at] - 2**longer]
        most[at] = np.maximum(*both)
        if longer < level.max(initial=0):
            table = np.maximum(table[:, : -(2**longer)], table[:, 2**longer :])
    found = np.full(low.shape, -np.inf)
    found[choice, row] = most
    return found


def within(low: Ints, high: Ints, points: int) -> Bools:
    """Points within any of the spans, [row, point]; spans are [choice, row]."""
    choice, row = np.nonzero(low <= high)
    edges = np.zeros((low.shape[1], points + 1), dtype=np.int64)
    np.add.at(edges, (row, low[choice, row]), 1)
    np.add.at(edges, (row, high[choice, row] + 1), -1)
    return np.asarray(np.cumsum(edges, axis=1)[:, :-1] > 0)
