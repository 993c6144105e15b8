"""A bound on every order of a group at once, from weights on the rows of the pipeline.

For an order of classes, any weights w[s] >= 0 that add up to 1 give a bound

    T >= sum_s w[s] row(s),   row(s) = up[s] + (m - q) t[s] + 2 d[s]     (partial rows with e = s, both waits)

which is a sum over stages of (w[i] (m - q[i]) + sum_{s>i} w[s] + 2 sum_{s<i} w[s]) t[i], plus sends; it
needs m >= p + 1. What follows the pipeline, O >= follow(s) for every s, is weighed with v in the same
way, and the reduction of stage 0 adds to every row. With a price mu on each layer the layers of a stage
are chosen for that stage alone: bound = mu L + sum_s min_n (cost[s](n) - mu n), exact recomputation
included.

The weights are those that make a layer cost the same everywhere, which is nearly what the program's
own dual says; any weights are valid, and mu is improved by bisection on the layers that it attracts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.tolerances import NEXT_TO_NOTHING, NO_ZERO

PRICE_STEPS = 14
"""Halvings of the interval of mu; each step is a valid bound, the best is kept."""


def dual_bounds_ms(
    forward: Floats,
    backward: Floats,
    reduce_first: Floats,
    follow: Floats,
    hops: Floats,
    num_microbatches: int,
    *,
    sends_block: bool,
) -> Floats:
    """Bound of every order [ms]; -inf where there are too few micro-batches for these rows.

    Parameters
    ----------
    forward, backward, follow
        [order, stage, n] passes of one micro-batch, and what the stage adds after the pipeline, with n
        layers and least recomputation; inf where n layers do not fit or are too few.
    reduce_first
        [order, n] exposed reduction of stage 0 with its tail.
    hops
        [order, stage] sends; the last is 0.
    """
    num_orders, p, width = forward.shape
    m, num_layers = num_microbatches, width - 1
    if m < p + 1:
        return np.full(num_orders, -np.inf)
    times = forward + backward
    slope = _slope(times)
    weights = _row_weights(slope, m)
    before = np.cumsum(weights, axis=1) - weights
    after = 1.0 - before - weights
    q = p - 1 - np.arange(p)
    factor = weights * (m - q) + after + 2 * before
    constant = _sends(weights, hops, factor, sends_block=sends_block)
    follow_slope = np.maximum(_slope(follow), NEXT_TO_NOTHING)
    share = (1 / follow_slope) / (1 / follow_slope).sum(axis=1, keepdims=True)
    cost = factor[:, :, None] * times + share[:, :, None] * follow
    cost[:, 0, :] += reduce_first
    return constant + _best_split(cost, num_layers, (factor * slope).mean(axis=1))


def _slope(values: Floats) -> Floats:
    """Least increase for one more layer [order, stage], between n = 1 and 2 where they fit."""
    one, two = values[:, :, 1], values[:, :, min(2, values.shape[2] - 1)]
    both = np.isfinite(one) & np.isfinite(two) & (two > one)
    slope = np.where(both, np.where(both, two, 1.0) - np.where(both, one, 0.0), one)
    result: Floats = np.where(np.isfinite(slope) & (slope > 0), slope, 1.0)
    return result


def _row_weights(slope: Floats, m: int) -> Floats:
    """Weights with which a layer costs the same on every stage, [order, stage].

    (m - q - 1) w[i] + 1 + sum_{s<i} w[s] = mu / slope[i], linear in mu, which follows from sum w = 1.
    Weights below zero are cut off.
    """
    p = slope.shape[1]
    at = np.zeros((2, *slope.shape))
    for k, mu in enumerate((0.0, 1.0)):
        before = np.zeros(slope.shape[0])
        for i in range(p):
            at[k, :, i] = (mu / slope[:, i] - 1 - before) / (m - (p - 1 - i) - 1 + NO_ZERO)
            before = before + at[k, :, i]
    low, high = at.sum(axis=2)
    mu = (1 - low) / (high - low)
    weights = np.maximum(at[0] + mu[:, None] * (at[1] - at[0]), 0.0)
    total = weights.sum(axis=1, keepdims=True)
    result: Floats = np.where(total > 0, weights / np.where(total > 0, total, 1.0), 1.0 / p)
    return result


def _sends(weights: Floats, hops: Floats, factor: Floats, *, sends_block: bool) -> Floats:
    """What the hops add to the weighed rows, [order]."""
    if sends_block:
        back = np.concatenate([np.zeros((len(hops), 1)), hops[:, :-1]], axis=1)
        blocked: Floats = (factor * (hops + back)).sum(axis=1)
        return blocked
    before = np.cumsum(hops, axis=1) - hops
    behind = hops.sum(axis=1, keepdims=True) - before
    delayed: Floats = (weights * (2 * before + 4 * behind)).sum(axis=1)
    return delayed


def _best_split(cost: Floats, num_layers: int, guess: Floats) -> Floats:
    """mu L + sum_s min_n (cost - mu n) for the best mu found, [order]; inf where some stage fits nothing."""
    n = np.arange(cost.shape[2], dtype=np.float64)
    low, high = np.zeros(len(guess)), 4 * guess
    best = np.full(len(guess), -np.inf)
    mu = guess
    for _ in range(PRICE_STEPS):
        priced = cost - mu[:, None, None] * n
        chosen = np.argmin(priced, axis=2)
        least = np.take_along_axis(priced, chosen[:, :, None], axis=2)[:, :, 0]
        value = mu * num_layers + least.sum(axis=1)
        best = np.maximum(best, value)
        too_many = chosen.sum(axis=1) > num_layers
        high = np.where(too_many, mu, high)
        low = np.where(too_many, low, mu)
        mu = (low + high) / 2
    return best


def in_pieces(num_orders: int, entries_of_order: int) -> list[NDArray[np.int64]]:
    """Indices of orders in pieces, arrays [order], whose tables stay small."""
    step = max(1, 2_000_000 // max(entries_of_order, 1))
    return [np.arange(start, min(start + step, num_orders)) for start in range(0, num_orders, step)]
