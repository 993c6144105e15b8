"""Good plans with virtual stages before anything is proven: classes as blocks, stages swapped, then annealed.

Parts are looked at by what their stages are likely to hold (`planner.search.virtual_capacity`), so that the
cutoff is near its last value when the first relaxation is solved. The constants are guesses: they say what is
looked at, never what is proven.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice

import numpy as np

from formulations.virtual_selection_data import choices, objective_ms
from planner.search.bound_data import BoundData
from planner.search.openings import Opener
from planner.search.orders import block_orders
from planner.search.space import fill_fastest
from planner.search.state import Clock
from planner.search.virtual_annealing import anneal_dealings
from planner.search.virtual_capacity import Capacity, VirtualLimits
from planner.search.virtual_items import VirtualOrder, VirtualPart
from planner.search.virtual_prefixes import Prefixes
from planner.search.virtual_programs import VirtualSolver
from planner.search.virtual_times import DealingTimes
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
NEAR, NEAR_TO_ANNEAL = 1.05, 1.1
"""Step of an order, over the best one, up to which its stages are swapped, and up to which its part is
annealed, which has made steps of long pipelines a tenth shorter. Guesses."""
FAR = 0.04
"""Gap from which on parts are annealed for longer."""
FEW_ORDERS = 600
"""Orders of a part up to which it is not, as swaps reach them."""


@dataclass(frozen=True)
class Round:
    """Parts that are annealed one after the other, those of the best plans met."""

    parts: int
    steps: int
    gap: float = FAR
    """Gap from which on that is done."""
    near: float = NEAR_TO_ANNEAL
    """Step of a part over the best one up to which it is."""
    few_orders: int = FEW_ORDERS
    """Orders of a part up to which it is not."""
    spare: float | None = None
    """Part of the time limit before whose end it is done; None where it is done as soon as it is late."""


ROUNDS = Round(10, 150), Round(4, 500)
"""Round by round. Guesses, as are those that follow."""
LAST_ROUND = Round(1, 2200, spare=0.35)
"""Once relaxations have left the bound as far, where the last round was still of use."""
ROUND_BESIDE = Round(2, 200)
"""Where a neighbour's search has left its best plan: what is new may hold a far better one. With it one more
node gained 1.0% where it had gained nothing; all rounds, in 7.7 s instead of 3.5, find 1.5%."""
ROUND_NEAR = Round(1, 200, gap=0.0, near=1.01, few_orders=0)
"""Where the bound is nearer, and at the end. It made plans of Qwen2.5 72B and of OPT-350M on 512 chips half a
percent quicker, in 0.3 s and in one."""
OF_USE = 0.005
"""Part of the best step that the last round must have spared for the one that follows."""


class VirtualDiver(VirtualSolver):
    """Looks for good plans of one search; what comes of it goes to the incumbent."""

    def __init__(self, bounds: BoundData, clock: Clock, opener: Opener) -> None:
        super().__init__(clock, opener)
        self.bounds = bounds
        self._capacity = lru_cache(maxsize=16)(self._made_capacity)
        self._prefixes = lru_cache(maxsize=16)(lambda part: Prefixes(self._capacity(part).places))
        self.dives = self.swaps = 0
        self.may_anneal, self.may_anneal_longer, self.anneals_late = True, False, False
        self.may_anneal_last = True
        self.may_anneal_beside = False
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

    def _anneal_good(self, bound_s: float) -> None:
        """Anneal the best parts met, once, where the bound leaves room for better."""
        if not self.may_anneal:
            return
        self.may_anneal = False
        best_s = self.frontier.incumbent.step_s or np.inf
        if bound_s < (1 - FAR) * best_s:
            for one in ROUNDS:
                before_s = self.frontier.incumbent.step_s or np.inf
                self._anneal_best(bound_s, one)
            best_s = self.frontier.incumbent.step_s or np.inf
            self.may_anneal_longer = best_s < (1 - OF_USE) * before_s and not self.anneals_late
        self._anneal_best(bound_s, ROUND_NEAR)

    def _anneal_beside(self, bound_s: float) -> None:
        """Anneal the very best parts met for a short while, once, behind the search of a neighbour."""
        if self.may_anneal_beside:
            self.may_anneal_beside = False
            self._anneal_best(bound_s, ROUND_BESIDE)

    def _anneal_longer(self, bound_s: float) -> None:
        """Anneal what that left best for longer, once, where there still seems to be room for better."""
        if self.may_anneal_longer:
            self.may_anneal_longer = self.may_anneal_last = False
            self._anneal_best(bound_s, LAST_ROUND)

    def _anneal_last(self, bound_s: float) -> None:
        """The same before the first program in whole numbers whose cutoff rises, which takes as long."""
        if self.may_anneal_last:
            self.may_anneal_last = False
            self._anneal_best(bound_s, LAST_ROUND)

    def _anneal_best(self, bound_s: float, one: Round) -> None:
        """Anneal orders and dealings of some parts."""
        best_s = self.frontier.incumbent.step_s or np.inf
        if self.problem.options.keep_class_order or bound_s >= (1 - one.gap) * best_s:
            return
        ranked = sorted(self.good.items(), key=lambda entry: (entry[1][0], entry[0]))
        for key, (value_s, _, _) in ranked[: one.parts]:
            if value_s < one.near * best_s and not self.clock.is_late:
                self._anneal(*key, one)

    def _anneal(self, choice: int, virtual_stages: int, stages: int, one: Round) -> None:
        """Anneal a part from the best dealing met; judge what comes of it."""
        tables = self.tables.of_classes(choice, virtual_stages, stages)
        times = DealingTimes(
            tables, self.table.max_stages.shape[1], sends_block=self._sends_block(virtual_stages)
        )
        most = np.minimum(self.table.max_stages[choice], stages).tolist()
        if times.one.stage.lead.any() or sum(k > 0 for k in most) ** stages <= one.few_orders:
            return
        fewest = [int(c in self.table.busy) for c in range(len(most))]
        _, begun, choice_begun = self.good[choice, virtual_stages, stages]
        start = begun.order, choice_begun.layers
        seed = self.problem.options.seed
        found = anneal_dealings(times, [start], fewest, most, one.steps, seed, lambda: self._ends(one))
        for order, layers in found:
            if self.opener.is_allowed(choice, order):
                self._judge_dealing(VirtualOrder(choice, virtual_stages, order), layers)

    def _ends(self, one: Round) -> bool:
        """Whether no time is left for a round that has begun."""
        limit_s = self.clock.limit_s
        if one.spare is None or limit_s is None:
            return self.clock.is_late
        return self.clock.is_up_behind(one.spare * limit_s)

    def _judge_dealing(self, part: VirtualOrder, layers: tuple[tuple[int, ...], ...]) -> None:
        """Judge a dealing as it is, where it is worth it."""
        data = self.tables.data(part.choice, part.virtual_stages, part.order)
        for choice in choices(data, layers):
            value_s = objective_ms(data, choice) * MS
            self._note_good(part, value_s, choice)
            if value_s < self.frontier.incumbent.worth_judging_s:
                self._judge(part, data, choice)

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

    def _sends_block(self, virtual_stages: int) -> bool:
        return not self.problem.stack.overlaps_sends(virtual_stages)
