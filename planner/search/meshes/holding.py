"""The most layers that a pipeline of free shapes can hold in a step no longer than T, of any length at once.

Let S be the time of all stages together, each with its hops, and D[s] that of the stages behind s. Once S is
given both are known while stages are chosen from the last to the first, and with them all that the rows
(work), (window), (mirror) and (partial, e = s) of `formulations.pipeline_rows` ask of stage s: what lies
before it is S - D[s] - t[s]. So each stage is held to its own rows, not to a weighed sum of a few. With h[s]
the hop behind s, x = D[s] + h[s] the way down to the last stage and back, q = p - 1 - s,
m - 1 = k (q + 1) + r and o[s] what follows the pipeline on s, every stage of a step no longer than T keeps

    m >= q + 2    S - x - t + m t + max(0, x - q f) + max(0, x - q b) + o <= T
                  S + k (t + x) + r max(f, b) + o <= T
    m <= q + 1    S - x - t + m t + o <= T
                  S + (m - 1) max(f, b) + o <= T

and the first stage the same with nothing before it; its reduction counts as time of it for those behind. The
left sides never fall where f, b or t = f + b grow, so that least times of n layers serve, and hops as in
`planner.search.meshes.walks`: what one adds is shared by both of its stages.

Sums are cut into brackets; within S1 <= S < S2 the rows are asked with S1. D is counted in whole ticks, each
stage rounded down: with e = q ticks D lies between its count and e above it. The first row, as a function of
D, falls, then stands, then rises: its least is where it begins to rise, or as near to that as can be.

Chips have prices lambda[c] >= 0 in layers. A pipeline of L layers on no more than N[c] chips of each class
has   sum_s (n[s] - lambda[c[s]] g[s]) + sum_c lambda[c] N[c] >= L,   so that where no pipeline that keeps the
rows has a left side of L there is no plan: all lengths whose most is less are closed. Stages of one class, as
many chips and as many ticks count as one that is best in all: that only lets more pipelines be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.lines import Lines
from planner.search.meshes.places import Ints
from planner.search.meshes.walks import MeshWalks
from planner.tolerances import BOUND_TOL

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Choices:
    """What a stage may be at one place, arrays [choice], by ascending ticks."""

    shape: Ints
    layers: Ints
    chips: Ints
    node_class: Ints
    ticks: Ints
    time: Floats
    forward: Floats
    backward: Floats
    follow: Floats
    least_hop: Floats
    """Hop behind it, of both directions; the least of those that count as one."""
    most_hop: Floats
    reduce: Floats
    """Its reduction, if it is the first."""


class Holding:
    """Pipelines whose steps are no longer than a limit, for brackets of the sum of their stages."""

    def __init__(self, walks: MeshWalks, limit_ms: float, low: Floats, high: Floats, tick_ms: float) -> None:
        """Brackets [row] lie between `low` and `high`; `limit_ms` is without what every plan adds."""
        self.walks, self.limit, self.tick = walks, limit_ms * (1 + BOUND_TOL), tick_ms
        self.low, self.high = low * (1 - BOUND_TOL), high * (1 + BOUND_TOL)
        self.width = int(self.high.max() / tick_ms) + 1
        self.lengths = walks.lengths
        self._length_at = {int(p) - 1: i for i, p in enumerate(self.lengths)}
        self.inner = [self._choices(walks.inner, q, is_first=False) for q in range(walks.longest - 1)]
        self.first = {q: self._choices(walks.first, q, is_first=True) for q in self._length_at}
        self.fits = [self._fits(choices, q, is_first=False) for q, choices in enumerate(self.inner)]
        self.ends = {q: self._fits(choices, q, is_first=True) for q, choices in self.first.items()}
        self._most: list[Floats] = []
        self._end_of: dict[int, Floats] = {}

    def keep(self, rows: Bools) -> None:
        """Forget the other brackets."""
        self.low, self.high = self.low[rows], self.high[rows]
        self.fits = [fits[:, rows] for fits in self.fits]
        self.ends = {q: fits[:, rows] for q, fits in self.ends.items()}

    def _choices(self, lines: Lines, q: int, *, is_first: bool) -> Choices:
        batch, m, place = self.walks.batch, self.walks.num_microbatches, min(q, lines.times.shape[1] - 1)
        times = lines.times[:, place]
        n = np.arange(times.shape[1])
        usable = np.isfinite(times) & (n > 0)
        usable &= m * np.where(usable, times, 0.0) + lines.follow[:, place] <= self.limit
        if self.walks.allowed is not None:
            usable &= self.walks.allowed[::-1][q][:, None]
        shape, layers = np.nonzero(usable)
        time = times[shape, layers]
        forward = lines.forward[shape, place] * layers + lines.base_forward[shape, place]
        sends = lines.delay[shape, place]
        behind = sends * (1.0 if is_first else 0.5) * (q > 0)
        reduce = lines.reduce[shape, place, layers] * is_first
        ticks = ((time + sends + reduce) / self.tick).astype(np.int64)
        chips, node_class = batch.num_chips[shape], batch.node_class[shape]
        order = np.lexsort((-layers, chips, node_class, ticks))
        keys = np.stack([ticks, node_class, chips])[:, order]
        starts = np.flatnonzero(np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)]))
        if not len(order):
            starts = np.zeros(0, dtype=np.int64)

        def least(values: Floats) -> Floats:
            found: Floats = np.minimum.reduceat(values[order], starts) if len(order) else np.zeros(0)
            return found

        best = order[starts]
        return Choices(
            shape[best],
            layers[best],
            chips[best],
            node_class[best],
            ticks[best],
            least(time),
            least(forward),
            least(time - forward),
            least(lines.follow[shape, place, layers]),
            least(behind),
            -least(-behind),
            least(reduce),
        )

    def _fits(self, choices: Choices, q: int, *, is_first: bool) -> Bools:
        """Whether each choice keeps its rows, [choice, row, ticks behind it]."""
        m, count = self.walks.num_microbatches, np.arange(self.width)
        behind, error = count * self.tick, q * self.tick
        t, f, b = (values[:, None, None] for values in (choices.time, choices.forward, choices.backward))
        hop, more = choices.least_hop[:, None, None], choices.most_hop[:, None, None]
        longer = np.maximum(f, b)
        k, r = divmod(m - 1, q + 1)
        if is_first:
            total = behind + choices.ticks[:, None, None] * self.tick
            inside = (total <= self.high[:, None]) & (total + error + self.tick >= self.low[:, None])
            # Nothing lies before it, so that the rows rise with what lies behind.
            x = behind + hop
            step = np.maximum(m * t, (k + 1) * (t + x) + r * longer)
            if m >= q + 2:
                step = np.maximum(step, m * t + np.maximum(x - q * f, 0.0) + np.maximum(x - q * b, 0.0))
            last = (choices.reduce + choices.follow)[:, None, None]
            return np.asarray(inside & (step + last <= self.limit))
        low = self.low[:, None]
        if m >= q + 2:
            x = np.clip(q * longer - hop, behind, behind + error)
            waits = np.maximum(x + hop - q * f, 0.0) + np.maximum(x + hop - q * b, 0.0)
            step = low - x - more - t + m * t + waits
            step = np.maximum(step, low + k * (t + behind + hop) + r * longer)
        else:
            step = np.maximum(low - behind - error - more - t + m * t, low + (m - 1) * longer)
        reached = behind + choices.ticks[:, None, None] * self.tick <= self.high[:, None]
        return np.asarray(reached & (step + choices.follow[:, None, None] <= self.limit))

    def most(self, price: Floats) -> Floats:
        """Most layers less the price of their chips, [length, row]; `price` is [row, class] of a chip."""
        rows = len(self.low)
        ends = np.full((len(self.lengths), rows), -np.inf)
        most = np.full((rows, self.width), -np.inf)
        most[:, 0] = 0.0
        self._most, self._end_of = [most], {}
        for q in range(self.walks.longest):
            if q in self.first:
                found = np.where(self.ends[q], most, -np.inf).max(axis=2, initial=-np.inf)
                found += _worth(self.first[q], price)
                self._end_of[q] = found
                ends[self._length_at[q]] = found.max(axis=0, initial=-np.inf)
            if q + 1 < self.walks.longest:
                most = self._ahead(most, q, price)
                self._most.append(most)
        return ends

    def _ahead(self, most: Floats, q: int, price: Floats) -> Floats:
        """One stage on."""
        choices, ahead = self.inner[q], np.full_like(most, -np.inf)
        if not len(choices.ticks):
            return ahead
        found = np.where(self.fits[q], most, -np.inf)
        found += _worth(choices, price)[:, :, None]
        starts = np.flatnonzero(np.diff(choices.ticks, prepend=-1))
        best = np.maximum.reduceat(found, starts, axis=0)
        for ticks, mine in zip(choices.ticks[starts].tolist(), best, strict=True):
            reach = self.width - ticks
            if reach > 0:
                np.maximum(ahead[:, ticks:], mine[:, :reach], out=ahead[:, ticks:])
        return ahead

    def traced(self, row: int, length: int, price: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes and layers of the pipeline that holds most, of a length by its number, first stage first."""
        q = int(self.lengths[length]) - 1
        choice = int(np.argmax(self._end_of[q][:, row]))
        at = int(np.argmax(np.where(self.ends[q][choice, row], self._most[q][row], -np.inf)))
        order, split = [int(self.first[q].shape[choice])], [int(self.first[q].layers[choice])]
        for place in range(q - 1, -1, -1):
            choices = self.inner[place]
            before = at - choices.ticks
            known = np.maximum(before, 0)
            ways = self._most[place][row, known] + _worth(choices, price)[:, row]
            fits = self.fits[place][np.arange(len(before)), row, known]
            choice = int(np.argmax(np.where(fits & (before >= 0), ways, -np.inf)))
            at = int(before[choice])
            order.append(int(choices.shape[choice]))
            split.append(int(choices.layers[choice]))
        return tuple(order), tuple(split)


def _worth(choices: Choices, price: Floats) -> Floats:
    """Layers less the price of the chips, [choice, row]."""
    worth: Floats = choices.layers[:, None] - price[:, choices.node_class].T * choices.chips[:, None]
    return worth
