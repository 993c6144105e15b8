"""What one search has proven of its parts, for searches of problems in which no more may be had.

A part is a row of degrees with a number of stages, and perhaps of virtual stages. What no plan of it
undercuts in one problem none undercuts in another where each of its pieces takes as long or longer, needs as
much memory or more, and no more of it may be had: of chips, nodes and memory. A longer piece of work ends
none earlier: the order of work is fixed, and of a longer backward (forward) no more than all hides the
reduction (gathering) that goes on meanwhile. That nothing is better is read off the prices themselves.

Where times are shorter, less holds. Let r <= 1 be the least time of a layer's pass over what it took. Were
all times r times as long, so would be every step. Another that takes x less than that makes a step shorter
by at most x for each time that a path through the schedule meets it: a task of once a step once on its stage;
embedding and head once in each micro-batch and direction; a send once for each pass, or twice where a stage
may wait for one beside, and of passes a path has at most 2 v (m + p), as the schedule takes no longer where
each pass takes one and sends nothing. A bound B becomes r B less all that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import ENDS, Degrees, Floats, Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.empty import most_virtual_stages
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
_CONTAINED = ("end_shown_s",)
"""What is in another price already, which is compared: whole stages take it into account nowhere else."""
_LAYER_PASSES = ("layer_forward_s", "layer_backward_s", "layer_selective_s", "layer_full_s")
_END_PASSES = ("embedding_forward_s", "embedding_backward_s", "head_forward_s", "head_backward_s")
_BY_PART = (*_LAYER_PASSES, *_END_PASSES)
"""Times whose last axis is summed: which part of a piece takes them tells nothing."""
_SENDS = ("send_s", "send_inside_s")
_OF_LAYERS = ("layer_reduce_s", "layer_gather_s", "layer_optimizer_s")
"""Once a step, of each layer that a stage has."""
_ONCE = (
    *(f"{end}_{task}_s" for end in ENDS for task in ("reduce", "gather", "optimizer")),
    *("reduce_tail_s", "gather_tail_s", "step_fixed_s", "tied_sync_s"),
)
"""Once a step."""


@dataclass(frozen=True, order=True)
class Cell:
    """A row of degrees, by index, and a number of stages; virtual ones, 1 without, `ANY_VIRTUAL` for all."""

    choice: int
    stages: int
    virtual_stages: int = 1


@dataclass(frozen=True)
class _Left:
    """What is left of bounds where some times of a row of degrees are shorter."""

    ratio: float
    """Least time of a layer's pass over what it took."""
    send_s: float
    """What a send takes less than so much [s]."""
    ends_s: float
    """What embedding and head together take less than so much, there and back [s]."""
    once_s: float
    """What all that a stage does once a step takes less than so much [s]."""

    @staticmethod
    def of(shorter: dict[str, tuple[Floats, Floats]], num_layers: int) -> _Left:
        """From the times that are shorter: before and after, by name."""
        passes = [shorter[name] for name in _LAYER_PASSES if name in shorter]
        ratio = min([1.0, *(float(np.min(_over(after, before))) for before, after in passes)])

        def less(*names: str) -> float:
            pairs = [shorter[name] for name in names if name in shorter]
            return sum(float(np.maximum(ratio * before - after, 0.0).max()) for before, after in pairs)

        once_s = num_layers * less(*_OF_LAYERS) + less(*_ONCE)
        return _Left(ratio, max(map(less, _SENDS)), less(*_END_PASSES), once_s)


def _over(after: Floats, before: Floats) -> Floats:
    """Times over what they were; 1 where they were nothing."""
    return np.divide(after, before, out=np.ones_like(before), where=before > 0)


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
        self.proven: dict[Cell, float] = {}
        """What no plan of a part undercuts [s]."""
        self.of_all_s = 0.0
        """What no plan at all undercuts [s], once the search has ended."""
        self.carried: dict[Cell, float] = {}

    def begin(self, problem: Problem, table: DegreeTable, prices: Prices) -> None:
        """Say which problem the parts are of, by its rows of degrees."""
        self._at = problem, table, prices
        for floors in self._known:
            for part, bound_s in floors.of(problem, table, prices):
                self.carried[part] = max(bound_s, self.carried.get(part, 0.0))

    def note(self, part: Cell, bound_s: float) -> None:
        """Keep what has been proven of a part, where it is more than what was known of it."""
        self.proven[part] = max(bound_s, self.proven.get(part, bound_s))

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
        left: dict[int, _Left | None] = {}
        for part, other in self.counterparts(problem, table):
            if part.choice not in left:
                left[part.choice] = self._left(part.choice, other.choice, prices)
            of_row = left[part.choice]
            if of_row is not None and self._has_no_more(part, other.choice, problem, table, prices):
                yield other, self._left_of(part, of_row)

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

    def _left_of(self, part: Cell, of_row: _Left) -> float:
        """What shorter times leave of the bound of a part [s]."""
        assert self._at is not None
        problem, table, _ = self._at
        virtual, micro = part.virtual_stages, int(table.num_microbatches[part.choice])
        if virtual == ANY_VIRTUAL:
            virtual = max(most_virtual_stages(problem, part.stages), 1)
        passes = 2 * virtual * (micro + part.stages)
        sends = passes * (2 if problem.stack.p2p_after_gradient else 1)
        lost_s = sends * of_row.send_s + micro * of_row.ends_s + of_row.once_s
        bound_s = max(self.proven[part], self.of_all_s)
        return max(of_row.ratio * bound_s - lost_s, 0.0)

    def _left(self, own_choice: int, choice: int, prices: Prices) -> _Left | None:
        """What shorter times of a row of degrees leave; None where something else of it is less."""
        assert self._at is not None
        own, shorter = self._at[2], {}
        for field in fields(Prices):
            mine, other = getattr(own, field.name), getattr(prices, field.name)
            if field.name in (*_OF_ALL, *_CONTAINED):
                continue
            if isinstance(mine, np.ndarray) and isinstance(other, np.ndarray):
                before, after = mine[own_choice], other[choice]
                if field.name in _BY_PART:  # what a faster link spares the host may wait
                    before, after = before.sum(axis=-1), after.sum(axis=-1)
                if (after < before * (1 - ROUNDING_TOL)).any():
                    shorter[field.name] = before, after
            elif mine is not other and mine != other:
                return None
        if not set(shorter) <= {*_BY_PART, *_SENDS, *_OF_LAYERS, *_ONCE}:
            return None
        return _Left.of(shorter, self._at[0].model.num_layers)

    def _has_no_more(
        self, part: Cell, choice: int, problem: Problem, table: DegreeTable, prices: Prices
    ) -> bool:
        """Whether a part, whose row is `choice` there, may have no more chips, nodes and memory."""
        assert self._at is not None
        own, own_table, own_prices = self._at
        if (prices.limit_bytes > own_prices.limit_bytes).any() or not set(own_table.busy) <= set(table.busy):
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
