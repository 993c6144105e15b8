"""Open parts of the space for models whose layers are of several kinds in any order.

What `openings` does for layers of one kind: a pair lists its groups, a group its orders of classes, an
order becomes a program, here `formulations.layer_partition`, whose answers the referee judges. A pair is
bounded in steps, each dearer than the one before, and waits for its turn after each: so the least bound of
all rises soonest. For one
order and one split the least recomputation that fits is best, so each split is judged once and then
excluded; the program goes on until its bound passes the best plan. Before, all groups of a pair, all orders
of a group and each order are bounded by shortest paths (`partition_bounds`), whose splits are tried, too.

Left out: recomputation of other modules than the stack's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from formulations import layer_partition, layer_partition_cp
from formulations.layer_partition_data import (
    least_bottleneck,
)
from formulations.layer_partition_paths import least_ms
from formulations.options import SolveOptions
from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.bound_data import BoundData
from planner.search.bounds import group_bounds, relaxed_bounds
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable
from planner.search.items import BoundedGroup, GroupedPair, Item, Order, Pair, Program
from planner.search.openings import MAX_ORDERS
from planner.search.orders import all_orders, block_orders, count_orders, likely_orders
from planner.search.partition.bounds import STEPS, OrderBounds, is_bounded_whole
from planner.search.partition.splits import SplitJudge
from planner.search.partition.whole_layers import WholeLayers
from planner.search.referee import Referee
from planner.search.space import Groups, list_groups
from planner.search.state import Frontier
from planner.units import MS

MAX_GROUPS = 100_000
"""Groups of a pair up to which they are listed."""
FEW_ORDERS = 40
"""Orders that are listed one by one where more are bounded at once. A guess."""
MOST_TRIED = 100
"""Orders of a group up to which all of them are tried before they are bounded. A guess."""
MOST_TRIES = 40
"""Groups of which a split is tried as they are bounded; more only where their bound is less. A guess."""
NO_SPLIT = (
    "no split of the layers fits the chips, even with every layer recomputed; add chips, or chips with more "
    "memory, or lower the memory reserve"
)
"""Why there is no plan."""


class PartitionOpener(SplitJudge):
    """Opens parts for one search; what comes of it goes to the frontier and the incumbent."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        bounds: BoundData,
        frontier: Frontier[Item],
        clock: Clock,
        referee: Referee | None = None,
    ) -> None:
        super().__init__(problem, prices, table, frontier, clock, referee)
        self.bounds = bounds
        self.whole_layers = WholeLayers(self.intervals)
        self.orders = OrderBounds(self.intervals, lambda: self.clock.is_up)
        self.tries, self.likeliest_s = 0, np.inf
        """Groups of which a split was tried as they were bounded, and the least of their bounds [s]."""
        self.programs = 0
        self.climbed: dict[int, tuple[int, ...]] = {}
        """The order that the last climb led to, by its number of stages."""

    def open(self, bound_s: float, item: Item) -> None:
        """Bound a part better, split it, or judge what is in it; climb from a better plan."""
        self._open(bound_s, item)
        best, self.best = self.best, None
        if best is not None and not self.clock.is_up:
            self.climbed[len(best[1])] = self._climb(*best)

    def _open(self, bound_s: float, item: Item) -> None:
        """The same without the climb."""
        if bound_s > self.frontier.floor_s:
            self.sets_since_better += 1
        if isinstance(item, Pair):
            self._open_pair(bound_s, item)
        elif isinstance(item, GroupedPair):
            self._split_pair(item)
        elif isinstance(item, BoundedGroup):
            self._split_group(bound_s, item)
        elif isinstance(item, Order):
            self._open_order(bound_s, item)
        elif isinstance(item, Program):
            self._solve(bound_s, item)

    def _open_pair(self, bound_s: float, pair: Pair) -> None:
        """Bound it with classes taken together, fewer each time; list its groups once that is done."""
        if pair.step == 0:
            pair, listed_s = replace(pair, step=1), bound_s
            bound_s = max(bound_s, self._with_whole_layers_s(pair))
            likely = self.climbed.get(pair.stages)
            if likely is not None and bound_s < self.frontier.cutoff_s and self._has(pair.choice, likely):
                self._try_orders(pair.choice, (likely,))
            if bound_s > listed_s:
                self.frontier.push(bound_s, pair)
                return
        step = self.orders.next_step(pair.choice, pair.stages, pair.step - 1)
        if step is not None:
            closer_s, pair = self.orders.of_all(pair, self.frontier.cutoff_s, STEPS[step])
            self.frontier.push(max(bound_s, closer_s), replace(pair, step=step + 2))
        elif self._num_groups(pair) > MAX_GROUPS:
            self.frontier.close(bound_s)
        else:
            self._list_groups(bound_s, pair)

    def _with_whole_layers_s(self, pair: Pair) -> float:
        """Bound of a pair as it is listed [s], but for the slowest stage, which holds whole layers."""
        slowest_s = self.whole_layers.slowest_s(pair.choice, pair.stages)
        row = np.array([pair.choice])
        most, stages = self.table.max_stages[row], np.array([pair.stages])
        m = self.table.num_microbatches[row]
        return float(relaxed_bounds(self.bounds, row, m, most, stages, None, np.array([slowest_s]))[0])

    def _has(self, choice: int, order: tuple[int, ...]) -> bool:
        """Whether a row of degrees has so many stages on each class."""
        most = self.table.max_stages[choice]
        return bool((np.bincount(order, minlength=len(most)) <= most).all())

    def _num_groups(self, pair: Pair) -> float:
        """How many groups a pair has at most."""
        ranges = np.minimum(self.table.max_stages[pair.choice], pair.stages) + 1.0
        return float(np.prod(np.sort(ranges)[:-1]))

    def _list_groups(self, bound_s: float, pair: Pair) -> None:
        """All groups of a pair, bounded by paths."""
        groups = self._groups(bound_s, pair)
        if (groups.bound_s < self.frontier.cutoff_s).any():
            closer = self.orders.by_paths(pair, groups.counts, self.frontier.cutoff_s)
            groups = replace(groups, bound_s=np.maximum(groups.bound_s, closer))
            self._try_groups(pair, groups)
        least_s = float(groups.bound_s.min(initial=np.inf))
        self.frontier.push(least_s, GroupedPair(pair.choice, groups))

    def _split_pair(self, pair: GroupedPair) -> None:
        """Its groups, bounded by labels."""
        groups, cutoff_s = pair.groups, self.frontier.cutoff_s
        closer, split = self.orders.by_labels(pair.choice, groups, cutoff_s)
        self._try_split(pair.choice, split)
        for counts, group_s in zip(groups.counts, closer, strict=True):
            self.frontier.push(float(group_s), BoundedGroup(pair.choice, tuple(map(int, counts))))

    def _try_groups(self, pair: Pair, groups: Groups) -> None:
        """Judge the split that a path of the likeliest group has, if it is likelier than others before."""
        best = int(np.argmin(groups.bound_s))
        bound_s = float(groups.bound_s[best])
        if bound_s >= self.frontier.cutoff_s or (self.tries >= MOST_TRIES and bound_s >= self.likeliest_s):
            return
        self.tries, self.likeliest_s = self.tries + 1, min(bound_s, self.likeliest_s)
        found = self.orders.likely_split(tuple(groups.counts[best].tolist()))
        self._try_split(pair.choice, found)

    def _are_bounded_whole(self, most: NDArray[np.int64], stages: int) -> bool:
        """Whether all orders of so many stages on each class at most are bounded at once."""
        return is_bounded_whole(most, stages, self.problem.model.num_layers)

    def _groups(self, bound_s: float, pair: Pair) -> Groups:
        """The groups of a pair with their bounds."""
        return list_groups(self.table, self.bounds, pair.choice, pair.stages, bound_s)

    def _split_group(self, bound_s: float, group: BoundedGroup) -> None:
        """One part for each order of the classes, bounded by itself, or for each class of the next stage."""
        is_whole = self._are_bounded_whole(np.array(group.counts), sum(group.counts))
        if not group.first and count_orders(group.counts) <= MOST_TRIED:
            self._try_orders(group.choice, all_orders(group.counts))
        if is_whole:
            closer_s, split = self.orders.of_group(group, self.frontier.cutoff_s)
            bound_s = max(bound_s, closer_s)
            self._try_split(group.choice, split)
        if bound_s >= self.frontier.cutoff_s:
            self.frontier.push(bound_s, group)
            return
        left = np.array(group.counts) - np.bincount(group.first, minlength=len(group.counts))
        few = count_orders(left.tolist()) <= (FEW_ORDERS if is_whole else MAX_ORDERS)
        if few or self.problem.options.keep_class_order:
            self._push_orders(bound_s, group, all_orders(left.tolist()))
        elif is_whole:
            if not group.first:
                tied_s = self.prices.tied_sync_s[group.choice]
                self._try_orders(group.choice, likely_orders(group.counts, tied_s))
            for c in np.flatnonzero(left):
                self.frontier.push(bound_s, replace(group, first=(*group.first, int(c))))
        else:
            self.frontier.close(bound_s)
            self._push_orders(bound_s, group, block_orders(group.counts))

    def _push_orders(self, bound_s: float, group: BoundedGroup, rests: Iterable[tuple[int, ...]]) -> None:
        """One part for each order that begins as a group does and goes on in one of these ways."""
        if self.problem.options.keep_class_order:
            rests = [tuple(sorted(c for c, count in enumerate(group.counts) for _ in range(count)))]
        for rest in rests:
            if self.clock.is_up:
                self.frontier.close(bound_s)
                return
            order = (*group.first, *rest)
            if self.is_allowed(group.choice, order):
                order_s = self._order_bound_s(group, order)
                self.frontier.push(max(bound_s, order_s), Order(group.choice, order))

    def _order_bound_s(self, group: BoundedGroup, order: tuple[int, ...]) -> float:
        """Bound of an order from its slowest stage, all stages and sends [s]; inf where nothing fits."""
        data = self.intervals.data(group.choice, order)
        bottleneck_ms, _ = least_bottleneck(data)
        if not np.isfinite(bottleneck_ms):
            return float("inf")
        bounds = group_bounds(
            self.bounds,
            np.array([group.choice], dtype=np.int64),
            np.array([data.num_microbatches], dtype=np.int64),
            np.array([group.counts], dtype=np.int64),
            np.array([bottleneck_ms * MS]),
            np.array([float(self.intervals.hops_s(group.choice, order).sum())]),
        )
        return max(float(bounds[0]), least_ms(data) * MS)

    def _open_order(self, bound_s: float, part: Order) -> None:
        """A good split without a solver, then the program unless that already closes the order."""
        if self.try_order(part.choice, part.order):
            program = Program(part.choice, part.order, (), ())
            self.frontier.push(self._closer_s(bound_s, program), program)

    def _closer_s(self, bound_s: float, part: Program) -> float:
        """Bound of an order by paths and weights of rows [s]; a split that was met on the way is judged."""
        counts = np.bincount(part.order, minlength=len(self.problem.cluster.classes))
        cutoff_s = self.frontier.cutoff_s
        if bound_s >= cutoff_s or not self._are_bounded_whole(counts, len(part.order)):
            return bound_s
        of_order = BoundedGroup(part.choice, tuple(counts.tolist()), part.order)
        closer_s, split = self.orders.of_group(of_order, cutoff_s)
        self._try_split(part.choice, split)
        return max(bound_s, closer_s)

    def _solve(self, bound_s: float, part: Program) -> None:
        """Solve the program of an order, judge its answer, exclude it, and keep the rest open."""
        bound_s = bound_s if part.excluded else self._closer_s(bound_s, part)
        cutoff_s, options = self.frontier.cutoff_s, self.problem.options
        if bound_s >= cutoff_s:
            self.frontier.close(bound_s)
            return
        data = self.intervals.data(part.choice, part.order)
        program = layer_partition_cp if options.solver == "cp_sat" else layer_partition
        result = program.solve(
            data,
            SolveOptions(
                solver=options.solver,
                time_limit_s=self.clock.left_s,
                gap=options.gap / 4,
                seed=options.seed,
            ),
            exclude=part.excluded,
            cutoff_ms=cutoff_s / MS if np.isfinite(cutoff_s) else None,
        )
        self.programs += 1
        if result.status == "infeasible":
            return
        if result.bound_ms is not None:
            bound_s = max(bound_s, result.bound_ms * MS)
        if result.cuts is not None:
            self._judge(part.choice, part.order, data, result.cuts)
            again = Program(part.choice, part.order, (*part.excluded, result.cuts), ())
            self.frontier.push(bound_s, again)
        else:
            # Cut by the clock before any answer, or nothing below the cutoff.
            self.frontier.close(bound_s)
