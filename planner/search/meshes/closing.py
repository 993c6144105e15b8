"""Close lengths of pipelines: by prices at which none holds all layers within a limit.

The sums of all stages are cut into brackets, each with prices of its own that are found by cutting planes;
lengths share them, and each is closed once all brackets have closed it (`planner.search.meshes.holding`).
What no plan has at the prices of a bracket is left out of it and of its parts
(`planner.search.meshes.windows`). Brackets that stay open are cut in two, by the measure of the pipeline
that holds most which tells most of it: in the middle of the sums, or just below the longest of what follows
it, its slowest stage or the longer pass of that, so that it leaves one part and loses time for many of its
stages in the other. The constants are guesses: they say what is looked at, never what is proven.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.ascent import Ascent
from planner.search.meshes.brackets import EXCESS, FOLLOW, PACE, SLOWEST, SUM, Brackets
from planner.search.meshes.holding import NUM_LAYERS, Holding
from planner.search.meshes.measures import Measured
from planner.search.meshes.places import Ints
from planner.search.meshes.relaxation import MAX_FOUND, Found, Known, share_scale
from planner.search.meshes.walks import MeshWalks
from planner.search.meshes.windows import Windows, leave_out, windows_of
from planner.tolerances import COUNT_TOL

Bools = NDArray[np.bool_]

BRACKETS, MOST_BRACKETS = 20, 100
"""Brackets of the sum at first, and from which they are not halved any more. A guess."""
TICKS, FINER = 1000, 1.6
"""Ticks of a limit at first, and how many times more there are with each halving. A guess."""
PARTS = 2
"""Parts that a bracket is cut into."""
MEASURES = SUM, FOLLOW, SLOWEST, EXCESS, PACE
"""Measures of pipelines that brackets are cut by; each but the first can be left out."""
BY_SUM = 1.0
"""Share of the width of a bracket of the sum that counts against what cutting by another measure takes away.
A guess: with half of it lengths of six classes took a third longer to close."""
OFF = 0.5
"""How much larger what ticks hide may be than what brackets do before there are finer ones. A guess."""
MOST_WAYS = 12_000_000
"""Ways of the parts of all brackets beyond which they are not halved any more. A guess."""
MOST_VALUES = 60_000_000
"""Points of all places and brackets from which there are no finer ticks, and beyond which brackets are not
halved any more: half a gigabyte."""
ROUNDS, LEAST_ROUNDS = 40, 5
"""Rounds of prices on one set of brackets, at most and before they may be given up. A guess."""
LEFT_OUT = 0, 3, 8, 16
"""Rounds in which what no plan has is left out. A guess."""
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
    windows: Windows | None = None
    for halving in range(halvings + 1):
        holding = Holding(walks, limit, brackets, limit / ticks, is_up, windows)
        if holding.is_cut:
            break
        rows = _Sums(walks, holding, is_open, prices)
        rows.run(is_up, found, is_last=halving == halvings)
        left = rows.left
        if halving == 0:
            known = rows.known(highs)
        is_open, prices = rows.is_open, rows.ascent.best_at
        values = PARTS * len(left) * NUM_LAYERS * walks.longest * ticks
        too_many = len(left) > MOST_BRACKETS or values > MOST_VALUES
        if halving == halvings or not len(left) or too_many or is_up():
            break
        windows = rows.windows().repeated(PARTS)
        if PARTS * holding.num_ways > MOST_WAYS or is_up():
            break
        measure, cut, gain = rows.cuts()
        is_off = (walks.longest - 1) * limit / ticks > OFF * np.median(gain)
        if is_off and FINER * values <= MOST_VALUES:
            ticks *= FINER
        brackets = brackets.some(left).cut(measure, cut)
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
        low = holding.brackets.edges[SUM, 0]
        self.rests = np.zeros(len(low), dtype=np.bool_)
        """[bracket] what no prices are thought to close."""
        self.looked_at: list[Found | None] = [None] * len(low)
        """[bracket] the pipeline that held most last."""

    def run(self, is_up: Callable[[], bool], found: dict[Found, int], *, is_last: bool) -> None:
        """Rounds of prices; brackets that no length can hold are closed.

        Where no finer ticks follow, a length that one bracket keeps open is left alone in all of them.
        """
        walks = self.walks
        enough = walks.num_layers * (1 - COUNT_TOL)
        for turn in range(ROUNDS):
            price = self.ascent.prices[:, 1:] * self.scale
            most = self.holding.held(price, ~self.rests) + price @ walks.shares.room
            self.is_open &= (most >= enough) | self.rests
            # What is closed counts no more; where nothing is left any value does.
            given_up = self.hopeless.any(axis=1, keepdims=True) if is_last else self.hopeless
            is_asked = self.is_open & ~given_up & ~self.rests
            if not is_asked.any():
                self._keep(np.asarray(self.is_open.any(axis=0)))
                return
            held = np.where(is_asked, most, -np.inf)
            worst, reached = held.argmax(axis=0), held.max(axis=0)
            slope, asked = np.zeros_like(self.ascent.prices), np.asarray(is_asked.any(axis=0))
            for row in np.flatnonzero(asked).tolist():
                slope[row, 1:] = self._looked_at(row, int(worst[row]), price, found)
            if turn in LEFT_OUT:
                leave_out(self.holding, price, self.is_open, enough, asked)
            self.ascent.learn(-reached, slope, asked)
            # Brackets that the planes give no hope for are better halved first.
            if turn >= LEAST_ROUNDS:
                self.rests |= ~asked | (-self.ascent.best - self.ascent.rise > enough)
            self._keep(np.asarray(self.is_open.any(axis=0)))
            if not len(self.left) or self.rests.all() or turn + 1 == ROUNDS or is_up():
                return

    def windows(self) -> Windows:
        """What is left of all choices at the best prices."""
        price = self.ascent.best_at[:, 1:] * self.scale
        self.holding.held(price)
        leave_out(self.holding, price, self.is_open, self.walks.num_layers * (1 - COUNT_TOL))
        return windows_of(self.holding)

    def _looked_at(self, row: int, length: int, price: Floats, found: dict[Found, int]) -> Floats:
        """How the most layers fall with each price; remembers the pipeline that holds them."""
        walks = self.walks
        order, split = self.holding.traced(row, length, price)
        self.looked_at[row] = order, split
        taken = walks.shares.taken[list(order)].sum(axis=0)
        if (taken <= walks.shares.room).all():
            missing = walks.num_layers - sum(split)
            found[order, split] = abs(missing)
            # All layers on chips that are there: no price closes this bracket.
            self.hopeless[length, row] |= missing == 0
        slope: Floats = (taken - walks.shares.room) * self.scale
        return slope

    def cuts(self) -> tuple[Ints, Floats, Floats]:
        """Measures that brackets are cut by and where, and what that tells of them, [bracket] [ms].

        In the middle of the sums, or just below another measure of the pipeline that held most last.
        """
        low, high = self.holding.brackets.edges[SUM]
        measure, cut, gain = np.full(len(low), SUM), np.sqrt(low * high), high - low
        for row, pipeline in enumerate(self.looked_at):
            if pipeline is not None:
                edges = self.holding.brackets.edges[:, :, row]
                cuts, gains = Measured(self.walks, *pipeline).cuts_ms(
                    edges, self.holding.tick, self.holding.limit
                )
                gains[SUM], cuts[SUM] = BY_SUM * gain[row], cut[row]
                measure[row] = max(MEASURES, key=lambda one: gains[one])
                gain[row], cut[row] = gains[measure[row]], cuts[measure[row]]
        return measure, cut, gain

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
        self.left, self.rests = self.left[rows], self.rests[rows]
        self.looked_at = [self.looked_at[row] for row in np.flatnonzero(rows).tolist()]
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
