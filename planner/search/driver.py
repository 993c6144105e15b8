"""Best-first search over the outer choices, with a bound that holds for all of them.

Rows of degrees with a number of stages are bounded all at once. The part of the space with the least bound is
opened next: it is bounded again by shortest walks (`planner.search.walks.cheapest`) over all orders of
classes, with memory, whole layers and hops; then cut by the number of stages on each class, then by the
classes of the first stages, down to single orders, which become programs (`formulations.stage_selection`).
Every plan is judged by the referee. The search ends when the least bound left comes within the gap of the
best plan: no plan of the space can beat it by more. Before virtual stages it goes a little further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from formulations.solvers import loading_s
from planner.cost.prices import Prices
from planner.cost.pricing import price
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result, Termination
from planner.rules.megatron import violations
from planner.rules.target import TARGETS
from planner.search.alike import spread
from planner.search.apart import bounds_of, with_predictions_apart
from planner.search.clock import Clock
from planner.search.degrees import list_degrees, may_mix_stages
from planner.search.floors import Floors
from planner.search.heuristics.dive import dive
from planner.search.infeasible import CUT, GIVEN_UP, why_infeasible
from planner.search.items import Item, Pair
from planner.search.kinds import layer_kinds
from planner.search.openings import Opener
from planner.search.others import OtherOpener, other_openers
from planner.search.pair_bounds import closer_pairs
from planner.search.partition.openings import NO_SPLIT, PartitionOpener
from planner.search.progress import Progress, Reporter
from planner.search.referee import Referee
from planner.search.same_nodes import counted_as_one
from planner.search.space import Pairs, list_pairs
from planner.search.state import Frontier, Incumbent, heads_of, is_proven
from planner.search.virtual.begun import VirtualSearch
from planner.search.virtual.items import VirtualItem
from planner.search.virtual.programs import virtual_gap
from planner.search.wishes import keeps_wishes
from planner.simulate.evaluate import evaluate
from planner.tolerances import GAP_TOL

STALE_SETS = 2000
"""Sets of orders split without a better plan after which the search ends with the bound it has."""


def search(
    problem: Problem,
    on_progress: Callable[[Progress], None] | None = None,
    seeds: Sequence[Plan] = (),
    beyond_s: float | None = None,
    floors: Floors | None = None,
) -> Result:
    """The best plan of a problem within its limits, with a proven bound; `seeds` are plans to begin with.

    Where the bound is only asked to pass `beyond_s` [s], plans with virtual stages are not bounded any better
    once it is known that it will not. `floors` are bounds to begin with, and take those that are proven.

    Raises
    ------
    SolverError
        Where a bound is broken or a plan fails the referee: our fault.
    """
    return Search(problem, on_progress, seeds, beyond_s, floors).run()


class Search:
    """One search; `run` does it."""

    is_listed = False
    """Whether every part of the space is queued or closed; before that nothing is proven."""
    patience: tuple[float, float] = (np.inf, 0.0)
    """Parts opened with which it ends once it has a plan: a number, and as many times those up to it."""

    def __init__(
        self,
        problem: Problem,
        on_progress: Callable[[Progress], None] | None,
        seeds: Sequence[Plan] = (),
        beyond_s: float | None = None,
        floors: Floors | None = None,
    ) -> None:
        self.problem, self.beyond_s = problem, beyond_s
        self.use, self.stale_sets = problem.options.use, STALE_SETS
        self.seeds = [plan for plan in seeds if keeps_wishes(problem, plan)]
        self.clock = Clock(problem.options.time_limit_s)
        self.reporter = Reporter(self.clock, on_progress)
        self.table = list_degrees(problem, mixes=may_mix_stages(problem))
        self.incumbent = Incumbent(max(problem.options.top, 1))
        self.opened, self.opened_at_best = 0, 0
        self.is_stopped = False
        """Whether Ctrl-C ended it."""
        self.gap = max(problem.options.gap, GAP_TOL)
        self.frontier: Frontier[Item] = Frontier(self.incumbent, self.gap, floors)
        self.opener: Opener | PartitionOpener | None = None
        self.virtual: VirtualSearch | None = None
        self.others: list[OtherOpener] = []
        """What opens the parts that `opener` leaves out, each on a frontier of its own."""

    def run(self) -> Result:
        """List, bound, open, judge."""
        return self._ended(lambda: bool(len(self.table)) and self._search())

    def go_on(self, seconds: float) -> Result:
        """Open more parts for some time where a limit cut the search, or begin where it cut all."""
        self.clock.go_on(seconds)
        opener = self.opener
        return self._ended(lambda: self._loop(opener, *self.others)) if opener else self.run()

    def _ended(self, work: Callable[[], bool]) -> Result:
        """What is known once some work has ended, which says whether a limit cut it."""
        try:
            interrupted = work()
        except KeyboardInterrupt:
            interrupted = self.is_stopped = True
        finally:
            if isinstance(self.opener, Opener):
                self.opener.workers.close()
            if self.virtual is not None:
                self.virtual.end()
        return self._result(interrupted)

    def _search(self) -> bool:
        """The search itself; whether the time limit cut it."""
        self.offer_seeds()
        if self.clock.is_up:
            return True
        self.list_parts()
        assert self.opener is not None
        cut = False
        try:
            if not self.incumbent.is_full:
                dive(self.opener, self.pairs, self._dived)
        except KeyboardInterrupt:  # the rest is listed all the same, so that the plan has its bound
            cut = self.is_stopped = True
        given = self.problem, *self.plain, self.bounds, self.incumbent, self.gap, self.clock
        self.others = other_openers(*given, self.opener.referee)
        if isinstance(self.opener, Opener):
            self._stream(closer_pairs(self.opener, self.pairs))
            self.virtual = VirtualSearch(self.bounds, self.clock, self.opener, self.beyond_s)
            try:
                self.virtual.begin(is_cut=cut)
            except KeyboardInterrupt:
                cut = self.is_stopped = True
        self.is_listed = True
        return cut or self._loop(self.opener, *self.others)

    def list_parts(self) -> Prices:
        """Price all rows of degrees and queue them with their numbers of stages; the prices of plain rows."""
        self.reporter.report("listing choices", None, None, 0, 0)
        prices = price(self.problem, self.table.degrees)
        referee = Referee(self.problem, prices)
        if not TARGETS[self.problem.target].recompute_per_stage:
            self.table, prices, referee = spread(self.problem, self.table, prices)
        self.plain = self.table, prices
        self.table, prices = with_predictions_apart(self.problem, *self.plain)
        self.table = counted_as_one(self.problem, self.table, prices)
        kinds, self.bounds = layer_kinds(self.problem.model), bounds_of(self.problem, self.table, prices)
        if kinds is not None:
            self.frontier.floors.begin(self.problem, *self.plain)
        self._stream(list_pairs(self.problem, self.table, prices, self.bounds, self.frontier.floors))
        of_kind, given = PartitionOpener if kinds is None else Opener, (self.problem, prices, self.table)
        self.opener = of_kind(*given, self.bounds, self.frontier, self.clock, referee)
        return self.plain[1]

    def _dived(self) -> None:
        self.reporter.report("first plans", self.incumbent.step_s, None, 0, len(self.frontier.queue))

    def _stream(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.frontier.queue.stream(pairs.bound_s, lambda i: Pair(int(pairs.choice[i]), int(pairs.stages[i])))

    @property
    def frontiers(self) -> list[Frontier[Item]]:
        """What is open: the parts with whole stages, and those with mixed ones where there are any."""
        return [self.frontier, *(other.frontier for other in self.others)]

    @property
    def bound_s(self) -> float | None:
        """What no plan of the space undercuts; None where nothing is known."""
        found = [frontier.bound_s for frontier in self.frontiers] if self.is_listed else []
        return min((bound_s for bound_s in found if bound_s is not None), default=None)

    @property
    def whole_bound_s(self) -> float | None:
        """The same for plans without virtual stages."""
        found = [frontier.whole_bound_s for frontier in self.frontiers] if self.is_listed else []
        return min((bound_s for bound_s in found if bound_s is not None), default=None)

    def offer_seeds(self) -> None:
        """Keep the plans at hand that are legal here."""
        for plan in self.seeds:
            made_for = plan.model_copy(update={"target": self.problem.target, "problem": None})
            busy = {stage.node_class for stage in plan.stages}
            if set(self.use) <= busy and not violations(self.problem, made_for):
                evaluation = evaluate(self.problem, made_for)
                if not evaluation.violations:
                    self.incumbent.offer(made_for, evaluation)

    def _loop(self, *openers: Opener | PartitionOpener) -> bool:
        """Open parts, those of least bound first, until the bound is reached; whether a limit cut it.

        Where orders are too many to list, their sets may keep the bound below the gap for ever; after so
        many without a better plan the search ends. Half of a time limit belongs to the parts whose turn is
        the first; then the least bound decides, as it is what the answer will say.
        """
        going = list(openers)
        while going := [opener for opener in going if len(opener.frontier.queue)]:
            best_s, (most, times) = self.incumbent.step_s, self.patience
            if self.clock.is_up_behind(loading_s(self.problem.options.solver)) or (
                best_s is not None and self.opened > most + times * self.opened_at_best
            ):
                return True
            heads, in_turn = heads_of([one.frontier for one in going], self.clock)
            least = min(range(len(going)), key=lambda i: heads[i] if in_turn else heads[i][1:])
            opener, frontier = going[least], going[least].frontier
            if frontier.has_looked_closer(self.opened, *heads[least]):
                continue
            bound_s, item = frontier.queue.pop(frontier.cutoff_s, in_turn=in_turn)
            if bound_s >= frontier.cutoff_s or opener.sets_since_better >= self.stale_sets:
                frontier.queue.push(bound_s, item)
                going.remove(opener)
                continue
            self.opened += 1
            try:
                if isinstance(item, VirtualItem) and self.virtual is not None:
                    self.virtual.open(bound_s, item)
                else:
                    opener.open(bound_s, item)
            except KeyboardInterrupt:
                frontier.queue.push(bound_s, item)
                raise
            if self.incumbent.step_s != best_s:
                self.opened_at_best = self.opened
            self._opened(sum(len(one.queue) for one in self.frontiers))
        return False

    def _opened(self, left: int) -> None:
        """What a search does behind every part that it has opened."""
        if self.virtual is not None:
            self.virtual.open_ahead(self.opened)
        self.reporter.report("searching", self.incumbent.step_s, self.bound_s, self.opened, left)

    def _why_infeasible(self) -> str:
        if isinstance(self.opener, PartitionOpener):
            return NO_SPLIT
        table = self.plain[0] if self.opener else self.table
        return why_infeasible(self.problem, table, self.opener.tables if self.opener else None)

    def _result(self, interrupted: bool) -> Result:
        import planner

        ranked = self.incumbent.ranked()
        openers = [*([self.opener] if self.opener else []), *self.others]
        best = ranked[0] if ranked else None
        bound_s, gap, reason = self.bound_s, None, None
        self.frontier.floors.of_all_s = bound_s or 0.0
        if best is not None and bound_s is not None:
            gap = max(0.0, (best.evaluation.step_s - bound_s) / best.evaluation.step_s)
        termination: Termination
        if best is None:
            left_open = interrupted or any(frontier.may_hold_plans for frontier in self.frontiers)
            termination = "no_solution_found" if left_open else "infeasible"
            reason = CUT if interrupted else GIVEN_UP
            if not left_open:
                reason, bound_s = self._why_infeasible(), None
        else:
            wanted = (self.whole_bound_s, self.gap), (self.bound_s, virtual_gap(self.problem.options))
            termination = "optimal" if is_proven(best.evaluation.step_s, wanted) else "feasible"
        return Result(
            problem=self.problem.name,
            plan=best.plan if best else None,
            evaluation=best.evaluation if best else None,
            bound_s=bound_s,
            whole_bound_s=self.whole_bound_s if best else None,
            gap=gap,
            termination=termination,
            interrupted=interrupted,
            stopped=self.is_stopped,
            hurried=self.clock.was_felt and self.problem.options.time_limit_s is not None,
            reason=reason,
            seconds=self.clock.elapsed_s,
            solver=self.problem.options.solver,
            version=planner.__version__,
            runners_up=tuple(ranked[1:]),
            statistics={
                "degrees": float(len(self.table)),
                "pairs": float(len(self.pairs)) if self.opener else 0.0,
                "opened": float(self.opened),
                "programs": float(sum(opener.programs for opener in openers)),
                "evaluated": float(sum(opener.evaluated for opener in openers)),
            },
        )
