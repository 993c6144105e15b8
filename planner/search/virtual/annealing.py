"""Better orders of classes and dealings of the layers to chunks, by changing many plans at once at random.

As the walkers of `planner.search.heuristics.walkers`, on pipelines with virtual stages. Two stages change
places, one moves along the pipeline, one goes to another class that has room, or layers go to other chunks,
of the same stage or of another. What loss a change may bring is drawn before its step is known: of several
changes of a walker those go first that paths of earlier plans tell beyond it
(`planner.search.virtual.screens`), and the first that is left gets its schedule
(`planner.search.virtual.times`), so that few schedules are for nothing. The random numbers come from the
user's seed, so that runs repeat; whatever comes of it the referee judges.

Leading layers of another kind stay on the first chunk, but for one: their stage changes places as if it had a
layer in their stead.

The constants are guesses: they say what is looked at, never what is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import numpy as np

from formulations.virtual_selection_tables import fewest_layers
from planner.search.heuristics.walkers import LOOK_AT_CLOCK, Bools, for_all, new_places
from planner.search.virtual.screens import PathScreen
from planner.search.virtual.times import DealingTimes, Dealt
from planner.search.walks.cheapest import Ints

Order = tuple[int, ...]
Dealing = tuple[tuple[int, ...], ...]
"""Layers [stage][chunk]."""

WARMTH, FOLLOW_EVERY, FOLLOWS = 6e-3, 60, 12
"""As in `Cooling`; in long runs walkers follow so often in all, or they would soon be one. Guesses."""
TRIES = 6
"""Changes of a walker in a step, of which the first counts that no path tells too slow. A guess."""
MOST_PLANS = 3
"""Plans handed over at the end."""
SWAP, SHIFT, CLASS, TURN, DEAL, LAYER = range(6)
"""Two stages change places; one moves along; one goes to another class; a stage's chunks change places; a
layer goes to another chunk of its stage; one goes to another stage."""
SHARES = (0.2, 0.1, 0.05, 0.15, 0.2, 0.3)
"""How often a change is of each kind."""
AND_A_LAYER = 0.25
"""How often a layer goes to another stage beside a change of another kind."""


def anneal_dealings(
    times: DealingTimes,
    starts: Sequence[tuple[Order, Dealing]],
    fewest: Sequence[int],
    most: Sequence[int],
    steps: int,
    seed: int,
    is_up: Callable[[], bool],
    warmth: float = WARMTH,
) -> list[tuple[Order, Dealing]]:
    """The best orders met in so many steps with their dealings, the best first.

    Parameters
    ----------
    starts
        Orders with dealings, to begin with.
    fewest, most
        [class] stages between which the number of each class stays.
    warmth
        As in `Cooling`.
    """
    random = np.random.default_rng(seed)
    order, layers = (np.array(begun) for begun in zip(*for_all(starts), strict=True))
    change = partial(
        _changed,
        fewest=np.array(fewest),
        most=np.array(most),
        fewest_of_chunk=fewest_layers(times.one),
        random=random,
    )
    walk = _Walk(times, order, layers, change, random)
    for step in range(steps):
        if step % LOOK_AT_CLOCK == 0 and is_up():
            break
        walk.step(warmth * (1 - step / steps) ** 2)
        if step % max(FOLLOW_EVERY, steps // FOLLOWS) == max(FOLLOW_EVERY, steps // FOLLOWS) - 1:
            walk.follow()
    return walk.found()[:MOST_PLANS]


class _Walk:
    """Walkers of one part with the best that each has met."""

    def __init__(
        self,
        times: DealingTimes,
        order: Ints,
        layers: Ints,
        change: Callable[[Ints, Ints], tuple[Ints, Ints, Bools]],
        random: np.random.Generator,
    ) -> None:
        self._times, self._change, self._random = times, change, random
        pieces = times.pieces(order, layers)
        self._at = Dealt(order, layers, pieces, times.run(pieces, order).values_ms)
        self._best = deepcopy(self._at)
        self._screen = PathScreen()

    def step(self, warmth: float) -> None:
        """Change every walker; the first of some changes that its limit does not tell too slow counts.

        Parameters
        ----------
        warmth
            As in `Cooling`, at this step.
        """
        at, walkers = self._at, len(self._at.order)
        least = float(self._best.value_ms.min())
        loss = warmth * (least if np.isfinite(least) else 1.0)
        tried = np.repeat(np.arange(walkers), TRIES)
        order, layers, legal = self._change(at.order[tried], at.layers[tried])
        limits = at.value_ms[tried] - loss * np.log1p(-self._random.random(len(tried)))
        order, layers, tried, limits = order[legal], layers[legal], tried[legal], limits[legal]
        pieces = self._times.pieces(order, layers, at, tried)
        exceeding = self._screen.exceeding(pieces, self._times.after_ms(pieces, order), limits)
        left = np.flatnonzero(~exceeding)
        changed, first = np.unique(tried[left], return_index=True)
        left, limits = left[first], limits[left[first]]
        if not len(left):
            return
        run = self._times.run(pieces[left], order[left])
        kept = run.values_ms <= limits
        at.put(changed[kept], Dealt(order[left], layers[left], pieces[left], run.values_ms), kept)
        better = at.value_ms < self._best.value_ms
        self._best.put(better, at, better)
        if not kept.all():
            beyond = np.where(kept, -np.inf, run.values_ms - limits)
            self._screen.learn(run.paths(int(np.argmax(beyond))))

    def follow(self) -> None:
        """The last quarter of the walkers goes on from where the first quarter is."""
        rank = np.argsort(self._at.value_ms, kind="stable")
        self._at.put(rank[-(len(rank) // 4) :], self._at, rank[: len(rank) // 4])

    def found(self) -> list[tuple[Order, Dealing]]:
        """The best met, each order once."""
        best, found = self._best, dict[Order, Dealing]()
        for walker in np.argsort(best.value_ms, kind="stable").tolist():
            if np.isfinite(best.value_ms[walker]):
                dealing = tuple(map(tuple, best.layers[walker].tolist()))
                found.setdefault(tuple(best.order[walker].tolist()), dealing)
        return list(found.items())


def _changed(
    order: Ints,
    layers: Ints,
    fewest: Ints,
    most: Ints,
    fewest_of_chunk: Ints,
    random: np.random.Generator,
) -> tuple[Ints, Ints, Bools]:
    """Every walker after one random change, and whether the change is one that may be and changes it."""
    walkers, p, v = layers.shape
    staying = np.maximum(fewest_of_chunk - 1, 0)  # leading layers but for one
    layers, fewest_of_chunk = layers - staying, fewest_of_chunk - staying
    rows: Ints = np.arange(walkers)
    kind = random.choice(len(SHARES), size=walkers, p=SHARES)
    stage_picks: Ints = random.integers(p, size=(4, walkers))
    chunk_picks: Ints = random.integers(v, size=(4, walkers))
    one, other, from_stage, to_stage = stage_picks
    giver, taker, from_chunk, to_chunk = chunk_picks
    new_class = np.asarray(random.integers(len(most), size=walkers))
    swaps, shifts, turns, deals = (np.asarray(kind == which) for which in (SWAP, SHIFT, TURN, DEAL))
    place = new_places(p, one, other, swaps, shifts)
    source = np.argsort(place, axis=1, kind="stable")
    old_order, old_layers = order, layers
    order = np.take_along_axis(order, source, axis=1)
    layers = np.take_along_axis(layers, source[:, :, None], axis=1)
    classes = kind == CLASS
    order[rows[classes], one[classes]] = new_class[classes]
    at, stage = rows[turns], one[turns]
    first, second = layers[at, stage, giver[turns]], layers[at, stage, taker[turns]]
    layers[at, stage, giver[turns]], layers[at, stage, taker[turns]] = second, first
    layers[rows[deals], one[deals], giver[deals]] -= 1
    layers[rows[deals], one[deals], taker[deals]] += 1
    hands = (kind == LAYER) | (random.random(walkers) < AND_A_LAYER)
    layers[rows[hands], from_stage[hands], from_chunk[hands]] -= 1
    layers[rows[hands], to_stage[hands], to_chunk[hands]] += 1
    counts = (order[:, :, None] == np.arange(len(most))).sum(axis=1)
    legal = ((counts >= fewest) & (counts <= most)).all(axis=1) & (layers >= fewest_of_chunk).all(axis=(1, 2))
    legal &= (order != old_order).any(axis=1) | (layers != old_layers).any(axis=(1, 2))
    return order, np.maximum(layers, fewest_of_chunk) + staying, legal
