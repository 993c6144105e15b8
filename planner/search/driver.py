"""Best-first search over the outer choices, with a bound that holds for all of them.

Groups (a row of degrees and a number of stages on each class) are bounded all at once. The part of
the space with the least bound is opened next: a group is bounded again with memory and whole layers,
then split into orders of classes, and each order becomes a program (`formulations.stage_selection`).
Every plan is judged by the referee. The search ends when the least bound left comes within the gap of
the best plan: no plan of the space can beat it by more.

For one order and one split of the layers the least recomputation that fits is best, so each split is
judged once and then excluded; the program goes on until its bound passes the best plan.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from formulations.options import SolveOptions
from formulations.stage_selection import StageSelectionResult
from formulations.stage_selection_data import (
    StageChoice,
    StageSelectionData,
    least_recompute,
    objective_ms,
    objectives_ms,
    with_least_recompute,
)
from planner.cost.pricing import price
from planner.data.problem import Problem
from planner.data.result import Result, Termination
from planner.errors import InstanceError, SolverError
from planner.search.assemble import assemble_plan, hosts_needed
from planner.search.bounds import bound_data, group_bounds
from planner.search.degrees import list_degrees
from planner.search.infeasible import why_infeasible
from planner.search.items import BoundedGroup, GroupList, Item, Order, Pair, Program
from planner.search.local import all_splits, first_layers, improve_layers
from planner.search.orders import all_orders, block_orders, count_orders
from planner.search.progress import Progress
from planner.search.space import list_groups, list_pairs
from planner.search.state import Clock, Incumbent, Queue, Reporter
from planner.search.tables import Tables
from planner.simulate.evaluate import evaluate_with_prices
from planner.tolerances import BOUND_TOL, GAP_TOL
from planner.units import MS

DIVES = 60
"""Groups tried for a first plan before the search begins."""
MAX_SPLITS = 400
"""Splits of the layers of one order up to which they are all tried instead of solved for."""
MAX_ORDERS = 2000
"""Orders of one group that are listed whole; beyond it one block a class, and the rest only bounded."""


def search(problem: Problem, on_progress: Callable[[Progress], None] | None = None) -> Result:
    """The best plan of a problem within its limits, with a proven bound.

    Raises
    ------
    InstanceError
        Where the problem asks for what this search cannot plan.
    SolverError
        Where a bound is broken or a plan fails the referee: our fault.
    """
    if len(problem.model.layer_kinds) > 1:
        kinds = ", ".join(problem.model.layer_kinds)
        raise InstanceError(
            f"model {problem.model.id} mixes layers of several kinds ({kinds}), which `plan` cannot split "
            "yet; `predict` evaluates a plan of your own",
            problem.name,
        )
    return Search(problem, on_progress).run()


class Search:
    """One search; `run` does it."""

    def __init__(self, problem: Problem, on_progress: Callable[[Progress], None] | None) -> None:
        self.problem = problem
        self.clock = Clock(problem.options.time_limit_s)
        self.reporter = Reporter(self.clock, on_progress)
        self.table = list_degrees(problem)
        self.incumbent = Incumbent(max(problem.options.top, 1))
        self.queue: Queue[Item] = Queue()
        self.floor_s = float("inf")
        self.opened = 0
        self.programs = 0
        self.evaluated = 0

    def run(self) -> Result:
        """List, bound, open, judge."""
        interrupted = False
        if len(self.table):
            self.reporter.report("listing choices", None, None, 0, 0)
            self.prices = price(self.problem, self.table.degrees)
            self.bounds = bound_data(
                self.problem.model.num_layers, self.prices, sends_block=not self.problem.stack.p2p_overlap
            )
            self.pairs = list_pairs(self.problem, self.table, self.bounds)
            self.queue.stream(
                self.pairs.bound_s,
                lambda i: Pair(int(self.pairs.choice[i]), int(self.pairs.stages[i])),
            )
            self.tables = Tables(self.problem, self.prices, self.table)
            try:
                self._dive()
                interrupted = self._loop()
            except KeyboardInterrupt:
                interrupted = True
        return self._result(interrupted)

    def _dive(self) -> None:
        """First good plans: the most promising pairs, the classes as blocks, the slow ones first or last."""
        for i in range(min(DIVES, len(self.pairs))):
            if self.clock.is_up:
                return
            choice, stages = int(self.pairs.choice[i]), int(self.pairs.stages[i])
            groups = list_groups(self.table, self.bounds, choice, stages, 0.0)
            if len(groups) == 0 or groups.bound_s[0] >= self.incumbent.worth_judging_s:
                continue
            counts = tuple(int(count) for count in groups.counts[0])
            blocks = [c for c, count in enumerate(counts) if count]
            blocks.sort(key=lambda c: (-self.bounds.layer_s[choice, c], c))
            for sequence in (blocks, blocks[::-1])[: 1 if len(blocks) == 1 else 2]:
                order = tuple(c for c in sequence for _ in range(counts[c]))
                if self._has_hosts(choice, order):
                    self._try_order(choice, order)
            self.reporter.report("first plans", self.incumbent.step_s, None, 0, len(self.queue))

    def _loop(self) -> bool:
        """Open parts until the bound is reached; whether a limit cut it."""
        while len(self.queue):
            if self.clock.is_up:
                return True
            bound_s, item = self.queue.pop()
            if bound_s >= self._cutoff_s():
                self.floor_s = min(self.floor_s, bound_s)
                return False
            self.opened += 1
            try:
                self._open(bound_s, item)
            except KeyboardInterrupt:
                self.queue.push(bound_s, item)
                raise
            self.reporter.report(
                "searching", self.incumbent.step_s, self._bound_s(), self.opened, len(self.queue)
            )
        return False

    def _cutoff_s(self) -> float:
        """Bound from which a part cannot hold a plan that is better by more than the gap."""
        if self.incumbent.step_s is None:
            return float("inf")
        return self.incumbent.step_s * (1 - max(self.problem.options.gap, GAP_TOL))

    def _bound_s(self) -> float | None:
        """What no plan of the space undercuts."""
        least = min(self.floor_s, self.queue.least_s or float("inf"), self.incumbent.step_s or float("inf"))
        return least if np.isfinite(least) else None

    def _push(self, bound_s: float, item: Item) -> None:
        """Keep a part open, or note its bound where it cannot win any more."""
        if bound_s >= self._cutoff_s():
            self.floor_s = min(self.floor_s, bound_s)
        else:
            self.queue.push(bound_s, item)

    def _open(self, bound_s: float, item: Item) -> None:
        if isinstance(item, Pair):
            groups = list_groups(self.table, self.bounds, item.choice, item.stages, bound_s)
            if not groups.whole:
                self.floor_s = min(self.floor_s, bound_s)
            self._push_groups(GroupList(item.choice, groups, 0))
        elif isinstance(item, GroupList):
            self._bound_group(bound_s, item)
            self._push_groups(GroupList(item.choice, item.groups, item.start + 1))
        elif isinstance(item, BoundedGroup):
            self._split_group(bound_s, item)
        elif isinstance(item, Order):
            self._open_order(bound_s, item)
        else:
            self._solve(bound_s, item)

    def _push_groups(self, part: GroupList) -> None:
        if part.start < len(part.groups):
            self._push(float(part.groups.bound_s[part.start]), part)

    def _bound_group(self, bound_s: float, part: GroupList) -> None:
        """Bound a group again, with memory and whole layers."""
        counts = tuple(int(count) for count in part.groups.counts[part.start])
        bottleneck_s = self.tables.least_bottleneck_s(part.choice, counts)
        if not np.isfinite(bottleneck_s):
            return
        better = self._group_bound_s(part.choice, counts, [bottleneck_s])[0]
        self._push(max(bound_s, better), BoundedGroup(part.choice, counts))

    def _group_bound_s(
        self,
        choice: int,
        counts: tuple[int, ...],
        bottlenecks_s: list[float],
        sends_s: list[float] | None = None,
    ) -> list[float]:
        rows = len(bottlenecks_s)
        bounds = group_bounds(
            self.bounds,
            np.full(rows, choice, dtype=np.int64),
            np.full(rows, self.table.num_microbatches[choice], dtype=np.int64),
            np.tile(np.array(counts, dtype=np.int64), (rows, 1)),
            np.array(bottlenecks_s),
            None if sends_s is None else np.array(sends_s),
        )
        return [float(bound) for bound in bounds]

    def _split_group(self, bound_s: float, group: BoundedGroup) -> None:
        """One part for each order of the classes, with its own bottleneck in the bound."""
        whole = count_orders(group.counts) <= MAX_ORDERS
        listed = all_orders(group.counts) if whole else block_orders(group.counts)
        orders = [order for order in listed if self._has_hosts(group.choice, order)]
        if not whole:
            self.floor_s = min(self.floor_s, bound_s)
        bottlenecks = [self.tables.order_bottleneck_s(group.choice, order) for order in orders]
        kept = [(o, b) for o, b in zip(orders, bottlenecks, strict=True) if np.isfinite(b)]
        if not kept:
            return
        sends = [float(self.tables.hops_s(group.choice, o).sum()) for o, _ in kept]
        bounds = self._group_bound_s(group.choice, group.counts, [b for _, b in kept], sends)
        for (order, _), better in zip(kept, bounds, strict=True):
            self._push(max(bound_s, better), Order(group.choice, order))

    def _has_hosts(self, choice: int, order: tuple[int, ...]) -> bool:
        classes = self.problem.cluster.classes
        needed = hosts_needed(
            order, int(self.table.stage_size[choice]), [node_class.chips_per_node for node_class in classes]
        )
        return all(count <= classes[c].num_nodes for c, count in needed.items())

    def _try_order(self, choice: int, order: tuple[int, ...]) -> bool:
        """Judge a good split of an order, found without a solver; whether any split fits."""
        data = self.tables.data(choice, order)
        table = least_recompute(data)
        layers = first_layers(data, table)
        if layers is None:
            return False
        layers, value_ms = improve_layers(data, table, layers)
        if value_ms * MS < self.incumbent.worth_judging_s:
            self._judge(choice, order, data, tuple(int(n) for n in layers))
        return True

    def _open_order(self, bound_s: float, part: Order) -> None:
        """A good split without a solver, then the program unless that already closes the order."""
        if not self._try_order(part.choice, part.order):
            return
        if bound_s >= self._cutoff_s():
            self.floor_s = min(self.floor_s, bound_s)
            return
        self._solve(bound_s, Program(part.choice, part.order, (), ()))

    def _solve(self, bound_s: float, part: Program) -> None:
        """Solve the program of an order, judge its answer, exclude it, and keep the rest open."""
        data = self.tables.data(part.choice, part.order)
        if self._try_all(part, data):
            return
        cutoff_s = self._cutoff_s()
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
        elif bound_s < self._cutoff_s():
            # Cut by the clock before any answer: the part stays open with its bound.
            self.floor_s = min(self.floor_s, bound_s)
            return
        self._push(bound_s, Program(part.choice, part.order, excluded, result.rows))

    def _try_all(self, part: Program, data: StageSelectionData) -> bool:
        """Judge all splits that may still win, where there are few; whether there were few."""
        splits = all_splits(data.num_layers, data.num_stages, MAX_SPLITS)
        if splits is None:
            return False
        values_s = objectives_ms(data, least_recompute(data), splits) * MS
        for i in np.argsort(values_s, kind="stable"):
            if values_s[i] >= self._cutoff_s():
                self.floor_s = min(self.floor_s, float(values_s[i]))
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
        plan = assemble_plan(self.problem, self.table, choice, order, stage_choice)
        evaluation = evaluate_with_prices(self.problem, plan, self.prices, choice)
        self.evaluated += 1
        if evaluation.violations:
            raise SolverError(f"the search made a plan that breaks rules: {'; '.join(evaluation.violations)}")
        self._check_bound(data, stage_choice, evaluation.step_s)
        self.incumbent.offer(plan, evaluation)

    def _check_bound(self, data: StageSelectionData, stage_choice: StageChoice, step_s: float) -> None:
        bound_s = objective_ms(data, stage_choice) * MS
        if bound_s > step_s * (1 + BOUND_TOL):
            raise SolverError(
                f"the bound of a plan ({bound_s!r} s) exceeds the referee's step time ({step_s!r} s)"
            )

    def _result(self, interrupted: bool) -> Result:
        import planner

        ranked = self.incumbent.ranked()
        best = ranked[0] if ranked else None
        bound_s = self._bound_s()
        gap = None
        if best is not None and bound_s is not None:
            gap = max(0.0, (best.evaluation.step_s - bound_s) / best.evaluation.step_s)
        termination: Termination
        reason = None
        if best is None:
            left_open = interrupted or np.isfinite(self.floor_s)
            termination = "no_solution_found" if left_open else "infeasible"
            if left_open:
                reason = "no plan was found before the search was cut; give it more time"
            else:
                reason = why_infeasible(self.problem, self.table, getattr(self, "tables", None))
                bound_s = None
        else:
            proven = gap is not None and gap <= max(self.problem.options.gap, GAP_TOL)
            termination = "optimal" if proven else "feasible"
        return Result(
            problem=self.problem.name,
            plan=best.plan if best else None,
            evaluation=best.evaluation if best else None,
            bound_s=bound_s,
            gap=gap,
            termination=termination,
            interrupted=interrupted,
            reason=reason,
            seconds=self.clock.elapsed_s,
            solver=self.problem.options.solver,
            version=planner.__version__,
            runners_up=tuple(ranked[1:]),
            statistics={
                "degrees": float(len(self.table)),
                "pairs": float(len(self.pairs)) if len(self.table) else 0.0,
                "opened": float(self.opened),
                "programs": float(self.programs),
                "evaluated": float(self.evaluated),
            },
        )
