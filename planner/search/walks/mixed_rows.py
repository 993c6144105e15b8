"""Walks by many rows of the pipeline at once, each with a weight of its own.

A single row says little where stages are about as many as micro-batches: which of them is long depends on
where the slow stages lie, and a walk evades any one of them. Every plan keeps them all, so that for weights
that are not negative and add up to 1, with R[s*] the row of the slowest stage that the walk chooses,

    T >= v R[s*] + sum_s (w[s] A[s] + u[s] B[s]),    v + sum_s (w[s] + u[s]) = 1

    A[s], m >= q + 2    sum_{i<s} t[i] + (m - q) t[s] + 2 sum_{i>s} t[i] + (m - 1 - q) w + sends
    B[s], m >= q + 2    sum_{i<>s} t[i] + (m - q) t[s] + q max(f[s], b[s]) + (m - 1 - q) w + sends
    B[s], m <= q + 1    sum_i t[i] + (m - 1) max(f[s], b[s]) + sends

(notation of `planner.search.walks.cheapest` and `formulations.pipeline_rows`: A and B are (partial, e = s)
with both or the larger of its last two terms, or (window, k = 0)). Stage 0 ends with the step, so that its
reduction follows A[s] and B[s]. A hop behind stage i counts twice, in A[s] with s <= i four times. The least
over all walks is concave in prices and weights together, and the rows of the walk found are its slope:
weights follow it as prices do (`planner.search.walks.relaxation`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.walks.cheapest import Ints, Walks
from planner.search.walks.found import Costs, Walk
from planner.search.walks.relaxation import Brackets, Level, Relaxed, both_proven, part_value

ROUNDS = 16
"""Rounds of prices and weights."""
PROBE, WORTH = 6, 0.1
"""Rounds after which the weighing ends unless it has gained so much of the way to the cutoff: a guess."""
REACH = 100.0
"""Milliseconds of a price that count as much as a weight of 1: a guess, it only sets the pace."""
START = 0.1
"""Weight of the slowest stage's row at first; the others share the rest."""


class MixedRows:
    """The rows of one relaxed part."""

    def __init__(self, walks: Walks) -> None:
        self.walks = walks
        p, m = walks.num_stages, walks.num_microbatches
        q = p - 1 - np.arange(p)
        self.exists = np.concatenate([[True], q <= m - 2, np.ones(p, dtype=np.bool_)])
        """Of v, w and u, [row of the pipeline]."""
        self.both = np.where(np.tri(p, dtype=np.bool_).T, 2.0, 1.0)
        self.one = np.ones((p, p))
        np.fill_diagonal(self.both, m - q)
        np.fill_diagonal(self.one, np.where(q <= m - 2, m - q, 1))
        self.longest = np.where(q <= m - 2, q, m - 1).astype(np.float64)
        self.waits = np.maximum(m - 1 - q, 0).astype(np.float64)
        self.times = _finite(walks.times)
        self.longer = _finite(walks.longer)
        self.wait_ms = walks.chain.kind_wait_ms

    def start(self, rows: int) -> Floats:
        """Weights to begin with, [row, row of the pipeline]."""
        weights = self.exists / (self.exists.sum() - 1) * (1 - START)
        weights[0] = START
        return np.tile(weights, (rows, 1))

    def legal(self, weights: Floats) -> Floats:
        """The same made non-negative, adding up to 1, [row, row of the pipeline]."""
        kept = np.where(self.exists, np.maximum(weights, 0.0), 0.0)
        total = kept.sum(axis=1, keepdims=True)
        found: Floats = np.where(total > 0, kept / np.where(total > 0, total, 1.0), self.start(1))
        return found

    def costs(self, weights: Floats) -> Costs:
        """What stages and hops cost by the rows weighed."""
        p, main = self.walks.num_stages, self.walks.costs
        v, both, one = weights[:, :1], weights[:, 1 : p + 1], weights[:, p + 1 :]
        each = [f[:, :, None, None] for f in (both @ self.both + one @ self.one, one * self.longest)]
        waits = ((both + one) * self.waits)[:, :, None, None] * self.wait_ms[:, None]
        fixed = each[0] * self.times + each[1] * self.longer + waits
        fixed[:, 0] += (1 - v)[:, :, None] * self.walks.reduce[0]
        share = v[:, :, None, None]

        def mixed(of: Floats) -> Floats:
            found: Floats = np.where(np.isfinite(of), share * _finite(of) + fixed, np.inf)
            return found

        hops_paid = v * main.hops_paid + 2 * (1 - v) + 2 * np.cumsum(both, axis=1)
        of_stages = mixed(main.before), mixed(main.twice), mixed(main.once), mixed(main.slowest)
        return Costs(*of_stages, hops_paid)

    def of_walk(self, walk: Walk) -> Floats:
        """The rows of walks, [row, row of the pipeline] [ms]."""
        main, stages = self.walks.costs, np.arange(self.walks.num_stages)
        at = stages, walk.kinds, walk.layers
        times, longer, hops = self.times[at], self.longer[at], 2 * walk.hops
        waits = self.waits * self.wait_ms[walk.kinds]
        common = hops.sum(axis=1, keepdims=True) + waits + _finite(self.walks.reduce[0])[at[1:]][:, :1]
        later = np.cumsum(hops[:, ::-1], axis=1)[:, ::-1]
        both = times @ self.both.T + later + common
        one = times @ self.one.T + longer * self.longest + common
        behind, short = stages > walk.slowest[:, None], self.walks.is_short[walk.slowest][:, None]
        chosen = np.where(behind, np.where(short, 2, 1), 0)
        cost = np.stack([_finite(of)[0][at] for of in (main.before, main.twice, main.once)])
        own = np.take_along_axis(cost, chosen[None], axis=0)[0]
        is_slowest = stages == walk.slowest[:, None]
        own = np.where(is_slowest, _finite(main.slowest)[0][at], own)
        paid = np.where(behind | is_slowest, np.where(short, 2, 1), 0)
        own = own + walk.hops * main.hops_paid[paid, 0, stages]
        return np.concatenate([own.sum(axis=1, keepdims=True), both, one], axis=1)


