"""A bound on all orders of a part of the space: shortest walks, with prices raised until it is closed.

The time of the slowest stage is cut into brackets; each bracket has its own prices on layers and on the
stages of each class (`planner.search.walks.cheapest`), and the bound is the least over the brackets. Prices
follow the subgradient with Polyak's step towards the cutoff: a bracket that reaches it is closed.

References
----------
Lagrangian bounds: M. L. Fisher, "The Lagrangian relaxation method for solving integer programming
problems", Management Science 27(1), 1981, sections 2 and 4 (the step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.walks.cheapest import Ints, Walks
from planner.search.walks.found import Walk
from planner.tolerances import NEXT_TO_NOTHING, NO_ZERO

PASSES = 1.5
"""Times that a stage is passed beside the steady state: once before the slowest stage, twice behind it."""
OVERSHOOT = 1.5
"""How far beyond the target prices aim: lines promise more than walks keep."""
SWEEPS = 12
"""Passes over the lines in one projection."""
ROUNDS = 16
"""Rounds of prices; each gives a valid bound, the best is kept."""
BORROW_GAIN = 0.1
BORROW_EVERY = 2
"""Rounds after which brackets try the prices of their neighbours."""
SETTLED = 2e-4
"""Relative distance of the bound to what the lines promise below which a bracket is left alone."""
MAX_FOUND = 6
"""Orders remembered."""


@dataclass(frozen=True)
class Brackets:
    """Intervals of the time of the slowest stage that are not closed, with their prices."""

    low_ms: Floats
    high_ms: Floats
    mu: Floats
    price: Floats
    """[bracket, class]"""
    best_ms: Floats
    """[bracket] what is proven of it."""


Found = tuple[tuple[int, ...], tuple[int, ...]]
"""Class of every stage, and layers that perhaps do not add up."""


@dataclass(frozen=True)
class Relaxed:
    """Bound of a part, and what was learned on the way."""

    bound_ms: float
    found: tuple[Found, ...]
    """Shortest walks that keep the numbers of stages; those of the last rounds first."""
    closed_ms: float
    """Least bound of the closed brackets."""
    brackets: Brackets
    """The others."""


class Level:
    """Prices of every bracket, and what past walks say of them: the next ones are projected onto that.

    With prices y, a walk's value v and its slope g the bound at any other z is at most v + g (z - y). The
    next prices are the nearest to the best ones at which all such lines reach the level.
    """

    def __init__(self, prices: Floats, rounds: int) -> None:
        rows, size = prices.shape
        self.prices = prices
        self.center = prices.copy()
        self.best = np.full(rows, -np.inf)
        self.pace = np.ones(rows)
        self.slopes = np.zeros((rounds, rows, size))
        self.offsets = np.full((rounds, rows), np.inf)
        self.used = 0

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Forget the other brackets."""
        for name in ("prices", "center", "best", "pace"):
            setattr(self, name, getattr(self, name)[rows])
        self.slopes, self.offsets = self.slopes[:, rows], self.offsets[:, rows]

    def learn(self, value: Floats, slope: Floats) -> None:
        """Take the bound at the present prices and its slope."""
        better = value > self.best
        self.best = np.where(better, value, self.best)
        self.center = np.where(better[:, None], self.prices, self.center)
        self.pace = np.where(better, np.minimum(1.5 * self.pace, 1.0), self.pace * 0.7)
        self.slopes[self.used] = slope
        self.offsets[self.used] = value - (slope * self.prices).sum(axis=1)
        self.used += 1

    def move(self, target: float) -> None:
        """Project the best prices onto where every line reaches the level (Hildreth's method)."""
        level = self.best + OVERSHOOT * self.pace * (target - self.best)
        slopes = self.slopes[: self.used]
        norm = (slopes**2).sum(axis=2)
        # Where a line is flat nothing is moved along it.
        norm = np.where(norm > 0, np.maximum(norm, NO_ZERO), np.inf)
        lines = list(zip(slopes, norm, self.offsets[: self.used], strict=True))
        weights = [np.zeros_like(level) for _ in lines]
        point = self.center.copy()
        for _ in range(SWEEPS):
            for j, (slope, size, offset) in enumerate(lines):
                short = level - np.add.reduce(slope * point, axis=1) - offset
                after = np.maximum(weights[j] + short / size, 0.0)
                point = point + (after - weights[j])[:, None] * slope
                weights[j] = after
        self.prices = point

    def borrow(self) -> None:
        """Take over the best prices of the neighbouring bracket where more is proven with them."""
        rows = np.arange(len(self.best))
        sides = np.clip(np.stack([rows - 1, rows + 1]), 0, max(len(rows) - 1, 0))
        richer = np.take_along_axis(sides, np.argmax(self.best[sides], axis=0)[None], axis=0)[0]
        gains = self.best[richer] > self.best + BORROW_GAIN * np.abs(self.best)
        self.prices = np.where(gains[:, None], self.center[richer], self.prices)

    def move_one(self, target: float) -> NDArray[np.bool_]:
        """The same for a single price: where the lines from both sides meet; whether all have settled."""
        slope, offset = self.slopes[: self.used, :, 0], self.offsets[: self.used]
        rising = np.where(slope > 0, slope * self.center[:, 0] + offset, np.inf)
        falling = np.where(slope < 0, slope * self.center[:, 0] + offset, np.inf)
        flat = np.where(slope == 0, offset, np.inf).min(axis=0)
        up, down = _steepest(slope, offset, rising), _steepest(slope, offset, falling)
        both = np.isfinite(up[1]) & np.isfinite(down[1])
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = (down[1] - up[1]) / (up[0] - down[0])
            promise = up[0] * meet + up[1]
            aim = self.best + OVERSHOOT * (target - self.best)
            reach = np.where(np.isfinite(up[1]), (aim - up[1]) / up[0], (aim - down[1]) / down[0])
        self.prices[:, 0] = np.where(both, meet, np.where(np.isfinite(reach), reach, self.center[:, 0]))
        promise = np.minimum(np.where(both, promise, np.inf), flat)
        settled: NDArray[np.bool_] = self.best >= np.where(
            np.isfinite(promise), promise * (1 - SETTLED), np.inf
        )
        return settled


