"""What one search has proven of its parts, for searches of problems in which nothing is better.

A part is a row of degrees with a number of stages, and perhaps of virtual stages. What no plan of it
undercuts in one problem none undercuts in another where each of its pieces takes as long or longer, needs as
much memory or more, and no more of it may be had: of chips, nodes and memory. A longer piece of work ends
none earlier: the order of work is fixed, and of a longer backward (forward) no more than all hides the
reduction (gathering) that goes on meanwhile. That nothing is better is read off the prices themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Degrees, Floats, Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.tolerances import ROUNDING_TOL

ANY_VIRTUAL = 0
"""In the place of a number of virtual stages: all from two on."""

_NO_MATTER = {
    "problem": {"name", "cluster", "options"},
    "options": {"time_limit_s", "gap", "virtual_gap", "top", "workers", "solver", "seed"},
}
"""What may differ between two problems without a look at what it changes."""
_OF_ALL = ("kinds", "assumptions", "error_band", "limit_bytes")
"""Prices that are no price of a row of degrees; rooms are compared by themselves."""
_BY_PART = {
    *("layer_forward_s", "layer_backward_s", "layer_selective_s", "layer_full_s"),
    *("embedding_forward_s", "embedding_backward_s", "head_forward_s", "head_backward_s"),
}
"""Times whose last axis is summed: which part of a piece takes them tells nothing."""


@dataclass(frozen=True, order=True)
class Cell:
    """A row of degrees, by index, and a number of stages; virtual ones, 1 without, `ANY_VIRTUAL` for all."""

    choice: int
    stages: int
    virtual_stages: int = 1


@dataclass(frozen=True)
class Proof:
    """What no plan of a part undercuts [s], and whether a program in whole numbers was needed for that."""

    bound_s: float
    whole_numbers: bool = False


class Floors:
    """Bounds of parts: those known before a search begins, and those that it proves.

    Parameters
    ----------
    known
        What earlier searches have proven; taken over where it holds.
    """

    def __init__(self, known: Sequence[Floors] = ()) -> None:
        self._known = known
        self._at: tuple[Problem, DegreeTable, Prices] | None = None
        self.has_neighbour = bool(known)
        """Whether a problem nearly the same has been searched, and its best plan is at hand."""
        self.proven: dict[Cell, Proof] = {}
        self.carried: dict[Cell, float] = {}

    def begin(self, problem: Problem, table: DegreeTable, prices: Prices) -> None:
        """Say which problem the parts are of, by its rows of degrees."""
        self._at = problem, table, prices
        for floors in self._known:
            for part, bound_s in floors.of(problem, table, prices):
                self.carried[part] = max(bound_s, self.carried.get(part, 0.0))

    def note(self, part: Cell, bound_s: float, *, whole_numbers: bool = False) -> None:
        """Keep what has been proven of a part, where it is more than what was known of it."""
        if part not in self.proven or bound_s > self.proven[part].bound_s:
            self.proven[part] = Proof(bound_s, whole_numbers)

    def known_s(self, part: Cell) -> float:
        """What was known of a part before [s]; 0 where nothing was."""
        return self.carried.get(part, 0.0)

    def raised(self, choice: NDArray[np.int64], stages: NDArray[np.int64], bound_s: Floats) -> Floats:
        """Bounds of parts without virtual stages, raised to what was known before, [pair] in seconds."""
        if not self.carried:
            return bound_s
        ones = [self.known_s(Cell(*pair)) for pair in zip(choice.tolist(), stages.tolist(), strict=True)]
        higher: Floats = np.maximum(bound_s, ones)
        return higher

    def of(self, problem: Problem, table: DegreeTable, prices: Prices) -> Iterator[tuple[Cell, float]]:
        """What is proven here and holds in another problem, by its rows."""
        for part, other in self.counterparts(problem, table):
            if self._is_no_better(part, other.choice, problem, table, prices):
                yield other, self.proven[part].bound_s

    def counterparts(self, problem: Problem, table: DegreeTable) -> Iterator[tuple[Cell, Cell]]:
        """The parts proven here with the same ones of another problem, where it has them.

        None where the problems differ in more than their cluster, or where degrees do not tell rows apart.
        """
        if self._at is None or not _differ_in_cluster_alone(self._at[0], problem):
            return
        here, there = _keys(self._at[1]), {key: choice for choice, key in enumerate(_keys(table))}
        if len(set(here)) < len(here) or len(there) < len(table):
            return
        for part in sorted(self.proven):
            choice = there.get(here[part.choice])
            if choice is not None:
                yield part, Cell(choice, part.stages, part.virtual_stages)

    def _is_no_better(
        self, part: Cell, choice: int, problem: Problem, table: DegreeTable, prices: Prices
    ) -> bool:
        """Whether nothing of a part is better in another problem, where its row of degrees is `choice`."""
        assert self._at is not None
        own, own_table, own_prices = self._at
        if (prices.limit_bytes > own_prices.limit_bytes).any() or not set(own_table.busy) <= set(table.busy):
            return False
        for field in fields(Prices):
            mine, other = getattr(own_prices, field.name), getattr(prices, field.name)
            if field.name in _OF_ALL:
                continue
            if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
                before, after = mine[part.choice], other[choice]
                if field.name in _BY_PART:  # what a faster link spares the host may wait
                    before, after = before.sum(axis=-1), after.sum(axis=-1)
                if (after < before * (1 - ROUNDING_TOL)).any():
                    return False
            elif mine is not other and mine != other:
                return False
        size = int(table.stage_size[choice])
        for c, (mine, other) in enumerate(zip(own.cluster.classes, problem.cluster.classes, strict=True)):
            room, now = (
                min(int(one.max_stages[row, c]), part.stages)
                for one, row in ((own_table, part.choice), (table, choice))
            )
            hosts = part.stages * -(-size // mine.chips_per_node)
            fills = size % mine.chips_per_node == 0
            if now > room or not (fills or hosts <= mine.num_nodes or other.num_nodes <= mine.num_nodes):
                return False
        return True


def _differ_in_cluster_alone(one: Problem, other: Problem) -> bool:
    """Whether two problems ask for the same of clusters of the same classes."""
    shapes = [[(c.name, c.chip, c.chips_per_node) for c in p.cluster.classes] for p in (one, other)]
    options = [p.options.model_dump(exclude=_NO_MATTER["options"]) for p in (one, other)]
    rest = [
        [getattr(p, name) for name in Problem.model_fields if name not in _NO_MATTER["problem"]]
        for p in (one, other)
    ]
    return shapes[0] == shapes[1] and options[0] == options[1] and rest[0] == rest[1]


def _keys(table: DegreeTable) -> list[tuple[object, ...]]:
    """Rows of degrees by value, with their micro-batches."""
    columns = [getattr(table.degrees, field.name) for field in fields(Degrees)]
    lists = [
        column.tolist() for column in (*columns, table.num_microbatches) if isinstance(column, np.ndarray)
    ]
    return list(zip(*lists, strict=True))