def _finite(values: Floats) -> Floats:
    """Zero where no layers fit."""
    found: Floats = np.where(np.isfinite(values), values, 0.0)
    return found


def relax_by_rows(
    first: Relaxed,
    walks: Walks,
    fewest: Ints,
    most: Ints,
    allowed: NDArray[np.bool_],
    cutoff_ms: float,
    is_up: Callable[[], bool],
    rounds: int = ROUNDS,
) -> Relaxed:
    """The open brackets of `first` by all rows, prices and weights raised together; limits as of `relax`."""
    rows, before, exact = MixedRows(walks), first.brackets, walks.counter.exact
    scale = max(walks.num_layers / walks.num_stages, 1.0)
    low, high, floor = before.low_ms, before.high_ms, before.best_ms
    price = before.price[:, :0] if exact else before.price / scale
    split = 1 + price.shape[1]
    # The rows of the slowest stages at first, as before.
    alone = REACH * np.eye(1, len(rows.exists)).repeat(len(low), axis=0)
    level = Level(np.concatenate([before.mu[:, None], price, alone], axis=1), rounds)
    closed_ms = np.inf
    classes = np.arange(len(most))
    for turn in range(rounds):
        level.prices[:, split:] = REACH * rows.legal(level.prices[:, split:])
        mu, weights = level.prices[:, 0], level.prices[:, split:] / REACH
        price = np.zeros((len(mu), len(most))) if exact else level.prices[:, 1:split] * scale
        walk = walks.shortest(mu, price, low, high, allowed[None], rows.costs(weights))
        value = part_value(walk, mu, price, walks.num_layers, fewest, most)
        counts = (walk.order[:, :, None] == classes).sum(axis=1)
        slope = [(walks.num_layers - walk.layers.sum(axis=1))[:, None].astype(np.float64)]
        if not exact:
            slope.append(scale * (counts - np.where(price > 0, most, fewest)))
        of_walk = np.where(rows.exists, rows.of_walk(walk), 0.0)
        centred = of_walk - of_walk.sum(axis=1, keepdims=True) / rows.exists.sum()
        slope.append(np.where(rows.exists, centred, 0.0) / REACH)
        level.learn(np.where(np.isfinite(value), value, cutoff_ms), np.concatenate(slope, axis=1))
        is_open = value < cutoff_ms
        if not is_open.all():
            closed_ms = min(closed_ms, float(value[~is_open].min()))
        level.keep(is_open)
        low, high, floor = low[is_open], high[is_open], floor[is_open]
        if not is_open.any() or is_up() or turn + 1 == rounds:
            break
        gained_ms = float(np.maximum(level.best, floor).min()) - first.bound_ms
        if turn == PROBE and gained_ms < WORTH * (cutoff_ms - first.bound_ms):
            break
        if turn > 0:
            level.move(cutoff_ms)
            continue
        # By its slope no weights at these prices lift a walk beyond its longest row.
        longest = np.where(rows.exists, of_walk, -np.inf).max(axis=1) - of_walk[:, 0]
        if float(np.maximum(value + longest, before.best_ms)[is_open].min()) < cutoff_ms:
            break
        level.prices[:, split:] = REACH * rows.start(len(low))
    best = np.maximum(level.best, floor)
    center = level.center
    price = np.zeros((len(center), len(most))) if exact else center[:, 1:split] * scale
    left = Brackets(low, high, center[:, 0], price, best)
    again = Relaxed(min(closed_ms, float(best.min(initial=np.inf))), (), closed_ms, left)
    return both_proven(first, again)
