"""The chain that is worth most beside its chips: all pipelines at once, without listing any.

A chain (one replica of a pipeline) runs m micro-batches of b sequences by the deadline D if its rows let it.
With prices lambda[c] on a chip of class c, let V be the largest of b m - sum_s lambda[c(s)] t(s) over all
chains: where V <= 0 no mix of pipelines does more than sum_c lambda[c] N[c] sequences by then.

Let tau in [a, a'] be the time of the slowest stage s, q the stages behind it, and D less what follows. The
rows (partial, e = s) of `formulations.pipeline_rows` and (work) read, with h the least sends at a stage,

    m tau + sum_{i>s} (2 t[i] + h[i] - tau) + h[s] + sum_{i<s} (t[i] + h[i]) <= D        m >= q + 2
    m tau + sum_{i<s} (t[i] + h[i]) <= D

so that with m <= M, any y in [0, b / a] and tau >= a,

    V <= (b - y a) M + y D - min sum over stages of lambda t + y (what the stage takes above, with a for tau)

(y times what the row leaves of D is added to b m; tau counts m - q >= 2 times in it, m times in the second,
so that the sum falls as tau rises from a.)

The least sum over all chains, with whole layers and memory by the place in the pipeline, is a shortest path
over (stages behind, layers placed, whether s is behind). Micro-batches in flight are as many as m lets be,
so that m is cut into octaves, each with the memory of its first. V is first bounded by the least cost of a
layer.

References
----------
Prices of columns that are not listed: M. Luebbecke, J. Desrosiers, "Selected topics in column generation",
Operations Research 53(6), 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.chains import Chains
from planner.search.replicas.paths import Column, Part, Paths

COARSE, FINE, FINEST = 1.08, 1.02, 1.0005
"""Ratio of the edges of a bracket of tau, at first, before any path, and at last."""
COLUMNS = 4
"""Chains that one look is content with."""
SHARES = (1.0, 0.5, 0.0)
"""Values of y that are tried where m might reach the end of its octave, in times of b / a."""
TOL = 1e-9


class Pricing:
    """Looks for chains that are worth more than their chips."""

    def __init__(self, chains: Chains, is_up: Callable[[], bool] = lambda: False) -> None:
        problem = chains.problem
        self.chains, self.is_up = chains, is_up
        self.num_layers = problem.model.num_layers
        self.batch = problem.workload.global_batch_size
        self.paths = Paths(chains)

    def worthwhile(
        self, price: Floats, deadline_ms: float, kinds: list[int], most: int = COLUMNS
    ) -> list[Column] | None:
        """Chains worth more than their chips; none is proof that there are none. None where time is up."""
        parts = []
        for kind in kinds:
            for least_m, most_m in self._octaves(kind):
                part = self._brackets(kind, least_m, most_m, deadline_ms)
                if part is not None:
                    part, values = self._promising(part, price, deadline_ms, FINE)
                    if len(part.low):
                        parts.append((float(values.max()), part))
        parts.sort(key=lambda entry: -entry[0])
        found: list[Column] = []
        for _, part in parts:
            if self.is_up():
                return None
            found += self._search(part, price, deadline_ms)
            if len(found) >= most:
                break
        return found

    def _octaves(self, kind: int) -> list[tuple[int, int]]:
        """Least and most micro-batches of each octave."""
        most, octaves, least = self.batch // self.chains.kinds[kind].microbatch_size, [], 1
        while least <= most:
            last = least >= self.num_layers or 2 * least > most
            octaves.append((least, most if last else 2 * least - 1))
            if last:
                break
            least *= 2
        return octaves

    def _brackets(self, kind: int, least_m: int, most_m: int, deadline_ms: float) -> Part | None:
        times = self.paths.quick_times(kind)[:, 1:]
        left = deadline_ms - self.chains.after_ms[kind]
        low, high = float(times.min()), left / least_m
        if not low < high:
            return None
        # Where m can be at its most whatever tau is, one bracket is as good as many.
        edges = [low]
        while edges[-1] < high:
            edges.append(edges[-1] * COARSE)
        lows, highs = np.array(edges[:-1]), np.minimum(edges[1:], high)
        return Part(kind, least_m, most_m, lows, highs, np.zeros(len(lows)))

    def _promising(self, part: Part, price: Floats, deadline_ms: float, ratio: float) -> tuple[Part, Floats]:
        """Brackets that the least cost of a layer leaves open, halved down to a ratio, and their bounds."""
        while True:
            values, y = self._quick(part, price, deadline_ms)
            kept = np.flatnonzero(values > TOL * self.batch)
            part, values = replace(part.at(kept), y=y[kept]), values[kept]
            wide = part.high > part.low * ratio
            if not wide.any():
                return part, values
            part = _halved(part, wide)

    def _quick(self, part: Part, price: Floats, deadline_ms: float) -> tuple[Floats, Floats]:
        """Bound of every bracket by the least cost of a layer, and the y that gave it."""
        kind = self.chains.kinds[part.kind]
        times = self.paths.quick_times(part.kind)
        width = int(np.flatnonzero((times[:, 1:] <= part.high.max()).any(axis=0)).max(initial=0)) + 1
        times = times[:, 1 : width + 1]
        n = np.arange(1, width + 1)
        paid = (price[kind.node_class] * kind.tensor_parallel)[:, None] / n
        b, left = kind.microbatch_size, deadline_ms - self.chains.after_ms[part.kind]
        best, best_y = np.full(len(part.low), np.inf), np.zeros(len(part.low))
        fits = times[None] <= part.high[:, None, None]
        ahead = np.where(np.isfinite(times), times, 0.0) / n
        for share in SHARES:
            y = share * b / part.low
            # No stage costs less than y (2 t - a') but the slowest, which costs at most y a' less.
            each = paid + y[:, None, None] * (2 * ahead - part.high[:, None, None] / n)
            each = np.minimum(each, paid) if part.least_m <= self.paths.longest else each
            least = np.where(fits, each, np.inf).min(axis=(1, 2))
            value = (b - y * part.low) * part.most_m + y * (left + part.high) - self.num_layers * least
            better = value < best
            best, best_y = np.where(better, value, best), np.where(better, y, best_y)
        return best, best_y

    def _search(self, part: Part, price: Floats, deadline_ms: float) -> list[Column]:
        """Shortest paths of all brackets; the chain that is worth most, if any is."""
        for _ in range(20):
            values = self.paths.paths(part, price, deadline_ms)[0]
            kept = np.flatnonzero(values > TOL * self.batch)
            if not len(kept):
                return []
            part, values = part.at(kept), values[kept]
            k = int(np.argmax(values))
            column, own = self.paths.column(part.at(np.array([k])), price, deadline_ms)
            paid = float(np.dot(column.chips, price))
            if own > paid * (1 + TOL):
                return [replace(column, credit=1.0)]
            if part.high[k] <= part.low[k] * FINEST or self.is_up():
                return [column]
            part = _halved(part, part.high > part.low * FINEST)
            part, _ = self._promising(part, price, deadline_ms, np.inf)
            if not len(part.low):
                return []
        return [column]


def _halved(part: Part, wide: np.ndarray) -> Part:
    """The same brackets, wide ones in two halves each."""
    middle = np.sqrt(part.low * part.high)
    low = np.concatenate([part.low, middle[wide]])
    high = np.concatenate([np.where(wide, middle, part.high), part.high[wide]])
    y = np.concatenate([part.y, part.y[wide]])
    return replace(part, low=low, high=high, y=np.minimum(y, np.inf))
