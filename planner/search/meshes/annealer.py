"""When pipelines of free shapes are annealed (`planner.search.meshes.annealing`), and from which."""

from __future__ import annotations

import numpy as np

from planner.search.items import Lengths
from planner.search.meshes.annealing import COOLING, MeshTimes, anneal, mesh_times
from planner.search.meshes.balance import Balance
from planner.search.meshes.blocks import block_starts
from planner.search.meshes.opener import MeshOpener
from planner.search.walks.relaxation import Found
from planner.units import MS

WORTH_A_GAP = 0.02
"""How far below the best plan the bound must lie for pipelines to be annealed."""
STUCK = 8
"""Sets split without a better plan from which pipelines are annealed at a smaller gap too. A guess."""
WORK_OF_A_STEP = 300_000
"""Numbers that looks at parts go through (`planner.search.meshes.opener`) for each step that may be annealed;
those that found a better plan are not counted. Looks then take about three times as long as annealing:
measured on two cores in 2026."""
LONGER, MOST_STEPS = 2, 4000
"""How many times longer each annealing of a batch is than the one before, and the most steps. Guesses."""
AGAIN = 0.004
"""By how much the best plan of a batch counts as slower for each time that it has been annealed. A guess."""
WORTH_AGAIN = 0.02
"""By how much that may be slower than the best of all for the batch to be annealed again. A guess."""
MORE_STAGES = 6
"""Stages by which pipelines may grow."""
MOST_FOUND, MOST_STARTS, MOST_KEPT = 5, 8, 2
"""Pipelines to begin with: those known of a batch, with some of one shape a class, and of the annealing
before. Guesses."""


class MeshAnnealer:
    """Anneals by turns a batch for the first time, and one with good plans again, for longer.

    Bounds of batches lie close together, and only annealing tells which of them hold the good plans: each
    open batch is looked at briefly, by its bound, and the time goes to those whose plans are best. What finds
    nothing is paid by looks at parts: where those are closed as they are, no annealing is worth its time.
    """

    def __init__(self, opener: MeshOpener) -> None:
        self._opener = opener
        self._spent, self._rounds = 0, 0
        """Steps that found nothing, and annealings."""
        self._done: dict[int, int] = {}
        """How often batches have been annealed."""
        self._kept: dict[int, list[Found]] = {}
        """The best pipelines that came of it, where they are better than those before."""

    def look(self, bound_s: float | None) -> None:
        """Anneal where it is time for it and the bound is far below the best plan."""
        opener = self._opener
        step_s = opener.incumbent.step_s
        left = opener.work // WORK_OF_A_STEP - self._spent
        if left < COOLING.steps or bound_s is None or opener.problem.options.keep_class_order:
            return
        far = max(WORTH_A_GAP, 2 * opener.problem.options.gap)
        is_near = step_s is not None and bound_s >= (1 - far) * step_s
        if is_near and opener.sets_since_better < STUCK:
            return
        choice = self._choice()
        if choice is None:
            return
        steps = min(COOLING.steps * LONGER ** self._done.get(choice, 0), MOST_STEPS)
        if left < steps:
            return
        self._rounds += 1
        self._done[choice] = self._done.get(choice, 0) + 1
        self._improve(choice, bound_s, steps)
        if opener.incumbent.step_s == step_s:
            self._spent += steps

    def _choice(self) -> int | None:
        """By turns the batch of the least bound that has not been annealed, and one with good plans.

        One of every number of sequences at a time comes first: how many micro-batches are best shows soon.
        One with good plans may be closed: that takes no more than the gap, and any better plan closes others.
        Once all have been annealed so often that none is near the best any more, there is nothing to do.
        """
        bounds_s, reached_s = promised_s(self._opener), self._opener.reached_s
        fresh = [choice for choice in bounds_s if choice not in self._done]
        batches = self._opener.batches
        seen = {batches[choice].sequences for choice in self._done}
        new = [choice for choice in fresh if batches[choice].sequences not in seen]
        if new:
            return min(new, key=lambda choice: (bounds_s[choice], choice))

        def counted_s(choice: int) -> float:
            return reached_s.get(choice, np.inf) * (1 + AGAIN * self._done[choice])

        again = min(self._done, key=counted_s, default=None)
        step_s = self._opener.incumbent.step_s or np.inf
        is_worth_it = again is not None and counted_s(again) <= (1 + WORTH_AGAIN) * step_s
        if fresh and (self._rounds % 2 == 0 or not is_worth_it):
            return min(fresh, key=lambda choice: (bounds_s[choice], choice))
        return again if is_worth_it else None

    def _improve(self, choice: int, bound_s: float, steps: int) -> None:
        opener = self._opener
        batch, found = opener.batches[choice], self._found(choice)
        listed = [*found, *opener.promising.get(choice, ())]
        longest = min(opener.longest[choice], max(len(order) for order, _ in listed) + MORE_STAGES)
        places = opener.places.of(choice, opener.longest[choice])
        times = mesh_times(opener.problem, opener.prices, batch, places, longest)
        balance = Balance.of(times)
        seed = opener.problem.options.seed + self._rounds
        slowest_ms = bound_s / MS / batch.num_microbatches
        starts = [
            (order, layers)
            for order, layers in block_starts(times, balance, slowest_ms, MOST_STARTS - len(found), seed)
            if opener.is_allowed(choice, order)
        ]
        starts = [*found, *starts]
        if starts:
            self._anneal(choice, times, balance, starts, seed, steps)

    def _anneal(
        self, choice: int, times: MeshTimes, balance: Balance, starts: list[Found], seed: int, steps: int
    ) -> None:
        opener = self._opener
        before_s = opener.reached_s.get(choice, np.inf)
        found = anneal(times, balance, starts, seed, lambda: opener.clock.is_up, steps)
        for order, layers in found:
            if opener.is_allowed(choice, order):
                opener.judge_layers(choice, order, layers)
        # Where nothing better came of it the next one begins elsewhere.
        self._kept[choice] = found[:MOST_KEPT] if opener.reached_s.get(choice, np.inf) < before_s else []

    def _found(self, choice: int) -> list[Found]:
        """The best plan and what an annealing kept where it was of use, and what walks found."""
        opener = self._opener
        places: list[Found] = []
        if opener.best is not None and opener.best[1] == choice and self._kept.get(choice, True):
            places.append((opener.best[2], opener.best_layers))
        places += self._kept.get(choice, [])
        places += opener.promising.get(choice, ())
        found: list[Found] = []
        for order, layers in places:
            if len(found) < MOST_FOUND and opener.is_allowed(choice, order):
                whole = opener.whole_layers(choice, order, layers)
                if whole is not None:
                    found.append((order, whole))
        return found


def promised_s(opener: MeshOpener) -> dict[int, float]:
    """Least bound of what is open of every batch in which pipelines came up [s]."""
    least_s: dict[int, float] = {}
    for bound_s, part in opener.frontier.queue.parts():
        members = opener.families[part.choice] if isinstance(part, Lengths) else (part.choice,)
        for member in members:
            if member in opener.promising and bound_s < least_s.get(member, np.inf):
                least_s[member] = bound_s
    return least_s
