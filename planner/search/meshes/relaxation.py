"""A bound on all pipelines of one batch and some lengths: shortest walks, with prices that close it.

The time of the slowest stage is cut into brackets, each with prices of its own, as in
`planner.search.walks.relaxation`; the lengths share them, and each keeps the best that any prices prove of
it. Brackets that stay open are halved, and their halves start from the same prices.

With R the layers that all chips hold at no more than tau a stage, tau is no less than where R reaches L; with
Sigma the least sum of all stages and rho the least share of the longer pass, it is no more than

    T / m,   (T - Sigma) / ((m - 1) rho),   and where m > p + 1 for all lengths  (T - 2 Sigma) / (m - p - 1)

for a plan no slower than T (the rows work, path and paced of `planner.search.bounds`). The constants are
guesses: they say what is looked at, never what is proven.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.ascent import Ascent
from planner.search.meshes.path import Bracket, Walk
from planner.search.meshes.walks import TINY, MeshWalks
from planner.search.walks.relaxation import PASSES
from planner.tolerances import NEXT_TO_NOTHING

ROUNDS = 40
"""Rounds of prices on one set of brackets."""
WORTH_A_ROUND = 0.03
"""Share of the way to the cutoff that a bracket may still rise by for another round to be worth it."""
SHARES = 6
"""Weights that are raised beside prices: (1 - u) v and (1 - u) w of long ways and of short ones, u and z of
`planner.search.meshes.walks`."""
FIRST_WAITS = (1.0, 0.3, 0.75, 0.25, 0.0, 0.0), (1.0, 1.0, 0.5, 0.5, 0.0, 0.0)
"""Those weights at first, in long pipelines and in short ones."""
LONG_PIPELINE = 2
"""Micro-batches over stages below which a pipeline is long."""
COARSE, FINE = 1.06, 1.002
"""Ratio of the edges of a bracket, at first and at last."""
MAX_BRACKETS = 24
BISECTIONS = 20
LONGEST_MS = 1e300
"""A time that all stages keep into which their layers fit."""
MAX_FOUND = 6
"""Pipelines remembered."""

Found = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape of every stage, and layers that perhaps do not add up."""


@dataclass(frozen=True)
class Known:
    """Prices by the upper edge of their bracket."""

    high_ms: Floats
    prices: Floats
    exact: bool

    def at(self, high_ms: Floats) -> Floats:
        """Prices of other brackets: those of the nearest edge."""
        nearest = np.abs(self.high_ms[None, :] - high_ms[:, None]).argmin(axis=1)
        prices: Floats = self.prices[nearest]
        return prices


@dataclass(frozen=True)
class Relaxed:
    """Bounds of some lengths, and what was learned on the way."""

    bound_ms: Floats
    """[number of stages]"""
    found: tuple[Found, ...]
    """Shortest walks, those with about all layers first."""
    known: Known | None
    """The best prices found."""


def relax(
    walks: MeshWalks,
    cutoff_ms: float,
    is_up: Callable[[], bool],
    halvings: int,
    known: Known | None = None,
) -> Relaxed:
    """Bounds over all pipelines of some lengths; plans slower than `cutoff_ms` are not told apart.

    Parameters
    ----------
    halvings
        How often brackets that stay open are halved.
    known
        Prices of other lengths of the batch to begin with.
    """
    cutoff = walks.limit_ms = cutoff_ms - walks.constant_ms
    low, high = slowest_range(walks, cutoff)
    bound = np.full(len(walks.lengths), np.inf)
    if low >= high:
        return Relaxed(bound if np.isinf(low) else np.full(len(bound), cutoff_ms), (), known)
    from_ms = max(low, high / 2**BISECTIONS)
    number = int(np.clip(np.ceil(np.log(high / from_ms) / np.log(COARSE)), 1, MAX_BRACKETS))
    edges = np.geomspace(from_ms, high, number + 1)
    edges[0] = low
    lows, highs = edges[:-1], edges[1:]
    floor = np.repeat(walks.num_microbatches * lows[:, None], len(bound), axis=1)
    prices = first_prices(walks, highs, cutoff)
    if known is not None and known.exact == walks.units.exact:
        prices = known.at(highs)
    found: dict[Found, int] = {}
    for halving in range(halvings + 1):
        rows = _Rows(walks, lows, highs, prices, floor)
        rows.run(cutoff, is_up, found)
        bound = np.minimum(bound, rows.closed)
        if halving == 0:
            known = rows.known(highs)
        lows, highs, floor, prices = lows[rows.left], highs[rows.left], rows.proven, rows.ascent.best_at
        done = halving == halvings or not len(lows) or len(lows) > MAX_BRACKETS or is_up()
        if done or (highs <= lows * FINE).all():
            break
        middle = np.sqrt(np.maximum(lows, highs / 4) * highs)
        lows, highs = np.stack([lows, middle], 1).ravel(), np.stack([middle, highs], 1).ravel()
        floor, prices = np.repeat(floor, 2, axis=0), np.repeat(prices, 2, axis=0)
        floor = np.maximum(floor, walks.num_microbatches * lows[:, None])
    bound = np.minimum(bound, floor.min(axis=0, initial=np.inf))
    ranked = sorted(found, key=lambda key: found[key])[:MAX_FOUND]
    return Relaxed(np.minimum(bound + walks.constant_ms, cutoff_ms), tuple(ranked), known)