def _steepest(slope: Floats, offset: Floats, at_center: Floats) -> tuple[Floats, Floats]:
    """Slope and offset of the line of one sign that is lowest at the best price; infinite where none is."""
    row = np.argmin(at_center, axis=0)
    columns = np.arange(slope.shape[1])
    there = np.isfinite(at_center[row, columns])
    return np.where(there, slope[row, columns], 1.0), np.where(there, offset[row, columns], np.inf)


def relax(
    walks: Walks,
    fewest: Ints,
    most: Ints,
    allowed: NDArray[np.bool_],
    low_ms: Floats,
    high_ms: Floats,
    cutoff_ms: float,
    is_up: Callable[[], bool],
    rounds: int = ROUNDS,
    floor_ms: Floats | None = None,
) -> Relaxed:
    """Bound over all orders with fewest[c] <= k[c] <= most[c] stages on each class.

    No plan whose slowest stage lies outside the brackets is looked at.

    Parameters
    ----------
    allowed
        [stage, class]
    low_ms, high_ms
        Ascending brackets of the slowest stage.
    is_up
        Whether the time is up; one round is made all the same.
    floor_ms
        [bracket] what is proven of it already.
    """
    floor = np.full(len(low_ms), -np.inf) if floor_ms is None else floor_ms
    low, high, num_layers = low_ms, high_ms, walks.num_layers
    scale = max(num_layers / walks.num_stages, 1.0)
    mu, price = first_prices(walks, most, high, cutoff_ms)
    exact = walks.counter.exact
    if exact:
        price = np.zeros_like(price)
    prices = mu[:, None] if exact else np.concatenate([mu[:, None], price / scale], axis=1)
    level = Level(prices, rounds)
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    closed_ms = np.inf
    classes = np.arange(len(most))
    for turn in range(rounds):
        mu = level.prices[:, 0]
        price = np.zeros((len(mu), len(most))) if exact else level.prices[:, 1:] * scale
        walk = walks.shortest(mu, price, low, high, allowed[None])
        limit = np.where(price > 0, most, fewest)
        value = part_value(walk, mu, price, num_layers, fewest, most)
        counts = (walk.order[:, :, None] == classes).sum(axis=1)
        keeps = ((counts >= fewest) & (counts <= most)).all(axis=1) & np.isfinite(value)
        for row in np.flatnonzero(keeps)[np.argsort(value[keeps], kind="stable")][:2]:
            if value[row] < cutoff_ms:
                order = tuple(int(c) for c in walk.order[row])
                found.pop(order, None)
                found[order] = tuple(int(n) for n in walk.layers[row])
        missing = num_layers - walk.layers.sum(axis=1)
        slope = missing[:, None].astype(np.float64)
        if not exact:
            slope = np.concatenate([slope, scale * (counts - limit)], axis=1)
        is_open = value < cutoff_ms
        level.learn(np.where(np.isfinite(value), value, cutoff_ms), slope)
        if not is_open.all():
            closed_ms = min(closed_ms, float(value[~is_open].min()))
        level.keep(is_open)
        low, high, floor = low[is_open], high[is_open], floor[is_open]
        if not is_open.any() or turn + 1 == rounds or is_up():
            break
        if exact:
            if level.move_one(cutoff_ms).all():
                break
        else:
            level.move(cutoff_ms)
            if turn % BORROW_EVERY == BORROW_EVERY - 1:
                level.borrow()
    latest = tuple(found.items())[::-1][:MAX_FOUND]
    center = level.center
    price = np.zeros((len(center), len(most))) if exact else center[:, 1:] * scale
    best = np.maximum(level.best, floor)
    bound_ms = min(closed_ms, float(best.min(initial=np.inf)))
    return Relaxed(bound_ms, latest, closed_ms, Brackets(low, high, center[:, 0], price, best))


