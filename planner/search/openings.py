"""Open one part of the space: bound it better, split it, or solve it and let the referee judge.

A pair lists its groups; a group is bounded again with memory and whole layers, then split into orders
of classes; an order becomes a program (`formulations.stage_selection`), whose answers are judged.

For one order and one split of the layers the least recomputation that fits is best, so each split is
judged once and then excluded; the program goes on until its bound passes the best plan.
"""

from __future__ import annotations

import numpy as np

from formulations.options import SolveOptions
from formulations.stage_selection_data import (
    StageChoice,
    StageSelectionData,
    StageSelectionResult,
    objective_ms,
)
from formulations.stage_selection_tables import least_recompute, objectives_ms, with_least_recompute
from planner.cost.prices import Prices
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import SolverError
from planner.search.assemble import assemble_plan, hosts_needed
from planner.search.bounds import BoundData, group_bounds
from planner.search.degrees import DegreeTable
from planner.search.items import BoundedGroup, GroupList, Item, Order, Pair, Program
from planner.search.local import all_splits, first_layers, improve_layers
from planner.search.orders import all_orders, block_orders, count_orders
from planner.search.space import list_groups
from planner.search.state import Clock, Frontier
from planner.search.tables import Tables
from planner.simulate.evaluate import evaluate_with_prices
from planner.tolerances import BOUND_TOL
from planner.units import MS

MAX_SPLITS = 400
"""Splits of the layers of one order up to which they are all tried instead of solved for."""
MAX_ORDERS = 2600
"""Orders of one group that are listed whole; beyond it one block a class, and the rest only bounded."""


