"""When pipelines of free shapes are annealed (`planner.search.meshes.annealing`), and from which."""

from __future__ import annotations

from planner.search.meshes.annealing import COOLING, anneal, mesh_times
from planner.search.meshes.neighbours import Place
from planner.search.meshes.opener import MeshOpener
from planner.search.relaxation import Found

WORTH_A_GAP = 0.02
"""How far below the best plan the bound must lie for pipelines to be annealed."""
EVERY, LATER = 3, 1.2
"""Parts opened between two annealings: at least so many, and so many times those before."""
IN_VAIN = 1.5
"""How many times longer the wait grows behind one that found nothing better, once no batch is new."""
SHORT_ROUNDS, LONGER, MOST_STEPS = 4, 0.25, 2000
"""Annealings of the usual steps, the share of them by which each later one is longer, and the most steps.
Guesses."""
MORE_STAGES = 6
"""Stages by which pipelines may grow."""
MOST_STARTS = 6
"""Pipelines of a batch to begin with."""


class MeshAnnealer:
    """Anneals the best pipeline, and those of batches that promise more."""

    def __init__(self, opener: MeshOpener) -> None:
        self._opener = opener
        self._next, self._wait, self._rounds = EVERY, EVERY, 0
        self._done: set[int] = set()
        self.blocks: list[Place] = []
        """Pipelines of one shape a class, the most promising first."""
        self._begun: tuple[int, tuple[int, ...]] | None = None

    def look(self, opened: int, bound_s: float | None) -> None:
        """Anneal where it is time for it and the bound is far below the best plan."""
        opener = self._opener
        step_s = opener.incumbent.step_s
        if opened < self._next or bound_s is None or opener.problem.options.keep_class_order:
            return
        far = max(WORTH_A_GAP, 2 * opener.problem.options.gap)
        if step_s is not None and bound_s >= (1 - far) * step_s:
            return
        self._rounds += 1
        fresh = [choice for choice in opener.promising if choice not in self._done]
        best = opener.best
        if fresh and (self._rounds % 2 or best is None or best[1:] == self._begun):
            self._improve(fresh[0])
        elif best is not None:
            self._begun = best[1:]
            self._improve(best[1])
        in_vain = not fresh and opener.incumbent.step_s == step_s
        self._wait = int(self._wait * IN_VAIN) if in_vain else EVERY
        self._next = max(opened + self._wait, int(opened * LATER))

    def _improve(self, choice: int) -> None:
        opener = self._opener
        self._done.add(choice)
        starts = self._starts(choice)
        if not starts:
            return
        longest = min(opener.longest[choice], max(len(order) for order, _ in starts) + MORE_STAGES)
        places = opener.places.of(choice, opener.longest[choice])
        times = mesh_times(opener.problem, opener.prices, opener.batches[choice], places, longest)
        seed = opener.problem.options.seed + self._rounds
        steps = min(int(COOLING.steps * (1 + LONGER * max(self._rounds - SHORT_ROUNDS, 0))), MOST_STEPS)
        for order, layers in anneal(times, starts, seed, lambda: opener.clock.is_up, steps):
            if opener.is_allowed(choice, order):
                opener.judge_layers(choice, order, layers)

    def _starts(self, choice: int) -> list[Found]:
        """Pipelines of a batch with whole layers: the best plan, what walks found, one shape a class."""
        opener = self._opener
        places: list[Found] = []
        if opener.best is not None and opener.best[1] == choice:
            places.append((opener.best[2], opener.best_layers))
        places += opener.promising.get(choice, ())
        places += [(order, (1,) * len(order)) for of, order in self.blocks if of == choice]
        starts: list[Found] = []
        for order, layers in places:
            if len(starts) < MOST_STARTS and opener.is_allowed(choice, order):
                whole = opener.whole_layers(choice, order, layers)
                if whole is not None:
                    starts.append((order, whole))
        return starts
