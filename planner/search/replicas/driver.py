"""Search for `unrestricted`: pipelines of different shape with unequal shares of the batch.

The space: all plans of Megatron-LM, all of FlagScale, and every mix of two or more pipelines whose stages
have equal data parallelism and no context parallelism, each with its own stages, micro-batch size (a divisor
of the batch), replicas and number of micro-batches. All their stages stand on the hosts of their class one
after the other, each run of stages of a class from the start of a host on. The bound is the least of the
three parts, each searched by itself: the searches for both launchers, which begin with the best plan and so
close what cannot beat it, and `planner.search.replicas.mixes`, at last by what all pipelines share and with
whole ones (`planner.search.replicas.shares`; where chips are few, before any prices,
`planner.search.replicas.whole_rooms`) where that part is the least; models with experts from the start for
each spread of the experts (`planner.search.replicas.choices`). Where a part was cut, what its search could
prove stands.

The plans of both launchers are legal here, so that the answer is never worse. Mixes of the chains that the
bound was found with are chosen by `formulations.replica_mix`, whose deadline leaves out what the pipelines
exchange: the referee has the last word on each.

Whatever is searched, no plan at all is faster than its chips: S sequences of L layers are computed by chips
that none does faster than at the best degrees of its class,

    T >= S L / sum_c N[c] r[c] + what follows at least,    r[c] = max over degrees mbs / (t cp layer time).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np

from planner.cost.pricing import price
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.search.bound_data import bound_data
from planner.search.driver import Search
from planner.search.kinds import check_kinds, layer_kinds
from planner.search.meshes.driver import MeshSearch, pinned_beyond
from planner.search.meshes.opener import MeshOpener
from planner.search.progress import Progress
from planner.search.replicas.chains import Chains
from planner.search.replicas.mixes import Mixes
from planner.search.replicas.mixing import choose_mixes
from planner.search.replicas.rooms_beside import RoomsBeside, are_worth_a_process
from planner.search.replicas.space import replica_batches, replica_degrees
from planner.search.replicas.work import work_bound_s
from planner.search.space import Pairs
from planner.search.state import LEAST_SHARE_S
from planner.search.wishes import keeps_wishes

SHARE_OF_PART = 0.4
"""Share of the time that is left that the search for one launcher, or that for mixes, may take."""
SHARE_OF_LAST = 0.8
"""The same where only mixes may go on after it. A guess."""
SHARE_OF_LOOKS = 0.7
"""Share of that time after which mixes are chosen for the first time."""
BEYOND = 1 + 1e-9
"""How far beyond the cutoff bounds are raised, so that rounding never leaves them short of the gap."""
ROUNDS = 3
"""Times that mixes are chosen and bounded in turn while plans get better."""


def search_replicas(
    problem: Problem,
    on_progress: Callable[[Progress], None] | None = None,
    seeds: Sequence[Plan] = (),
    proven_s: Mapping[TargetName, float] | None = None,
) -> Result:
    """The best plan that was found without a launcher's limits; `seeds` are plans to begin with.

    Parameters
    ----------
    proven_s
        Bounds of launchers that were searched before, which are not searched again [s].

    Raises
    ------
    InstanceError, SolverError
        As `planner.search.driver.search`.
    """
    check_kinds(problem)
    return ReplicaSearch(problem, on_progress, seeds, proven_s).run()


class ReplicaSearch(MeshSearch):
    """One search; `run` does it."""

    def __init__(
        self,
        problem: Problem,
        on_progress: Callable[[Progress], None] | None,
        seeds: Sequence[Plan] = (),
        proven_s: Mapping[TargetName, float] | None = None,
    ) -> None:
        super().__init__(problem, on_progress)
        self.seeds = [plan for plan in seeds if keeps_wishes(problem, plan)]
        self.whole = self.of_equal_degrees = problem
        """The problem with every degree that the narrower launchers may use."""
        launchers: tuple[TargetName, ...] = ("megatron-lm", "flagscale")
        self.proven_s = {name: bound for name, bound in (proven_s or {}).items() if name in launchers}
        self.whole_s = dict(self.proven_s)
        """The same for plans without virtual stages."""
        self.mixes: Mixes | None = None
        self.mix_opener: MeshOpener | None = None
        self.rooms: RoomsBeside | None = None
        """Rooms that are asked beside the search for FlagScale."""
        self.share_up_s = 0.0
        """Time that mixes leave to what comes after them [s]."""
        self.cut_search: Search | None = None
        """The search for Megatron-LM, where a limit cut it."""

    def _search(self) -> bool:
        self.offer_seeds()
        self._narrower("megatron-lm", Search, SHARE_OF_PART)
        cut, mixes_s = False, np.inf
        if pinned_beyond(self.whole) is None:
            self.table = replica_degrees(self.problem, self.table)
            mixes_s = self._mix_all()
            share = 1.0 if mixes_s >= self.frontier.cutoff_s else SHARE_OF_LAST
            self._begin_rooms(mixes_s)
            try:
                cut = self._narrower("flagscale", MeshSearch, share)
                mixes_s = self._improve_mixes(mixes_s)
            finally:
                if self.rooms is not None:
                    self.rooms.end()
                    self.rooms = None
        else:
            self.proven_s["flagscale"] = self.whole_s["flagscale"] = np.inf
        self._go_on(mixes_s)
        mixes_s = self._improve_mixes(mixes_s)
        for proven_s, close in (
            (self.whole_s, self.frontier.close),
            (self.proven_s, self.frontier.close_virtual),
        ):
            bound_s = max(min(mixes_s, *proven_s.values()), self.work_s)
            if np.isfinite(bound_s):
                close(bound_s)
        return cut or self.cut_search is not None or self.clock.is_up

    def _improve_mixes(self, mixes_s: float) -> float:
        """What no mix undercuts, by all that tells anything where they hold the bound [s]."""
        most_s = self.frontier.cutoff_s * BEYOND
        # Without a plan there is no time that mixes could be shown not to undercut.
        if self.mixes is None or most_s == np.inf:
            return mixes_s
        if mixes_s > min(self.proven_s.values()) or mixes_s >= most_s:
            return mixes_s
        self.share_up_s = 0.0
        if self.mix_opener and self.mixes.are_few and not self.mixes.columns:
            if self.rooms is not None:
                self.rooms.take(most_s, lambda: self.clock.is_up)
            if self.mixes.close_by_rooms(most_s):
                return most_s
            # Good mixes are of chains that stay open at good prices.
            self.mixes.improve_at_first(most_s)
            choose_mixes(self, self.mix_opener, self.mixes)
            most_s = self.frontier.cutoff_s * BEYOND
        return max(mixes_s, self.mixes.improve_further(most_s))

    def _begin_rooms(self, mixes_s: float) -> None:
        """Ask beside whether rooms close the cutoff, where that is what follows on FlagScale."""
        mixes, most_s = self.mixes, self.frontier.cutoff_s * BEYOND
        if mixes is None or not mixes_s < most_s < np.inf or "flagscale" in self.proven_s:
            return
        if are_worth_a_process(mixes, self.whole.options.workers):
            with suppress(OSError):
                self.rooms = RoomsBeside(mixes, most_s)

    def _tell_of(self, target: TargetName, told: Progress) -> None:
        """Say where the search for a launcher stands; what its best plan leaves open rooms are asked anew."""
        self.reporter.report(
            f"plans of {target}: {told.phase}", told.incumbent_s, None, told.opened, told.remaining
        )
        if self.rooms is not None and told.incumbent_s is not None:
            with suppress(OSError):
                self.rooms.ask(self.frontier.cutoff_at(told.incumbent_s, self.frontier.gap) * BEYOND)

    def _narrower(self, target: TargetName, kind: type[Search], share: float) -> bool:
        """Search the plans of one launcher that beat the best so far; whether a limit cut it.

        Parameters
        ----------
        share
            Most of the time that is left for it.
        """
        if target in self.proven_s:
            return False
        if self.clock.is_up and self.proven_s:
            self.proven_s[target] = self.whole_s[target] = 0.0
            return True
        left_s = self.clock.left_s
        share_s = None if left_s is None else max(share * left_s, LEAST_SHARE_S)
        options = self.whole.options.model_copy(update={"time_limit_s": share_s})
        asked = self.whole.model_copy(update={"target": target, "options": options})
        search = kind(asked, lambda told: self._tell_of(target, told), self.seeds)
        # It may go on at the end: good plans first, as far as half of the whole time.
        search.clock.late_s = None if left_s is None or target != "megatron-lm" else left_s / 2
        for best in self.incumbent.ranked()[:1]:
            search.incumbent.offer(best.plan, best.evaluation)
        found = self._ran(search)
        self.reason = self.reason or found.reason
        self._keep(target, found)
        if found.interrupted and target == "megatron-lm":
            self.cut_search = search
        return found.interrupted

    def _go_on(self, mixes_s: float) -> None:
        """Give what time is left to plans of Megatron-LM where they hold the bound."""
        left_s, search = self.clock.left_s, self.cut_search
        least_s = min(mixes_s, self.proven_s.get("flagscale", np.inf), self.frontier.cutoff_s)
        if (
            search is None
            or left_s is None
            or left_s < LEAST_SHARE_S
            or self.proven_s["megatron-lm"] >= least_s
        ):
            return
        for best in self.incumbent.ranked()[:1]:
            search.incumbent.offer(best.plan, best.evaluation)
        found = self._ran(search, left_s)
        self._keep("megatron-lm", found)
        if not found.interrupted:
            self.cut_search = None

    def _keep(self, target: TargetName, found: Result) -> None:
        """Take over plans and bounds of the search for one launcher."""
        for plan in (found.plan, *(other.plan for other in found.runners_up)):
            if plan is not None:
                self.seeds.append(plan)
        self.offer_seeds()
        for bounds, proven_s in ((self.proven_s, found.bound_s), (self.whole_s, found.whole_bound_s)):
            none_s = np.inf if found.termination == "infeasible" else 0.0
            bounds[target] = none_s if proven_s is None else proven_s

    @cached_property
    def work_s(self) -> float:
        """What no plan undercuts, as the chips compute no faster; 0 where it is not known [s]."""
        return work_bound_s(self.whole) or 0.0

    def make_opener(self) -> MeshOpener:
        """Price the degrees of pipelines, and make what judges them."""
        self.prices = price(self.problem, self.table.degrees)
        kinds = layer_kinds(self.problem.model)
        assert kinds is not None
        sends_block = not self.problem.stack.p2p_overlap
        self.bounds = bound_data(self.problem.model.num_layers, kinds, self.prices, sends_block=sends_block)
        batches = replica_batches(self.problem, self.table)
        none = np.zeros(0, dtype=np.int64)
        self.pairs = Pairs(none, none, np.zeros(0))
        opener = MeshOpener(
            self.problem, self.prices, self.table, self.bounds, self.frontier, self.clock, batches, self.use
        )
        self.opener = opener
        return opener

    def _mix_all(self) -> float:
        """Choose mixes and bound them in turn; what no mix undercuts [s]."""
        if self.clock.is_up:
            return 0.0
        self.reporter.report("mixing pipelines", self.incumbent.step_s, None, 0, 0)
        opener = self.make_opener()
        if len(self.table) == 0:
            return np.inf
        left_s = self.clock.left_s or 0.0

        def is_up() -> bool:
            """Whether the rest of the time is that of the search for FlagScale."""
            left_s = self.clock.left_s
            return left_s is not None and left_s <= self.share_up_s

        mixes = Mixes(self.problem, Chains(self.problem, self.table, self.prices), is_up)
        for best in self.incumbent.ranked()[:1]:
            mixes.begin_at(best.plan)
        self.mixes, self.mix_opener = mixes, opener
        least_s, copies = self.work_s, 1
        for share in (SHARE_OF_LOOKS, *(1.0,) * (ROUNDS - 1)):
            before_s = self.incumbent.step_s
            self.share_up_s = (1 - share * SHARE_OF_PART) * left_s
            bound_s, is_first = least_s, mixes.are_few and before_s is not None and not copies > 1
            if before_s is None:
                bound_s = max(least_s, mixes.improve_from(least_s))
            elif not is_first:
                # Where chips are few rooms tell more in less time, unless it is plans that are missing.
                bound_s = max(least_s, mixes.improve_at_first(self.frontier.cutoff_s * BEYOND))
            self.reporter.report("mixing pipelines", self.incumbent.step_s, bound_s, mixes.looks, 0)
            if before_s is None and not mixes.columns and not is_up():
                # Not one chain holds the model, however long it may take.
                self.mixes = None
                return np.inf
            was_cut = is_up()
            if bound_s >= self.frontier.cutoff_s or (was_cut and share == 1):
                break
            copies = choose_mixes(self, opener, mixes)
            if is_first and copies > 1:
                continue
            if not was_cut and (self.incumbent.step_s is None or self.incumbent.step_s == before_s):
                break
        return bound_s
