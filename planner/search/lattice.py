"""A bound on all orders of a group at once, and the order that it likes best.

The bound of `planner.search.dual`, with one weight w[c] for all stages of a class (sum_c k[c] w[c] = 1):
the cost of a stage on class c then depends on the order only through the stages before it, how many of
each class, since A = sum_{s<i} w[s] follows from their counts:

    coefficient of t[i] = w[c] (m - q[i] - 1) + 1 + A

So the cheapest order is a shortest path through the lattice of counts, from none to all, found by
dynamic programming over (counts so far, class of the last stage). With a price mu on each layer each
stage chooses its layers alone, and its length is a lower bound on the step for every order.

References
----------
Lagrangian bounds: M. L. Fisher, "The Lagrangian relaxation method for solving integer programming
problems", Management Science 27(1), 1981, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats

PRICE_STEPS = 10
"""Halvings of the interval of mu."""
MAX_STATES = 8_000
"""Points of the lattice beyond which no bound is computed."""


@dataclass(frozen=True)
class LatticeData:
    """Tables of the classes of a group, [class, stage, n] in ms."""

    times: Floats
    follow: Floats
    reduce_first: Floats
    """[class, n]"""
    hops: Floats
    """[class from, class to] least time of a hop."""
    sends_block: bool


@dataclass(frozen=True)
class LatticeBound:
    """Bound over all orders, and the order of the shortest path; -inf and None where there is none."""

    bound_ms: float
    order: tuple[int, ...] | None


def lattice_bound(data: LatticeData, counts: tuple[int, ...], num_microbatches: int) -> LatticeBound:
    """The bound of a group whose class c has `counts[c]` >= 1 stages."""
    p, m = sum(counts), num_microbatches
    if m < p + 1 or int(np.prod([count + 1 for count in counts])) > MAX_STATES:
        return LatticeBound(-np.inf, None)
    walk = _Walk(data, counts, m)
    slope = walk.slope
    low, high = 0.0, 8 * float(slope.max()) * (m + 2 * p) / p
    mu = walk.first_price
    best = LatticeBound(-np.inf, None)
    num_layers = data.times.shape[2] - 1
    for _ in range(PRICE_STEPS):
        value, layers, order = walk.run(mu)
        if value + mu * num_layers > best.bound_ms:
            best = LatticeBound(value + mu * num_layers, order)
        low, high = (low, mu) if layers > num_layers else (mu, high)
        mu = (low + high) / 2
    return best


class _Walk:
    """The dynamic program of one group; `run` does it for one price of a layer."""

    def __init__(self, data: LatticeData, counts: tuple[int, ...], m: int) -> None:
        self.data, self.counts, self.m = data, counts, m
        self.p = sum(counts)
        k = np.array(counts)
        self.slope = _class_slope(data.times)
        # (m - p / 2) w + 1.5 = mu / slope on average along the pipeline; weights below zero are cut off.
        inverse = 1 / self.slope
        mu = (m - self.p / 2 + 1.5 * self.p) / (k * inverse).sum()
        weights = np.maximum(mu * inverse - 1.5, 0.0)
        self.weights = weights / (k * weights).sum()
        self.first_price = float(mu)
        follow = 1 / np.maximum(_class_slope(data.follow), 1e-9)
        self.share = follow / (k * follow).sum()
        self.levels = _levels(counts)

    def run(self, mu: float) -> tuple[float, int, tuple[int, ...] | None]:
        """Length of the shortest path, layers along it, and its order."""
        num_classes = len(self.counts)
        cost = np.zeros((1, 1))
        steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for i, level in enumerate(self.levels[:-1]):
            stage, chosen = self._stage_costs(i, level.states, mu)
            hops = self._hops(i, level.states) if i else np.zeros((1, 1, num_classes))
            reach = cost[:, :, None] + hops
            last = np.argmin(reach, axis=1)
            total = np.take_along_axis(reach, last[:, None, :], axis=1)[:, 0, :] + stage
            ahead = np.full((len(self.levels[i + 1].states), num_classes), np.inf)
            for c in range(num_classes):
                rows = np.flatnonzero(level.ahead[:, c] >= 0)
                ahead[level.ahead[rows, c], c] = total[rows, c]
            steps.append((last, chosen))
            cost = ahead
        if not np.isfinite(cost).any():
            return np.inf, 0, None
        return self._trace(float(cost.min()), int(np.argmin(cost[0])), steps)

    def _trace(
        self, value: float, c: int, steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    ) -> tuple[float, int, tuple[int, ...]]:
        """Follow the best way back from the last stage, which is on class c."""
        state, layers, order = np.array(self.counts), 0, [c]
        for i in range(self.p - 1, -1, -1):
            state = state.copy()
            state[c] -= 1
            row = self.levels[i].row_of[tuple(int(k) for k in state)]
            last, chosen = steps[i]
            layers += int(chosen[row, c])
            c = int(last[row, c])
            if i:
                order.append(c)
        return value, layers, tuple(reversed(order))

    def _factor(self, i: int, before: Floats) -> Floats:
        """Coefficient of the time of stage i on each class, [state, class]."""
        factor: Floats = self.weights[None, :] * (self.m - (self.p - 1 - i) - 1) + 1 + before[:, None]
        return factor

    def _stage_costs(self, i: int, states: NDArray[np.int64], mu: float) -> tuple[Floats, NDArray[np.int64]]:
        """Least cost of stage i on each class, and the layers that give it, [state, class]."""
        n = np.arange(self.data.times.shape[2], dtype=np.float64)
        factor = self._factor(i, states @ self.weights)
        cost = factor[:, :, None] * self.data.times[:, i, :] + self.share[:, None] * self.data.follow[:, i, :]
        if i == 0:
            cost = cost + self.data.reduce_first
        cost = cost - mu * n
        cost[:, :, 0] = np.inf
        chosen = np.argmin(cost, axis=2)
        return np.take_along_axis(cost, chosen[:, :, None], axis=2)[:, :, 0], chosen

    def _hops(self, i: int, states: NDArray[np.int64]) -> Floats:
        """What the hop from stage i - 1 to stage i adds, [state, last class, class]; inf where impossible."""
        before = states @ self.weights
        if self.data.sends_block:
            sender = self._factor(i - 1, before)[:, :] - self.weights[None, :]
            scale = sender[:, :, None] + self._factor(i, before)[:, None, :]
        else:
            scale = (2 * (1 - before) + 4 * before)[:, None, None]
        hops = scale * self.data.hops[None, :, :]
        return np.where((states > 0)[:, :, None], hops, np.inf)


@dataclass(frozen=True)
class _Level:
    """Points of the lattice with one sum."""

    states: NDArray[np.int64]
    """[state, class]"""
    ahead: NDArray[np.int64]
    """[state, class] row of the point reached in the next level; -1 where the class has no stage left."""
    row_of: dict[tuple[int, ...], int]


@lru_cache(maxsize=64)
def _levels(counts: tuple[int, ...]) -> list[_Level]:
    """Points of the lattice by their sum."""
    by_sum: list[list[tuple[int, ...]]] = [[] for _ in range(sum(counts) + 1)]
    for state in product(*[range(count + 1) for count in counts]):
        by_sum[sum(state)].append(state)
    rows = [{state: row for row, state in enumerate(states)} for states in by_sum]
    rows.append({})
    levels = []
    for i, states in enumerate(by_sum):
        ahead = [
            [rows[i + 1].get((*state[:c], state[c] + 1, *state[c + 1 :]), -1) for c in range(len(counts))]
            for state in states
        ]
        levels.append(_Level(np.array(states), np.array(ahead), rows[i]))
    return levels


def _class_slope(values: Floats) -> Floats:
    """Time of one more layer on each class, [class, stage, n] -> [class]."""
    middle = values[:, values.shape[1] // 2, :]
    finite = np.where(np.isfinite(middle), middle, 0.0)
    step = np.where(np.isfinite(middle[:, 2:]), np.diff(finite[:, 1:], axis=1), np.inf)
    step = np.where(step > 0, step, np.inf).min(axis=1, initial=np.inf)
    result: Floats = np.where(np.isfinite(step), step, middle[:, 1])
    return np.where(np.isfinite(result) & (result > 0), result, 1.0)
