"""Mixes of pipelines within a search: chosen among candidates, judged by the referee, and bounded in turn."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from formulations.solvers import loading_s
from planner.data.plan import Plan
from planner.data.result import Evaluation
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.opener import MeshOpener
from planner.search.replicas.chains import Chains
from planner.search.replicas.choosing import choose_mix
from planner.search.replicas.mixes import NEAR, Mixes
from planner.search.replicas.rooms_beside import RoomsBeside, are_worth_a_process
from planner.search.replicas.templates import Candidate, assemble_mix, chains_by_share, list_candidates
from planner.simulate.evaluate import evaluate
from planner.units import MS

ANY_NUMBER, FEWER = 1_000_000, (2, 3, 5)
"""Most pipelines of a mix: few large ones exchange less."""
SHARE_OF_PART = 0.4
"""Share of the time that is left that the search for one launcher, or that for mixes, may take."""
SHARE_OF_LOOKS = 0.7
"""Share of that time after which mixes are chosen for the first time."""
ROUNDS = 3
"""Times that mixes are chosen and bounded in turn while plans get better."""
DOUBLINGS = 12
"""Doublings of a time in which any chains are looked for."""
LEAST_STEP_S = 1e-3
"""Step from which deadlines are doubled where nothing says more [s]."""
BEYOND = 1 + 1e-9
"""How far beyond the cutoff bounds are raised, so that rounding never leaves them short of the gap."""


@dataclass(frozen=True)
class Chosen:
    """What came of choosing mixes once."""

    copies: int
    """The most pipelines of a mix that is done before the best plan, one where there is none."""
    judged: tuple[tuple[Plan, Evaluation], ...]
    """Plans that the referee confirmed, in the order in which they came up."""
    programs: int
    evaluated: int
    """Mixes that it looked at."""

    def take(self, search: MeshSearch, opener: MeshOpener) -> None:
        """Take over what another process chose."""
        for plan, evaluation in self.judged:
            search.incumbent.offer(plan, evaluation)
        opener.programs += self.programs
        opener.evaluated += self.evaluated


def choose_mixes(search: MeshSearch, opener: MeshOpener, mixes: Mixes) -> Chosen:
    """Choose among the chains that were found, those of plans at hand and some others."""
    most, judged, before = 1, list[tuple[Plan, Evaluation]](), (opener.programs, opener.evaluated)
    for chains in chains_by_share(opener, search.seeds, mixes):
        candidates = list_candidates(opener, *chains)
        copies = _mix(search, opener, candidates, ANY_NUMBER, judged)
        for number in FEWER:
            if number < copies:
                _mix(search, opener, candidates, number, judged)
        most = max(most, copies)
    return Chosen(most, tuple(judged), opener.programs - before[0], opener.evaluated - before[1])


def _mix(
    search: MeshSearch,
    opener: MeshOpener,
    candidates: list[Candidate],
    most_pipelines: int,
    judged: list[tuple[Plan, Evaluation]],
) -> int:
    """The best mix of some candidates, judged by the referee; its pipelines."""
    if not candidates or search.clock.is_up_behind(loading_s(search.problem.options.solver)):
        return 0
    best_s = search.incumbent.step_s
    latest_ms = np.inf if best_s is None else best_s / MS
    found = choose_mix(search.problem, candidates, most_pipelines, latest_ms, search.clock.left_s)
    opener.programs += 1
    if found is None:
        # What does not run the batch may with chains that are still to be found.
        return most_pipelines if best_s is None else 0
    plan = assemble_mix(search.problem, opener, candidates, found)
    if plan is None or not set(search.use) <= {stage.node_class for stage in plan.stages}:
        return sum(found.copies)
    evaluation = evaluate(search.problem, plan)
    opener.evaluated += 1
    if not evaluation.violations:
        search.incumbent.offer(plan, evaluation)
        judged.append((plan, evaluation))
    return sum(found.copies)


class Mixing:
    """The mixes of one search."""

    def __init__(self, search: MeshSearch, work_s: float) -> None:
        """`work_s` is what no plan undercuts, as the chips compute no faster [s]."""
        self.search, self.work_s = search, work_s
        self.bound_s = 0.0
        """What no mix undercuts [s]."""
        self.mixes: Mixes | None = None
        self.is_chosen = False
        """Whether mixes were chosen at first."""
        self.rooms: RoomsBeside[Chosen] | None = None
        """Another process that chooses them and asks rooms."""
        self.share_up_s = 0.0
        """Time that mixes leave to what comes after them [s]."""
        if search.clock.is_up:
            return
        search.reporter.report("mixing pipelines", search.incumbent.step_s, None, 0, 0)
        self.opener = search.make_opener()
        if len(search.table) == 0:
            self.bound_s = np.inf
            return
        chains = Chains(search.problem, search.table, self.opener.prices)
        self.mixes = Mixes(search.problem, chains, self._is_share_up)
        for best in search.incumbent.ranked()[:1]:
            self.mixes.begin_at(best.plan)

    def _is_share_up(self) -> bool:
        """Whether the rest of the time is that of what comes after mixes."""
        left_s = self.search.clock.left_s
        return left_s is not None and left_s <= self.share_up_s

    @property
    def may_come_later(self) -> bool:
        """Whether mixes are chosen behind the first plans of what is searched next.

        Another process may then choose them meanwhile.
        """
        return self.mixes is not None and self.mixes.are_few and self.search.incumbent.step_s is not None

    def choose(self) -> None:
        """Choose mixes and bound them in turn, unless that was done."""
        if self.mixes is None or self.is_chosen:
            return
        self.is_chosen = True
        self._choose_in_turn(self.mixes)
        if self.mixes is None or self.mixes.columns:
            # What prices tell comes before rooms then.
            self.end_beside()

    def _choose_in_turn(self, mixes: Mixes) -> None:
        search, left_s = self.search, self.search.clock.left_s or 0.0
        least_s, copies = self.work_s, 1
        for share in (SHARE_OF_LOOKS, *(1.0,) * (ROUNDS - 1)):
            before_s = search.incumbent.step_s
            self.share_up_s = (1 - share * SHARE_OF_PART) * left_s
            bound_s, is_first = least_s, mixes.are_few and before_s is not None and not copies > 1
            if before_s is None:
                bound_s = max(least_s, _improve_without_plan(mixes, least_s))
            elif not is_first:
                # Where chips are few rooms tell more in less time, unless it is plans that are missing.
                bound_s = max(least_s, mixes.improve_at_first(search.frontier.cutoff_s * BEYOND))
            search.reporter.report("mixing pipelines", search.incumbent.step_s, bound_s, mixes.looks, 0)
            self.bound_s = bound_s
            if before_s is None and not mixes.columns and not self._is_share_up():
                # Not one chain holds the model, however long it may take.
                self.mixes, self.bound_s = None, np.inf
                return
            was_cut = self._is_share_up()
            if bound_s >= search.frontier.cutoff_s or (was_cut and share == 1):
                return
            copies = self._chosen(mixes)
            if is_first and copies > 1:
                continue
            if not was_cut and (search.incumbent.step_s is None or search.incumbent.step_s == before_s):
                return

    def _chosen(self, mixes: Mixes) -> int:
        """Choose mixes once, or take what another process chose; the most pipelines of one."""
        found = self.rooms.chosen(lambda: self.search.clock.is_up) if self.rooms else None
        if found is None:
            return choose_mixes(self.search, self.opener, mixes).copies
        found.take(self.search, self.opener)
        return found.copies

    def improve(self, others_s: float) -> None:
        """Raise the bound by all that tells anything where mixes hold that of all plans.

        Parameters
        ----------
        others_s
            What no other plan undercuts [s].
        """
        search, mixes, most_s = self.search, self.mixes, self.search.frontier.cutoff_s * BEYOND
        # Without a plan there is no time that mixes could be shown not to undercut.
        if mixes is None or most_s == np.inf or self.bound_s > others_s or self.bound_s >= most_s:
            return
        self.share_up_s = 0.0
        if mixes.are_few and not mixes.columns:
            if self.rooms is not None:
                self.rooms.take(most_s, lambda: search.clock.is_up)
            if mixes.close_by_rooms(most_s):
                self.bound_s = most_s
                return
            # Good mixes are of chains that stay open at good prices.
            mixes.improve_at_first(most_s)
            choose_mixes(search, self.opener, mixes)
            most_s = search.frontier.cutoff_s * BEYOND
        self.bound_s = max(self.bound_s, mixes.improve_further(most_s))

    def begin_beside(self) -> None:
        """Choose mixes, then ask whether rooms close the cutoff, in another process where one is worth it."""
        mixes = self.mixes
        if mixes is not None and are_worth_a_process(mixes, self.search.problem.options.workers):
            with suppress(OSError):
                self.rooms = RoomsBeside(mixes, lambda: choose_mixes(self.search, self.opener, mixes))
                self.ask_rooms(self.search.incumbent.step_s)

    def ask_rooms(self, step_s: float | None) -> None:
        """Ask for what a plan of so much time leaves open, in place of what was asked before [s]."""
        if self.rooms is not None and step_s is not None:
            frontier = self.search.frontier
            self.rooms.ask(frontier.cutoff_at(step_s, frontier.gap) * BEYOND)

    def end_beside(self) -> None:
        """End the other process."""
        if self.rooms is not None:
            self.rooms.end()
            self.rooms = None


def _improve_without_plan(mixes: Mixes, least_s: float) -> float:
    """Raise the bound up to a time by which fractions of some chains run the batch [s]."""
    most_s = 2 * max(least_s, LEAST_STEP_S)
    for _ in range(DOUBLINGS):
        mixes.improve(most_s)
        if mixes.is_up() or mixes.bound_s < most_s * (1 - NEAR):
            break
        most_s *= 2
    return mixes.bound_s
