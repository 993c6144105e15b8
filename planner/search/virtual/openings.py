"""Open parts of the space whose plans have several virtual stages on each pipeline rank.

A pair of degrees and stages is split by the number of virtual stages; such a part is bounded over all orders
of classes, first by what its stages hold below the cutoff (`planner.search.virtual.capacity`), then by the
relaxation of a program over classes and whole layers (`formulations.virtual_classes`), whose answer is an
order worth trying. The first pairs are opened before whole stages are, as a good plan of theirs spares both;
before the first relaxation (but for a short round the first split, where a neighbour's search has left its
best plan) the best parts met are annealed (`planner.search.virtual.rounds`). Only when that has been done
for all parts below the cutoff those left open are bounded again, by all orders at once where these are not
too many (`planner.search.virtual.orders`), by relaxations at lower cutoffs (before the first of which the
best part is annealed for longer, where that was of use) and in whole numbers (first where classes are few, at
cutoffs that rise where they are not), and are split by the stages on each class, then by the classes of the
first stages, down to single orders, which become programs (`formulations.virtual_selection`); the referee
judges their answers. Every dealing of the layers to chunks of
at least one layer is covered, very uneven ones too; leading layers of another kind lie on the first chunk.

Bounds are looser here than for whole stages: a part is closed as soon as it cannot hold a plan that is better
by more than `virtual_gap`, and after so many programs those that are left keep their bound; sooner where
classes are mixed and nobody asked for virtual stages.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.search.bound_data import BoundData
from planner.search.clock import Clock
from planner.search.floors import ANY_VIRTUAL, Cell
from planner.search.openings import Opener
from planner.search.orders import all_orders, count_orders
from planner.search.virtual.capacity import Capacity, VirtualLimits
from planner.search.virtual.dives import LIKELY
from planner.search.virtual.items import (
    FEW_CLASSES,
    VirtualItem,
    VirtualOrder,
    VirtualPair,
    VirtualPart,
)
from planner.search.virtual.relaxer import RAISING_ROUNDS, VirtualRelaxer
from planner.search.virtual.rounds import FAR
from planner.search.virtual.space import VirtualSpace
from planner.units import MS

MAX_ORDERS = 6
"""Orders of one part up to which they are listed instead of cut by their first stages."""
HALVINGS = 3
"""Relaxations at cutoffs below the real one for a part that the first leaves open."""
EFFORT = 100_000_000
"""Work of all programs where nobody asked for virtual stages (`Solution.work`; some 9 s), whatever the gap: a
wider one closes parts sooner. A guess."""
LOWEST = 8.0
"""So many times as much where classes are many, or the bound is far from the best plan (`FAR`), for parts
below all that were given up: what raises their bounds raises that of all. Nearer by, few classes would take
as long for next to nothing. A guess."""
NEIGHBOUR = 0.05
"""Share of it behind the search of a neighbour. A guess: as much again tightened bounds of questions by 0.1%
of the step, and all the rest by 1% at most, in twice the time."""
FIRST_PAIRS = 16
"""Pairs opened before whole stages are: a good plan of theirs spares much of both searches."""
FIRST_LIKELY = 6
"""Parts tried then, the most likely ones; and again each time that twice as many pairs have been opened."""
WAITS = 1e-3
"""Part of the cutoff by which a bound must rise without a program for the part to wait for its turn again. A
guess."""
MAX_SPLITS_OF_PARTS = 60
"""Parts that are split; later ones keep their bound, unless an exact answer is asked for."""


class VirtualOpener(VirtualRelaxer):
    """Opens such parts for one search; what comes of it goes to the frontier and the incumbent."""

    def __init__(
        self, bounds: BoundData, clock: Clock, opener: Opener, beyond_s: float | None = None
    ) -> None:
        super().__init__(bounds, clock, opener)
        self.beyond_s = beyond_s
        """What the bound is asked to pass [s]; None where it is asked to come as near as the gap."""
        self.splits = 0
        self.anneals_late = self.frontier.floors.has_neighbour
        effort = EFFORT * (NEIGHBOUR if self.anneals_late else 1.0)
        self.most_work = np.inf if self.is_asked_for else effort
        self.may_anneal = self.may_anneal_beside = beyond_s is None
        self.space = VirtualSpace(self.problem, self.prices, self.table, bounds)
        self._opened, self.waiting = 0, self.space.pairs()

    def open(self, bound_s: float, item: VirtualItem) -> None:
        """Bound a part better, split it, or judge what is in it."""
        self._anneal_due(bound_s)
        if bound_s >= self.cutoff_s:
            self.frontier.close_virtual(bound_s)
        elif self.work >= self._most_work(bound_s):
            if isinstance(item, VirtualPart) and item.looks == 0:
                bound_s = self._raised_s(bound_s, item)
            self.frontier.close_virtual(bound_s)
        elif isinstance(item, VirtualPair):
            self._open_pair(bound_s, item)
        elif isinstance(item, VirtualPart):
            raising = [] if item.is_split else [self._raise_part]  # what it gained has come down to pieces
            looks = [self._relax_part, self._deal_part, *raising, self._split_part]
            looks.insert(item.whole_look, self._solve_part)
            looks[item.looks](bound_s, item)
        elif isinstance(item, VirtualOrder):
            self._open_order(bound_s, item)
        else:
            self._solve(bound_s, item)

    def _most_work(self, bound_s: float) -> float:
        """Work after which a part with such a bound is left."""
        is_lowest = bound_s <= self.frontier.virtual_floor_s
        is_far = bound_s < (1 - FAR) * (self.frontier.incumbent.step_s or np.inf)
        is_worth_more = (is_far or len(self.problem.cluster.classes) > FEW_CLASSES) and not self.anneals_late
        return self.most_work * LOWEST if is_lowest and is_worth_more else self.most_work

    def _open_pair(self, bound_s: float, pair: VirtualPair) -> None:
        """One part for each number of virtual stages."""
        limits = self.limits_of(pair)
        if limits is None:
            return
        floors, cell = self.frontier.floors, Cell(pair.choice, pair.stages, ANY_VIRTUAL)
        bound_s = max(bound_s, floors.known_s(cell))
        bounds_s = {
            v: max(bound_s, part_s, floors.known_s(replace(cell, virtual_stages=v)))
            for v, part_s in self.space.bounds_of(pair).items()
        }
        least_s = min(bounds_s.values())
        if least_s >= self.cutoff_s:
            self.frontier.close_virtual(least_s)
            return
        if not self._may_win(pair, limits):
            floors.note(cell, self.cutoff_s)
            self.frontier.close_virtual(self.cutoff_s)
            return
        promising = []
        for v, part_s in bounds_s.items():
            part = VirtualPart(pair.choice, v, pair.stages, limits)
            if part_s >= self.cutoff_s:
                self.frontier.close_virtual(part_s)
                continue
            capacity = self._capacity(part)
            low_ms, high_ms = part_s / MS, self.cutoff_s / MS
            if not np.isfinite(high_ms):
                high_ms = 2 * low_ms
            elif not capacity.holds(high_ms):
                self._push(self.cutoff_s, part)
                continue
            promising.append((capacity.bound_ms(low_ms, high_ms, likely=True), part))
            only = self._only_order(part_s, part)
            if only is None:
                self._push_part(part_s, part)
            else:
                self._push(self._capacity_s(part_s, part), only)
        promising.sort(key=lambda one: one[0])
        for likely_ms, part in promising:
            if self.frontier.incumbent.step_s is None:
                self._try_blocks(part)
            else:
                self.likely.append((likely_ms, part))
        self._opened += 1
        if self._opened >= FIRST_PAIRS and self._opened.bit_count() == 1:
            self._try_likely(FIRST_LIKELY)

    def limits_of(self, pair: VirtualPair) -> VirtualLimits | None:
        """Limits of all orders of a pair; None where there is none."""
        fewest, most = self.opener.pair_limits(pair.choice, pair.stages)
        if any(low > high for low, high in zip(fewest, most, strict=True)) or sum(fewest) > pair.stages:
            return None
        return self._limits(fewest, most, (), pair.stages)

    def _limits(
        self, fewest: tuple[int, ...], most: tuple[int, ...], prefix: tuple[int, ...], stages: int
    ) -> VirtualLimits:
        """Limits with what follows from them: numbers that add up, and the order where it is given."""
        if stages in (sum(most), sum(fewest)):
            fewest = most = most if sum(most) == stages else fewest
        if fewest == most and self.problem.options.keep_class_order:
            prefix = tuple(c for c, count in enumerate(fewest) for _ in range(count))
        return VirtualLimits(fewest, most, prefix)

    def _only_order(self, bound_s: float, part: VirtualPart) -> VirtualOrder | None:
        """The order of a part of one class, where slow hops that relaxations miss are worth the gap."""
        busy = [c for c, count in enumerate(part.limits.most) if count]
        if len(busy) > 1 or part.stages < 2:
            return None
        order = (busy[0],) * part.stages
        hops_s = self.opener.tables.hops_s(part.choice, order)[:-1]
        slower_s = hops_s - hops_s.min()
        if self._sends_block(part.virtual_stages):
            missed_s = slower_s.max() * self.table.num_microbatches[part.choice]
        else:
            missed_s = slower_s.sum()
        is_worth_it = 2 * part.virtual_stages * missed_s > self.gap * bound_s
        return VirtualOrder(part.choice, part.virtual_stages, order) if is_worth_it else None

    def _push_part(self, bound_s: float, part: VirtualPart) -> None:
        """Keep a part with the bound of what its stages hold."""
        self._push(self._capacity_s(bound_s, part), part)

    def _may_win(self, pair: VirtualPair, limits: VirtualLimits) -> bool:
        """Whether stages may hold all layers below the cutoff with any number of virtual stages."""
        whole = self.opener.tables.of_classes(pair.choice, pair.stages)
        most_virtual = max(self.space.virtual_stages(pair.stages))
        times = self.tables.whole_stages(whole, self.bounds, pair.choice, most_virtual)
        if times is None or not np.isfinite(self.cutoff_s):
            return True
        m = int(self.table.num_microbatches[pair.choice])
        return Capacity(times, limits, m, sends_block=True).holds(self.cutoff_s / MS)

    def _relax_part(self, bound_s: float, part: VirtualPart) -> None:
        """Bound a part by the relaxation over its classes, and try the order that comes up."""
        self._try_likely(LIKELY)
        self.likely = []
        if self.anneals_late:
            self._anneal_beside(bound_s)
        else:
            self._anneal_good(bound_s)
        before_s, bound_s = bound_s, self._raised_s(bound_s, part)
        if bound_s >= self.cutoff_s or bound_s > before_s + WAITS * self.cutoff_s:
            self._push(bound_s, part)  # others may now have less
            return
        if self._is_settled(bound_s, part):
            self.most_work = 0.0
            self._push(bound_s, part)
            return
        bound_s = self._look(bound_s, part, self.cutoff_s, integral=False)
        self._push(bound_s, replace(part, looks=part.looks + 1))

    def _raise_part(self, bound_s: float, part: VirtualPart) -> None:
        """Bound a part by relaxations at lower cutoffs.

        A stage may hold the fewer layers the lower the cutoff: where no plan lies below one, that is a bound
        on all, and often far above what the relaxation says at the cutoff that counts.
        """
        self._anneal_longer(bound_s)
        cutoff_s = self.cutoff_s
        if bound_s >= cutoff_s:
            self._push(bound_s, part)
            return
        low_s, high_s = bound_s, cutoff_s
        for _ in range(HALVINGS if np.isfinite(cutoff_s) else 0):
            middle_s = (low_s + high_s) / 2
            found = self._relaxed(part, middle_s, integral=False, rounds=RAISING_ROUNDS)
            found_s = min(found.bound_ms * MS, middle_s)
            low_s = max(low_s, found_s)
            high_s = high_s if found_s >= middle_s else middle_s
        self._push(low_s, replace(part, looks=part.looks + 1))

    def _is_settled(self, bound_s: float, part: VirtualPart) -> bool:
        """Whether the bound of all parts will not pass what it is asked to, as this part keeps it below."""
        beyond_s = self.beyond_s
        if beyond_s is None or bound_s >= beyond_s:
            return False
        # A part that holds a plan is closed at the cutoff at the latest.
        if min(self.frontier.floor_s, self.frontier.virtual_floor_s, self.cutoff_s) < beyond_s:
            return True
        return self._relaxed(part, beyond_s, integral=False).bound_ms * MS < beyond_s

    def _split_part(self, bound_s: float, part: VirtualPart) -> None:
        """Halve the widest range of a class; else list the orders, or cut by the next class."""
        if self.splits >= MAX_SPLITS_OF_PARTS and not self.is_exact:
            self.frontier.close_virtual(bound_s)
            return
        self.splits += 1
        self._anneal_good(bound_s)
        limits, choice = part.limits, part.choice
        fewest, most = np.array(limits.fewest), np.array(limits.most)
        widest = int(np.argmax(most - fewest))
        if (fewest < most).any():
            middle = int(fewest[widest] + most[widest]) // 2
            upper, lower = fewest.copy(), most.copy()
            upper[widest], lower[widest] = middle + 1, middle
            for low, high in ((fewest, lower), (upper, most)):
                if low.sum() <= part.stages <= high.sum():
                    ends = tuple(low.tolist()), tuple(high.tolist())
                    inner = self._limits(*ends, limits.prefix, part.stages)
                    self._push_part(bound_s, replace(part, limits=inner, looks=0, is_split=True))
            return
        left, counts = fewest.copy(), limits.fewest
        np.subtract.at(left, list(limits.prefix), 1)
        if count_orders(left.tolist()) > MAX_ORDERS and not self.is_exact:
            for c in np.flatnonzero(left).tolist():
                inner = VirtualLimits(counts, counts, (*limits.prefix, c))
                self._push_part(bound_s, replace(part, limits=inner, looks=0, is_split=True))
            return
        for order in ((*limits.prefix, *rest) for rest in all_orders(left.tolist())):
            if self.opener.is_allowed(choice, order):
                whole = replace(part, limits=VirtualLimits(counts, counts, order), is_split=True)
                order_s = self._capacity_s(bound_s, whole)
                self._push(order_s, VirtualOrder(choice, part.virtual_stages, order))
