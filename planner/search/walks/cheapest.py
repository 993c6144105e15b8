"""The cheapest walk: class and layers of every stage, for prices on layers and on classes.

Let M be the time of the slowest stage, s a stage that takes it, and a <= M <= b. Every other stage is
no slower than b, and the row of `formulations.pipeline_rows` for s reads

    (partial, e = s), m >= q + 2    T >= sum_{i<s} t[i] + (m - q) t[s] + 2 sum_{i>s} t[i] + sends + waits
    (window, k = 0),  m <= q + 1    T >= sum_i t[i] + (m - 1) max(f[s], b[s]) + sends

so that for a given s each stage adds its own term. What follows the pipeline is at least F, what the layers
make it that stages no slower than b hold (`planner.search.capacity`), and with weights that add up to 1 or
less at least F and the weighted sum of what follows each stage beyond F. A stage j <= s ends, and then
reduces its gradients for z[j], no sooner than the row says less sum_{i<j} (b[i] + c[i]), so that for any
weights theta >= 0 that add up to 1 the row adds

    sum_{j<s} theta[j] z[j] + sum_{j>=s} theta[j] z[s] - sum_{i<s} (1 - Theta[i]) (b[i] + c[i])

where Theta[i] = sum_{j<=i} theta[j]: a term of each stage again. With a price mu on each layer and lambda[c]
on each stage of class c the least sum over all orders, layers and s is the length of a shortest walk over
(stage, state of `planner.search.walks.chain`, whether s is behind), and

    T >= mu L - sum_c lambda[c] k[c] + shortest walk

for every order with k[c] stages on class c, whose slowest stage lies in [a, b].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.walks.chain import Chain, Counter
from planner.search.walks.found import Costs, Walk
from planner.search.walks.tables import StageTables, heaviest_class, least_times, reduction_weights

Ints = NDArray[np.int64]


class Walks:
    """Shortest walks of one row of degrees and number of stages."""

    costs: Costs
    is_short: NDArray[np.bool_]
    counts_sync = True
    """Whether reductions are weighed over the stages; else only that of stage 0 counts."""
    counts_behind = False
    """Whether reductions behind s count (`planner.search.walks.other_rows`)."""
    reaches_low = True
    """Whether s is as slow as the lower end of its bracket; else any stage may be taken for it."""

    def __init__(
        self,
        chain: Chain,
        counter: Counter,
        tables: StageTables,
        num_microbatches: int,
        edges_ms: Floats,
        floors_ms: Floats,
        most: Ints,
        *,
        sends_block: bool,
    ) -> None:
        """Prepare costs of stages no slower than the last edge.

        Parameters
        ----------
        edges_ms, floors_ms
            [edge] ascending upper ends of brackets, and the least that follows where no stage is slower.
        most
            [class] stages.
        """
        self.chain, self.counter, m = chain, counter, num_microbatches
        p, self.num_layers = tables.times.shape[1], tables.times.shape[2] - 1
        self.num_stages, self.num_microbatches = p, m
        self.edges_ms, self.floors_ms = edges_ms, floors_ms
        widest_ms = float(edges_ms[-1])
        heaviest = heaviest_class(tables, widest_ms)
        self.weight = 1 / max(int(most[heaviest]), 1)
        self.weighed = np.flatnonzero(chain.kind_class == heaviest)
        """Kinds whose stages are weighed in what follows, each as one of the most that there may be."""
        self._price_stages(tables, widest_ms)
        hop = np.zeros_like(chain.hop_ms) if sends_block else chain.hop_ms.copy()
        hop[-1] = np.inf
        self.hop = hop
        self.least_times = least_times(chain, tables)[:, :, : self.width]
        """[class, stage, n] with the least hops beside a stage."""
        self.sources = [self._sources(before) for before in counter.before[1:]]
        reached = chain.into != len(chain.source) - 1
        self.reached = np.flatnonzero(reached.any(axis=1))
        """States that some step leads to."""
        self.steps = chain.into[reached]
        """Steps, those into one state after the other: few states have as many as the most."""
        self.starts = np.cumsum([0, *reached[self.reached].sum(axis=1)])[:-1]
        self.entries = [source[:, reached] for source in self.sources]

    def _price_stages(self, tables: StageTables, widest_ms: float) -> None:
        """What a stage before s, behind s, and s itself cost."""
        classes = self.chain.kind_class
        times = tables.times[classes] + self.chain.kind_blocked_ms[:, None, None]
        fits = np.flatnonzero((times <= widest_ms).any(axis=(0, 1)))
        self.width = max(int(fits[-1]) + 1, 2) if len(fits) else 2

        def by_stage(values: Floats) -> Floats:
            turned: Floats = np.ascontiguousarray(values[classes][:, :, : self.width].transpose(1, 0, 2))
            return turned

        self.layers = np.arange(self.width, dtype=np.float64)
        self.times = np.ascontiguousarray(times[:, :, : self.width].transpose(1, 0, 2))
        theta = self._weights(tables)[:, None, None]
        behind = 1 - np.cumsum(theta, axis=0)
        reduce, follow = by_stage(tables.reduce), by_stage(tables.follow)
        self.follow = np.where(np.isfinite(follow), follow, 0.0)[:, self.weighed]
        blocked = self.chain.kind_blocked_ms[None, :, None]
        backward = np.where(np.isfinite(self.times), by_stage(tables.backward) + blocked, 0.0)
        self.longer = longer = np.maximum(by_stage(tables.longer), self.times / 2)
        self.reduce = reduce
        once, twice, slowest = self._terms(longer)
        ends = theta * reduce - behind * backward
        own, before = (theta + behind) * reduce, once + ends
        hops_paid = np.full((3, 1, self.num_stages), 2.0)
        hops_paid[0] -= behind[:, 0, 0]
        hops_paid[1] = 4.0
        if self.counts_behind:
            own, twice = np.where(self.is_short[:, None, None], own, ends), twice + ends
            hops_paid[1] -= behind[:, 0, 0]
        slowest = slowest + own
        before, twice, once, slowest = (
            np.where(np.isfinite(cost), cost, np.inf)[None] for cost in (before, twice, once, slowest)
        )
        self.costs = Costs(before, twice, once, slowest, hops_paid)

    def _weights(self, tables: StageTables) -> Floats:
        """Theta, [stage]."""
        return reduction_weights(tables, self.num_layers, over_all=self.counts_sync)

    def _terms(self, longer: Floats) -> tuple[Floats, Floats, Floats]:
        """Terms of a stage passed once, of one passed twice and of s itself, [stage, kind, n].

        `longer` is the longer of the two passes of a stage. Stages behind s are passed once if s `is_short`.
        """
        m, q = self.num_microbatches, (self.num_stages - 1 - np.arange(self.num_stages))[:, None, None]
        self.is_short = m < q[:, 0, 0] + 2
        short = self.times + (m - 1) * longer if m > 1 else self.times
        slowest = np.where(q <= m - 2, np.maximum(m - q, 1) * self.times, short)
        return self.times, 2 * self.times, slowest + self._waits_ms()

    def _waits_ms(self) -> Floats:
        """What s waits between its backwards and its forwards, [stage, kind, 1]: the w of (partial)."""
        q = self.num_stages - 1 - np.arange(self.num_stages)
        times = np.maximum(self.num_microbatches - 1 - q, 0)
        waits: Floats = times[:, None, None] * self.chain.kind_wait_ms[None, :, None]
        return waits

    def _sources(self, before: Ints) -> Ints:
        """Entry of the values before, for every step into a point and state: [point, state, k]."""
        rows = before[:, self.counter.step_of_state][:, :, None]
        entry = rows * len(self.chain.class_of_state) + self.chain.source[self.chain.into][None]
        return np.where(rows >= 0, entry, -1)

    def shortest(
        self,
        mu: Floats,
        price: Floats,
        low_ms: Floats,
        high_ms: Floats,
        allowed: NDArray[np.bool_],
        costs: Costs | None = None,
    ) -> Walk:
        """Shortest walk for every row of prices; infinite where there is none.

        Parameters
        ----------
        mu
            [row] price of a layer.
        price
            [row, class] price of a stage.
        low_ms, high_ms
            [row] the slowest stage lies between them.
        allowed
            [row or 1, stage, class] classes that a stage may have.
        costs
            Those of other rows than `self.costs`.
        """
        costs = costs or self.costs
        chain, p, rows = self.chain, self.num_stages, len(mu)
        masked = np.where(allowed[:, :, chain.kind_class], 0.0, np.inf)
        paid = price[:, chain.kind_class][:, None, :] + masked
        refund = mu[:, None, None, None] * self.layers
        taken = np.where(self.times[None] <= high_ms[:, None, None, None], -refund, np.inf)
        floor = self.floors_ms[np.searchsorted(self.edges_ms, high_ms)][:, None, None, None]
        taken[:, :, self.weighed] += np.maximum(self.follow[None] - floor, 0.0) * self.weight
        # Values before s, behind s, and behind s by a short row; a dummy at the end.
        stay = [_least(cost + taken, paid) for cost in (costs.before, costs.twice)]
        if self.is_short.any():
            stay.append(_least(costs.once + taken, paid))
        if self.reaches_low:
            taken = np.where(self.times[None] >= low_ms[:, None, None, None], taken, np.inf)
        turn = _least(costs.slowest + floor + taken, paid)
        size = len(chain.class_of_state)
        value = np.full((rows, len(stay), len(self.counter.points[0]) * size + 1), np.inf)
        first = self.counter.before[0][:, self.counter.step_of_state[chain.first_state]] >= 0
        for row, c in zip(*np.nonzero(first), strict=True):
            value[:, 0, row * size + chain.first_state[c]] = 0.0
        values = [value]
        for i in range(p - 1):
            hops_paid = costs.hops_paid[:, :, i]
            kept = [of[0][:, i] for of in stay]
            values.append(self._advance(values[-1], i, kept, turn[0][:, i], hops_paid))
        may_end = np.where(self.counter.may_end[:, None] & chain.may_end, 0.0, np.inf).ravel()
        last = np.tile(chain.last_kind, len(self.counter.may_end))
        value = values[-1][:, :, :-1] + may_end
        ends = [value[:, 0] + turn[0][:, p - 1, last]]
        ends += [value[:, k] + stay[k][0][:, p - 1, last] for k in range(1, len(stay))]
        return self._trace(np.stack(ends, axis=1), values, stay, turn, costs.hops_paid)

    def _advance(
        self, value: Floats, i: int, stay: Sequence[Floats], turn: Floats, hops_paid: Floats
    ) -> Floats:
        """Values one stage on."""
        entries, (points, size) = self.entries[i], self.sources[i].shape[:2]
        hop, kind = self.hop[self.steps], self.chain.kind[self.steps]
        ahead = np.full((len(value), len(stay), points * size + 1), np.inf)
        before = value[:, 0].take(entries, axis=1)
        for k, kept in enumerate(stay):
            into = before if k == 0 else value[:, k].take(entries, axis=1)
            least = self._least_into(into + (kept[:, kind] + hops_paid[k][:, None] * hop)[:, None])
            if k == (2 if self.is_short[i] else 1):
                turned = before + (turn[:, kind] + hops_paid[k][:, None] * hop)[:, None]
                least = np.minimum(least, self._least_into(turned))
            ahead[:, k, :-1].reshape(len(value), points, size)[:, :, self.reached] = least
        return ahead

    def _least_into(self, values: Floats) -> Floats:
        """Least of the steps into each state that is reached, [row, point, state]."""
        return np.minimum.reduceat(values, self.starts, axis=2)

    def _trace(
        self,
        ends: Floats,
        values: Sequence[Floats],
        stay: Sequence[tuple[Floats, Ints]],
        turn: tuple[Floats, Ints],
        hops_paid: Floats,
    ) -> Walk:
        """Follow the best way back from the last stage."""
        chain, p, size = self.chain, self.num_stages, len(self.chain.class_of_state)
        rows, width = np.arange(len(ends)), chain.into.shape[1]
        flat = ends.reshape(len(ends), -1)
        best = np.argmin(flat, axis=1)
        length = flat[rows, best]
        layer, entry = np.divmod(best, ends.shape[2])
        order, layers, all_kinds = (np.empty((len(rows), p), dtype=np.int64) for _ in range(3))
        behind, slowest = np.zeros((len(rows), p)), np.zeros(len(rows), dtype=np.int64)
        hops_paid = np.broadcast_to(hops_paid, (len(hops_paid), len(rows), p))
        kind = chain.last_kind[entry % size]
        turned = layer == 0
        costs, chosen = (np.stack([kept[part] for kept in stay]) for part in (0, 1))
        across = rows[:, None]
        for i in range(p - 1, -1, -1):
            state = entry % size
            order[:, i], all_kinds[:, i] = chain.class_of_state[state], kind
            kept = chosen[layer, rows, i, kind]
            layers[:, i] = np.where(turned, turn[1][rows, i, kind], kept)
            layer, slowest = np.where(turned, 0, layer), np.where(turned, i, slowest)
            if i:
                steps, past = chain.into[state], 2 if self.is_short[i - 1] else 1
                source = self.sources[i - 1].reshape(-1, width)[entry]
                column, kinds, hops = layer[:, None], chain.kind[steps], self.hop[steps]
                come = values[i - 1][across, column, source] + costs[column, across, i - 1, kinds]
                come = come + hops_paid[column, across, i - 1] * hops
                passed = values[i - 1][across, 0, source] + turn[0][across, i - 1, kinds]
                passed = passed + hops_paid[past, :, i - 1, None] * hops
                passed = np.where(column == past, passed, np.inf)
                turned, way = np.divmod(np.argmin(np.concatenate([come, passed], axis=1), axis=1), width)
                turned = turned == 1
                kind, entry = kinds[rows, way], source[rows, way]
                behind[:, i - 1] = hops[rows, way]
        return Walk(length, order, layers, all_kinds, behind, slowest)


def _least(cost: Floats, paid: Floats) -> tuple[Floats, Ints]:
    """Least cost over the layers and what is paid beside it, and the layers, [row, stage, kind]."""
    chosen = np.argmin(cost, axis=3)
    least = np.take_along_axis(cost, chosen[..., None], axis=3)[..., 0] + paid
    return least, chosen
