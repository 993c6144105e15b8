"""Stages at all places of the chains that run some micro-batches by a deadline, side by side.

What `planner.search.replicas.holding` asks of a stage by its place alone is told once for all brackets of the
sum of all stages, and for all places together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.holding_rows import ChainStages, SumBracket, first_high, inner_range
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL


@dataclass(frozen=True)
class Placed:
    """Stages by the number behind them, arrays [stage], and where those of each number begin."""

    stages: ChainStages
    behind: Ints
    starts: Ints
    """[behind], and the end of the last."""
    hop: Floats
    """Send to the stages behind, one way; 0 without any [ms]."""
    own_ms: Floats
    """Longest way down to the last stage with which it keeps the rows up to its own end."""


class Places:
    """Places of chains that run `least_m` micro-batches or more by a deadline."""

    def __init__(self, choices: Callable[..., ChainStages], asked: SumBracket, longest: int) -> None:
        """`choices` gives the stages with some number behind, up to `longest` - 1.

        Of what is asked any sum and any tick will do.
        """
        self.longest = longest
        self._asked = asked
        self.first, self.inner = (
            self._placed([choices(behind, is_first=is_first) for behind in range(longest)])
            for is_first in (True, False)
        )
        self.first_ms: Floats = self.first.stages.times + self.first.hop + self.first.stages.after
        """What a first stage takes with its sends, and what follows it."""
        self.inner_ms: Floats = self.inner.stages.times + self.inner.stages.hop + self.inner.hop
        """What an inner stage takes with its sends."""
        self._ticked: dict[float, tuple[Ints, Ints]] = {}

    def _placed(self, choices: list[ChainStages]) -> Placed:
        sizes = [len(one) for one in choices]
        stages, behind = ChainStages.join(choices), np.repeat(np.arange(len(choices)), sizes)
        starts, hop = np.cumsum([0, *sizes]), stages.hop * (behind > 0)
        own_ms = np.empty(len(behind))
        for part in self._parts(starts):
            own_ms[part] = first_high(self._asked, stages.at(part), behind[part])
        # Most take too long for so many micro-batches, whatever is behind them; rounding leaves none out.
        rows = np.flatnonzero(own_ms - hop >= -2 * COUNT_TOL * self._asked.deadline_ms)
        starts = np.searchsorted(behind[rows], np.arange(len(choices) + 1))
        return Placed(stages.at(rows), behind[rows], starts, hop[rows], own_ms[rows])

    def _parts(self, starts: Ints) -> list[slice]:
        """Stages with m - 2 others or fewer behind them, and with more."""
        cut, end = int(starts[min(max(self._asked.least_m - 1, 0), self.longest)]), int(starts[-1])
        return [part for part in (slice(0, cut), slice(cut, end)) if part.start < part.stop]

    def inner_range(self, asked: SumBracket) -> tuple[Floats, Floats]:
        """Shortest and longest way down to the last stage with which each inner stage keeps the rows."""
        inner = self.inner
        low, high = np.empty(len(inner.behind)), np.empty(len(inner.behind))
        for part in self._parts(inner.starts):
            of = inner.stages.at(part), inner.behind[part], inner.own_ms[part]
            low[part], high[part] = inner_range(asked, *of)
        return low, high

    def ticked(self, tick_ms: float) -> tuple[Ints, Ints]:
        """Whole ticks of the inner stages with their sends, and these by the number behind and by ticks."""
        known = self._ticked.get(tick_ms)
        if known is None:
            ticks = np.floor(self.inner_ms / tick_ms * (1 - COUNT_TOL)).astype(np.int64)
            known = self._ticked[tick_ms] = ticks, np.lexsort((ticks, self.inner.behind))
        return known
