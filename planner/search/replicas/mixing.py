"""Mixes of pipelines within a search: chosen and bounded in turn, beside other work where that pays."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from planner.search.meshes.driver import MeshSearch
from planner.search.replicas.chains import Chains
from planner.search.replicas.choosing import Chosen, choose_mixes
from planner.search.replicas.mixes import NEAR, Mixes
from planner.search.replicas.rooms_beside import RoomsBeside, are_worth_a_process

SHARE_OF_PART = 0.4
"""Share of the time that is left that the search for one launcher, or that for mixes, may take."""
SHARE_OF_LOOKS = 0.7
"""Share of that time after which mixes are chosen for the first time."""
ROUNDS = 3
"""Times that mixes are chosen and bounded in turn while plans get better."""
SHARE_ALONE = 0.15
"""Share of the time that is left up to which mixes are waited for where plans of them are to begin with."""
SHARE_OF_ROOMS = 0.5
"""Share of what is left in which rooms are to close all at once: what they say only then counts."""
SHARE_BESIDE = 0.9
"""Share of what is left that they may take beyond it, and the search beside them. Guesses."""
DOUBLINGS = 12
"""Doublings of a time in which any chains are looked for."""
LEAST_STEP_S = 1e-3
"""Step from which deadlines are doubled where nothing says more [s]."""
BEFORE = 0.6, 0.8, 0.9
"""Shares of a time that rooms did not close that they are asked for then. Guesses."""
BEYOND = 1 + 1e-9
"""How far beyond the cutoff bounds are raised, so that rounding never leaves them short of the gap."""


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
        self.is_long = False
        """Whether a share of the time was too short for them."""
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
        return self.search.clock.is_up_behind(self.share_up_s)

    @property
    def may_come_later(self) -> bool:
        """Whether mixes are chosen behind the first plans of what is searched next.

        Another process may then choose them meanwhile.
        """
        return (
            self.mixes is not None
            and self.mixes.begin_with_rooms
            and self.search.incumbent.step_s is not None
        )

    def choose(self, *, is_beside_others: bool = False) -> None:
        """Choose mixes and bound them in turn, unless that was done.

        Parameters
        ----------
        is_beside_others
            Whether another process does meanwhile what comes next: they may then go on where they take long.
        """
        if self.mixes is None or self.is_chosen:
            return
        self.is_chosen = True
        self._choose_in_turn(self.mixes, is_beside_others and self.search.clock.left_s is not None)
        if self.rooms is not None and (self.mixes is None or self.mixes.columns):
            # What prices tell comes before rooms then.
            self.end_beside()

    def _choose_in_turn(self, mixes: Mixes, may_go_on: bool = False, of_part: float = SHARE_OF_PART) -> None:
        search, left_s = self.search, self.search.clock.left_s or 0.0
        least_s, copies = self.work_s, 1
        for share in (SHARE_OF_LOOKS, *(1.0,) * (ROUNDS - 1)):
            before_s = search.incumbent.step_s
            self.share_up_s = (1 - (SHARE_ALONE if may_go_on else share * of_part)) * left_s
            bound_s, is_first = least_s, mixes.begin_with_rooms and before_s is not None and not copies > 1
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
            if was_cut and may_go_on:
                self.is_long = True
                self._choose_in_turn(mixes, of_part=SHARE_BESIDE)
                return
            may_go_on = False
            self.share_up_s = (1 - of_part) * left_s
            copies = self._chosen(mixes).copies
            if is_first and copies > 1:
                continue
            if not was_cut and (search.incumbent.step_s is None or search.incumbent.step_s == before_s):
                return

    def _chosen(self, mixes: Mixes) -> Chosen:
        """Choose mixes once, or take what another process chose."""
        found = self.rooms.chosen(lambda: self.search.clock.is_up) if self.rooms else None
        if found is None:
            found = choose_mixes(self.search, self.opener, mixes)
        else:
            found.take(self.search, self.opener)
        return found

    def improve(self, others_s: float, whole_s: float = np.inf) -> None:
        """Raise the bound by all that tells anything where mixes hold that of all plans.

        Parameters
        ----------
        others_s
            What no other plan undercuts [s].
        whole_s
            The same for plans without virtual stages: beyond it the bound of mixes tells nothing [s].
        """
        search, mixes = self.search, self.mixes
        most_s = min(search.frontier.cutoff_s, whole_s) * BEYOND
        # Without a plan there is no time that mixes could be shown not to undercut.
        if (
            mixes is None
            or search.frontier.cutoff_s == np.inf
            or self.bound_s > others_s
            or self.bound_s >= most_s
        ):
            return
        if search.clock.is_up:
            return
        self.share_up_s = (1 - SHARE_OF_ROOMS) * (search.clock.left_s or 0.0)
        if mixes.begin_with_rooms and not mixes.columns:
            if self.rooms is not None:
                self.rooms.take(most_s, self._is_share_up)
            if mixes.close_by_rooms(most_s):
                self.bound_s = most_s
                return
            self.share_up_s = 0.0
            self.bound_s = max(self.bound_s, close_before(mixes, most_s))
            # Good mixes are of chains that stay open at good prices.
            mixes.improve_at_first(most_s)
            choose_mixes(search, self.opener, mixes)
            most_s = min(search.frontier.cutoff_s, whole_s) * BEYOND
        self.share_up_s = 0.0
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


def close_before(mixes: Mixes, most_s: float) -> float:
    """The latest of some times before one that rooms close, which takes them far less time [s]."""
    for share in BEFORE:
        if not mixes.is_closed(share * most_s) and not mixes.close_by_rooms(share * most_s):
            break
    return mixes.bound_s
