"""Search for `unrestricted`: pipelines of different shape with unequal shares of the batch.

The space: all plans of Megatron-LM, all of FlagScale, and every mix of two or more pipelines whose stages
have equal data parallelism and no context parallelism, each with its own stages, micro-batch size (a divisor
of the batch or a power of two), replicas and number of micro-batches. All their stages stand on the hosts of
their class one after the other, each run of stages of a class from the start of a host on. The bound is the
least of the three parts, each searched by itself: the searches for both launchers, which begin with the best
plan and so close what cannot beat it, and `planner.search.replicas.mixes`, at last by what all pipelines
share and with whole ones (`planner.search.replicas.shares`; where chips are few, before any prices,
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
from functools import cached_property

import numpy as np

from planner.cost.pricing import price
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.search.beside import Beside
from planner.search.bound_data import bound_data
from planner.search.clock import LEAST_SHARE_S
from planner.search.driver import Search
from planner.search.kinds import check_kinds, layer_kinds
from planner.search.meshes.driver import MeshSearch, pinned_beyond
from planner.search.meshes.opener import MeshOpener
from planner.search.progress import Progress
from planner.search.replicas.launchers_beside import flagscale_beside, megatron_beside
from planner.search.replicas.mixing import SHARE_OF_PART, Mixing
from planner.search.replicas.space import replica_batches, replica_degrees
from planner.search.replicas.work import work_bound_s
from planner.search.space import Pairs
from planner.search.wishes import keeps_wishes

SHARE_OF_LAST, SHARE_OF_REST = 0.8, 0.5
"""Shares of the time that is left that the search for FlagScale may take where only mixes go on after it, and
where that for Megatron-LM does as well: guesses."""


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

    is_listed = True
    """Its parts are searches and mixes, of which each that was cut holds what it could prove."""

    def __init__(
        self,
        problem: Problem,
        on_progress: Callable[[Progress], None] | None,
        seeds: Sequence[Plan] = (),
        proven_s: Mapping[TargetName, float] | None = None,
    ) -> None:
        super().__init__(problem, on_progress)
        self.seeds = [plan for plan in seeds if keeps_wishes(problem, plan)]
        self.reason = None
        self.whole = self.of_equal_degrees = problem
        """The problem with every degree that the narrower launchers may use."""
        launchers: tuple[TargetName, ...] = ("megatron-lm", "flagscale")
        self.proven_s = {name: bound for name, bound in (proven_s or {}).items() if name in launchers}
        self.whole_s = dict(self.proven_s)
        """The same for plans without virtual stages."""
        self.mixing: Mixing | None = None
        self.cut_search: Search | None = None
        """The search for Megatron-LM, where a limit cut it."""
        self.beside: Beside[Result] | None = None
        """Another process that goes on with it."""

    def run(self) -> Result:
        """Search all parts. What FlagScale cannot keep may leave it no degrees: others have some."""
        beyond = pinned_beyond(self.whole) is not None
        return self._ended(lambda: (beyond or bool(len(self.table))) and self._search())

    def _search(self) -> bool:
        self.offer_seeds()
        self._narrower("megatron-lm", Search, SHARE_OF_PART)
        mixes_s, cut = np.inf, self.clock.is_up and not self.is_stopped
        try:
            if pinned_beyond(self.whole) is not None:
                self.proven_s["flagscale"] = self.whole_s["flagscale"] = np.inf
            elif cut:
                mixes_s = 0.0
                self.proven_s.setdefault("flagscale", 0.0)
                self.whole_s.setdefault("flagscale", 0.0)
            else:
                self.table = replica_degrees(self.problem)
                self.mixing, self.beside = Mixing(self, self.work_s), megatron_beside(self)
                cut = self._flagscale_and_mixes(self.mixing)
                mixes_s = self.mixing.bound_s
            self._go_on(mixes_s)
        finally:
            if self.mixing is not None:
                self.mixing.end_beside()
            if self.beside is not None:
                self.beside.end()
        if self.mixing is not None:
            self.mixing.improve(min(self.proven_s.values()), min(self.whole_s.values()))
            mixes_s = self.mixing.bound_s
        for proven_s, close in (
            (self.whole_s, self.frontier.close),
            (self.proven_s, self.frontier.close_virtual),
        ):
            bound_s = max(min(mixes_s, *proven_s.values()), self.work_s)
            if np.isfinite(bound_s):
                close(bound_s)
        return cut or self.cut_search is not None or self.clock.is_up

    def _flagscale_and_mixes(self, mixing: Mixing) -> bool:
        """Search FlagScale's plans and choose mixes, then bound those; whether a limit cut the search.

        Where chips are few mixes are chosen behind the first plans of FlagScale, so that another process may
        do so meanwhile. Where they are many another process searches FlagScale's plans at once, as if mixes
        bring no better one; where they do it begins anew. Without a limit the answer is the same as without.
        """
        is_later = mixing.may_come_later and "flagscale" not in self.proven_s
        beside: Beside[Result] | None = None
        try:
            if is_later:
                if self.beside is None:
                    mixing.begin_beside()
            else:
                beside = None if self.beside else flagscale_beside(self, mixing)
                before_s = self.incumbent.step_s
                mixing.choose(is_beside_others=beside is not None)
            cut: bool | None = None
            if beside is not None and (mixing.is_long or self.incumbent.step_s == before_s):
                cut = self._taken("flagscale", beside)
        finally:
            if beside is not None:
                beside.end()
        if cut is None:
            share = 1.0 if mixing.bound_s >= self.frontier.cutoff_s else SHARE_OF_LAST
            share = SHARE_OF_REST if self.cut_search is not None and self.beside is None else share
            cut = self._narrower("flagscale", MeshSearch, share, mixing.choose if is_later else None)
        mixing.choose()
        mixing.improve(min(self.proven_s.values()), min(self.whole_s.values()))
        return cut

    def _taken(self, target: TargetName, beside: Beside[Result]) -> bool | None:
        """Take over what another process found; whether a limit cut it, None where it died."""
        self.reporter.report(f"plans of {target}", self.incumbent.step_s, None, 0, 0)
        found = beside.answer(lambda: self.clock.is_up)
        if found is None:
            return None
        self.clock.was_felt |= found.hurried
        self.reason = self.reason or found.reason
        self._keep(target, found)
        return found.interrupted

    def _tell_of(self, target: TargetName, told: Progress) -> None:
        """Say where the search for a launcher stands; what its best plan leaves open rooms are asked anew."""
        self.reporter.report(
            f"plans of {target}: {told.phase}", told.incumbent_s, None, told.opened, told.remaining
        )
        if self.mixing is not None:
            self.mixing.ask_rooms(told.incumbent_s)

    def _narrower(
        self,
        target: TargetName,
        kind: type[Search],
        share: float,
        behind_first: Callable[[], None] | None = None,
    ) -> bool:
        """Search the plans of one launcher that beat the best so far; whether a limit cut it.

        Parameters
        ----------
        share
            Most of the time that is left for it.
        behind_first
            What is done behind its first plans; the best plan of that is then looked for further.
        """
        if target in self.proven_s:
            return False
        if self.clock.is_up and self.proven_s:
            self.proven_s[target] = self.whole_s[target] = 0.0
            return True
        search = self.search_for(target, kind, share)

        def meanwhile() -> None:
            """Do so, and go on with the best plan of it."""
            assert behind_first is not None
            behind_first()
            self._offer_best(search)

        if behind_first is not None and isinstance(search, MeshSearch):
            search.meanwhile = meanwhile
        found = self._ran(search)
        self.reason = self.reason or found.reason
        self._keep(target, found)
        if found.interrupted and target == "megatron-lm":
            self.cut_search = search
        return found.interrupted

    def search_for(self, target: TargetName, kind: type[Search], share: float) -> Search:
        """A search for the plans of one launcher, which begins with the best so far."""
        left_s = self.clock.left_s
        share_s = None if left_s is None else max(share * left_s, LEAST_SHARE_S)
        options = self.whole.options.model_copy(update={"time_limit_s": share_s})
        asked = self.whole.model_copy(update={"target": target, "options": options})
        search = kind(asked, lambda told: self._tell_of(target, told), self.seeds)
        # It may go on at the end: good plans first, as far as half of the whole time.
        search.clock.late_s = None if left_s is None or target != "megatron-lm" else left_s / 2
        self._offer_best(search)
        return search

    def _offer_best(self, search: Search) -> None:
        """Let a search within this one begin with the best plan so far."""
        for best in self.incumbent.ranked()[:1]:
            search.incumbent.offer(best.plan, best.evaluation)

    def _go_on(self, mixes_s: float) -> None:
        """Give what time is left to plans of Megatron-LM where they hold the bound, or half of it.

        Where another process went on with them, wait for it.
        """
        if self.beside is not None and (cut := self._taken("megatron-lm", self.beside)) is not None:
            self.cut_search = self.cut_search if cut else None
            return
        left_s, search = self.clock.left_s, self.cut_search
        least_s = min(mixes_s, self.proven_s.get("flagscale", np.inf), self.frontier.cutoff_s)
        if search is None or left_s is None or left_s < LEAST_SHARE_S:
            return
        self._offer_best(search)
        found = self._ran(search, left_s if self.proven_s["megatron-lm"] < least_s else left_s / 2)
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
