"""Bounds of parts with virtual stages by the program over their classes (`formulations.virtual_classes`).

It is relaxed, or solved in whole numbers. A cutoff narrows what stages may hold, so that the program at a low
one is soon found to hold no plan; that bounds every plan by the cutoff. Where some classes are much alike the
program in which they are one comes first (`formulations.virtual_classes_merged`), then that with whole
chunks: it has so many fewer orders that it is often closed at the cutoff that counts.

Rows (path) that one part needs are kept for all of its shape, as a path knows no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from formulations.interleaved_paths import PathRow
from formulations.virtual_classes_data import VirtualClassesResult
from formulations.virtual_classes_merged import Group, alike, merged
from planner.search.bound_data import BoundData
from planner.search.clock import Clock
from planner.search.openings import Opener
from planner.search.virtual.items import VirtualOrder, VirtualPart
from planner.search.virtual.lists import PartKey, VirtualLister, part_key
from planner.units import MS

FIRST_ROUNDS, RAISING_ROUNDS = 2, 6
"""Rounds of rows (path) of the relaxation of a part, at the cutoff that counts and at lower ones. A guess."""
LEVEL, LEAST_LEVEL = 0.005, 0.001
"""Part of the cutoff by which the cutoff of a program in whole numbers rises at first; half of it where that
is too much, as long as it is so much at least. Guesses."""
MOST_ENTRIES, MOST_RISING = 260, 200
"""Most chunks, by class, of such a program with classes taken together, and of one that rises: with 240 none
was closed in twenty seconds. Guesses."""
STEP_GROWS = 5.0
"""So many times as long as the last a step by whole layers of `LEVEL` may take, where time is short, and a
lower one by that part of it in powers. A guess: steps of 405B took 3.3 and 4.6 times as long, those half as
high twice."""
STEP_NODES = 200
"""Nodes of a program in whole numbers whose cutoff rises, unless an exact answer is asked for. A guess."""
MOST_RISE = 0.005
"""Part by which the layers in a unit of time may rise where classes are taken together. A guess: of what is
asked of the gap most is left."""
WHOLE_ROUNDS = 4
"""Rounds of rows (path) of such a program with whole chunks. A guess."""
SHARE_OF_GAP = 0.2
"""Part of the gap of other programs at which one with whole chunks is left. A guess: what it leaves is seldom
raised again."""
MOST_WHOLE, MOST_HALF_WAY = 80, 100
"""Most chunks, by class, of such a program at the cutoff that counts, and half way up to it. A guess: with 96
it was closed half way in three seconds, and at the cutoff not in ten."""
HALF_WAYS = 2
"""Times that a larger one goes half way up. A guess."""
HALVINGS = 3
"""Cutoffs below the real one at which a part is looked at that the first look leaves open. A guess."""
MOST_PIECES, MOST_PIECES_OF_MANY, MOST_PIECES_OF_STEP = 250_000_000, 500_000_000, 20_000_000_000
"""Pieces of work of one such look: about a second, twice as much where classes are many, whose programs take
longer, and far more for the step by which the cutoff of such a program rises, some 25 seconds: with 6e9 the
bound of 405B on 10,240 chips stayed at 13.75 s, and 1.5e10 close the step to 13.82 s. A guess."""
MOST_PATHS = 80
"""Rows (path) that are kept for parts of one shape. A guess."""


class VirtualRelaxer(VirtualLister):
    """Bounds parts of one search."""

    def __init__(self, bounds: BoundData, clock: Clock, opener: Opener) -> None:
        super().__init__(bounds, clock, opener)
        self.most_rise = MOST_RISE
        """Negative where no classes are taken together."""
        self._levels: dict[PartKey, float] = {}
        """By part: part of the cutoff by which its cutoff rises, where that is less than at first."""
        self._took_s: dict[PartKey, float] = {}
        """By part: what its last step by whole layers took [s]."""
        self._undealt: set[PartKey] = set()
        """Parts whose whole layers are too many to look at any higher."""
        self._paths: dict[tuple[int, int, int], dict[PathRow, None]] = {}
        """By stages, micro-batches and virtual stages: rows (path) found, the last to count at the end."""

    def _relaxed(
        self,
        part: VirtualPart,
        cutoff_s: float,
        *,
        integral: bool,
        rounds: int = FIRST_ROUNDS,
        groups: Sequence[Group] = (),
        whole_chunks: bool = False,
    ) -> VirtualClassesResult:
        from formulations import virtual_classes

        data = self._classes_data(part, cutoff_s)
        if groups:
            data = merged(data, groups)
        key = part.stages, data.sample.stage.num_microbatches, part.virtual_stages
        known = self._paths.setdefault(key, {})
        options = self._solve_options()
        if whole_chunks:
            options = replace(options, gap=options.gap * SHARE_OF_GAP)
        elif part.rises and not groups and options.node_limit is not None:
            options = replace(options, node_limit=min(options.node_limit, STEP_NODES))
        found = virtual_classes.solve(
            data, options, integral=integral, whole_chunks=whole_chunks, rows=tuple(known), rounds=rounds
        )
        for row in found.rows:
            known.pop(row, None)
            known[row] = None
        for row in list(known)[:-MOST_PATHS]:
            del known[row]
        self.opener.programs += 1
        self.work += found.work
        return found

    def _deal_part(self, bound_s: float, part: VirtualPart) -> None:
        """Bound a part by whole layers of all chunks: at the cutoff, then at lower ones if need be.

        Before those by all of its orders, where they are not too many.
        Where that rises it, relaxations at lower cutoffs would hardly: its whole numbers are next.
        """
        self._begin_last(bound_s, is_sure=part.rises)
        low_s, high_s = bound_s, self.cutoff_s
        looks = 1 + HALVINGS if low_s < high_s < np.inf else 0
        for look in range(looks):
            level_s = (low_s + high_s) / 2 if look else high_s
            if self._may_deal(part, level_s, MOST_PIECES_OF_MANY if part.rises else MOST_PIECES):
                high_s = level_s
            else:
                low_s = level_s
            if look == 0 and part.rises and low_s < high_s:
                low_s = max(low_s, self._priced_s(bound_s, part))
                high_s = min(high_s, self.cutoff_s)
            if low_s >= high_s:
                break
        is_next = part.rises and low_s > bound_s
        self._push(low_s, replace(part, looks=part.whole_look if is_next else part.looks + 1))

    def _solve_part(self, bound_s: float, part: VirtualPart) -> None:
        """Bound a part by the program in whole classes and layers, where that is not too large.

        With more than a few classes that takes the longer the further the cutoff lies above the bound: it
        rises in steps, of half the length where one was too long. Where no plan lies below a step that is a
        bound on all; else what the program proves.
        """
        entries, cutoff_s = part.stages * part.virtual_stages * part.num_classes, self.cutoff_s
        rises = part.rises and not self.is_exact
        if rises and not part.is_merged:
            self._push(self._merged_s(bound_s, part), replace(part, is_merged=True))
            return
        level = self._levels.get(part_key(part), LEVEL)
        if rises:
            self._want_last(bound_s)
            if (dealt_s := self._dealt_s(bound_s, part)) > bound_s:
                self._push(dealt_s, part)
                return
            self._anneal_last(bound_s)
            if bound_s >= self.cutoff_s:
                self._push(bound_s, part)
                return
        level_s = self._level_s(bound_s, level) if rises else cutoff_s
        if entries <= MOST_RISING if rises else self._may_spend(entries):
            bound_s = self._look(bound_s, part, level_s, integral=True)
            if bound_s >= level_s:
                self._push(bound_s, part)
                return
            if rises and level / 2 >= LEAST_LEVEL:
                self._levels[part_key(part)] = level / 2
                self._push(bound_s, part)
                return
        self._push(bound_s, replace(part, looks=part.looks + 1))

    def _level_s(self, bound_s: float, level: float) -> float:
        """To what a cutoff rises by a part of that which counts: to that one, where it is near."""
        level_s = bound_s + level * self.cutoff_s
        return self.cutoff_s if level_s + level * self.cutoff_s >= self.cutoff_s else level_s

    def _dealt_s(self, bound_s: float, part: VirtualPart) -> float:
        """Bound of a part by whole layers of all chunks: a level, or half way up to it.

        Where either takes too much it is not looked at again. What the last round of annealing finds is
        waited for only where the level is the cutoff. Where the time left seems too short for the level it
        goes half way at once.
        """
        key = part_key(part)
        if key in self._undealt:
            return bound_s
        level = self._levels.get(key, LEVEL)
        if self._level_s(bound_s, level) >= self.cutoff_s:
            self._anneal_last(bound_s)
        if not bound_s < (level_s := self._level_s(bound_s, level)) < np.inf:
            return bound_s
        begun_s = self.clock.elapsed_s
        grows = STEP_GROWS ** ((level_s - bound_s) / (LEVEL * self.cutoff_s))
        is_short = self.clock.is_up_behind(grows * self._took_s.get(key, 0.0))
        for one_s in (level_s, (bound_s + level_s) / 2)[is_short:]:
            if not self._may_deal(part, one_s, MOST_PIECES_OF_STEP):
                self._took_s[key] = self.clock.elapsed_s - begun_s
                return one_s
            level = self._levels.get(key, LEVEL) / 2
            if level >= LEAST_LEVEL:
                self._levels[key] = level
        self._undealt.add(key)
        return bound_s

    def _merged_s(self, bound_s: float, part: VirtualPart) -> float:
        """Bound of a part by the program in which classes that are much alike are one, at most the cutoff."""
        cutoff_s = self.cutoff_s
        if bound_s >= cutoff_s or not np.isfinite(cutoff_s):
            return bound_s
        groups = alike(self._classes_data(part, cutoff_s), self.most_rise)
        classes = part.num_classes - sum(len(group) - 1 for group in groups)
        entries = part.stages * part.virtual_stages * classes
        if not groups or entries > MOST_ENTRIES:
            return bound_s
        found = self._relaxed(part, cutoff_s, integral=True, groups=groups)
        bound_s = max(bound_s, min(found.bound_ms * MS, cutoff_s))
        is_small = entries <= MOST_WHOLE
        for _ in range((1 if is_small else HALF_WAYS) if entries <= MOST_HALF_WAY else 0):
            level_s = cutoff_s if is_small else (bound_s + cutoff_s) / 2
            if bound_s >= level_s:
                break
            found = self._relaxed(
                part, level_s, integral=True, rounds=WHOLE_ROUNDS, groups=groups, whole_chunks=True
            )
            bound_s = max(bound_s, min(found.bound_ms * MS, level_s))
            if bound_s < level_s:
                break
        return bound_s

    def _look(self, bound_s: float, part: VirtualPart, cutoff_s: float, *, integral: bool) -> float:
        """Bound of a part by one program below a cutoff, at most that; an order that comes up is tried."""
        if not np.isfinite(cutoff_s):
            return bound_s
        found = self._relaxed(part, cutoff_s, integral=integral)
        bound_s = max(bound_s, min(found.bound_ms * MS, cutoff_s))
        if bound_s < cutoff_s and found.order is not None:
            self._try_found(part, found.order, found.layers)
            if not integral and not part.limits.prefix:
                self._try_blocks(part)
        return bound_s

    def _try_found(self, part: VirtualPart, order: tuple[int, ...], layers: tuple[int, ...]) -> None:
        """Try an order with the layers of its stages, where they add up."""
        if self.opener.is_allowed(part.choice, order):
            data = self.tables.data(part.choice, part.virtual_stages, order)
            totals = (layers,) if sum(layers) == data.num_layers else ()
            self._try_order(VirtualOrder(part.choice, part.virtual_stages, order), data, totals)
