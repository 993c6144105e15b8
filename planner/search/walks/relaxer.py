"""Bounds on parts of the space by shortest walks: from a row of degrees to walks, brackets and seconds.

A part is a row of degrees and a number of stages, with limits on the stages of each class, and perhaps the
classes of its first stages. Few enough counts are counted exactly; else classes have prices, and the walk
must change class as often as the limits ask for at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.capacity import holds_layers, least_follow_ms, slowest_range
from planner.search.degrees import DegreeTable
from planner.search.tables import ClassTables, Tables
from planner.search.walks.chain import Chain, Counter, build_chain, count_classes, count_hosts, count_nothing
from planner.search.walks.cheapest import Ints, Walks
from planner.search.walks.mixed_rows import relax_by_rows
from planner.search.walks.other_rows import LateWalks, OneSidedWalks, WeighedWalks
from planner.search.walks.part import Limits, RelaxedPart
from planner.search.walks.relaxation import (
    Found,
    Relaxed,
    both_proven,
    counted_as_well,
    relax,
)
from planner.search.walks.tables import StageTables, least_times, longest_times, shown_reductions_ms
from planner.units import MS

MAX_ENTRIES, MAX_FINE_ENTRIES = 6_000, 40_000
"""Points of the lattice of counts times states of a walk up to which counts are exact, at first and later."""
MOST_ENTRIES = 2_000_000
"""The same for the brackets that still keep a group open, where they are so few: prices of classes leave
brackets open in which the layers only just fit, as walks of few layers on fast classes are mixed in."""
HOST_ENTRIES = 2
"""How many times more of them there may be where hosts are counted too."""
MAX_STATES = 64
"""States of a walk up to which changes of class are counted as well."""
MAX_KINDS = 60
"""Kinds of stages beyond which hops are rounded down to the least of each class."""
COARSE, FINE = 1.02, 1.004
"""Ratio of the edges of a bracket, at first and where that leaves a part open."""
MAX_BRACKETS = 24
LONG_PIPELINE = 2
"""Micro-batches over stages below which other rows are tried on what the first leave open."""
LATE_COUNTS = 0.1
"""Share of the cutoff from which reductions are looked at by a row of their own. A guess: from a
hundredth on it took more time than it closed."""


def kinds_of_walks(num_microbatches: int, num_stages: int, reduction_share: float) -> tuple[type[Walks], ...]:
    """The rows that walks go by, one after the other; the first ones lead to orders worth trying.

    `reduction_share`: how much of the cutoff a reduction would take behind an even pipeline.
    """
    others = (OneSidedWalks, WeighedWalks) if num_microbatches < LONG_PIPELINE * num_stages else ()
    return (Walks, *((LateWalks,) if reduction_share > LATE_COUNTS else ()), *others)


@dataclass(frozen=True)
class PartBound:
    """Bound of a part [s], and orders worth trying with layers to start from."""

    bound_s: float
    found: tuple[Found, ...]
    children: tuple[tuple[float, Limits], ...] = ()


class Relaxer:
    """Bounds the parts of one search."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        tables: Tables,
        is_up: Callable[[], bool] = lambda: False,
        *,
        counts_hosts: bool = True,
    ) -> None:
        """`is_up` tells whether the time is up: bounds then stay as they are.

        `counts_hosts` is False where a run of stages need not begin on a host of its own, as with mixed ones.
        """
        self.counts_hosts = counts_hosts
        self.problem, self.prices, self.table, self.tables = problem, prices, table, tables
        self.is_up = is_up

    def bound(
        self, choice: int, limits: Limits, stages: int, cutoff_s: float, *, fine: bool, counted: bool = False
    ) -> PartBound:
        """Bound of a part; orders that came up. Plans slower than `cutoff_s` are not told apart.

        `counted`: where few brackets stay open their counts are exact, though that takes long.
        """
        asked_s, beyond_s = self._cutoff_s(choice, limits, stages, cutoff_s)
        part = self._part(choice, limits, stages, asked_s, fine=fine)
        if part is not None and counted and part.may_be_counted and not self.is_up():
            again = self._part(choice, limits, stages, asked_s, fine=fine, first=part.relaxed)
            part = part if again is None else again
        if part is None:
            return self._beyond(choice, limits, stages, beyond_s)
        bound_s = part.seconds(part.relaxed.bound_ms)
        return PartBound(bound_s if bound_s < asked_s else beyond_s, part.found())

    def split(self, choice: int, limits: Limits, stages: int, cutoff_s: float) -> PartBound:
        """The same, and the rest of the part without the best order: by the first stage that differs."""
        asked_s, beyond_s = self._cutoff_s(choice, limits, stages, cutoff_s)
        part = self._part(choice, limits, stages, asked_s, fine=True)
        if part is None:
            return self._beyond(choice, limits, stages, beyond_s)
        found, bound_s = part.found(), part.seconds(part.relaxed.bound_ms)
        bound_s = bound_s if bound_s < asked_s else beyond_s
        if not found or not len(part.relaxed.brackets.mu) or self.is_up():
            return PartBound(bound_s, ())
        return PartBound(bound_s, found, tuple(part.without(found[0][0], limits)))

    def _cutoff_s(self, choice: int, limits: Limits, stages: int, cutoff_s: float) -> tuple[float, float]:
        """Where to stop looking, and what a part is bounded by in which nothing is faster than that.

        Without a plan at hand cutoffs grow until a part has one. No plan takes longer than one piece of work
        after the other, so a part without any that is faster than twice that has none at all.
        """
        used = [c for c, count in enumerate(limits.most) if count]
        longest_s = 2 * self.tables.longest_step_s(choice, stages, used)
        return (longest_s, np.inf) if cutoff_s > longest_s else (cutoff_s, cutoff_s)

    def _beyond(self, choice: int, limits: Limits, stages: int, beyond_s: float) -> PartBound:
        """Bound of a part without any plan below the cutoff: infinite where its layers fit at no pace.

        Tables that leave out what is too slow for a cutoff do not tell.
        """
        if not self.tables.shares:
            return PartBound(beyond_s, ())
        used = [c for c, count in enumerate(limits.most) if count]
        times_ms = self.tables.of_classes(choice, stages).times_ms[used]
        most = np.minimum([limits.most[c] for c in used], stages)
        return PartBound(beyond_s if holds_layers(times_ms, most) else np.inf, ())

    def _part(
        self,
        choice: int,
        limits: Limits,
        stages: int,
        cutoff_s: float,
        *,
        fine: bool,
        first: Relaxed | None = None,
    ) -> RelaxedPart | None:
        """The part relaxed; None where no plan of it is faster than the cutoff.

        Only the brackets that `first` has left open, if it is given, with counts that are exact.
        """
        used = [c for c, count in enumerate(limits.most) if count]
        tables = self.tables.of_classes(choice, stages)
        tied_ms = float(tables.tied_ms[np.ix_(used, used)].min())
        cutoff_ms = cutoff_s / MS - tied_ms
        m = int(self.table.num_microbatches[choice])
        fewest = np.array([limits.fewest[c] for c in used])
        most = np.minimum([limits.most[c] for c in used], stages)
        chain, counter = self._chain(
            choice, used, fewest, most, stages, _entries(fine=fine, counted=first is not None)
        )
        if first is not None and not counter.exact:
            return None
        stage_tables = _stage_tables(tables, used)
        least = least_times(chain, stage_tables)
        low, high = slowest_range(least, m, most, cutoff_ms)
        if low >= high:
            return None
        allowed = np.ones((stages, len(used)), dtype=np.bool_)
        for s, c in enumerate(limits.prefix):
            allowed[s] = np.array(used) == c
        if limits.banned:
            allowed[len(limits.prefix), [used.index(c) for c in limits.banned if c in used]] = False
        if first is None:
            edges = _edges(low, high, FINE if fine else COARSE)
            lows, highs, known_ms = edges[:-1], edges[1:], None
        else:
            lows, highs, known_ms = first.brackets.low_ms, first.brackets.high_ms, first.brackets.best_ms
            edges = np.unique(np.concatenate([lows, highs]))
        longest = longest_times(chain, stage_tables)
        floors = least_follow_ms(least, longest, stage_tables.follow, most, edges)
        blocks = not self.problem.stack.p2p_overlap
        late_ms = float(shown_reductions_ms(stage_tables, self.problem.model.num_layers).max())
        main, *others = (
            kind(chain, counter, stage_tables, m, edges[1:], floors, most, sends_block=blocks)
            for kind in kinds_of_walks(m, stages, late_ms / cutoff_ms)
        )
        relaxed = relax(main, fewest, most, allowed, lows, highs, cutoff_ms, self.is_up, floor_ms=known_ms)
        if first is not None:
            relaxed = counted_as_well(first, relaxed)
        if others:
            relaxed = _by_other_rows(relaxed, main, others, fewest, most, allowed, cutoff_ms, self.is_up)
        return RelaxedPart(main, allowed, np.array(used), fewest, most, relaxed, cutoff_s, tied_ms)

    def _chain(
        self, choice: int, used: Sequence[int], fewest: Ints, most: Ints, stages: int, entries: int
    ) -> tuple[Chain, Counter]:
        stack, classes = self.problem.stack, self.problem.cluster.classes
        sends = {"sends_block": not stack.p2p_overlap}
        sends["waits"] = sends["sends_block"] and stack.p2p_after_gradient
        sends["keeps_order"] = self.problem.options.keep_class_order
        hops = self.prices.send_s[choice][np.ix_(used, used)] / MS
        inside = self.prices.send_inside_s[choice][list(used)] / MS
        size, chips = int(self.table.stage_size[choice]), [classes[c].chips_per_node for c in used]
        chain = build_chain(hops, inside, size, chips, 0, **sends)
        if len(chain.kind_class) > MAX_KINDS:
            between = ~np.eye(len(used), dtype=np.bool_)
            hops = np.where(between, hops[between].min(initial=np.inf), hops)
            chain = build_chain(hops, inside, size, chips, 0, **sends)
        if np.prod(most + 1.0) * len(chain.class_of_state) <= entries:
            return chain, self._counter(chain, used, fewest, most, stages, size, entries)
        room = np.cumsum(np.sort(most)[::-1])
        changes = max(int(np.argmax(room >= stages)), int((fewest > 0).sum()) - 1)
        changes = min(changes, MAX_STATES // len(chain.class_of_state) - 1)
        if changes > 0:
            chain = build_chain(hops, inside, size, chips, changes, **sends)
        return chain, count_nothing(stages, chain)

    def _counter(
        self,
        chain: Chain,
        used: Sequence[int],
        fewest: Ints,
        most: Ints,
        stages: int,
        size: int,
        entries: int,
    ) -> Counter:
        """Stages of each class; hosts too, where several runs may need more of them and they are few."""
        classes = [self.problem.cluster.classes[c] for c in used]
        # Stages that fill hosts take as many whatever the order.
        hosts = [
            min(c.num_nodes, k) if size % c.chips_per_node else 0 for c, k in zip(classes, most, strict=True)
        ]
        points = np.prod(most + 1.0) * np.prod(np.array(hosts) + 1.0) * len(chain.class_of_state)
        limits = fewest.tolist(), most.tolist()
        if not self.counts_hosts or not any(hosts) or points > HOST_ENTRIES * entries:
            return count_classes(stages, chain, *limits)
        return count_hosts(stages, chain, *limits, [c.num_nodes for c in classes])


def _by_other_rows(
    relaxed: Relaxed,
    main: Walks,
    others: Sequence[Walks],
    fewest: Ints,
    most: Ints,
    allowed: NDArray[np.bool_],
    cutoff_ms: float,
    is_up: Callable[[], bool],
) -> Relaxed:
    """What walks by other rows prove of the open brackets, and all rows together of a group."""
    given = fewest, most, allowed
    for walks in others:
        left = relaxed.brackets
        if not len(left.mu) or is_up():
            return relaxed
        ends = left.low_ms, left.high_ms
        again = relax(walks, *given, *ends, cutoff_ms, is_up, floor_ms=left.best_ms)
        relaxed = both_proven(relaxed, again)
    # Parts that are cut further are bounded sooner by less.
    if (fewest < most).any() or not len(relaxed.brackets.mu) or is_up():
        return relaxed
    return relax_by_rows(relaxed, main, *given, cutoff_ms, is_up)


def _stage_tables(tables: ClassTables, used: Sequence[int]) -> StageTables:
    """What walks read of some classes."""
    return StageTables(
        tables.times_ms[used],
        np.maximum(tables.forward_ms, tables.backward_ms)[used],
        tables.backward_ms[used],
        tables.follow_ms[used],
        tables.reduce_ms[used],
    )


def _edges(low: float, high: float, ratio: float) -> Floats:
    """Ends of brackets of the slowest stage, of some ratio."""
    number = int(np.clip(np.ceil(np.log(high / low) / np.log(ratio)), 1, MAX_BRACKETS))
    return np.geomspace(low, high, number + 1)


def _entries(*, fine: bool, counted: bool) -> int:
    """Up to how many entries counts are exact."""
    return MOST_ENTRIES if counted else MAX_FINE_ENTRIES if fine else MAX_ENTRIES