class _Rows:
    """Brackets that are open, and their prices: of a layer, of the chips of each class, and weights.

    Prices of chips are scaled to the size of the first. The weights are (1 - u) v, (1 - u) w, u and z, in
    which the length of a walk is linear but for hops, and the least of them concave.
    """

    def __init__(self, walks: MeshWalks, low: Floats, high: Floats, prices: Floats, floor: Floats) -> None:
        self.walks, self.left = walks, np.arange(len(low))
        self.bracket: Bracket = walks.bracket(low, high)
        self.ascent = Ascent(prices, *limits_of_prices(walks))
        self.best = prices.copy()
        self.proven = floor
        self.closed = np.full(floor.shape[1], np.inf)
        self.scale = share_scale(walks)

    def run(self, cutoff: float, is_up: Callable[[], bool], found: dict[Found, int]) -> None:
        """Rounds of prices; brackets whose lengths all reach the cutoff are closed."""
        walks, ascent = self.walks, self.ascent
        for turn in range(ROUNDS):
            mu, price = ascent.prices[:, 0], ascent.prices[:, 1:-SHARES] * self.scale
            shares = ascent.prices[:, -SHARES:].copy()
            rest = np.maximum(1 - shares[:, 4:5], TINY)
            shares[:, :4] = np.clip(shares[:, :4] / rest, 0.0, 1.0)
            walk = walks.shortest(self.bracket, mu, price, shares)
            paid = mu * walks.num_layers - price @ walks.shares.room
            value = walk.length + paid[:, None]
            self.proven = np.maximum(self.proven, value)
            least = value.min(axis=1)
            self._remember(walk, least, cutoff, found)
            waits = walk.shares[:, :4] / rest
            slope = [
                (walks.num_layers - walk.layers)[:, None],
                self.scale * (walk.taken - walks.shares.room),
                waits,
                walk.shares[:, 4:5] + (shares[:, :4] * waits).sum(axis=1, keepdims=True),
                walk.shares[:, 5:],
            ]
            ascent.learn(np.where(np.isfinite(least), least, cutoff), np.concatenate(slope, axis=1))
            self._keep(self.proven.min(axis=1) < cutoff)
            if not len(self.left) or turn + 1 == ROUNDS or is_up():
                return
            # What the lowest bracket cannot rise by any more, the bound cannot either.
            least = int(np.argmin(ascent.best))
            if ascent.rise[least] <= WORTH_A_ROUND * (cutoff - ascent.best[least]):
                return

    def known(self, high: Floats) -> Known:
        """The best prices of all brackets, the closed ones too."""
        prices = self.best.copy()
        prices[self.left] = self.ascent.best_at
        return Known(high, prices, self.walks.units.exact)

    def _keep(self, is_open: np.ndarray) -> None:
        if is_open.all():
            return
        self.best[self.left] = self.ascent.best_at
        self.closed = np.minimum(self.closed, self.proven[~is_open].min(axis=0))
        self.ascent.keep(is_open)
        self.left, self.proven = self.left[is_open], self.proven[is_open]
        self.bracket = self.bracket.rows(is_open)

    def _remember(self, walk: Walk, least: Floats, cutoff: float, found: dict[Found, int]) -> None:
        """Keep walks with about all layers, which no price holds up any more."""
        missing = np.abs(walk.layers - self.walks.num_layers)
        fits = (walk.taken <= self.walks.shares.room).all(axis=1) & (least < cutoff)
        for row in np.flatnonzero(fits)[np.argsort(missing[fits], kind="stable")][:2]:
            found[walk.order[row], walk.split[row]] = int(missing[row])


