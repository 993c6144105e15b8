"""Whether any pipeline of free shapes can finish by a deadline: a bound that looks at all of them at once.

Given a batch, p stages, some of them with a shape already, and the chips left on each class. For a pipeline
whose slowest stage takes tau, of all stages t[s] and the least sends h (no send costs more than it must),

    (paced)  T >= (m - p - 1) tau + sum_s (2 t[s] + h[s]) + reduce[0] + sum_s after[s] / p,   m >= p + 1
    (path)   T >= (m - 1) rho tau + sum_s (t[s] + h[s]) + reduce[0] + sum_s after[s] / p
    (even)   T >= sum_s (w[s] t[s] + h[s]) + reduce[0] + sum_s after[s] / p
    (work)   T >= m tau

(paced, path and work as in `planner.search.bounds`; rho is the least share of the longer pass in a stage's
time, one half where sends lengthen passes; the mean of what follows on the stages is at most its largest.
In even, w comes of the rows (partial, e = s, both waits) of `formulations.pipeline_rows`,
up + (m - q) t[s] + 2 d, and where m <= q + 1 of (window), sum t + (m - 1) rho t[s], weighed so that a second
costs nearly the same on every stage.) With alpha tau for the first term, let V(b) be the least of the rest
over all pipelines whose stages take at most b. A pipeline with tau in [a, b] takes at least alpha a + V(b):
with V(b) at hand every tau down to a = (D - V(b)) / alpha misses the deadline D, the next look is at b = a,
and where V(b) >= D all smaller ones miss it too. The first b is D / m.

V(b) is bounded by prices, mu on a layer and lambda[c] >= 0 on a chip of class c:

    V >= mu L - sum_c lambda[c] N[c]
         + sum_s min_{k, n: t[k,s](n) <= b} (cost[k,s](n) + lambda[c(k)] g[k] - mu n)

Any prices are valid. For one shape and position the least over n lies at the fewest layers, at the bend of
`PairTable`, or at the most that b allows, as the cost is bounded there by two lines, the second steeper.
Several numbers of stages p .. P are looked at together: the last p - 1 stages and the first are those of the
shorter pipeline, the others, which hold more micro-batches, at best like its second; each adds what it
costs where that is below 0, else nothing. alpha is that of P, and (even), whose weights differ, is left out.

Prices are improved along subgradients (layers missing, chips missing) in a space that is dilated across the
last two of them, for which few steps are enough in so few dimensions.

References
----------
N. Z. Shor, "Minimization Methods for Non-Differentiable Functions", Springer 1985, section 3.5 (r-algorithm
with a dilation of 2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.tables import PairTable
from planner.tolerances import BOUND_TOL

STEPS = 60
"""Most steps of the prices in one look."""
PATIENCE = 12
"""Steps that help little after which a look ends."""
PROGRESS = 1e-4
"""Relative gain of a step that helps."""
FIRST_STEP = 0.3
"""Length of the first step, as a share of all layers at their first price."""
LEAST_PROGRESS = 1e-3
"""Share of the bottleneck that a look must rule out, else the deadline is taken as reachable."""
MOST_LOOKS = 60
"""Looks after which a deadline is taken as reachable."""
FEW_MICROBATCHES = 3
"""Micro-batches a stage up to which (path) may bound better than (paced)."""


@dataclass
class Relaxation:
    """One batch and number of stages, all shapes open at first; prefixes need every position apart."""

    table: PairTable
    num_layers: int
    num_microbatches: int
    class_of_shape: NDArray[np.int64]
    chips_of_shape: NDArray[np.int64]
    chips_of_class: Floats
    sends_block: bool
    longest: int
    """Most stages: with more than the table's, all numbers of them in between are looked at together."""

    def __post_init__(self) -> None:
        t, p, longest = self.table, self.table.num_stages, self.longest
        m = self.num_microbatches
        self.more = longest - p
        self.count = np.diff(t.positions, prepend=-1).astype(np.float64)
        sides = (t.positions > 0).astype(float) + (t.positions < p - 1)
        self.sends = t.hop_ms[:, None] * sides
        self.blocked = self.sends if self.sends_block else np.zeros_like(self.sends)
        first = (t.positions == 0).astype(np.float64)[None, :]
        fits = np.where(np.isfinite(t.times_ms), t.times_ms, 0.0)
        self.at_fewest = np.take_along_axis(fits, t.fewest[:, :, None], axis=2)[:, :, 0]
        self.at_bend = np.take_along_axis(fits, t.bend[:, :, None], axis=2)[:, :, 0]
        self.each = t.after_layer_ms / longest + first * t.reduce_layer_ms[:, None]
        self.fixed = t.after_ms / longest + first * t.reduce_ms[:, None]
        longer = 0.5 if self.sends_block else t.longer_fraction
        ones = np.ones(len(t.positions))
        paced, path = (m - longest - 1.0, 2 * ones), ((m - 1) * longer, ones)
        self.rows = [paced] if m > longest else []
        if self.more:
            self.rows.append(path)
        elif m <= FEW_MICROBATCHES * p:
            even = np.split(_even_weights(p, m, longer), t.positions[:-1] + 1)
            self.rows += [(0.0, np.array([group.min() for group in even])), path]
        # Prices times this: layers that must be there, chips that there are.
        self.scale = np.concatenate([[float(self.num_layers)], -self.chips_of_class])
        self.chips = np.zeros((3 * len(self.chips_of_shape), len(self.chips_of_class)))
        rows = np.arange(len(self.chips))
        self.chips[rows, np.repeat(self.class_of_shape, 3)] = np.repeat(self.chips_of_shape, 3)
        start = np.zeros(1 + len(self.chips_of_class))
        start[0] = self._first_price()
        self.prices = [float(weight.mean()) * start for _, weight in self.rows]

    def _first_price(self) -> float:
        """The cost of a layer in the middle of all shapes."""
        fits = self.table.most > 0
        return float(np.median(self.at_fewest[fits])) if fits.any() else 1.0

    def misses(self, deadline_ms: float, prefix: Sequence[int] = ()) -> bool:
        """Whether no pipeline that begins with these shapes finishes by the deadline."""
        deadline = deadline_ms - self.table.constant_ms
        return any(self._row_misses(row, deadline, prefix) for row in range(len(self.rows)))

    def _row_misses(self, row: int, deadline: float, prefix: Sequence[int]) -> bool:
        slope, weight = self.rows[row]
        bound = deadline / self.num_microbatches
        prices = self.prices[row]
        for look in range(MOST_LOOKS):
            value, prices = self._least(bound, weight, deadline, prefix, prices)
            if look == 0 and not prefix:
                self.prices[row] = prices
            if value >= deadline:
                return True
            if slope <= 0:
                return False
            reached = (deadline - value) / slope
            if reached >= bound * (1 - LEAST_PROGRESS):
                return False
            bound = reached
        return False

    def bound_ms(self, least_ms: float, most_ms: float, halvings: int, prefix: Sequence[int] = ()) -> float:
        """The latest deadline found that is missed, between one known to be missed and another."""
        low, high = least_ms, most_ms
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if self.misses(middle, prefix) else (low, middle)
        return low

    def _candidates(self, bound: float, weight: Floats, prefix: Sequence[int]) -> tuple[Floats, Floats]:
        """Cost and layers of the three points of every shape and position, [position, shape x 3]."""
        t = self.table
        allowed = t.times_ms + self.blocked[:, :, None] <= bound * (1 + BOUND_TOL)
        cap = np.where(allowed, np.arange(t.times_ms.shape[2]), 0).max(axis=2)
        bend = np.minimum(t.bend, cap)
        slope = (self.at_bend - self.at_fewest) / np.maximum(t.bend - t.fewest, 1)
        at_bend = self.at_fewest + slope * (bend - t.fewest)
        at_cap = at_bend + t.steeper_ms * (cap - bend)
        layers = np.stack([t.fewest, bend, cap], axis=2).astype(np.float64)
        times = np.stack([self.at_fewest, at_bend, at_cap], axis=2)
        usable = (cap >= t.fewest) & (t.most > 0)
        for s, k in enumerate(prefix):
            usable[np.arange(len(usable)) != k, s] = False
        # The sum of all hops counts twice in both rows; each hop is shared by its two stages.
        fixed = self.fixed + (weight * self.blocked if self.sends_block else self.sends)
        cost = weight[:, None] * times + self.each[:, :, None] * layers + fixed[:, :, None]
        cost = np.where(usable[:, :, None], cost, np.inf)
        p = len(t.positions)
        return cost.transpose(1, 0, 2).reshape(p, -1), layers.transpose(1, 0, 2).reshape(p, -1)

    def _least(
        self, bound: float, weight: Floats, target: float, prefix: Sequence[int], prices: Floats
    ) -> tuple[float, Floats]:
        """A bound on V, and the prices that gave it; it stops early where the target is reached."""
        cost, layers = self._candidates(bound, weight, prefix)
        if np.isinf(cost.min(axis=1)).any():
            return np.inf, prices
        rows = np.arange(len(cost))

        def at(prices: Floats) -> tuple[float, Floats]:
            """Value and, as shares of what there is, layers and chips that are missing."""
            reduced = cost + self.chips @ prices[1:] - prices[0] * layers
            chosen = np.argmin(reduced, axis=1)
            least, count = reduced[rows, chosen], self.count
            if self.more and least[1] < 0:
                count = count.copy()
                count[1] += self.more
            value = float(count @ least + prices @ self.scale)
            used = np.concatenate([[-(count @ layers[rows, chosen])], count @ self.chips[chosen]])
            return value, used / np.abs(self.scale) + np.sign(self.scale)

        return _ascend(at, prices, np.abs(self.scale), target)


