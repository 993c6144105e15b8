"""Open parts of the space whose plans have several virtual stages on each pipeline rank.

The same steps as in `planner.search.openings`: a pair of degrees and stages is split by the number of virtual
stages and the stages on each class, such a group into orders of classes, an order becomes a program
(`formulations.virtual_selection`), whose answers the referee judges. Every dealing of the layers to chunks of
at least one layer is covered, very uneven ones too; leading layers of another kind lie on the first chunk.

Bounds are looser here than for whole stages: a part is closed as soon as it cannot hold a plan that is better
by more than `virtual_gap`, and programs that stay open after a while keep their bound.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from formulations.options import SolveOptions
from formulations.virtual_selection_data import (
    VirtualChoice,
    VirtualSelectionData,
    choices,
    objective_ms,
    objectives_ms,
)
from planner.data.options import Options
from planner.errors import SolverError
from planner.search.assemble import assemble_virtual_plan
from planner.search.bounds import BoundData
from planner.search.kinds import layer_kinds
from planner.search.local import all_splits
from planner.search.openings import Opener
from planner.search.orders import all_orders, block_orders, count_orders
from planner.search.state import Clock
from planner.search.virtual_data import whole_stages
from planner.search.virtual_items import (
    VirtualGroup,
    VirtualGroups,
    VirtualItem,
    VirtualOrder,
    VirtualPair,
    VirtualProgram,
)
from planner.search.virtual_local import Dealer
from planner.search.virtual_space import VirtualSpace
from planner.search.virtual_tables import VirtualTables
from planner.tolerances import BOUND_TOL, GAP_TOL
from planner.units import MS

MAX_SPLITS = 400
"""Dealings of one order up to which they are all tried instead of solved for."""
MAX_ORDERS = 60
"""Orders of one group that are listed whole; beyond it one block a class, and the rest only bounded."""
MAX_CHUNKS = 16
"""Chunks of all stages up to which the program is solved in whole numbers, beyond it only its relaxation;
always the former where an exact answer is asked for."""
ROUNDING = 1e-12
"""Part of a step time by which a cutoff is raised, so that what is closed there keeps within the gap."""
LOOKS = 60
"""Pairs looked at for a first plan where whole stages have given none."""
DIVES = 12
"""Orders tried in them that some dealing fits."""
MAX_PROGRAMS = 8
"""Programs that are solved in whole numbers, unless an exact answer is asked for."""
NODE_LIMIT = 200
"""Nodes of one program, unless an exact answer is asked for."""


def virtual_gap(options: Options) -> float:
    """Gap at which parts with virtual stages are closed."""
    return max(options.gap, options.virtual_gap, GAP_TOL)


class VirtualOpener:
    """Opens such parts for one search; what comes of it goes to the frontier and the incumbent."""

    def __init__(self, bounds: BoundData, clock: Clock, opener: Opener) -> None:
        problem = opener.problem
        self.problem, self.prices, self.table = problem, opener.prices, opener.table
        self.frontier, self.clock, self.opener = opener.frontier, clock, opener
        self.tables = VirtualTables(problem, self.prices, self.table)
        self.gap = virtual_gap(problem.options)
        self.in_whole_numbers = 0
        kinds = layer_kinds(problem.model)
        self.has_lead = kinds is not None and kinds.num_lead > 0
        self.space = VirtualSpace(problem, self.prices, self.table, bounds)
        pairs = sorted(self.space.pairs(), key=lambda one: one[0])
        if self.frontier.incumbent.step_s is None:
            self._dive([pair for _, pair in pairs])
        for bound_s, pair in pairs:
            self._push(bound_s, pair)

    @property
    def cutoff_s(self) -> float:
        """Bound from which a part cannot hold a plan that is better by more than the gap."""
        incumbent_s = self.frontier.incumbent.step_s
        return float("inf") if incumbent_s is None else incumbent_s * (1 - self.gap) * (1 + ROUNDING)

    def _dive(self, pairs: list[VirtualPair]) -> None:
        """First good plans where whole stages have given none: most promising pairs, classes as blocks."""
        tried = 0
        for pair in pairs[:LOOKS]:
            groups, _ = self.space.groups(pair.choice, pair.stages, 0.0)
            counts = tuple(int(count) for count in groups.counts[0]) if len(groups) else ()
            orders = [o for o in block_orders(counts) if self.opener.is_allowed(pair.choice, o)]
            for order, v in product(orders[:2], self.space.virtual_stages(pair.stages)):
                if self.clock.is_up or tried >= DIVES:
                    return
                part = VirtualOrder(pair.choice, v, order)
                tried += self._try_order(part, self.tables.data(pair.choice, v, order))

    def _try_order(self, part: VirtualOrder, data: VirtualSelectionData) -> bool:
        """Judge a good dealing of an order, found without a solver; whether any fits."""
        worth_s = self.frontier.incumbent.worth_judging_s
        found = Dealer(data).good_choice(worth_s / MS)
        if found is not None and found[0] * MS < worth_s:
            self._judge(part, data, found[1])
        return found is not None

    def _push(self, bound_s: float, part: VirtualItem) -> None:
        """Keep a part open, or note its bound where it cannot win any more; an infinite one holds no plan."""
        if bound_s == float("inf"):
            return
        if bound_s >= self.cutoff_s:
            self.frontier.close_virtual(bound_s)
        else:
            self.frontier.queue.push(bound_s, part)

    def open(self, bound_s: float, item: VirtualItem) -> None:
        """Bound a part better, split it, or judge what is in it."""
        if bound_s >= self.cutoff_s:
            self.frontier.close_virtual(bound_s)
        elif isinstance(item, VirtualPair):
            self._open_pair(bound_s, item)
        elif isinstance(item, VirtualGroups):
            self._bound_group(bound_s, item)
            self._push_groups(VirtualGroups(item.choice, item.groups, item.start + 1))
        elif isinstance(item, VirtualGroup):
            self._split_group(bound_s, item)
        elif isinstance(item, VirtualOrder):
            self._open_order(bound_s, item)
        else:
            self._solve(bound_s, item)

    def _open_pair(self, bound_s: float, pair: VirtualPair) -> None:
        groups, whole = self.space.groups(pair.choice, pair.stages, bound_s)
        if not whole:
            self.frontier.close_virtual(bound_s)
        self._push_groups(VirtualGroups(pair.choice, groups, 0))

    def _push_groups(self, part: VirtualGroups) -> None:
        if part.start < len(part.groups):
            self._push(float(part.groups.bound_s[part.start]), part)

    def _bound_group(self, bound_s: float, part: VirtualGroups) -> None:
        """Bound a group again, with memory and whole layers."""
        counts = tuple(int(count) for count in part.groups.counts[part.start])
        if self.has_lead:
            self._push(bound_s, VirtualGroup(part.choice, counts))
            return
        times_ms = self.opener.tables.of_classes(part.choice, sum(counts)).times_ms
        most = max(self.space.virtual_stages(sum(counts)))
        if self.space.may_beat(self.cutoff_s, part.choice, counts, times_ms, 1, most):
            self._push(bound_s, VirtualGroup(part.choice, counts))
        else:
            self.frontier.close_virtual(self.cutoff_s)

    def _split_group(self, bound_s: float, group: VirtualGroup) -> None:
        """One part for each number of virtual stages and order of the classes, with its own bottleneck."""
        choice, counts = group.choice, group.counts
        whole = count_orders(counts) <= MAX_ORDERS
        listed = all_orders(counts) if whole else block_orders(counts)
        orders = [order for order in listed if self.opener.is_allowed(choice, order)]
        for v in self.space.virtual_stages(sum(counts)):
            times_ms = self.tables.times_ms(choice, v, sum(counts))
            if not self.space.may_beat(self.cutoff_s, choice, counts, times_ms, v, v):
                self.frontier.close_virtual(self.cutoff_s)
                continue
            if not whole:
                rest_s = self.space.group_bound_s(bound_s, self.cutoff_s, choice, v, counts, times_ms)
                self.frontier.close_virtual(rest_s)
            for order in orders:
                bottleneck_s = self.tables.order_bottleneck_s(choice, v, order)
                better_s = self.space.with_bottleneck_s(choice, v, v, counts, bottleneck_s)
                self._push(max(bound_s, better_s), VirtualOrder(choice, v, order))

    def _open_order(self, bound_s: float, part: VirtualOrder) -> None:
        """All dealings where they are few; else a good one without a solver, and the program."""
        data = self.tables.data(part.choice, part.virtual_stages, part.order)
        if self._try_all(part, data):
            return
        self._try_order(part, data)
        self._solve(bound_s, VirtualProgram(part.choice, part.virtual_stages, part.order, (), ()))

    def _try_all(self, part: VirtualOrder, data: VirtualSelectionData) -> bool:
        """Judge all dealings that may still win, where there are few; whether there were few."""
        p, v, num_layers = data.num_stages, data.virtual_stages, data.num_layers
        splits = all_splits(num_layers, p * v, MAX_SPLITS)
        if splits is None:
            return False
        dealt = splits.reshape(len(splits), v, p).transpose(0, 2, 1)
        dealt = dealt[dealt[:, 0, 0] >= data.stage.lead[0]]
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
        is_exact = self.gap <= GAP_TOL
        few_chunks = data.num_stages * data.virtual_stages <= MAX_CHUNKS
        solver = self.problem.options.solver
        options = SolveOptions(
            solver="highs" if solver == "cp_sat" else solver,
            time_limit_s=self.clock.left_s,
            gap=self.gap / 4,
            seed=self.problem.options.seed,
            node_limit=None if is_exact else NODE_LIMIT,
        )
        result = virtual_selection.solve(
            data,
            whole_stages(data),
            options,
            exclude=part.excluded,
            rows=part.rows,
            cutoff_ms=cutoff_s / MS if np.isfinite(cutoff_s) else None,
            integral=is_exact or (few_chunks and self.in_whole_numbers < MAX_PROGRAMS),
        )
        self.opener.programs += 1
        self.in_whole_numbers += int(few_chunks)
        if result.status == "infeasible":
            return
        if result.bound_ms is not None:
            bound_s = max(bound_s, result.bound_ms * MS)
        if result.layers is not None:
            for choice in choices(data, result.layers):
                if objective_ms(data, choice) * MS < self.frontier.incumbent.worth_judging_s:
                    self._judge(part, data, choice)
        if result.status != "optimal":
            self.frontier.close_virtual(bound_s)
            return
        assert result.layers is not None
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
        more_s = value_s - evaluation.step_s
        if (abs(more_s) if self.opener.referee.exact else more_s) > evaluation.step_s * BOUND_TOL:
            raise SolverError(
                f"the objective of a plan ({value_s!r} s) is not the referee's step time "
                f"({evaluation.step_s!r} s)"
            )
        incumbent = self.frontier.incumbent
        if incumbent.step_s is None or evaluation.step_s < incumbent.step_s:
            self.opener.sets_since_better = 0
        incumbent.offer(plan, evaluation)
