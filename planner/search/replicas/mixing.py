"""Mixes of pipelines within a search: chosen and bounded in turn, beside other work where that pays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.beside import Beside, may_have_others
from planner.search.meshes.driver import MeshSearch
from planner.search.progress import Reporter
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
"""Share of the time that is left after which another process goes on with mixes where chips are many."""
SHARE_BESIDE = 0.9
"""Share of what is left then that both it and the search beside it may take. Guesses."""
DOUBLINGS = 12
"""Doublings of a time in which any chains are looked for."""
LEAST_STEP_S = 1e-3
"""Step from which deadlines are doubled where nothing says more [s]."""
BEYOND = 1 + 1e-9
"""How far beyond the cutoff bounds are raised, so that rounding never leaves them short of the gap."""


@dataclass(frozen=True)
class Further:
    """How far another process came with mixes."""

    bound_s: float
    """What no mix undercuts [s]."""
    bound_ms: float
    price: Floats
    """Bound and prices of the mixes themselves."""
    looks: int
    chosen: tuple[Chosen, ...]
    parts: tuple[tuple[float, Floats], ...]
    """The same of each choice of what all pipelines share, where these were looked at apart."""


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
        self.beside: Beside[Further] | None = None
        """Another process that goes on with mixes where a share of the time was too short for them."""
        self.share_up_s = 0.0
        """Time that mixes leave to what comes after them [s]."""
        self._all_chosen: list[Chosen] = []
        self._is_unwanted: Callable[[], bool] = lambda: False
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
        clock = self.search.clock
        is_up = clock.is_up_behind(self.share_up_s)
        return self._is_unwanted() or is_up

    @property
    def may_come_later(self) -> bool:
        """Whether mixes are chosen behind the first plans of what is searched next.

        Another process may then choose them meanwhile.
        """
        return self.mixes is not None and self.mixes.are_few and self.search.incumbent.step_s is not None

    def choose(self, *, may_go_on_beside: bool = False) -> None:
        """Choose mixes and bound them in turn, unless that was done.

        Parameters
        ----------
        may_go_on_beside
            Whether other work follows, so that another process may go on where they take long. It is begun
            only where a time limit cuts them, which no answer then depends on more than on the limit.
        """
        if self.mixes is None or self.is_chosen:
            return
        self.is_chosen = True
        search = self.search
        self._choose_in_turn(
            self.mixes,
            may_go_on_beside
            and search.clock.left_s is not None
            and search.incumbent.step_s is not None
            and may_have_others(search.problem.options.workers),
        )
        if self.rooms is not None and (self.mixes is None or self.mixes.columns):
            # What prices tell comes before rooms then.
            self.end_beside()

    def _choose_in_turn(
        self, mixes: Mixes, may_go_on_beside: bool = False, of_part: float = SHARE_OF_PART
    ) -> None:
        search, left_s = self.search, self.search.clock.left_s or 0.0
        least_s, copies = self.work_s, 1
        for share in (SHARE_OF_LOOKS, *(1.0,) * (ROUNDS - 1)):
            before_s = search.incumbent.step_s
            self.share_up_s = (1 - (SHARE_ALONE if may_go_on_beside else share * of_part)) * left_s
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
            if was_cut and may_go_on_beside and self._go_on_beside(mixes):
                return
            may_go_on_beside = False
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
        self._all_chosen.append(found)
        return found

    def _go_on_beside(self, mixes: Mixes) -> bool:
        """Let another process go on with mixes; whether there is one."""
        with suppress(OSError):
            self.beside = Beside(lambda is_unwanted: self._further(mixes, is_unwanted))
        return self.beside is not None

    def _further(self, mixes: Mixes, is_unwanted: Callable[[], bool]) -> Further:
        """Choose mixes and bound them in turn, in the other process."""
        self._is_unwanted = is_unwanted
        self.search.reporter = Reporter(self.search.clock, None)
        self._choose_in_turn(mixes, of_part=SHARE_BESIDE)
        chosen = tuple(self._all_chosen)
        parts = tuple((part.bound_ms, part.best_price) for part in mixes.parts.values())
        return Further(self.bound_s, mixes.bound_ms, mixes.best_price, mixes.looks, chosen, parts)

    def join(self) -> None:
        """Take over what another process found, once it is done."""
        if self.beside is None or self.mixes is None:
            return
        found = self.beside.answer(lambda: self.search.clock.is_up)
        self.end_beside()
        if found is None:
            return
        self.bound_s, mixes = max(self.bound_s, found.bound_s), self.mixes
        mixes.bound_ms, mixes.best_price, mixes.looks = found.bound_ms, found.price, found.looks
        mixes.price = mixes.aims.price = found.price
        if found.parts:
            for part, (bound_ms, price) in zip(mixes.that_share(), found.parts, strict=True):
                part.bound_ms = max(part.bound_ms, bound_ms)
                part.price = part.best_price = part.aims.price = price
        for one in found.chosen:
            one.take(self.search, self.opener)

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
        if search.clock.is_up:
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
        for other in (self.rooms, self.beside):
            if other is not None:
                other.end()
        self.rooms = self.beside = None


def _improve_without_plan(mixes: Mixes, least_s: float) -> float:
    """Raise the bound up to a time by which fractions of some chains run the batch [s]."""
    most_s = 2 * max(least_s, LEAST_STEP_S)
    for _ in range(DOUBLINGS):
        mixes.improve(most_s)
        if mixes.is_up() or mixes.bound_s < most_s * (1 - NEAR):
            break
        most_s *= 2
    return mixes.bound_s