def _ascend(
    at: Callable[[Floats], tuple[float, Floats]], prices: Floats, scale: Floats, target: float
) -> tuple[float, Floats]:
    """Largest value found of a concave function, and where: Shor's algorithm with space dilation.

    The first price is free, the others are at least 0.
    """
    value, slope = at(prices)
    best, best_prices, stale = value, prices, 0
    space = np.eye(len(prices))
    step = FIRST_STEP * max(abs(float(prices[0] * scale[0])), 1e-9)
    for _ in range(STEPS):
        if best >= target or stale >= PATIENCE:
            break
        along = space.T @ slope
        size = float(np.linalg.norm(along))
        if size < 1e-12:
            break
        moved = prices + step * (space @ along) / size / scale
        moved = np.concatenate([moved[:1], np.maximum(moved[1:], 0.0)])
        new_value, new_slope = at(moved)
        turn = space.T @ (new_slope - slope)
        length = float(np.linalg.norm(turn))
        if length > 1e-12:
            across = turn / length
            space = space - np.outer(space @ across, across) / 2
        step *= 1.2 if new_value > value else 0.75
        prices, value, slope = moved, new_value, new_slope
        stale = 0 if value > best + PROGRESS * abs(best) else stale + 1
        if value > best:
            best, best_prices = value, prices
    return best, best_prices


def _even_weights(num_stages: int, num_microbatches: int, longer: float) -> Floats:
    """What a second on each stage costs in the rows of (even), [stage].

    Any weights of the rows that add up to 1 are valid; those below zero are cut off.
    """
    p, m = num_stages, num_microbatches
    rows = np.empty((p, p))
    for s in range(p):
        q = p - 1 - s
        if m >= q + 2:
            rows[s, :s], rows[s, s], rows[s, s + 1 :] = 1.0, m - q, 2.0
        else:
            rows[s] = 1.0
            rows[s, s] += (m - 1) * longer
    weights = np.linalg.lstsq(rows.T, np.ones(p), rcond=None)[0]
    weights = np.maximum(weights, 0.0)
    weights = weights / weights.sum() if weights.sum() > 0 else np.full(p, 1 / p)
    cost: Floats = weights @ rows
    return cost
