"""Solve the program of an order, and let the referee judge its answers.

For one order and one split of the layers the least recomputation that fits is best, so each split is
judged once and then excluded; the program goes on until its bound passes the best plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from formulations.options import SolveOptions
from formulations.stage_selection_data import StageSelectionData, StageSelectionResult, least_layers
from formulations.stage_selection_tables import least_recompute, objectives_ms, with_least_recompute
from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable
from planner.search.heuristics.local import all_splits
from planner.search.items import Item, Program
from planner.search.judge import Judge
from planner.search.referee import Referee
from planner.search.state import Frontier
from planner.units import MS


class Solver(Judge):
    """Solves programs of one search."""

    max_splits = 400
    """Splits of the layers of one order up to which they are all tried instead of solved for."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        frontier: Frontier[Item],
        clock: Clock,
        referee: Referee | None = None,
    ) -> None:
        super().__init__(problem, prices, table, frontier.incumbent, referee)
        self.frontier, self.clock = frontier, clock
        self.programs = 0

    def _solve(self, bound_s: float, part: Program) -> None:
        """Solve the program of an order, judge its answer, exclude it, and keep the rest open."""
        data = self.tables.data(part.choice, part.order)
        if self._try_all(part, data):
            return
        if part.alike is None and self.referee.recomputes_alike(part.choice):
            part = replace(part, alike=(1, data.num_layers))
        data = replace(data, alike=part.alike)
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
        ranges = [part.alike] if result.choice is None else self._ranges(part, data, result.choice.layers)
        for alike in ranges:
            self.frontier.push(bound_s, replace(part, excluded=excluded, rows=result.rows, alike=alike))

    def _ranges(
        self, part: Program, data: StageSelectionData, layers: tuple[int, ...]
    ) -> list[tuple[int, int] | None]:
        """The range of the number that all stages recompute, cut where a split of the layers needs it."""
        choice = with_least_recompute(least_recompute(data), layers)
        if part.alike is None or choice is None:
            return [part.alike]
        (least, most), needed = part.alike, max(choice.recompute_layers)
        return [part.alike] if needed <= least else [(least, needed - 1), (needed, most)]

    def _try_all(self, part: Program, data: StageSelectionData) -> bool:
        """Judge all splits that may still win, where there are few; whether there were few."""
        # Stages that need no layer get one more, which is then taken away.
        more = (least_layers(data) == 0).astype(np.int64)
        splits = all_splits(data.num_layers + int(more.sum()), data.num_stages, self.max_splits)
        if splits is None:
            return False
        splits = splits - more
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