def both_proven(first: Relaxed, again: Relaxed) -> Relaxed:
    """What walks by other rows add: brackets that they close, and better bounds of the rest.

    `again` bounds the open brackets of `first`; prices and orders stay those of the first walks.
    """
    before, after = first.brackets, again.brackets
    kept = np.isin(before.low_ms, after.low_ms)
    left = Brackets(after.low_ms, after.high_ms, before.mu[kept], before.price[kept], after.best_ms)
    closed_ms = min(first.closed_ms, again.closed_ms)
    bound_ms = min(closed_ms, float(left.best_ms.min(initial=np.inf)))
    return Relaxed(bound_ms, first.found, closed_ms, left)


def counted_as_well(first: Relaxed, again: Relaxed) -> Relaxed:
    """The open brackets of `first` relaxed once more with exact counts, whose orders come first."""
    closed_ms = min(first.closed_ms, again.closed_ms)
    bound_ms = max(first.bound_ms, min(first.closed_ms, again.bound_ms))
    return Relaxed(bound_ms, (*again.found, *first.found), closed_ms, again.brackets)


def part_value(walk: Walk, mu: Floats, price: Floats, num_layers: int, fewest: Ints, most: Ints) -> Floats:
    """What shortest walks at some prices prove for orders that keep the numbers of stages, [row]."""
    limit = np.where(price > 0, most, fewest)
    value: Floats = walk.length + mu * num_layers - (price * limit).sum(axis=1)
    return value


def first_prices(walks: Walks, most: Ints, high: Floats, cutoff_ms: float) -> tuple[Floats, Floats]:
    """Prices as if every stage took as many layers as its bracket lets it.

    Where those are too few for the model the price of a layer is what closes the bracket.

    Parameters
    ----------
    high
        Upper end of every bracket, [bracket] [ms].
    """
    p, m, num_layers = walks.num_stages, walks.num_microbatches, walks.num_layers
    times = walks.least_times
    cap = np.where(times[None] <= high[:, None, None, None], walks.layers, 0).max(axis=3)
    full = np.take_along_axis(times[None], cap.astype(np.int64)[..., None], axis=3)[..., 0]
    full = np.where(cap > 0, full, 0.0).mean(axis=2)
    held = cap.mean(axis=2)
    pace = full / np.maximum(held, NEXT_TO_NOTHING)
    left = np.full(len(high), p)
    taken = np.zeros(held.shape, dtype=np.int64)
    for c in np.argsort(-held, axis=1, kind="stable").T:
        rows = np.arange(len(high))
        taken[rows, c] = np.minimum(left, most[c])
        left = left - taken[rows, c]
    mu = PASSES * np.where((taken > 0) & (held > 1), pace, 0.0).max(axis=1)
    short = num_layers - (taken * held).sum(axis=1)
    spent = PASSES * (taken * full).sum(axis=1) + np.maximum(m - p, 0) * high
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = np.where(short > 0, np.maximum(mu, (cutoff_ms - spent) / np.maximum(short, 0.1)), mu)
    worth = mu[:, None] * held - PASSES * full
    marginal = np.where(taken > 0, worth, np.inf).min(axis=1)[:, None]
    price = np.where(taken > 0, worth - marginal, np.maximum(worth - marginal, 0.0))
    return mu, price
