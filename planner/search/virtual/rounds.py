"""Rounds of annealing of the best parts with virtual stages that a search has met.

What every part begins from is fixed when its round begins, that of the last one when whole layers of all
chunks are first looked at, some time before what comes of it is wanted. So a second process may take its
share, and what comes of a search is the same on any number of them.

The constants are guesses: they say what is looked at, never what is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from formulations.virtual_selection_data import choices, objective_ms
from planner.search.ahead import Ahead, shared
from planner.search.clock import Clock
from planner.search.openings import Opener
from planner.search.virtual.annealing import WARMTH, Dealing, Order, anneal_dealings
from planner.search.virtual.items import VirtualOrder
from planner.search.virtual.programs import VirtualSolver
from planner.search.virtual.times import DealingTimes
from planner.units import MS

NEAR_TO_ANNEAL = 1.1
"""Step of a part, over the best one, up to which it is annealed, which has made steps of long pipelines a
tenth shorter. A guess."""
FAR = 0.04
"""Gap from which on parts are annealed for longer."""
FEW_ORDERS = 600
"""Orders of a part up to which it is not, as swaps reach them."""


@dataclass(frozen=True)
class Round:
    """Parts that are annealed one after the other, those of the best plans met."""

    parts: int
    steps: int
    gap: float = FAR
    """Gap from which on that is done."""
    near: float = NEAR_TO_ANNEAL
    """Step of a part over the best one up to which it is."""
    few_orders: int = FEW_ORDERS
    """Orders of a part up to which it is not."""
    warmth: float = WARMTH
    """As in `Cooling`."""
    spare: float | None = None
    """Part of the time limit before whose end it is done; None where it is done as soon as it is late."""


@dataclass(frozen=True)
class Start:
    """What annealing of a part begins from: its best dealing met when its round begins."""

    part: VirtualOrder
    layers: Dealing
    round: Round


Annealed = list[tuple[Order, Dealing]]
Key = tuple[int, int, int]
"""Row of degrees, virtual stages and stages of a part."""

ROUNDS = Round(10, 100, warmth=4e-3), Round(4, 500, near=1.02)
"""Round by round. Guesses, as are those that follow. The first tells which parts are worth it: 150 steps that
begin warmer reach the same, within 0.2%. Parts that it leaves 2% behind never won the second."""
LAST_ROUND = Round(3, 2200, gap=0.75 * FAR, near=1.002, spare=0.35)
"""Once relaxations have left the bound so far: with `FAR` the plan of 405B on 10,240 chips hung on when its
bound came that near, as one 0.3% quicker that had been found was left; with half of it Llama-2 70B on three
classes took a third longer for the same plan. Parts all but as good as the best one are taken, too: of two
within 0.1% on 1,024 chips of four vendors the second became 0.7% quicker, the first stayed."""
ROUND_BESIDE = Round(2, 200)
"""Where a neighbour's search has left its best plan: what is new may hold a far better one. With it one more
node gained 1.0% where it had gained nothing; all rounds, in 7.7 s instead of 3.5, find 1.5%."""
ROUND_NEAR = Round(1, 200, gap=0.0, near=1.01, few_orders=0)
"""Where the bound is nearer, and at the end. It made plans of Qwen2.5 72B and of OPT-350M on 512 chips half a
percent quicker, in 0.3 s and in one."""
OF_USE = 0.005
"""Part of the best step that the last round must have spared for the one that follows."""


class VirtualRounds(VirtualSolver):
    """Anneals parts of one search; what comes of it goes to the incumbent."""

    def __init__(self, clock: Clock, opener: Opener) -> None:
        super().__init__(clock, opener)
        self.may_anneal, self.may_anneal_longer, self.anneals_late = True, False, False
        self.may_anneal_last = True
        self.is_last_wanted = False
        """Whether what the last round finds is judged however near the bound has come since."""
        self.may_anneal_beside = False
        self.annealed: dict[Key, tuple[float, int]] = {}
        """By part: step [s] of its best plan once it was annealed last, and for how many steps that was."""
        self.last: tuple[list[Start], Ahead[Start, Annealed]] | None = None
        """The last round, which may have begun in another process."""

    def _anneal_good(self, bound_s: float) -> None:
        """Anneal the best parts met, once, where the bound leaves room for better."""
        if not self.may_anneal:
            return
        self.may_anneal = False
        best_s = self.frontier.incumbent.step_s or np.inf
        if bound_s < (1 - FAR) * best_s:
            for one in ROUNDS:
                before_s = self.frontier.incumbent.step_s or np.inf
                self._anneal_best(bound_s, one)
            best_s = self.frontier.incumbent.step_s or np.inf
            self.may_anneal_longer = best_s < (1 - OF_USE) * before_s and not self.anneals_late
        self._anneal_best(bound_s, ROUND_NEAR)

    def _anneal_beside(self, bound_s: float) -> None:
        """Anneal the very best parts met for a short while, once, behind the search of a neighbour."""
        if self.may_anneal_beside:
            self.may_anneal_beside = False
            self._anneal_best(bound_s, ROUND_BESIDE)

    def _begin_last(self, bound_s: float, *, is_sure: bool) -> None:
        """Fix what the last round begins from, once, and begin it where there may be another process.

        Parameters
        ----------
        is_sure
            Whether it comes even where the round before was of no use.
        """
        if self.last is None and (self.may_anneal_longer or (is_sure and self.may_anneal_last)):
            starts = self._starts(bound_s, LAST_ROUND)
            self.last = starts, Ahead(starts, self._annealed, self.problem.options.workers)

    def _anneal_longer(self, bound_s: float) -> None:
        """Anneal what that left best for longer, once, where there still seems to be room for better."""
        if self.may_anneal_longer:
            self._anneal_last(bound_s)

    def _want_last(self, bound_s: float) -> None:
        """Begin the last round and have its plans wanted, where there is room for better; else leave it."""
        if not self.may_anneal_last or self.is_last_wanted:
            return
        self._begin_last(bound_s, is_sure=True)
        self.is_last_wanted = self._leaves_room(bound_s, LAST_ROUND)
        if not self.is_last_wanted:
            self._anneal_last(bound_s)

    def _anneal_due(self, bound_s: float) -> None:
        """The same before the limit: once another process has no time left for it, or half is over here.

        What waits for it may come later than that, and the plans found would be lost. In the second half
        what another process has found is taken as soon as it is there.
        """
        if self.last is None or not self.may_anneal_last:
            return
        ahead = self.last[1]
        is_there = self.clock.is_late and ahead.is_answered
        if is_there or (self._ends(LAST_ROUND) if ahead.is_begun else self.clock.is_late):
            self.clock.was_felt = True
            self._anneal_last(bound_s)

    def _anneal_last(self, bound_s: float) -> None:
        """The same before the first program in whole numbers whose cutoff rises, which takes as long."""
        if not self.may_anneal_last:
            return
        self._begin_last(bound_s, is_sure=True)
        self.may_anneal_longer = self.may_anneal_last = False
        if self.last is not None and (self.is_last_wanted or self._leaves_room(bound_s, LAST_ROUND)):
            starts, ahead = self.last
            self._judge_annealed(starts, ahead.answers(lambda: self.clock.is_up))
        self.end()

    def end(self) -> None:
        """End what has been begun in another process; where time ran short, judge what it has found by now.

        What was opened last may have taken all the time since they were there: a look at whole layers of all
        chunks takes a minute and more.
        """
        if self.last is None:
            return
        starts, ahead = self.last
        if self.may_anneal_last and self.clock.was_felt and ahead.is_answered:
            self.may_anneal_last = False
            self._judge_annealed(starts, ahead.answers(lambda: True))
        ahead.end()

    def _anneal_best(self, bound_s: float, one: Round) -> None:
        """Anneal orders and dealings of some parts."""
        starts = self._starts(bound_s, one)
        found = shared(starts, self._annealed, self.problem.options.workers, lambda: self.clock.is_up)
        self._judge_annealed(starts, found)

    def _leaves_room(self, bound_s: float, one: Round) -> bool:
        """Whether a bound is as far from the best plan as a round asks."""
        return bound_s < (1 - one.gap) * (self.frontier.incumbent.step_s or np.inf)

    def _starts(self, bound_s: float, one: Round) -> list[Start]:
        """What a round begins from, part by part."""
        if self.problem.options.keep_class_order or not self._leaves_room(bound_s, one):
            return []
        best_s = self.frontier.incumbent.step_s or np.inf
        ranked = sorted(self.good.items(), key=lambda entry: (entry[1][0], entry[0]))
        near = [key for key, (value_s, _, _) in ranked[: one.parts] if value_s < one.near * best_s]
        many = [
            key
            for key in near
            if self._used(key[0], key[2]) ** key[2] > one.few_orders and self._is_new(key, one)
        ]
        return [Start(self.good[key][1], self.good[key][2].layers, one) for key in many]

    def _is_new(self, key: Key, one: Round) -> bool:
        """Whether a part has not been annealed for as long already from what is its best plan."""
        before_s, steps = self.annealed.get(key, (np.inf, 0))
        return steps < one.steps or self.good[key][0] < before_s

    def _used(self, choice: int, stages: int) -> int:
        """Classes that may hold stages."""
        return int((np.minimum(self.table.max_stages[choice], stages) > 0).sum())

    def _annealed(self, start: Start, is_unwanted: Callable[[], bool]) -> Annealed:
        """The best orders and dealings met from a start; none where time is up."""
        part, one = start.part, start.round
        if self._ends(one):
            return []
        stages, virtual_stages = len(part.order), part.virtual_stages
        tables = self.tables.of_classes(part.choice, virtual_stages, stages)
        times = DealingTimes(
            tables, self.table.max_stages.shape[1], sends_block=self._sends_block(virtual_stages)
        )
        most = np.minimum(self.table.max_stages[part.choice], stages).tolist()
        fewest = [int(c in self.table.busy) for c in range(len(most))]
        seed = self.problem.options.seed
        return anneal_dealings(
            times,
            [(part.order, start.layers)],
            fewest,
            most,
            one.steps,
            seed,
            lambda: self._ends(one) or is_unwanted(),
            one.warmth,
        )

    def _judge_annealed(self, starts: list[Start], annealed: Iterable[Annealed]) -> None:
        """Judge what came of a round, part by part."""
        for start, found in zip(starts, annealed, strict=True):
            for order, layers in found:
                if self.opener.is_allowed(start.part.choice, order):
                    self._judge_dealing(replace(start.part, order=order), layers)
            if found:
                key = start.part.choice, start.part.virtual_stages, len(start.part.order)
                self.annealed[key] = self.good[key][0], start.round.steps

    def _ends(self, one: Round) -> bool:
        """Whether no time is left for a round that has begun."""
        limit_s = self.clock.limit_s
        if one.spare is None or limit_s is None:
            self.clock.was_felt |= self.clock.is_late
            return self.clock.is_late
        return self.clock.is_up_behind(one.spare * limit_s)

    def _judge_dealing(self, part: VirtualOrder, layers: tuple[tuple[int, ...], ...]) -> None:
        """Judge a dealing as it is, where it is worth it."""
        data = self.tables.data(part.choice, part.virtual_stages, part.order)
        for choice in choices(data, layers):
            value_s = objective_ms(data, choice) * MS
            self._note_good(part, value_s, choice)
            if value_s < self.frontier.incumbent.worth_judging_s:
                self._judge(part, data, choice)

    def _sends_block(self, virtual_stages: int) -> bool:
        return not self.problem.stack.overlaps_sends(virtual_stages)
