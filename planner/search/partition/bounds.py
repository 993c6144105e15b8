"""Bounds of coarse parts of the space for models whose layers are of several kinds in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from formulations.layer_partition_data import Cuts
from formulations.layer_partition_groups import (
    WIDEST,
    GroupCosts,
    GroupPaths,
    num_ways,
    taken_together,
    ways_to_use,
)
from formulations.layer_partition_labels import GroupLabels
from formulations.layer_partition_prices import Path, PricedOrders, Weights, shortest_path
from planner.cost.prices import Floats
from planner.search.items import BoundedGroup, Pair
from planner.search.partition.interval_memory import Ints
from planner.search.partition.intervals import Intervals
from planner.search.partition.run_tables import RunTables
from planner.search.space import Groups
from planner.units import MS

MAX_WAYS = 30_000_000
"""Ways to have used up stages by class, times runs and classes, up to which orders are bounded at once.
A guess."""
STEPS = 200_000, 3_000_000, MAX_WAYS
"""The same of the steps before, in which classes are taken together until there are so few. Guesses: a
step takes some hundredths of a second, tenths, and seconds."""
LEVELS = 0.5, 1.0
"""Of what lies between a bound and a limit, the parts up to which labels look for splits, one after the
other: a split that is found at the first spares the second. Guesses."""

WeightsOf = dict[tuple[int, tuple[int, ...]], Weights]
"""Weights by row of degrees and stages on each class."""


def is_bounded_whole(most: Ints, num_stages: int, num_layers: int) -> bool:
    """Whether all orders of so many stages on each class at most are bounded at once."""
    return _work(most, num_stages, num_layers) <= MAX_WAYS


def _work(most: Ints, num_stages: int, num_layers: int) -> int:
    """Ways to have used up stages by class, times runs and classes."""
    ways = num_ways(np.minimum(most, num_stages).tolist())
    return ways * len(most) * num_layers * -(-2 * num_layers // num_stages)


Split = tuple[tuple[int, ...], Cuts]
"""Class of every stage, and where the layers are cut."""


class OrderBounds:
    """Bounds of all orders at once, of pairs and of groups."""

    def __init__(self, intervals: Intervals, is_up: Callable[[], bool] = lambda: False) -> None:
        """`is_up` tells whether the time is up: bounds then stay as they are."""
        self.intervals, self.runs_of, self.is_up = intervals, RunTables(intervals), is_up
        self.weights: WeightsOf = {}
        """Of the rows of the pipeline, for all orders of a group."""
        self.last: GroupPaths | None = None
        """Of the pair that was bounded last; None where classes were taken together."""

    def next_step(self, choice: int, stages: int, step: int) -> int | None:
        """The first of `STEPS` from `step` on to bound all orders by; None where none is left.

        A step is skipped where the next one takes the same classes together.
        """
        most, last = self._most(choice, stages), len(STEPS) - 1
        sets = [set(self._together(choice, most, stages, ways)) for ways in STEPS[step:]]
        differ = (i for i, (one, other) in enumerate(pairwise(sets), step) if one != other)
        return next(differ, last) if sets else None

    def of_all(self, pair: Pair, limit_s: float, ways: int) -> tuple[float, Pair]:
        """Bound of all orders of a pair [s], classes taken together until so few ways are left; and the pair
        with what is known of its slowest stage then, where plans are looked for below the limit.

        No more than a finite limit, else inf where none fits. A true bound: classes that are taken together
        undercut each of them, and every number of stages on each counts, allowed or not. The time of the
        slowest stage stays in wide pieces, which says nearly as much in a small part of the time. Where no
        path of a piece is below the limit, no plan is whose slowest stage lies in it.
        """
        tied_s = self._tied_s(pair.choice, pair.stages, self._most(pair.choice, pair.stages))
        costs, _ = self._costs(pair.choice, pair.stages, limit_s, ways)
        paths = GroupPaths(costs, self.is_up)
        least_ms = paths.least_ms((limit_s - tied_s) / MS, WIDEST, pair.slowest_ms).min(initial=np.inf)
        return min(float(least_ms) * MS + tied_s, limit_s), replace(pair, slowest_ms=paths.open_ms)

    def by_paths(self, pair: Pair, counts: Ints, limit_s: float) -> Floats:
        """Bounds of groups of a pair by paths [s], no more than a finite limit, else inf where none fits.

        Where that takes too much, classes that are most alike are taken together.

        Parameters
        ----------
        counts
            [group, class] stages on each class.
        """
        costs, together = self._costs(pair.choice, pair.stages, limit_s, MAX_WAYS)
        paths = GroupPaths(costs, self.is_up)
        self.last = paths if _are_apart(together) else None
        tied_s = self._tied_s(pair.choice, pair.stages, self._most(pair.choice, pair.stages))
        least_ms = paths.least_ms((limit_s - tied_s) / MS, within_ms=pair.slowest_ms) + tied_s / MS
        return _of_groups(costs, least_ms, _sums(counts, together), limit_s)

    def by_labels(self, choice: int, groups: Groups, limit_s: float) -> tuple[Floats, Split | None]:
        """The same by labels where that is more than the groups' bounds, and the split that has the least."""
        low_s = float(groups.bound_s.min(initial=np.inf))
        if not low_s < limit_s < np.inf or self.is_up():
            return groups.bound_s, None
        stages = int(groups.counts[0].sum())
        costs, together = self._costs(choice, stages, limit_s, MAX_WAYS)
        _, states = ways_to_use(costs.most, stages)
        tied_ms = self._tied_s(choice, stages, self._most(choice, stages)) / MS
        least_ms, path, _ = by_labels(
            costs, np.full(len(states), low_s / MS - tied_ms), limit_s / MS - tied_ms
        )
        least_ms = least_ms + tied_ms
        closer = _of_groups(costs, least_ms, _sums(groups.counts, together), limit_s)
        if not _are_apart(together):
            path = self._with_classes(choice, path, together, self._most(choice, stages))
        return np.maximum(groups.bound_s, closer), split_of(path)

    def _tied_s(self, choice: int, stages: int, most: Sequence[int], first: tuple[int, ...] = ()) -> float:
        """What sharing an embedding takes at least with the classes that both ends may have [s].

        Parameters
        ----------
        most
            Stages on each class at most; so many, where those of the first stages are given.
        """
        if stages == 1:
            return 0.0
        left = np.array(most) - np.bincount(np.array(first, dtype=np.int64), minlength=len(most))
        firsts = list(first[:1]) or np.flatnonzero(left > 0).tolist()
        lasts = np.flatnonzero(left > 0).tolist() or list(first[-1:])
        own = [(a, b) for a in firsts for b in lasts if a != b or most[a] > 1]
        return min((float(self.intervals.prices.tied_sync_s[choice, a, b]) for a, b in own), default=0.0)

    def _most(self, choice: int, stages: int) -> tuple[int, ...]:
        """Stages on each class at most."""
        return tuple(np.minimum(self.intervals.table.max_stages[choice], stages).tolist())

    def _costs(
        self, choice: int, stages: int, limit_s: float, ways: int
    ) -> tuple[GroupCosts, list[tuple[int, ...]]]:
        """Costs of all orders, and the classes that are taken together in them."""
        most = self._most(choice, stages)
        costs, together = (
            self.runs_of.costs(choice, most, stages, limit_s),
            self._together(choice, most, stages, ways),
        )
        return costs if _are_apart(together) else taken_together(costs, together), together

    def _together(self, choice: int, most: tuple[int, ...], stages: int, ways: int) -> list[tuple[int, ...]]:
        """Sets of classes, those most alike in one until all orders can be bounded at once."""
        prices = self.intervals.prices
        times = np.log((prices.layer_forward_s + prices.layer_backward_s)[choice].sum(axis=-1))
        together: list[tuple[int, ...]] = [(c,) for c in range(len(most))]

        def unlike(one: tuple[int, ...], other: tuple[int, ...]) -> float:
            used = [c for c in (*one, *other) if most[c]]
            return float(np.ptp(times[:, used], axis=1).max()) if used else 0.0

        while len(together) > 1:
            room = _sums(np.array([most]), together)[0]
            if _work(room, stages, self.intervals.problem.model.num_layers) <= ways:
                break
            one, other = min(combinations(together, 2), key=lambda both: unlike(*both))
            together = [*(each for each in together if each not in (one, other)), (*one, *other)]
        return together

    def _with_classes(
        self, choice: int, path: Path, together: Sequence[Sequence[int]], most: Sequence[int]
    ) -> Path:
        """A path through sets of classes with their classes, those of most memory first, which hold most."""
        room = self.intervals.prices.limit_bytes
        left = [
            [c for c in sorted(one, key=lambda c: (-room[c], c)) for _ in range(most[c])] for one in together
        ]
        return [(s, left[one].pop(0), length, end) for s, one, length, end in path]

    def likely_split(self, counts: tuple[int, ...]) -> Split | None:
        """Order and cuts of a group of the last pair with the least sum of times where its bound is least."""
        paths = self.last
        if paths is None:
            return None
        of_group = replace(paths.costs, most=counts)
        pace_ms = paths.paces_ms[paths.counts.index(counts)]
        _, path = shortest_path(np.where(paths.times <= pace_ms, paths.times, np.inf), of_group)
        return split_of(path)

    def of_group(self, group: BoundedGroup, limit_s: float) -> tuple[float, Split | None]:
        """Bound of all orders of a group [s], by paths, then by labels, or by weights of rows where these are
        too many; and the likeliest split that was met, if it did not reach a limit.

        No more than a finite limit, else inf where nothing fits.
        """
        tied_s = self._tied_s(group.choice, sum(group.counts), group.counts, group.first)
        value_s, split = self._without_tied(group, limit_s - tied_s)
        return min(value_s + tied_s, limit_s), split

    def _without_tied(self, group: BoundedGroup, limit_s: float) -> tuple[float, Split | None]:
        """The same of what plans take beside the sharing of an embedding."""
        costs = self.runs_of.costs(group.choice, group.counts, sum(group.counts), limit_s, group.first)
        paths = GroupPaths(costs, self.is_up)
        least_ms = float(paths.least_ms(limit_s / MS)[0])
        if least_ms * MS >= limit_s or limit_s == np.inf or self.is_up():
            return min(least_ms * MS, limit_s), None
        closer_ms, path, is_whole = by_labels(costs, np.array([least_ms]), limit_s / MS)
        least_ms = float(closer_ms[0])
        if is_whole:
            return min(least_ms * MS, limit_s), split_of(path)
        key, priced = (group.choice, group.counts), PricedOrders(costs)
        value_ms, weights = priced.best_in_pieces(limit_s / MS, *paths.open_ms, self.weights.get(key))
        if weights is not None:
            self.weights[key] = weights
        split = split_of(priced.promised[1]) if value_ms * MS < limit_s else None
        return min(max(least_ms, value_ms) * MS, limit_s), split


