"""Judge splits of layers of several kinds in any order."""

from __future__ import annotations

from collections.abc import Iterable

from formulations.layer_partition_data import Cuts, LayerPartitionData, least_bottleneck, objective_ms
from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.errors import SolverError
from planner.search.assemble import assemble_plan, hosts_needed, own_classes
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable
from planner.search.items import Item
from planner.search.partition.bounds import Split
from planner.search.partition.cut_moves import improved
from planner.search.partition.intervals import Intervals
from planner.search.partition.order_moves import climbed
from planner.search.referee import Referee
from planner.search.state import Frontier
from planner.tolerances import BOUND_TOL
from planner.units import MS

FAR = 1.25
"""How much longer than the best plans a split may take before layers are moved. A guess."""


class SplitJudge:
    """Has the referee evaluate splits; good ones go to the incumbent."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        frontier: Frontier[Item],
        clock: Clock,
        referee: Referee | None = None,
    ) -> None:
        self.referee = referee or Referee(problem, prices)
        self.problem, self.prices, self.table = problem, prices, table
        self.frontier, self.clock = frontier, clock
        self.intervals = Intervals(problem, prices, table)
        self.evaluated = 0
        self.sets_since_better = 0
        """Parts opened since the last better plan while the bound could not rise any more."""
        self.best: tuple[int, tuple[int, ...], Cuts] | None = None
        """Row of degrees, order and cuts of the best plan judged here."""

    def is_allowed(self, choice: int, order: tuple[int, ...]) -> bool:
        """Whether the classes have the hosts that an order takes, and the user lets it be."""
        if self.problem.options.keep_class_order and list(order) != sorted(order):
            return False
        classes = self.problem.cluster.classes
        per_node = [node_class.chips_per_node for node_class in classes]
        own = own_classes(self.table, choice, order)
        needed = hosts_needed(own, int(self.table.stage_size[choice]), per_node)
        return all(count <= classes[c].num_nodes for c, count in needed.items())

    def try_order(self, choice: int, order: tuple[int, ...]) -> bool:
        """Judge a good split of an order, found without a solver; whether any split fits."""
        data = self.intervals.data(choice, order)
        _, cuts = least_bottleneck(data)
        if cuts is None:
            return False
        self._judge_improved(choice, order, data, cuts)
        return True

    def _try_orders(self, choice: int, orders: Iterable[tuple[int, ...]]) -> None:
        """Judge a good split of each order, as far as it is allowed and time is left."""
        for order in orders:
            if not self.clock.is_up and self.is_allowed(choice, order):
                self.try_order(choice, order)

    def _try_split(self, choice: int, split: Split | None) -> None:
        """Judge a split, or what single moves make of it, if there is one and it is allowed."""
        if split is not None and self.is_allowed(choice, split[0]):
            self._judge_improved(choice, split[0], self.intervals.data(choice, split[0]), split[1])

    def _climb(self, choice: int, order: tuple[int, ...], cuts: Cuts) -> tuple[int, ...]:
        """Judge what changes of places make of an order and its cuts; the order that they lead to."""
        order, cuts = climbed(
            lambda changed: self.intervals.data(choice, changed),
            lambda changed: self.is_allowed(choice, changed),
            order,
            cuts,
            lambda: self.clock.is_up,
        )
        self._judge_improved(choice, order, self.intervals.data(choice, order), cuts)
        return order

    def _judge_improved(
        self, choice: int, order: tuple[int, ...], data: LayerPartitionData, cuts: Cuts
    ) -> None:
        """Judge the split that single moves lead to from another, if that is not far above the best plans."""
        if objective_ms(data, cuts) * MS > FAR * self.frontier.incumbent.worth_judging_s:
            return
        cuts, value_ms = improved(data, cuts)
        if value_ms * MS < self.frontier.incumbent.worth_judging_s:
            self._judge(choice, order, data, cuts)

    def _judge(self, choice: int, order: tuple[int, ...], data: LayerPartitionData, cuts: Cuts) -> None:
        """Let the referee evaluate a split with its least recomputation; keep it if it is good."""
        stage_choice = self.intervals.choice_of(choice, order, cuts)
        plan = assemble_plan(self.problem, self.table, choice, order, stage_choice)
        judged = self.referee.judged(plan, choice)
        self.evaluated += 1
        if judged is None:
            return
        plan, evaluation = judged
        promised_s = objective_ms(data, cuts) * MS
        if promised_s > evaluation.step_s * (1 + BOUND_TOL):
            raise SolverError(
                f"the bound of a plan ({promised_s!r} s) exceeds the referee's step time "
                f"({evaluation.step_s!r} s)"
            )
        incumbent = self.frontier.incumbent
        if incumbent.step_s is None or evaluation.step_s < incumbent.step_s:
            self.sets_since_better = 0
            self.best = choice, order, cuts
        incumbent.offer(plan, evaluation)
