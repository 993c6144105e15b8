"""What stages keep by a deadline: the rows of `planner.search.replicas.holding`, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.replicas.space import Ints
from planner.search.walks.ways_down import Behind, first_way_ms, inner_ways_ms

NEVER = -1.0
"""A way down to the last stage that none has [ms]."""


@dataclass(frozen=True)
class ChainStages:
    """Stages of one place, arrays [choice]; those that another is as good as in all are left out."""

    item: Ints
    layers: Floats
    times: Floats
    hop: Floats
    """Send to one side, one way [ms]."""
    after: Floats
    """What follows the end of the stage itself [ms]."""
    worth: Floats
    pace: Floats
    """Most share of the forward in the time of any of its place, no more than half."""

    def at(self, rows: NDArray[np.bool_] | Ints | slice) -> ChainStages:
        """Some of them."""
        return ChainStages(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @staticmethod
    def join(parts: Sequence[ChainStages]) -> ChainStages:
        """All of several."""
        names = ChainStages.__dataclass_fields__
        return ChainStages(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @property
    def passes_ms(self) -> tuple[Floats, Floats, Floats]:
        """Both passes, the forward at its most, which is the shorter one, and the backward."""
        forward: Floats = self.pace * self.times
        return self.times, forward, self.times - forward

    def __len__(self) -> int:
        return len(self.item)


@dataclass(frozen=True)
class SumBracket:
    """A bracket of the sum of all stages, and what is asked of it."""

    kind: int
    least_m: int
    deadline_ms: float
    low: float
    high: float
    tick_ms: float
    need: float


def first_high(asked: SumBracket, choices: ChainStages, behind: Behind) -> Floats:
    """Longest way down to the last stage with which a stage keeps the rows up to its own end (own)."""
    left_ms = asked.deadline_ms - choices.after
    longest, keeps = first_way_ms(asked.least_m, behind, left_ms, choices.passes_ms)
    high: Floats = np.where(keeps, longest, NEVER)
    return high


def inner_range(
    asked: SumBracket, choices: ChainStages, behind: Behind, own_ms: Floats | None = None
) -> tuple[Floats, Floats]:
    """Shortest and longest way down to the last stage with which an inner stage keeps the rows.

    `own_ms` is what `first_high` says of them, where it is known.
    """
    sums_ms, passes_ms = (asked.low, asked.low), choices.passes_ms
    shortest, longest, keeps = inner_ways_ms(asked.least_m, behind, sums_ms, asked.deadline_ms, passes_ms)
    own_ms = first_high(asked, choices, behind) if own_ms is None else own_ms
    return shortest, np.where(keeps, np.minimum(longest, own_ms), NEVER)
