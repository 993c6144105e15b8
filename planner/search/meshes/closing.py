"""Close lengths of pipelines: by prices at which none holds all layers within a limit.

The sums of all stages are cut into brackets, each with prices of its own that are found by cutting planes;
lengths share them, and each is closed once all brackets have closed it (`planner.search.meshes.holding`).
Brackets that stay open are cut in two, by the measure of the pipeline that holds most which tells most of it:
in the middle of the sums, or just below the longest of what follows it or its slowest stage, so that it
leaves one part and loses time for many of its stages in the other. The constants are guesses: they say what
is looked at, never what is proven.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.ascent import Ascent
from planner.search.meshes.brackets import EXCESS, FOLLOW, SLOWEST, SUM, Brackets
from planner.search.meshes.holding import Holding
from planner.search.meshes.measures import Measured
from planner.search.meshes.relaxation import MAX_FOUND, Found, Known, share_scale
from planner.search.meshes.walks import MeshWalks
from planner.tolerances import COUNT_TOL

Bools = NDArray[np.bool_]

BRACKETS, MOST_BRACKETS = 20, 40
"""Brackets of the sum at first, and from which they are not halved any more. A guess."""
TICKS, FINER = 1000, 1.6
"""Ticks of a limit at first, and how many times more there are with each halving. A guess."""
PARTS = 2
"""Parts that a bracket is cut into."""
MEASURES = SUM, FOLLOW, SLOWEST, EXCESS
"""Measures of pipelines that brackets are cut by; each but the first can be left out."""
BY_SUM = 0.5
"""Share of the width of a bracket of the sum that counts against what cutting what follows takes away: what a
pipeline in the middle of it loses. A guess."""
OFF = 0.5
"""How much larger what ticks hide may be than what brackets do before there are finer ones. A guess."""
MOST_WORK = 24_000_000
"""Shapes times brackets times ticks beyond which brackets are not halved any more. A guess."""
ROUNDS, LEAST_ROUNDS = 40, 5
"""Rounds of prices on one set of brackets, at most and before they may be given up. A guess."""
FIRST_PRICE = 0.8
"""Share of the layers that all chips are worth at first. A guess."""


@dataclass(frozen=True)
class Closed:
    """Lengths that hold no plan below the limit, and what came up on the way."""

    closed: Bools
    """[number of stages]"""
    found: tuple[Found, ...]
    """Pipelines that hold the most, those with about all layers first."""
    known: Known | None
    """The best prices found, by the upper edge of the sum."""


def close_lengths(
    walks: MeshWalks, limit_ms: float, is_up: Callable[[], bool], halvings: int, known: Known | None = None
) -> Closed:
    """Which lengths hold no plan that takes no longer than `limit_ms`; `known` are prices to begin with."""
    limit = limit_ms - walks.constant_ms
    lengths = len(walks.lengths)
    low = least_sum(walks)
    if not low < limit:
        return Closed(np.ones(lengths, dtype=np.bool_), (), known)
    edges = np.geomspace(low, limit, BRACKETS + 1)
    brackets, highs = Brackets.of_sums(edges[:-1], edges[1:]), edges[1:]
    is_open = np.ones((lengths, len(highs)), dtype=np.bool_)
    prices = known.at(highs) if known is not None else first_prices(walks, len(highs))
    found: dict[Found, int] = {}
    ticks = float(TICKS)
    for halving in range(halvings + 1):
        holding = Holding(walks, limit, brackets, limit / ticks, is_up)
        if holding.is_cut:
            break
        rows = _Sums(walks, holding, is_open, prices)
        rows.run(is_up, found, is_last=halving == halvings)
        left = rows.left
        if halving == 0:
            known = rows.known(highs)
        is_open, prices = rows.is_open, rows.ascent.best_at
        work = PARTS * len(left) * FINER * ticks * len(walks.batch.shapes)
        too_many = len(left) > MOST_BRACKETS or work > MOST_WORK
        if halving == halvings or not len(left) or too_many or is_up():
            break
        if (walks.longest - 1) * limit / ticks > OFF * np.median(rows.gain):
            ticks *= FINER
        brackets = brackets.some(left).cut(rows.measure, rows.cut)
        is_open, prices = np.repeat(is_open, PARTS, axis=1), np.repeat(prices, PARTS, axis=0)
    ranked = sorted(found, key=lambda key: found[key])[:MAX_FOUND]
    return Closed(np.asarray(~is_open.any(axis=1)), tuple(ranked), known)


class _Sums:
    """Brackets of the sum that are open, and their prices of chips, scaled to the size of the first price.

    That first one, of a layer, is 1: no value depends on it.
    """

    def __init__(self, walks: MeshWalks, holding: Holding, is_open: Bools, prices: Floats) -> None:
        self.walks, self.holding, self.is_open = walks, holding, is_open
        self.left = np.arange(is_open.shape[1])
        self.hopeless = np.zeros(is_open.shape, dtype=np.bool_)
        """[number of stages, bracket] what stays open whatever the prices, as long as ticks are no finer."""
        most = np.concatenate([[np.inf], np.full(len(walks.shares.room), np.inf)])
        self.ascent, self.best = Ascent(prices, most, ()), prices.copy()
        self.scale = share_scale(walks)
        low, high = holding.brackets.edges[SUM]
        self.measure, self.cut, self.gain = (
            np.zeros(len(low), dtype=np.int64),
            np.sqrt(low * high),
            high - low,
        )
        """[bracket] where it is cut, by the pipeline that held most last, and what that tells of it [ms]."""

    def run(self, is_up: Callable[[], bool], found: dict[Found, int], *, is_last: bool) -> None:
        """Rounds of prices; brackets that no length can hold are closed.

        Where no finer ticks follow, a length that one bracket keeps open is left alone in all of them.
        """
        walks = self.walks
        enough = walks.num_layers * (1 - COUNT_TOL)
        for turn in range(ROUNDS):
            price = self.ascent.prices[:, 1:] * self.scale
            most = self.holding.held(price) + price @ walks.shares.room
            self.is_open &= most >= enough
            # What is closed counts no more; where nothing is left any value does.
            given_up = self.hopeless.any(axis=1, keepdims=True) if is_last else self.hopeless
            asked = self.is_open & ~given_up
            if not asked.any():
                self._keep(np.asarray(self.is_open.any(axis=0)))
                return
            held = np.where(asked, most, -np.inf)
            worst, reached = held.argmax(axis=0), held.max(axis=0)
            slope = np.zeros_like(self.ascent.prices)
            for row in np.flatnonzero(asked.any(axis=0)).tolist():
                slope[row, 1:] = self._looked_at(row, int(worst[row]), price, found)
            self.ascent.learn(np.where(np.isfinite(reached), -reached, 0.0), slope)
            self._keep(np.asarray(self.is_open.any(axis=0)))
            if not len(self.left) or turn + 1 == ROUNDS or is_up():
                return
            # Brackets that the planes give no hope for are better halved first.
            if turn >= LEAST_ROUNDS and (-self.ascent.best - self.ascent.rise > enough).all():
                return

    def _looked_at(self, row: int, length: int, price: Floats, found: dict[Found, int]) -> Floats:
        """How the most layers fall with each price; remembers the pipeline that holds them."""
        walks = self.walks
        order, split = self.holding.traced(row, length, price)
        self._choose_cut(row, order, split)
        taken = walks.shares.taken[list(order)].sum(axis=0)
        if (taken <= walks.shares.room).all():
            missing = walks.num_layers - sum(split)
            found[order, split] = abs(missing)
            # All layers on chips that are there: no price closes this bracket.
            self.hopeless[length, row] |= missing == 0
        slope: Floats = (taken - walks.shares.room) * self.scale
        return slope

    def _choose_cut(self, row: int, order: tuple[int, ...], split: tuple[int, ...]) -> None:
        """Cut a bracket in the middle of its sums, or just below another measure of a pipeline."""
        pipeline, edges = Measured(self.walks, order, split), self.holding.brackets.edges[:, :, row]
        cuts, gains = pipeline.cuts_ms(edges, self.holding.tick)
        gains[SUM] = BY_SUM * (edges[SUM, 1] - edges[SUM, 0])
        cuts[SUM] = np.sqrt(edges[SUM, 0] * edges[SUM, 1])
        measure = max(MEASURES, key=lambda one: gains[one])
        self.measure[row], self.gain[row], self.cut[row] = measure, gains[measure], cuts[measure]

    def known(self, high: Floats) -> Known:
        """The best prices of all brackets, the closed ones too."""
        prices = self.best.copy()
        prices[self.left] = self.ascent.best_at
        return Known(high, prices, exact=False)

    def _keep(self, rows: Bools) -> None:
        if rows.all():
            return
        self.best[self.left] = self.ascent.best_at
        self.ascent.keep(rows)
        self.holding.keep(rows)
        self.left, self.measure = self.left[rows], self.measure[rows]
        self.cut, self.gain = self.cut[rows], self.gain[rows]
        self.is_open, self.hopeless = self.is_open[:, rows], self.hopeless[:, rows]


def least_sum(walks: MeshWalks) -> float:
    """Least time of all stages together; infinite where no shape can hold a layer."""
    n = np.arange(1, walks.num_layers + 1)
    rates = [float((lines.times[:, :, 1:] / n).min()) for lines in (walks.inner, walks.first)]
    return min(rates) * float(walks.num_layers)


def first_prices(walks: MeshWalks, rows: int) -> Floats:
    """Prices at which all chips of each class are worth as much, other shares nothing, [row, 1 + kind]."""
    num_classes = len(walks.chips_of_class)
    prices = np.zeros((rows, 1 + len(walks.shares.room)))
    prices[:, 0] = 1.0
    prices[:, 1 : 1 + num_classes] = FIRST_PRICE / num_classes
    return prices
