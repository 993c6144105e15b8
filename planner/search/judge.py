"""Let the referee judge plans of an order, and keep the good ones."""

from __future__ import annotations

import numpy as np

from formulations.stage_selection_data import StageChoice, StageSelectionData, objective_ms
from formulations.stage_selection_tables import least_recompute, with_least_recompute
from planner.cost.prices import Prices
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import SolverError
from planner.search.assemble import assemble_plan, hosts_needed, own_classes
from planner.search.degrees import DegreeTable
from planner.search.heuristics.local import improve_layers, repaired_layers
from planner.search.referee import Referee
from planner.search.state import Incumbent
from planner.search.tables import Tables
from planner.tolerances import BOUND_TOL
from planner.units import MS


class Judge:
    """Makes plans of one search and has them evaluated."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        incumbent: Incumbent,
        referee: Referee | None = None,
    ) -> None:
        self.problem, self.prices, self.table = problem, prices, table
        self.tables = Tables(problem, prices, table)
        self.incumbent = incumbent
        self.referee = referee or Referee(problem, prices)
        self.evaluated = 0
        self.sets_since_better = 0
        """Sets of orders split since the last better plan."""

    def is_allowed(self, choice: int, order: tuple[int, ...]) -> bool:
        """Whether the classes have the hosts that an order takes, and the user lets it be."""
        if self.problem.options.keep_class_order and list(order) != sorted(order):
            return False
        if not set(self.table.busy) <= set(order):
            return False
        classes = self.problem.cluster.classes
        per_node = [node_class.chips_per_node for node_class in classes]
        own = own_classes(self.table, choice, order)
        needed = hosts_needed(own, int(self.table.stage_size[choice]), per_node)
        return all(count <= classes[c].num_nodes for c, count in needed.items())

    def try_order(self, choice: int, order: tuple[int, ...], start: tuple[int, ...] | None = None) -> bool:
        """Judge a good split of an order, found without a solver; whether any split fits.

        `start` are layers worth starting from, which need not add up.
        """
        begun = self.tables.start(choice, order)
        data, table = begun.data, begun.recompute
        if begun.layers is not None and begun.least_step_ms * MS >= self.incumbent.worth_judging_s:
            return True
        starts = [begun.layers]
        if start is not None:
            starts.append(repaired_layers(data, table, np.array(start)))
        ends = [improve_layers(data, table, layers) for layers in starts if layers is not None]
        if not ends:
            return False
        layers, value_ms = min(ends, key=lambda end: end[1])
        if value_ms * MS < self.incumbent.worth_judging_s:
            self._judge(choice, order, data, tuple(int(n) for n in layers))
        return True

    def whole_layers(
        self, choice: int, order: tuple[int, ...], layers: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Layers of an order that add up, near those given; None where none fit."""
        begun = self.tables.start(choice, order)
        repaired = repaired_layers(begun.data, begun.recompute, np.array(layers))
        found = begun.layers if repaired is None else repaired
        return None if found is None else tuple(found.tolist())

    def judge_layers(self, choice: int, order: tuple[int, ...], layers: tuple[int, ...]) -> None:
        """Let the referee evaluate one split of an order as it is."""
        self._judge(choice, order, self.tables.data(choice, order), layers)

    def _judge(
        self, choice: int, order: tuple[int, ...], data: StageSelectionData, layers: tuple[int, ...]
    ) -> None:
        """Let the referee evaluate a split with its least recomputation; keep it if it is good."""
        stage_choice = with_least_recompute(least_recompute(data), layers)
        if stage_choice is None:
            return
        judged = self._evaluated(choice, order, stage_choice)
        self.evaluated += 1
        if judged is None:
            return
        plan, evaluation = judged
        self._check_bound(data, stage_choice, evaluation.step_s)
        if self.incumbent.step_s is None or evaluation.step_s < self.incumbent.step_s:
            self.sets_since_better = 0
        self.incumbent.offer(plan, evaluation)

    def _evaluated(
        self, choice: int, order: tuple[int, ...], stage_choice: StageChoice
    ) -> tuple[Plan, Evaluation] | None:
        """The plan of an answer, and what the referee says of it; None where it cannot be completed."""
        plan = assemble_plan(self.problem, self.table, choice, order, stage_choice)
        return self.referee.judged(plan, choice)

    def _check_bound(self, data: StageSelectionData, stage_choice: StageChoice, step_s: float) -> None:
        bound_s = objective_ms(data, stage_choice) * MS
        if bound_s > step_s * (1 + BOUND_TOL):
            raise SolverError(
                f"the bound of a plan ({bound_s!r} s) exceeds the referee's step time ({step_s!r} s)"
            )