def slowest_range(walks: MeshWalks, cutoff_ms: float) -> tuple[float, float]:
    """Times between which the slowest stage of any pipeline below the cutoff lies; empty where none does.

    Both are infinite where the chips cannot hold all layers, however long that takes.
    """
    line, batch, m = walks.inner, walks.batch, walks.num_microbatches
    n = np.arange(1, walks.num_layers + 1)
    first = walks.first.times[:, :, 1:]
    rate = min(float((line.sooner[:, :, 1:] / n).min()), float((first / n).min()))
    total, p = rate * walks.num_layers, walks.longest
    high = min(cutoff_ms / m, 2 * (cutoff_ms - total) / max(m - 1, NEXT_TO_NOTHING))
    if m > p + 1:
        high = min(high, (cutoff_ms - 2 * total) / (m - p - 1))
    sooner = np.minimum(
        line.sooner[:, :, 1:].min(axis=1), np.minimum.accumulate(first.min(axis=1)[:, ::-1], axis=1)[:, ::-1]
    )

    def holds(limit: float) -> bool:
        dense = (sooner <= limit).sum(axis=1) / batch.num_chips
        best = np.zeros(len(walks.chips_of_class))
        np.maximum.at(best, batch.node_class, dense)
        return bool(best @ walks.chips_of_class >= walks.num_layers)

    if not holds(LONGEST_MS):
        return np.inf, np.inf
    if high <= 0 or not holds(high):
        return high, high
    low, top = 0.0, high
    for _ in range(BISECTIONS):
        middle = (low + top) / 2
        low, top = (low, middle) if holds(middle) else (middle, top)
    return low, high


def share_scale(walks: MeshWalks) -> Floats:
    """Price of a share of each kind that weighs as much as one of a layer, [kind]."""
    scale: Floats = walks.num_layers / np.maximum(walks.shares.room, 1)
    return scale


def limits_of_prices(walks: MeshWalks) -> tuple[Floats, tuple[tuple[int, ...], ...]]:
    """Most that each price may be, and weights that may not pass 1 together; the first price is free."""
    most = np.full(1 + SHARES + len(walks.shares.room), np.inf)
    most[-SHARES:] = 1.0
    if walks.units.exact:
        most[1:-SHARES] = 0.0
    v, w, short_v, short_w, u = range(len(most) - SHARES, len(most) - 1)
    if walks.longest < walks.num_microbatches:
        most[[short_v, short_w]] = 0.0
    if walks.even is None:
        most[u] = 0.0
    return most, ((v, u), (w, u), (short_v, short_w, u))


def first_prices(walks: MeshWalks, high: Floats, cutoff_ms: float) -> Floats:
    """Prices as if every stage took as many layers as its bracket lets it, [bracket, price] as of `_Rows`.

    Where those are too few for the model the price of a layer is what closes the bracket.
    """
    line, batch, m = walks.inner, walks.batch, walks.num_microbatches
    middle = line.times.shape[1] // 2
    cap = np.stack([(line.sooner[:, middle, 1:] <= edge).sum(axis=1) for edge in high])
    held = cap.astype(np.float64)
    times = line.sooner[np.arange(len(batch.num_chips)), middle, cap]
    chips, classes = batch.num_chips, batch.node_class
    prices = np.zeros((len(high), 1 + SHARES + len(walks.shares.room)))
    prices[:, -SHARES:] = FIRST_WAITS[int(m >= LONG_PIPELINE * walks.longest)]
    for r in range(len(high)):
        best: list[tuple[float, float, float, int]] = []
        for c in range(len(walks.chips_of_class)):
            mine = np.flatnonzero((classes == c) & (held[r] > 0))
            if len(mine):
                k = mine[np.argmax(held[r][mine] / chips[mine])]
                best.append((held[r, k] / chips[k], times[r, k] / chips[k], walks.chips_of_class[c], c))
        best.sort(reverse=True)
        left, spent, mu, taken = float(walks.num_layers), 0.0, 0.0, []
        for density, time, count, c in best:
            if left <= 0:
                break
            share = min(1.0, left / (density * count))
            left, spent = left - share * density * count, spent + share * count * time
            mu = max(mu, PASSES * time / density)
            taken.append((density, time, c))
        if left > 0.1:
            mu = max(mu, (cutoff_ms - PASSES * spent - max(m - walks.longest, 0) * high[r]) / left)
        prices[r, 0] = mu
        worth = [max(mu * density - PASSES * time, 0.0) for density, time, _ in taken]
        least = min(worth, default=0.0) if left <= 0 else 0.0
        for (_, _, c), value in zip(taken, worth, strict=True):
            if not walks.units.exact:
                prices[r, 1 + c] = (value - least) / share_scale(walks)[c]
    return prices