def by_labels(costs: GroupCosts, known_ms: Floats, limit_ms: float) -> tuple[Floats, Path, bool]:
    """Bounds of groups by labels, up to a limit at most [ms]; the split that has the least, if any lies
    below; and whether labels were few enough to tell.

    Parameters
    ----------
    known_ms
        Bounds that are known, by group.
    """
    low_ms = float(known_ms.min(initial=np.inf))
    if not low_ms < limit_ms < np.inf:
        return known_ms, [], True
    labels = GroupLabels(costs)
    for level in LEVELS:
        found = labels.least_ms(low_ms + level * (limit_ms - low_ms))
        if found is None:
            return known_ms, [], False
        known_ms = np.maximum(known_ms, found.least_ms)
        if found.path:
            return known_ms, found.path, True
    return known_ms, [], True


def _sums(counts: Ints, together: Sequence[Sequence[int]]) -> Ints:
    """Stages on sets of classes, [group, set]."""
    return np.stack([counts[:, list(one)].sum(axis=1) for one in together], axis=1)


def _of_groups(costs: GroupCosts, least_ms: Floats, counts: Ints, limit_s: float) -> Floats:
    """Bounds of groups, [group, set] stages on sets of classes, from those of all numbers of stages [s]."""
    _, states = ways_to_use(costs.most, costs.num_stages)
    known = dict(zip(states, np.minimum(least_ms * MS, limit_s).tolist(), strict=True))
    return np.array([known[tuple(one)] for one in counts.tolist()])


def _are_apart(together: Sequence[Sequence[int]]) -> bool:
    """Whether no classes are taken together."""
    return all(len(one) == 1 for one in together)


def split_of(path: Path) -> Split | None:
    """Order and cuts of a path; None of none."""
    return (tuple(c for _, c, _, _ in path), tuple(end for _, _, _, end in path[:-1])) if path else None
