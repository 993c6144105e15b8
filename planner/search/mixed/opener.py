"""Open parts of the space whose stages mix node classes.

The same steps as in `planner.search.openings`, over orders of kinds of stages (`planner.search.mixed.space`);
an order that may still win becomes orders of compositions, those with fewest classes a stage first, which
become programs. What a program answers is judged with every dealing of the ranks to the classes, as hosts may
make one better.

These parts take turns with those of whole stages, the least bound of both first: where no class is left
with a part of a stage that is worth its pace, their first bounds already close them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, product

import numpy as np

from formulations.stage_selection_data import StageChoice, least_layers, objective_ms
from formulations.stage_selection_tables import objectives_ms, with_least_recompute
from planner.cost.prices import Prices
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.rules.hosts import transports_meet
from planner.search.bound_data import BoundData, bound_data
from planner.search.clock import Clock
from planner.search.degrees import DegreeTable
from planner.search.empty import most_without_layers
from planner.search.heuristics.local import all_splits
from planner.search.items import Item, Order, Part, Program, TightOrder
from planner.search.kinds import layer_kinds
from planner.search.mixed.memory import fitting_all, is_cautious
from planner.search.mixed.placement import Dealer, assemble_mixed_plan
from planner.search.mixed.space import MixedSpace
from planner.search.mixed.tables import MixedTables
from planner.search.openings import TRIED_ORDERS, Opener
from planner.search.pair_bounds import exposed_of
from planner.search.referee import confirmed
from planner.search.state import Frontier, Incumbent
from planner.search.walks.relaxation import Found
from planner.search.walks.relaxer import Relaxer
from planner.search.workers import Workers
from planner.simulate.evaluate import evaluate
from planner.tolerances import BOUND_TOL
from planner.units import MS

MAX_COMPOSITIONS = 200
"""Orders of compositions that are listed for one order of kinds; the rest keeps its bound."""
TRIED_COMPOSITIONS = 2
"""Of them, those given to the local search at once."""
MAX_CONSIDERED = 3000
"""Orders of compositions that are looked at for it, those without enough hosts included."""
MAX_DEALINGS = 60
"""Dealings of the ranks that are judged for one split of the layers; the rest keeps its bound."""
MAX_ANSWERS = 40
"""Answers of one program beyond those that are tried at once; the rest keeps its bound."""


class MixedOpener(Opener):
    """Opens such parts for one search, on a frontier of its own that shares the incumbent."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        table: DegreeTable,
        bounds: BoundData,
        incumbent: Incumbent,
        gap: float,
        clock: Clock,
    ) -> None:
        frontier: Frontier[Item] = Frontier(incumbent, gap)
        self.space = MixedSpace(problem, table, bounds.layer_s[: len(table)])
        super().__init__(problem, prices, self.space.table, bounds, frontier, clock)
        mixed = MixedTables(problem, prices, self.space, lambda: self.frontier.cutoff_s)
        kinds = layer_kinds(problem.model)
        assert kinds is not None
        self.tables, self.mixed = mixed, mixed
        self.bounds = bound_data(
            problem.model.num_layers,
            kinds,
            mixed.prices,
            sends_block=not problem.stack.p2p_overlap,
            num_empty=most_without_layers(problem),
        )
        self.relaxer = Relaxer(
            mixed.problem, mixed.prices, self.table, mixed, lambda: self.clock.is_up, counts_hosts=False
        )
        self.workers = Workers(self.relaxer, 1)
        # An order of kinds of stages is no plan yet, which annealing would need.
        self.annealer = None
        self.left_out = False
        """Whether the last listing of compositions left some out."""
        exposed = exposed_of(problem.model.num_layers, kinds, mixed.prices)
        if not problem.stack.p2p_overlap:
            longest_s = mixed.prices.send_s.max(axis=(1, 2))
            exposed = replace(exposed, less_s=mixed.prices.hidden_fraction * longest_s)
        for bound_s, part in self.space.parts(mixed.prices, self.bounds, exposed):
            fine = self.orders_are_tiny(part.choice, part.stages, part.limits.most)
            self.frontier.push(bound_s, Part(part.choice, part.stages, part.limits, fine))

    def is_allowed(self, choice: int, order: tuple[int, ...]) -> bool:
        """Every order of kinds; hosts are looked at when its ranks are dealt."""
        return True

    def open(self, bound_s: float, item: Item) -> None:
        """The same, and what the memory of a program leaves out."""
        if not isinstance(item, TightOrder):
            super().open(bound_s, item)
        elif self._is_tiny(item.choice, len(item.order)):
            self._try_tight(item)
        else:
            self._solve_tight(bound_s, item)

    def _try_orders(self, choice: int, found: Sequence[Found]) -> None:
        for order, layers in found[:TRIED_ORDERS]:
            if (choice, order) not in self._tried and self.is_allowed(choice, order):
                self._tried.add((choice, order))
                for composed in islice(self._composed(choice, order), TRIED_COMPOSITIONS):
                    if self.clock.is_up:  # on thousands of hosts one takes a while
                        return
                    self.try_order(choice, composed, layers)

    def _open_order(self, bound_s: float, part: Order) -> None:
        """Bound an order of kinds and list its compositions; try a composition and queue its program."""
        choice, order = part.choice, part.order
        if order[0] < 2 * self.mixed.num_classes:
            if not self._is_tiny(choice, len(order)):
                bound_s, _ = self._bound_order(bound_s, part)
            if bound_s >= self.frontier.cutoff_s:
                self.frontier.close(bound_s)
                return
            self.left_out = False
            listed = list(islice(self._composed(choice, order), MAX_COMPOSITIONS + 1))
            if len(listed) > MAX_COMPOSITIONS or self.left_out:
                self.frontier.close(bound_s)
            for composed in listed[:MAX_COMPOSITIONS]:
                self.frontier.push(bound_s, Order(choice, composed))
                stages = (self.mixed.ranks_order(choice, code) for code in composed)
                if any(is_cautious(self.prices, choice, own) for own in stages):
                    self.frontier.push(bound_s, TightOrder(choice, composed))
            return
        if self.try_order(choice, order):
            program = Program(choice, order, (), ())
            if self._is_tiny(choice, len(order)):
                self._solve(bound_s, program)
            else:
                self.frontier.push(bound_s, program)

    def _solve(self, bound_s: float, part: Program) -> None:
        """The same, for so many answers at most."""
        if len(part.excluded) >= MAX_ANSWERS and not self._is_tiny(part.choice, len(part.order)):
            self.frontier.close(bound_s)
            return
        super()._solve(bound_s, part)

    def _try_tight(self, part: TightOrder) -> None:
        """Judge all splits that fit in the memory of each class, as far as is known beforehand."""
        datas = self.mixed.by_memory(part.choice, part.order)
        table, more = fitting_all(datas), (least_layers(datas[0]) == 0).astype(np.int64)
        splits = all_splits(datas[0].num_layers + int(more.sum()), datas[0].num_stages, self.max_splits)
        assert splits is not None
        splits = splits - more
        values_s = objectives_ms(datas[0], table, splits) * MS
        for i in np.argsort(values_s, kind="stable"):
            value_s = float(values_s[i])
            if value_s >= self.frontier.cutoff_s:
                self.frontier.close(value_s)
                break
            if not self._fits(part, with_least_recompute(table, tuple(splits[i].tolist()))):
                self.frontier.close(value_s)

    def _fits(self, part: TightOrder, stage_choice: StageChoice | None) -> bool:
        """Whether an answer breaks no rule, which is kept if it is good."""
        if stage_choice is None:
            return False
        plan, evaluation = self._best_dealt(part.choice, part.order, stage_choice)
        self.evaluated += 1
        if not evaluation.violations:
            self.incumbent.offer(plan, evaluation)
        return not evaluation.violations

    def _solve_tight(self, bound_s: float, part: TightOrder) -> None:
        """Solve the program in the memory of the classes that say most, judge its answer, and go on."""
        datas = self.mixed.by_memory(part.choice, part.order)
        program = part.program or Program(part.choice, part.order, (), ())
        if len(program.excluded) >= MAX_ANSWERS:
            self.frontier.close(bound_s)
            return
        holders = range(len(datas)) if part.program is None else (part.holder,)
        solved = {h: self._solve_program(datas[h], program, self.frontier.cutoff_s) for h in holders}
        self.programs += len(solved)
        if any(result.status == "infeasible" for result in solved.values()):
            return
        holder = max(solved, key=lambda h: solved[h].bound_ms or 0.0)
        result = solved[holder]
        bound_s = max(bound_s, (result.bound_ms or 0.0) * MS)
        if result.choice is None:
            self.frontier.close(bound_s)
            return
        layers = result.choice.layers
        answer = with_least_recompute(fitting_all(datas), layers)
        if answer is not None and not self._fits(part, answer):
            self.frontier.close(max(bound_s, objective_ms(datas[holder], answer) * MS))
        program = replace(program, excluded=(*program.excluded, layers), rows=result.rows)
        self.frontier.push(bound_s, TightOrder(part.choice, part.order, program, holder))

    def _composed(self, choice: int, order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Orders of compositions of these kinds that the hosts can hold, fewest classes a stage first."""
        dealer = self._dealer(choice)
        stages = [self._fillings(choice, kind) for kind in order]
        for considered, chosen in enumerate(product(*stages)):
            if considered == MAX_CONSIDERED:
                self.left_out = True
                return
            found, was_cut = dealer.can_deal(chosen)
            self.left_out |= was_cut and not found
            if found:
                yield tuple(self.mixed.code(stage) for stage in chosen)

    def _fillings(self, choice: int, kind: int) -> list[tuple[int, ...]]:
        """Classes that a stage of a kind may consist of, in the order of its ranks."""
        if kind < self.mixed.num_classes:
            return [(kind,)]
        pace = kind - self.mixed.num_classes
        faster, classes = self.space.faster(choice, pace), self.problem.cluster.classes
        filled = [(pace, *f) for k in range(1, len(faster) + 1) for f in combinations(faster, k)]
        meeting = [own for own in filled if transports_meet(classes[c].transport for c in own)]
        return [self.space.slowest_first(choice, own) for own in meeting]

    def _dealer(self, choice: int) -> Dealer:
        degrees = self.table.degrees
        chips = int(degrees.tensor_parallel[choice] * degrees.context_parallel[choice])
        left = self.space.left_of(choice)
        return Dealer(self.problem, int(degrees.data_parallel[choice]), chips, left)

    def _evaluated(
        self, choice: int, order: tuple[int, ...], stage_choice: StageChoice
    ) -> tuple[Plan, Evaluation]:
        """The best dealing of an answer, and what the referee says of it."""
        return confirmed(*self._best_dealt(choice, order, stage_choice))

    def _best_dealt(
        self, choice: int, order: tuple[int, ...], stage_choice: StageChoice
    ) -> tuple[Plan, Evaluation]:
        """The same where it may break a rule; the other dealings keep its bound."""
        promised_s = objective_ms(self.mixed.data(choice, order), stage_choice) * MS
        dealer = self._dealer(choice)
        stages = [self.mixed.ranks_order(choice, code) for code in order]
        best: tuple[Plan, Evaluation] | None = None
        for number, dealt in enumerate(dealer.deal(stages)):
            if number == MAX_DEALINGS:
                self.frontier.close(promised_s)
                break
            plan = assemble_mixed_plan(self.problem, self.table, choice, dealt, stage_choice)
            evaluation = evaluate(self.problem, plan)
            if best is None or evaluation.step_s < best[1].step_s:
                best = plan, evaluation
            if best[1].step_s <= promised_s * (1 + BOUND_TOL):
                break
        if dealer.was_cut:
            self.frontier.close(promised_s)
        assert best is not None
        return best
