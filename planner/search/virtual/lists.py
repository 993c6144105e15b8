"""Bounds of parts with virtual stages by lists: of all orders, and of the ways to deal layers to chunks.

Orders with whole layers of every stage are closed by prices of longest paths
(`planner.search.virtual.orders`); the few that are left, and parts of too many orders, by whole layers of all
chunks along the pipeline (`planner.search.virtual.dealings`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formulations.virtual_classes_data import VirtualClassesData
from formulations.virtual_classes_merged import Group, alike, merged
from planner.cost.prices import Bools
from planner.search.bound_data import BoundData
from planner.search.clock import Clock
from planner.search.openings import Opener
from planner.search.virtual.capacity import VirtualLimits
from planner.search.virtual.dealings import DealtPaths
from planner.search.virtual.dives import VirtualDiver
from planner.search.virtual.follow import below
from planner.search.virtual.items import VirtualPart
from planner.search.virtual.orders import Combinations, PricedOrders, combinations
from planner.search.virtual.ways import WayLists, taken_together
from planner.units import MS

LISTS_S = 0.6
"""Time that ways of the stages of a part take to be listed, where there are thousands [s]: measured."""
PIECES_OF_WORK = 25
"""Pieces of `DealtPaths` that take as long as a unit of `Solution.work`: measured."""
MOST_RISE_OF_WAYS = 0.01
"""Part by which the layers in a unit of time may rise where classes are taken together. A guess: the step by
which a cutoff rises is half of it."""
ORDERS_DEALT, MOST_PIECES_OF_ORDER = 6, 10_000_000_000
"""Orders that prices leave up to which each is looked at with whole layers of all chunks, and pieces of work
of one of them: most take a hundredth. Guesses."""
LEAST_WAY = 0.01
"""Part of the cutoff that a bound has to rise for orders to be looked at: programs rise it less as fast. A
guess."""
FUTILE = 2
"""Parts in a row that more orders were left of, after which no part is looked at so. A guess."""
ROUND_OF_WORK = 90
"""Units of `Solution.work` that a round of a program of `PricedOrders` takes, by forwards of a stage:
measured."""
MOST_WORK_OF_ORDERS = 60_000_000
"""Such units for the orders of one part, some six seconds: five times what those needed that were closed."""

PartKey = tuple[int, int, int, VirtualLimits]


def part_key(part: VirtualPart) -> PartKey:
    """What a part is, whatever was done with it."""
    return part.choice, part.stages, part.virtual_stages, part.limits


class VirtualLister(VirtualDiver):
    """Lists what parts of one search may hold below a cutoff."""

    def __init__(self, bounds: BoundData, clock: Clock, opener: Opener) -> None:
        super().__init__(bounds, clock, opener)
        self._way_lists = WayLists()
        self._narrowed: dict[PartKey, tuple[float, Bools | None]] = {}
        """By part: a cutoff, and the numbers of layers of all plans below it."""
        self.futile = 0
        """Parts in a row that too many orders were left of."""

    def _classes_data(self, part: VirtualPart, cutoff_s: float) -> VirtualClassesData:
        tables = self.tables.of_classes(part.choice, part.virtual_stages, part.stages)
        capacity = self._capacity(part)
        used = {c: one for c, one in tables.data.items() if part.limits.most[c]}
        below_s, narrowed = self._narrowed.get(part_key(part), (0.0, None))
        known = narrowed if cutoff_s <= below_s else None
        fits, follow_ms = below(capacity, self._prefixes(part), cutoff_s / MS, known)
        return VirtualClassesData(
            classes=used,
            tables=tables.tables,
            fits=fits,
            fewest=capacity.fewest,
            most=capacity.most,
            hop_ms=tables.times.hop_ms,
            sends_block=self._sends_block(part.virtual_stages),
            cutoff_ms=cutoff_s / MS,
            least_follow_ms=follow_ms,
        )

    def _combinations(self, part: VirtualPart) -> Combinations | None:
        """Orders of a part with whole layers of every stage; None where they are too many, or sends block."""
        if self._sends_block(part.virtual_stages) or not np.isfinite(self.cutoff_s):
            return None
        return combinations(self._classes_data(part, self.cutoff_s))

    def _priced_s(self, bound_s: float, part: VirtualPart) -> float:
        """Bound of a part by all of its orders, at most the cutoff, where that is far enough away."""
        is_near = bound_s > (1 - LEAST_WAY) * self.cutoff_s
        if is_near or self.futile >= FUTILE or self._combinations(part) is None:
            return bound_s
        self._anneal_last(bound_s)
        if bound_s >= self.cutoff_s or (some := self._combinations(part)) is None:
            return bound_s
        data = self._classes_data(part, self.cutoff_s)
        of_round = data.sample.stage.num_microbatches * part.virtual_stages * ROUND_OF_WORK
        orders = PricedOrders(data, some, MOST_WORK_OF_ORDERS / of_round, lambda: self.clock.is_up)
        priced_ms = orders.run(ORDERS_DEALT)
        left = sorted(orders.by_order(), key=lambda one: one[0])
        self.futile = self.futile + 1 if len(left) > ORDERS_DEALT else 0
        self.work += orders.rounds * of_round
        if left:
            fits = np.any([one.fits for _, one in left], axis=0)
            self._narrowed.setdefault(part_key(part), (data.cutoff_ms * MS, fits))
        if len(left) <= ORDERS_DEALT:
            holding = (ms for ms, one in left if self._may_hold(part, one))
            priced_ms = next(holding, data.cutoff_ms)
        return max(bound_s, priced_ms * MS)

    def _may_hold(self, part: VirtualPart, data: VirtualClassesData) -> bool:
        """Whether some way of one order may keep below the cutoff; never wrongly no."""
        paths = self._held(part, data, MOST_PIECES_OF_ORDER)
        return paths is None or paths.holds

    def _may_deal(self, part: VirtualPart, cutoff_s: float, most_pieces: int) -> bool:
        """Whether some way to deal whole layers may keep below a cutoff; never wrongly no, yes when late.

        Where classes are many those that are much alike are one at first, which leaves far fewer windows.
        """
        if self.clock.is_up_behind(LISTS_S):
            return True
        data = self._classes_data(part, cutoff_s)
        if not data.fits.any(axis=(0, 2)).all():
            return False
        groups = alike(data, MOST_RISE_OF_WAYS) if part.rises else []
        for together in [groups, []] if groups else [groups]:
            paths = self._held(part, data, most_pieces, together)
            if paths is None:
                return True
            if not paths.holds:
                return False
            fits = paths.fits
            for group in together:
                fits[list(group)] = fits[group[0]] & data.fits[list(group)]
            if paths.is_too_much:
                break
        self._narrowed.setdefault(part_key(part), (cutoff_s, fits))
        return True

    def _held(
        self,
        part: VirtualPart,
        data: VirtualClassesData,
        most_pieces: int,
        together: Sequence[Group] = (),
    ) -> DealtPaths | None:
        """Ways of what is left of a part that may keep below the cutoff; None where they are too many.

        Parameters
        ----------
        together
            Classes that are taken for one.
        """
        ways = None if data.sends_block else self._way_lists.of_part(part_key(part)[:3], data)
        if ways is None:
            return None
        if together:
            data, ways = merged(data, together), taken_together(ways, together)
        workers = self.problem.options.workers
        paths = DealtPaths(data, ways, most_pieces, lambda: self.clock.is_up, workers)
        paths.hold()
        self.work += paths.pieces // PIECES_OF_WORK
        return paths
