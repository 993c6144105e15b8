"""Single orders of classes with virtual stages: dealings tried, programs solved, plans judged.

What `planner.search.virtual.openings` does at the ends of its tree.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from formulations.options import SolveOptions
from formulations.virtual_selection_data import (
    VirtualChoice,
    VirtualSelectionData,
    choices,
    lists_all_choices,
    objective_ms,
    objectives_ms,
)
from formulations.virtual_selection_tables import fewest_layers
from planner.data.options import Options
from planner.errors import SolverError
from planner.search.assemble import assemble_virtual_plan
from planner.search.clock import Clock
from planner.search.degrees import interleaving_is_asked_for
from planner.search.floors import Cell
from planner.search.heuristics.local import all_splits
from planner.search.openings import Opener
from planner.search.virtual.items import VirtualItem, VirtualOrder, VirtualPart, VirtualProgram
from planner.search.virtual.local import Dealer
from planner.search.virtual.tables import VirtualTables
from planner.tolerances import BOUND_TOL, GAP_TOL, ROUNDING_TOL
from planner.units import MS

MAX_SPLITS = 400
"""Dealings of one order up to which they are all tried instead of solved for."""
MAX_CHUNKS = 32
"""Chunks of all stages up to which the program is solved in whole numbers, beyond it only its relaxation;
always the former where an exact answer is asked for. A guess."""
BUDGET = 3_000
"""Chunks, by class, of all programs in whole numbers, unless an exact answer is asked for."""
MAX_ENTRIES = 200
"""Those of one such program."""
NODE_LIMIT = 1_000
"""Nodes of one program, unless an exact answer is asked for. A guess."""
RAISE, MOST_RAISES = 4, 3
"""So many times as many nodes a program gets that they have stopped, and how often: only where plans with
virtual stages are asked for, or search has nothing else to look at. Guesses: one of Llama-3 8B on 32 A100,
which kept the bound 3.7% below the best plan with most of the time left, is closed by 8,000."""


def virtual_gap(options: Options) -> float:
    """Gap at which parts with virtual stages are closed."""
    return max(options.gap, options.virtual_gap, GAP_TOL)


class VirtualSolver:
    """Solves single orders of one search; what comes of it goes to the frontier and the incumbent."""

    def __init__(self, clock: Clock, opener: Opener) -> None:
        problem = opener.problem
        self.problem, self.prices, self.table = problem, opener.prices, opener.table
        self.frontier, self.clock, self.opener = opener.frontier, clock, opener
        self.tables = VirtualTables(problem, self.prices, self.table)
        self.gap = virtual_gap(problem.options)
        self.is_exact = self.gap <= GAP_TOL
        self.is_asked_for = interleaving_is_asked_for(problem) or self.is_exact
        self.spent = 0
        """Size of the programs solved in whole numbers."""
        self.good: dict[tuple[int, int, int], tuple[float, VirtualOrder, VirtualChoice]] = {}
        """By row of degrees, virtual stages and stages: best dealing met without a solver, its value [s]."""
        self.work = 0
        """Of all programs solved (`Solution.work`)."""

    @property
    def cutoff_s(self) -> float:
        """Bound from which a part cannot hold a plan that is better by more than the gap."""
        incumbent_s = self.frontier.incumbent.step_s
        return float("inf") if incumbent_s is None else incumbent_s * (1 - self.gap) * (1 + ROUNDING_TOL)

    def _push(self, bound_s: float, part: VirtualItem) -> None:
        """Keep a part open, or note its bound where it cannot win any more; an infinite one holds no plan."""
        if isinstance(part, VirtualPart) and not part.is_split:
            cell = Cell(part.choice, part.stages, part.virtual_stages)
            self.frontier.floors.note(cell, bound_s)
        if bound_s == float("inf"):
            return
        if bound_s >= self.cutoff_s:
            self.frontier.close_virtual(bound_s)
        else:
            self.frontier.queue.push(bound_s, part)

    def _try_order(
        self, part: VirtualOrder, data: VirtualSelectionData, totals: tuple[tuple[int, ...], ...] = ()
    ) -> float:
        """Judge a good dealing of an order, found without a solver; its value [s], inf where none fits."""
        worth_s = self.frontier.incumbent.worth_judging_s
        found = Dealer(data).good_choice(worth_s / MS, totals)
        if found is None:
            return float("inf")
        value_s = found[0] * MS
        self._note_good(part, value_s, found[1])
        if value_s < worth_s:
            self._judge(part, data, found[1])
        return value_s

    def _note_good(self, part: VirtualOrder, value_s: float, choice: VirtualChoice) -> None:
        """Keep a dealing where it is the best of all orders like it."""
        key = part.choice, part.virtual_stages, len(part.order)
        if value_s < self.good.get(key, (float("inf"),))[0]:
            self.good[key] = value_s, part, choice

    def _may_spend(self, entries: int) -> bool:
        """Take a program of so many chunks out of what is left for them; always for an exact answer."""
        if self.is_exact:
            return True
        if entries > MAX_ENTRIES or self.spent + entries > BUDGET:
            return False
        self.spent += entries
        return True

    def _solve_options(self, raised: int = 0) -> SolveOptions:
        solver = self.problem.options.solver
        return SolveOptions(
            solver="highs" if solver == "cp_sat" else solver,
            time_limit_s=self.clock.left_s,
            gap=self.gap / 4,
            seed=self.problem.options.seed,
            node_limit=None if self.is_exact else NODE_LIMIT * RAISE**raised,
        )

    def _open_order(self, bound_s: float, part: VirtualOrder) -> None:
        """All dealings where they are few; else a good one without a solver, and the program."""
        data = self.tables.data(part.choice, part.virtual_stages, part.order)
        if self._try_all(part, data):
            return
        self._try_order(part, data)
        self._solve(bound_s, VirtualProgram(part.choice, part.virtual_stages, part.order, (), ()))

    def _try_all(self, part: VirtualOrder, data: VirtualSelectionData) -> bool:
        """Judge all dealings that may still win, where there are few; whether there were few."""
        p, v = data.num_stages, data.virtual_stages
        # Chunks that need no layer get one more, which is then taken away.
        more = fewest_layers(data) == 0
        splits = all_splits(data.num_layers + int(more.sum()), p * v, MAX_SPLITS)
        if splits is None:
            return False
        dealt = splits.reshape(len(splits), v, p).transpose(0, 2, 1) - more
        dealt = dealt[dealt[:, 0, 0] >= data.stage.lead[0]]
        if not all(lists_all_choices(data, layers.tolist()) for layers in dealt):
            return False
        found = [choice for layers in dealt for choice in choices(data, layers.tolist())]
        if not found:
            return True
        values_s = objectives_ms(data, found) * MS
        for i in np.argsort(values_s, kind="stable"):
            if values_s[i] >= self.cutoff_s:
                self.frontier.close_virtual(float(values_s[i]))
                break
            self._judge(part, data, found[i])
        return True

    def _solve(self, bound_s: float, part: VirtualProgram) -> None:
        """Bound the program of an order, solve it if that does not close it, and keep what is left open."""
        from formulations import virtual_selection

        if bound_s >= self.cutoff_s:
            self.frontier.close_virtual(bound_s)
            return
        data = self.tables.data(part.choice, part.virtual_stages, part.order)
        cutoff_s = self.cutoff_s
        chunks = data.num_stages * data.virtual_stages
        integral = self.is_exact or (chunks <= MAX_CHUNKS and self._may_spend(chunks))
        result = virtual_selection.solve(
            data,
            self._solve_options(part.raised),
            exclude=part.excluded,
            rows=part.rows,
            cutoff_ms=cutoff_s / MS if np.isfinite(cutoff_s) else None,
            integral=integral,
        )
        self.opener.programs += 1
        self.work += result.work
        if result.status == "infeasible":
            if np.isfinite(cutoff_s):
                self.frontier.close_virtual(cutoff_s)
            return
        if result.bound_ms is not None:
            bound_s = max(bound_s, result.bound_ms * MS)
        if result.layers is not None:
            for choice in choices(data, result.layers):
                if objective_ms(data, choice) * MS < self.frontier.incumbent.worth_judging_s:
                    self._judge(part, data, choice)
        if result.status != "optimal":
            may_go_on = integral and self.is_asked_for and part.raised < MOST_RAISES
            if may_go_on and not self.clock.is_up:
                self._push(bound_s, replace(part, rows=result.rows, raised=part.raised + 1))
            else:
                self.frontier.close_virtual(bound_s)
            return
        assert result.layers is not None
        if not lists_all_choices(data, result.layers):
            self.frontier.close_virtual(bound_s)  # excluded though not all of its recomputation was judged
        excluded = (*part.excluded, result.layers)
        self._push(
            bound_s,
            VirtualProgram(part.choice, part.virtual_stages, part.order, excluded, result.rows),
        )

    def _judge(
        self, part: VirtualOrder | VirtualProgram, data: VirtualSelectionData, choice: VirtualChoice
    ) -> None:
        """Let the referee evaluate a choice; keep it if it is good."""
        plan = assemble_virtual_plan(self.problem, self.table, part.choice, part.order, choice)
        judged = self.opener.referee.judged(plan, part.choice)
        self.opener.evaluated += 1
        if judged is None:
            return
        plan, evaluation = judged
        value_s = objective_ms(data, choice) * MS
        # The referee may count more: gradients in one piece behind the first stage, recomputation completed.
        if value_s - evaluation.step_s > evaluation.step_s * BOUND_TOL:
            raise SolverError(
                f"the bound of a plan ({value_s!r} s) exceeds the referee's time ({evaluation.step_s!r} s)"
            )
        incumbent = self.frontier.incumbent
        if incumbent.step_s is None or evaluation.step_s < incumbent.step_s:
            self.opener.sets_since_better = 0
        incumbent.offer(plan, evaluation)
