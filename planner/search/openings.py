"""Open one part of the space: bound it better, split it, or solve it and let the referee judge.

A pair lists its groups; a group is bounded again with memory and whole layers, then split into orders
of classes; an order becomes a program (`formulations.stage_selection`), whose answers are judged.

For one order and one split of the layers the least recomputation that fits is best, so each split is
judged once and then excluded; the program goes on until its bound passes the best plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb

import numpy as np

from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.bound_data import BoundData
from planner.search.bounds import group_bounds
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable
from planner.search.floors import Cell
from planner.search.heuristics.annealer import Annealer
from planner.search.items import BoundedGroup, GroupList, Item, Order, OrderSet, Pair, Part, Program
from planner.search.orders import all_orders, count_orders
from planner.search.programs import Solver
from planner.search.referee import Referee
from planner.search.space import list_groups
from planner.search.state import Frontier
from planner.search.walks.part import Limits
from planner.search.walks.relaxation import Found
from planner.search.walks.relaxer import PartBound, Relaxer
from planner.search.workers import ROUND, Task, Workers

MAX_ORDERS = 600
"""Orders of one group that are listed whole; beyond it they are cut into sets by their first stages."""
MAX_GROUPS = 2000
"""Groups of one part that are listed whole; beyond it the part is halved."""
CLOSING = 1e-12
"""How far beyond the cutoff a bound must come that closes a part, relative."""
TRIED_ORDERS = 3
"""Orders of one relaxed part that are given to the local search."""


class Opener(Solver):
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
        self.relaxer = Relaxer(problem, prices, table, self.tables, lambda: self.clock.is_up)
        self.workers = Workers(self.relaxer, problem.options.workers or 1)
        self._tried: set[tuple[int, tuple[int, ...]]] = set()
        self.annealer: Annealer | None = Annealer(self, self.pair_limits, bounds, lambda: self.clock.is_up)

    def open(self, bound_s: float, item: Item) -> None:
        """Bound a part better, split it, or judge what is in it."""
        if isinstance(item, Pair):
            self._open_round([(bound_s, item)])
        elif isinstance(item, Part):
            self._split_part(bound_s, item)
        elif isinstance(item, GroupList):
            self._bound_group(bound_s, item)
            self._push_groups(GroupList(item.choice, item.groups, item.start + 1))
        elif isinstance(item, BoundedGroup):
            self._split_group(bound_s, item)
        elif isinstance(item, OrderSet):
            self._split_orders(bound_s, item)
        elif isinstance(item, Order):
            self._open_order(bound_s, item)
        elif isinstance(item, Program):
            self._solve(bound_s, item)

    def _push_groups(self, part: GroupList) -> None:
        if part.start < len(part.groups):
            self.frontier.push(float(part.groups.bound_s[part.start]), part)

    def _open_round(self, pairs: list[tuple[float, Pair]]) -> None:
        """Bound the pairs of least bound together, before any of them changes the cutoff."""
        queue = self.frontier.queue
        while len(pairs) < ROUND and (queue.least_ready_s or np.inf) < self.frontier.cutoff_s:
            bound_s, item = queue.pop()
            if not isinstance(item, Pair):
                queue.push(bound_s, item)
                break
            pairs.append((bound_s, item))
        parts = []
        for _, pair in pairs:
            limits = self.limits_of(pair.choice, pair.stages)
            fine = self.orders_are_tiny(pair.choice, pair.stages, limits.most)
            parts.append(Part(pair.choice, pair.stages, limits, fine))
        tasks = [
            Task(part.choice, part.limits, part.stages, self.cutoff_beyond_s(bound_s))
            for (bound_s, _), part in zip(pairs, parts, strict=True)
            if not part.fine
        ]
        try:
            found = iter(self.workers.bounds(tasks))
            bounds = [
                PartBound(bound_s, ()) if part.fine else next(found)
                for (bound_s, _), part in zip(pairs, parts, strict=True)
            ]
            for (bound_s, _), part, bound in zip(pairs, parts, bounds, strict=True):
                self._push_found(bound_s, part, bound)
            if self.annealer is not None:
                bounded = [(bound.bound_s, part) for part, bound in zip(parts, bounds, strict=True)]
                self.annealer.improve_best(bounded)
        except KeyboardInterrupt:
            # Some may be open twice then, which leaves the bound true.
            for bound_s, pair in pairs[1:]:
                queue.push(bound_s, pair)
            raise

    def _push_part(self, bound_s: float, part: Part) -> None:
        """Bound a part by shortest walks, and try the orders that come up."""
        cutoff_s = self.cutoff_beyond_s(bound_s)
        found = self.relaxer.bound(part.choice, part.limits, part.stages, cutoff_s, fine=part.fine)
        self._push_found(bound_s, part, found)

    def _push_found(self, bound_s: float, part: Part, found: PartBound) -> None:
        bound_s = max(bound_s, found.bound_s)
        whole = part.limits == self.limits_of(part.choice, part.stages)
        if whole and not self.table.is_apart(part.choice):
            self.frontier.floors.note(Cell(part.choice, part.stages), bound_s)
        if bound_s < self.frontier.cutoff_s:
            self._try_orders(part.choice, found.found)
        self.frontier.push(bound_s, part)

    def _is_tiny(self, choice: int, stages: int) -> bool:
        """Whether all splits of an order are tried at once, which costs less than to bound it."""
        bare = self.bounds.num_empty
        more = int(bare[choice]) if stages > 1 and bare.any() else 0
        return comb(self.problem.model.num_layers + more - 1, stages - 1) <= self.max_splits

    def orders_are_tiny(self, choice: int, stages: int, most: Sequence[int]) -> bool:
        """The same of every order with so many stages of each class at most, where those are few as well."""
        busy = sum(count > 0 for count in most)
        return busy**stages <= MAX_ORDERS and self._is_tiny(choice, stages)

    def cutoff_beyond_s(self, bound_s: float) -> float:
        """Just beyond the cutoff, so that no rounding reopens a part; twice the bound without a plan."""
        cutoff_s = self.frontier.cutoff_s * (1 + CLOSING)
        return cutoff_s if np.isfinite(cutoff_s) else 2 * bound_s

    def _try_orders(self, choice: int, found: Sequence[Found]) -> None:
        for order, layers in found[:TRIED_ORDERS]:
            if (choice, order) not in self._tried and self.is_allowed(choice, order):
                self._tried.add((choice, order))
                self.try_order(choice, order, layers)

    def _split_part(self, bound_s: float, part: Part) -> None:
        """Bound it as well as can be, then list its groups, or halve the range of a class."""
        if not part.fine:
            self._push_part(bound_s, replace(part, fine=True))
            return
        fewest, most = np.array(part.limits.fewest), np.array(part.limits.most)
        ranges = most - fewest + 1
        if np.prod(np.sort(ranges)[:-1] * 1.0) <= MAX_GROUPS:
            of_part = self.table, self.bounds, part.choice, part.stages, bound_s
            groups = list_groups(*of_part, part.limits.fewest, part.limits.most)
            self._push_groups(GroupList(part.choice, groups, 0))
            return
        widest = int(np.argmax(ranges))
        middle = int(fewest[widest] + most[widest]) // 2
        upper, lower = fewest.copy(), most.copy()
        upper[widest], lower[widest] = middle + 1, middle
        for ends in ((fewest, lower), (upper, most)):
            if ends[0].sum() <= part.stages <= ends[1].sum():
                low, high = (tuple(int(k) for k in end) for end in ends)
                self._push_part(bound_s, replace(part, limits=Limits(low, high)))

    def _bound_group(self, bound_s: float, part: GroupList) -> None:
        """Bound a group again, with memory, whole layers and hops."""
        counts = tuple(int(count) for count in part.groups.counts[part.start])
        are_many = count_orders(counts) > MAX_ORDERS
        if are_many or not self._is_tiny(part.choice, sum(counts)):
            cutoff_s = self.cutoff_beyond_s(bound_s)
            found = self.relaxer.bound(
                part.choice,
                Limits(counts, counts),
                sum(counts),
                cutoff_s,
                fine=True,
                counted=are_many,
            )
            bound_s = max(bound_s, found.bound_s)
            if bound_s < self.frontier.cutoff_s:
                self._try_orders(part.choice, found.found)
        self.frontier.push(bound_s, BoundedGroup(part.choice, counts))

    def _split_group(self, bound_s: float, group: BoundedGroup) -> None:
        """One part for each order of the classes, with its own bottleneck in the bound."""
        if count_orders(group.counts) > MAX_ORDERS and not self.problem.options.keep_class_order:
            limits = Limits(group.counts, group.counts)
            self.frontier.push(bound_s, OrderSet(group.choice, limits))
            return
        listed = all_orders(group.counts)
        if self.problem.options.keep_class_order:
            listed = iter([tuple(c for c, count in enumerate(group.counts) for _ in range(count))])
        orders = [order for order in listed if self.is_allowed(group.choice, order)]
        bottlenecks = []
        for order in orders:
            if self.clock.is_up:
                self.frontier.close(bound_s)
                return
            bottlenecks.append(self.tables.order_bottleneck_s(group.choice, order))
        kept = [(o, b) for o, b in zip(orders, bottlenecks, strict=True) if np.isfinite(b)]
        if not kept:
            return
        sends = [float(self.tables.hops_s(group.choice, o).sum()) for o, _ in kept]
        bounds = group_bounds(
            self.bounds,
            np.full(len(kept), group.choice),
            np.full(len(kept), self.table.num_microbatches[group.choice]),
            np.tile(np.array(group.counts), (len(kept), 1)),
            np.array([b for _, b in kept]),
            np.array(sends),
        )
        weighed = self.tables.order_bounds_s(group.choice, [o for o, _ in kept])
        for (order, _), better, dual in zip(kept, bounds, weighed, strict=True):
            self.frontier.push(max(bound_s, float(better), float(dual)), Order(group.choice, order))

    def _split_orders(self, bound_s: float, part: OrderSet) -> None:
        """Take the order that the shortest walk likes best out of a set, and cut the rest in pieces."""
        self.sets_since_better += 1
        choice, limits = part.choice, part.limits
        if len(limits.prefix) == sum(limits.most):
            self._push_order(bound_s, choice, limits.prefix)
            return
        cutoff_s = self.cutoff_beyond_s(bound_s)
        found = self.relaxer.split(choice, limits, sum(limits.most), cutoff_s)
        bound_s = max(bound_s, found.bound_s)
        if found.bound_s >= cutoff_s or bound_s >= self.frontier.cutoff_s:
            self.frontier.push(bound_s, part)
            return
        if self.clock.is_up:
            self.frontier.push(bound_s, part)
            return
        if found.found:
            if self.annealer is not None:
                self.annealer.improve(choice, len(found.found[0][0]), found.found)
            self._push_order(bound_s, choice, found.found[0][0])
            self._try_orders(choice, found.found)
            for child_s, child in found.children:
                self.frontier.push(max(bound_s, child_s), OrderSet(choice, child))
            return
        left = np.array(limits.most)
        np.subtract.at(left, list(limits.prefix), 1)
        for c in np.flatnonzero(left > 0).tolist():
            if c not in limits.banned:
                further = replace(limits, prefix=(*limits.prefix, c), banned=())
                self.frontier.push(bound_s, OrderSet(choice, further))

    def limits_of(self, choice: int, stages: int) -> Limits:
        """The same as limits of a part: those of the whole pair."""
        return Limits(*self.pair_limits(choice, stages))

    def pair_limits(self, choice: int, stages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Fewest and most stages of each class in a pair."""
        room = self.table.max_stages[choice].tolist()
        fewest = tuple(int(c in self.table.busy) for c in range(len(room)))
        return fewest, tuple(min(count, stages) for count in room)

    def _push_order(self, bound_s: float, choice: int, order: tuple[int, ...]) -> None:
        if self.is_allowed(choice, order):
            dual_s = float(self.tables.order_bounds_s(choice, [order])[0])
            self.frontier.push(max(bound_s, dual_s), Order(choice, order))

    def _open_order(self, bound_s: float, part: Order) -> None:
        """Bound the order by itself and try the split that comes up; its program waits for its turn."""
        program = Program(part.choice, part.order, (), ())
        if self._is_tiny(part.choice, len(part.order)):
            if self.try_order(part.choice, part.order):
                self._solve(bound_s, program)
            return
        bound_s, start = self._bound_order(bound_s, part)
        if bound_s < self.frontier.cutoff_s and not self.try_order(part.choice, part.order, start):
            return
        self.frontier.push(bound_s, program)

    def _bound_order(self, bound_s: float, part: Order) -> tuple[float, tuple[int, ...] | None]:
        """Bound of an order by its shortest walk, and the layers of that."""
        counts = tuple(part.order.count(c) for c in range(self.table.max_stages.shape[1]))
        limits = Limits(counts, counts, prefix=part.order)
        cutoff_s = self.cutoff_beyond_s(bound_s)
        found = self.relaxer.bound(part.choice, limits, len(part.order), cutoff_s, fine=True)
        return max(bound_s, found.bound_s), found.found[0][1] if found.found else None
