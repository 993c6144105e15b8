"""Walks by other rows of the pipeline, which say more where stages are about as many as micro-batches.

`planner.search.walks.cheapest` passes the stages behind the slowest one, s, twice. That row is exact on even
stages but says little where s is much slower than they are, or lies so early that m <= q + 1. Notation as
there; each bound below holds for every walk, so that a bracket is closed by any of them.

    (one side), m >= q + 2   T >= sum_i t[i] + (m - 1) t[s] - q min(f[s], b[s]) + sends
        Row (partial, e = s) of `formulations.pipeline_rows`: m t + max(0, d - q f) + max(0, d - q b), of
        which the larger of the two is kept. Every stage is passed once.
    (weighed)                T >= sum_s w[s] (sum_{i<s} t[i] + (m - q) t[s] + 2 sum_{i>s} t[i]) + sends
        for any weights w >= 0 that add up to 1 over the stages with m >= q + 2, since T is at least each
        row: stage i counts w[i] (m - q) + sum_{s>i} w[s] + 2 sum_{s<i} w[s] times, wherever the slowest
        stage lies. The weights here are all alike: where most stages are about as slow as the slowest one,
        all rows are about as long.

Where networks are slow, reductions say much: a walk evades that of stage 0, or those before s, by few layers
there. With Theta and z as there and any weights theta over all stages,

    (late), m >= q + 2       T >= R + sum_j theta[j] z[j] - sum_i (1 - Theta[i]) (b[i] + c[i])
        with R the row of s and sums over all stages, for every stage j ends no sooner than R less
        sum_{i<j} (b[i] + c[i]).
        Proof. Up to s that is known. On j > s, micro-batch m comes from s, goes down to the last stage and
        back: from its start on s to the end of its backward on j it takes sum_{s<=i<j} (f[i] + c[i]) and
        t[j] + d[j], and R counts the same way on s, t[s] + d[s], which is longer by
        sum_{s<=i<j} (b[i] + c[i]). Then fill, and the rest of R, lie before that start, and the drain
        sum_{i<s} (b[i] + c[i]) is behind it.
"""

from __future__ import annotations

import numpy as np

from planner.cost.prices import Floats
from planner.search.walks.cheapest import Walks
from planner.search.walks.tables import StageTables, late_weights, shown_reductions_ms


class OneSidedWalks(Walks):
    """Shortest walks by the row (one side), or (window) where m <= q + 1."""

    def _terms(self, longer: Floats) -> tuple[Floats, Floats, Floats]:
        once, twice, slowest = super()._terms(longer)
        m, q = self.num_microbatches, (self.num_stages - 1 - np.arange(self.num_stages))[:, None, None]
        times = np.where(np.isfinite(self.times), self.times, 0.0)
        shorter = times - np.where(np.isfinite(longer), longer, 0.0)
        one_side = np.where(np.isfinite(self.times), m * times - q * shorter, np.inf)
        slowest = np.where(q <= m - 2, one_side + self._waits_ms(), slowest)
        self.is_short = np.ones(self.num_stages, dtype=np.bool_)
        return once, twice, slowest


class WeighedWalks(Walks):
    """Shortest walks by the row (weighed); the slowest stage may lie anywhere below the upper edge."""

    counts_sync = False
    reaches_low = False

    def _terms(self, longer: Floats) -> tuple[Floats, Floats, Floats]:
        p, m = self.num_stages, self.num_microbatches
        factors = row_factors(p, m)[:, None, None]
        counted = np.where(np.isfinite(self.times), factors, 1.0) * self.times
        counted = counted + row_weights(p, m)[:, None, None] * self._waits_ms()
        slowest = np.full_like(counted, np.inf)
        slowest[-1] = counted[-1]
        self.is_short = np.zeros(self.num_stages, dtype=np.bool_)
        return counted, counted, slowest


class LateWalks(Walks):
    """Shortest walks by the row (late); where m <= q + 1 the weights of stages behind s are its own."""

    counts_behind = True

    def _weights(self, tables: StageTables) -> Floats:
        return late_weights(shown_reductions_ms(tables, self.num_layers))


def row_weights(num_stages: int, num_microbatches: int) -> Floats:
    """Weight of the row of every stage, [stage]."""
    weights = (num_stages - 1 - np.arange(num_stages) <= num_microbatches - 2).astype(np.float64)
    weights /= max(weights.sum(), 1.0)
    return weights


def row_factors(num_stages: int, num_microbatches: int) -> Floats:
    """How often the time of every stage counts in the weighed rows, [stage]."""
    m, q = num_microbatches, num_stages - 1 - np.arange(num_stages)
    weights = row_weights(num_stages, num_microbatches)
    before = np.cumsum(weights) - weights
    behind = weights.sum() - before - weights
    factors: Floats = weights * (m - q) + behind + 2 * before
    return factors
