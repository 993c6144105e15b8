"""Good plans with virtual stages before anything is proven: classes as blocks, then stages swapped.

Parts are looked at by what their stages are likely to hold (`planner.search.virtual.capacity`), so that the
cutoff is near its last value when the first relaxation is solved. The constants are guesses: they say what is
looked at, never what is proven.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations, islice

import numpy as np

from planner.search.bound_data import BoundData
from planner.search.clock import Clock
from planner.search.openings import Opener
from planner.search.orders import block_orders
from planner.search.space import fill_fastest
from planner.search.virtual.capacity import Capacity, VirtualLimits
from planner.search.virtual.items import VirtualOrder, VirtualPart
from planner.search.virtual.prefixes import Prefixes
from planner.search.virtual.rounds import VirtualRounds
from planner.units import MS

DIVES = 180
"""Orders tried in which each class is a block."""
MAX_BLOCKS = 6
"""Those of one part."""
LIKELY = 24
"""Parts for which that is done before the first relaxation, the most likely ones."""
SWAPS = 240
"""Orders tried that come of good ones by swapping two stages."""
FRUITLESS_SWAPS = 12
"""Those in a row that make an order no better, after which it is left."""
NEAR = 1.05
"""Step of an order, over the best one, up to which its stages are swapped. A guess."""


class VirtualDiver(VirtualRounds):
    """Looks for good plans of one search; what comes of it goes to the incumbent."""

    def __init__(self, bounds: BoundData, clock: Clock, opener: Opener) -> None:
        super().__init__(clock, opener)
        self.bounds = bounds
        self._capacity = lru_cache(maxsize=16)(self._made_capacity)
        self._prefixes = lru_cache(maxsize=16)(lambda part: Prefixes(self._capacity(part).places))
        self.dives = self.swaps = 0
        self.tried: set[VirtualPart] = set()
        self.likely: list[tuple[float, VirtualPart]] = []
        """Parts that wait to be tried, with the step that they are likely to reach [ms]."""

    def _try_likely(self, most: int) -> None:
        """Try orders of so many of the most likely parts."""
        self.likely.sort(key=lambda one: one[0])
        likely, self.likely = self.likely[:most], self.likely[most:]
        for likely_ms, part in likely:
            if likely_ms * MS < (self.frontier.incumbent.step_s or np.inf):
                self._try_blocks(part)

    def _try_blocks(self, part: VirtualPart) -> None:
        """Try orders in which each class is a block, the fastest classes with all they can hold."""
        if part in self.tried:
            return
        self.tried.add(part)
        counts = fill_fastest(self.table, self.bounds, part.choice, part.stages) or ()
        best: tuple[float, tuple[int, ...]] = float("inf"), ()
        for order in islice(block_orders(counts), MAX_BLOCKS):
            if self.dives >= DIVES or self.clock.is_up:
                break
            self.dives += 1
            best = min(best, (self._value_s(part, order), order))
        if best[0] < NEAR * (self.frontier.incumbent.step_s or np.inf):
            self._swap_stages(part, *best)

    def _swap_stages(self, part: VirtualPart, value_s: float, order: tuple[int, ...]) -> None:
        """Swap two stages of an order as long as that makes it better, those next to each other first."""
        if self.problem.options.keep_class_order:
            return
        tried, fruitless = {order}, 0
        places = sorted(combinations(range(len(order)), 2), key=lambda one: (one[1] - one[0], one[0]))
        while True:
            for i, j in places:
                swapped = list(order)
                swapped[i], swapped[j] = order[j], order[i]
                other = tuple(swapped)
                if other in tried:
                    continue
                if fruitless >= FRUITLESS_SWAPS or self.swaps >= SWAPS or self.clock.is_up:
                    return
                tried.add(other)
                self.swaps, fruitless = self.swaps + 1, fruitless + 1
                other_s = self._value_s(part, other)
                if other_s < value_s:
                    value_s, order, fruitless = other_s, other, 0
                    break
            else:
                return

    def _value_s(self, part: VirtualPart, order: tuple[int, ...]) -> float:
        """Step of a good dealing of an order, judged where it is good; infinite where none seems so."""
        if not self.opener.is_allowed(part.choice, order) or not self._is_likely(part, order):
            return float("inf")
        one = VirtualOrder(part.choice, part.virtual_stages, order)
        return self._try_order(one, self.tables.data(part.choice, part.virtual_stages, order))

    def _is_likely(self, part: VirtualPart, order: tuple[int, ...]) -> bool:
        """Whether the stages of an order are likely to hold all layers in less than the best step."""
        best_s = self.frontier.incumbent.step_s
        counts = tuple(order.count(c) for c in range(len(part.limits.most)))
        one = replace(part, limits=VirtualLimits(counts, counts, order))
        return best_s is None or self._capacity(one).holds(best_s / MS, likely=True)

    def _capacity_s(self, bound_s: float, part: VirtualPart) -> float:
        """Bound of what the stages of a part hold, at most the cutoff."""
        cutoff_s = self.cutoff_s
        if not np.isfinite(cutoff_s):
            return bound_s
        if not self._prefixes(part).holds(cutoff_s / MS):
            return cutoff_s
        return max(bound_s, self._capacity(part).bound_ms(bound_s / MS, cutoff_s / MS) * MS)

    def _raised_s(self, bound_s: float, part: VirtualPart) -> float:
        """Bound of what the stages of a part hold in one order and of the mean row, at most the cutoff."""
        cutoff_s = self.cutoff_s
        if not bound_s < cutoff_s < np.inf:
            return bound_s
        bound_s = max(bound_s, self._prefixes(part).bound_ms(bound_s / MS, cutoff_s / MS) * MS)
        return max(bound_s, self._capacity(part).raised_ms(bound_s / MS, cutoff_s / MS) * MS)

    def _made_capacity(self, part: VirtualPart) -> Capacity:
        return Capacity(
            self.tables.of_classes(part.choice, part.virtual_stages, part.stages).times,
            part.limits,
            int(self.table.num_microbatches[part.choice]),
            sends_block=self._sends_block(part.virtual_stages),
        )