class Opener:
    """Opens parts for one search; what comes of it goes to the frontier and the incumbent."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        bounds: BoundData,
        frontier: Frontier[Item],
        clock: Clock,
    ) -> None:
        self.problem, self.prices, self.table, self.bounds = problem, prices, table, bounds
        self.frontier, self.clock = frontier, clock
        self.tables = Tables(problem, prices, table)
        self.programs = 0
        self.evaluated = 0
        self.since_better = 0
        """Parts opened since the last better plan."""

    def open(self, bound_s: float, item: Item) -> None:
        """Bound a part better, split it, or judge what is in it."""
        if isinstance(item, Pair):
            groups = list_groups(self.table, self.bounds, item.choice, item.stages, bound_s)
            if not groups.whole:
                self.frontier.close(bound_s)
            self._push_groups(GroupList(item.choice, groups, 0))
        elif isinstance(item, GroupList):
            self._bound_group(bound_s, item)
            self._push_groups(GroupList(item.choice, item.groups, item.start + 1))
        elif isinstance(item, BoundedGroup):
            self._split_group(bound_s, item)
        elif isinstance(item, Order):
            self._open_order(bound_s, item)
        elif isinstance(item, Program):
            self._solve(bound_s, item)

    def _push_groups(self, part: GroupList) -> None:
        if part.start < len(part.groups):
            self.frontier.push(float(part.groups.bound_s[part.start]), part)

    def _bound_group(self, bound_s: float, part: GroupList) -> None:
        """Bound a group again, with memory and whole layers."""
        counts = tuple(int(count) for count in part.groups.counts[part.start])
        bottleneck_s = self.tables.least_bottleneck_s(part.choice, counts)
        if not np.isfinite(bottleneck_s):
            return
        bound_s = max(bound_s, self._group_bound_s(part.choice, counts, [bottleneck_s])[0])
        if bound_s < self.frontier.cutoff_s:
            over_orders_s, order = self.tables.group_bound_s(part.choice, counts)
            bound_s = max(bound_s, over_orders_s)
            if order is not None and bound_s < self.frontier.cutoff_s and self.is_allowed(part.choice, order):
                self.try_order(part.choice, order)
        self.frontier.push(bound_s, BoundedGroup(part.choice, counts))

    def _group_bound_s(
        self,
        choice: int,
        counts: tuple[int, ...],
        bottlenecks_s: list[float],
        sends_s: list[float] | None = None,
        more_changes: int = 0,
    ) -> list[float]:
        rows = len(bottlenecks_s)
        bounds = group_bounds(
            self.bounds,
            np.full(rows, choice, dtype=np.int64),
            np.full(rows, self.table.num_microbatches[choice], dtype=np.int64),
            np.tile(np.array(counts, dtype=np.int64), (rows, 1)),
            np.array(bottlenecks_s),
            None if sends_s is None else np.array(sends_s),
            more_changes,
        )
        return [float(bound) for bound in bounds]

    def _split_group(self, bound_s: float, group: BoundedGroup) -> None:
        """One part for each order of the classes, with its own bottleneck in the bound."""
        whole = count_orders(group.counts) <= MAX_ORDERS
        listed = all_orders(group.counts) if whole else block_orders(group.counts)
        orders = [order for order in listed if self.is_allowed(group.choice, order)]
        if not whole:
            # The orders that are not listed change class once more at least.
            bottleneck_s = self.tables.least_bottleneck_s(group.choice, group.counts, more_changes=1)
            rest_s = self._group_bound_s(group.choice, group.counts, [bottleneck_s], more_changes=1)[0]
            self.frontier.close(max(bound_s, rest_s))
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
        bounds = self._group_bound_s(group.choice, group.counts, [b for _, b in kept], sends)
        weighed = self.tables.order_bounds_s(group.choice, [o for o, _ in kept])
        for (order, _), better, dual in zip(kept, bounds, weighed, strict=True):
            self.frontier.push(max(bound_s, better, float(dual)), Order(group.choice, order))

    def is_allowed(self, choice: int, order: tuple[int, ...]) -> bool:
        """Whether the classes have the hosts that an order takes, and the user lets it be."""
        if self.problem.options.keep_class_order and list(order) != sorted(order):
            return False
        classes = self.problem.cluster.classes
        needed = hosts_needed(
            order, int(self.table.stage_size[choice]), [node_class.chips_per_node for node_class in classes]
        )
        return all(count <= classes[c].num_nodes for c, count in needed.items())

    def try_order(self, choice: int, order: tuple[int, ...]) -> bool:
        """Judge a good split of an order, found without a solver; whether any split fits."""
        data = self.tables.data(choice, order)
        table = least_recompute(data)
        layers = first_layers(data, table)
        if layers is None:
            return False
        layers, value_ms = improve_layers(data, table, layers)
        if value_ms * MS < self.frontier.incumbent.worth_judging_s:
            self._judge(choice, order, data, tuple(int(n) for n in layers))
        return True

    def _open_order(self, bound_s: float, part: Order) -> None:
        """A good split without a solver, then the program unless that already closes the order."""
        if not self.try_order(part.choice, part.order):
            return
        if bound_s >= self.frontier.cutoff_s:
            self.frontier.close(bound_s)
            return
        self._solve(bound_s, Program(part.choice, part.order, (), ()))

    def _solve(self, bound_s: float, part: Program) -> None:
        """Solve the program of an order, judge its answer, exclude it, and keep the rest open."""
        data = self.tables.data(part.choice, part.order)
        if self._try_all(part, data):
            return
        cutoff_s = self.frontier.cutoff_s
        result = self._solve_program(data, part, cutoff_s)
        self.programs += 1
        if result.bound_ms is not None:
            bound_s = max(bound_s, result.bound_ms * MS)
        if result.status == "infeasible":
            return
        excluded = part.excluded
        if result.choice is not None:
            layers = result.choice.layers
            self._judge(part.choice, part.order, data, layers)
            excluded = (*excluded, layers)
        elif bound_s < self.frontier.cutoff_s:
            # Cut by the clock before any answer: the part stays open with its bound.
            self.frontier.close(bound_s)
            return
        self.frontier.push(bound_s, Program(part.choice, part.order, excluded, result.rows))

    def _try_all(self, part: Program, data: StageSelectionData) -> bool:
        """Judge all splits that may still win, where there are few; whether there were few."""
        splits = all_splits(data.num_layers, data.num_stages, MAX_SPLITS)
        if splits is None:
            return False
        values_s = objectives_ms(data, least_recompute(data), splits) * MS
        for i in np.argsort(values_s, kind="stable"):
            if values_s[i] >= self.frontier.cutoff_s:
                self.frontier.close(float(values_s[i]))
                break
            self._judge(part.choice, part.order, data, tuple(int(n) for n in splits[i]))
        return True

    def _solve_program(
        self, data: StageSelectionData, part: Program, cutoff_s: float
    ) -> StageSelectionResult:
        options = SolveOptions(
            solver=self.problem.options.solver,
            time_limit_s=self.clock.left_s,
            gap=self.problem.options.gap / 4,
            seed=self.problem.options.seed,
        )
        if options.solver == "cp_sat":
            from formulations import stage_selection_cp as program
        else:
            from formulations import stage_selection as program  # type: ignore[no-redef]
        cutoff_ms = cutoff_s / MS if np.isfinite(cutoff_s) else None
        return program.solve(data, options, exclude=part.excluded, rows=part.rows, cutoff_ms=cutoff_ms)

    def _judge(
        self, choice: int, order: tuple[int, ...], data: StageSelectionData, layers: tuple[int, ...]
    ) -> None:
        """Let the referee evaluate a split with its least recomputation; keep it if it is good."""
        stage_choice = with_least_recompute(least_recompute(data), layers)
        if stage_choice is None:
            return
        plan, evaluation = self._evaluated(choice, order, stage_choice)
        self.evaluated += 1
        if evaluation.violations:
            raise SolverError(f"the search made a plan that breaks rules: {'; '.join(evaluation.violations)}")
        self._check_bound(data, stage_choice, evaluation.step_s)
        if self.frontier.incumbent.step_s is None or evaluation.step_s < self.frontier.incumbent.step_s:
            self.since_better = 0
        self.frontier.incumbent.offer(plan, evaluation)

    def _evaluated(
        self, choice: int, order: tuple[int, ...], stage_choice: StageChoice
    ) -> tuple[Plan, Evaluation]:
        """The plan of an answer, and what the referee says of it."""
        plan = assemble_plan(self.problem, self.table, choice, order, stage_choice)
        return plan, evaluate_with_prices(self.problem, plan, self.prices, choice)

    def _check_bound(self, data: StageSelectionData, stage_choice: StageChoice, step_s: float) -> None:
        bound_s = objective_ms(data, stage_choice) * MS
        if bound_s > step_s * (1 + BOUND_TOL):
            raise SolverError(
                f"the bound of a plan ({bound_s!r} s) exceeds the referee's step time ({step_s!r} s)"
            )
