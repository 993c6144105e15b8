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

The longest of what follows, O = max_s o[s], is in every step beside each of the rows, as all stages meet
before. Sums are cut into brackets, and so is O; within S1 <= S < S2 the rows are asked with S1, and within
O1 <= O <= O2 with max(o[s], O1) in the place of o[s], of stages with o[s] <= O2 alone. D is counted in whole
ticks, each stage rounded down: with e = q ticks D lies between its count and e above it. The first row, as a
function of D, falls, then stands, then rises: its least is where it begins to rise, or as near to that as can
be.

Chips have prices lambda[c] >= 0 in layers. A pipeline of L layers on no more than N[c] chips of each class
has   sum_s (n[s] - lambda[c[s]] g[s]) + sum_c lambda[c] N[c] >= L,   so that where no pipeline that keeps the
rows has a left side of L there is no plan: all lengths whose most is less are closed. Stages of one class, as
many chips and as many ticks count as one that is best in all: that only lets more pipelines be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.dual import in_pieces
from planner.search.meshes.lines import Lines
from planner.search.meshes.places import Ints
from planner.search.meshes.walks import MeshWalks
from planner.search.meshes.ways import Bools, Ways
from planner.tolerances import BOUND_TOL


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

    def some(self, numbers: Ints) -> Choices:
        """Some of them."""
        return Choices(*(values[numbers] for values in vars(self).values()))


class Holding:
    """Pipelines whose steps are no longer than a limit, for brackets of the sum of their stages."""

    def __init__(
        self,
        walks: MeshWalks,
        limit_ms: float,
        low: Floats,
        high: Floats,
        tick_ms: float,
        follows: tuple[Floats, Floats] | None = None,
        is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Brackets [row] lie between `low` and `high`; `limit_ms` is without what every plan adds.

        `follows` are the edges, [row] each, between which the longest of what follows the pipeline lies.
        Once `is_up` no more is listed, and nothing may be asked of it.
        """
        self.walks, self.limit, self.tick = walks, limit_ms * (1 + BOUND_TOL), tick_ms
        self.low, self.high = low * (1 - BOUND_TOL), high * (1 + BOUND_TOL)
        least, most = follows if follows is not None else (np.zeros(len(low)), np.full(len(low), np.inf))
        self.least_follow, self.most_follow = least * (1 - BOUND_TOL), most * (1 + BOUND_TOL)
        self.width = int(self.high.max() / tick_ms) + 2
        self.lengths = walks.lengths
        self._length_at = {int(p) - 1: i for i, p in enumerate(self.lengths)}
        self.inner: list[Choices] = []
        self.first: dict[int, Choices] = {}
        self.ways: list[Ways] = []
        """[place] ways of inner stages."""
        self.ends: dict[int, Ways] = {}
        """By place, ways of first stages; all lead to point 0."""
        self.is_cut = self._list_ways(is_up)
        self._most: list[Floats] = []

    def keep(self, rows: Bools) -> None:
        """Forget the other brackets."""
        self.low, self.high = self.low[rows], self.high[rows]
        self.least_follow, self.most_follow = self.least_follow[rows], self.most_follow[rows]
        self.ways = [ways.of_rows(rows) for ways in self.ways]
        self.ends = {q: ways.of_rows(rows) for q, ways in self.ends.items()}

    def _list_ways(self, is_up: Callable[[], bool]) -> bool:
        """Choices and ways by place that stages are reached by and lead somewhere; whether it was cut."""
        reached = np.zeros((len(self.low), self.width), dtype=np.bool_)
        reached[:, 0] = True
        for q in range(self.walks.longest):
            if is_up():
                return True
            if q in self._length_at:
                self.first[q] = self._choices(self.walks.first, q, is_first=True)
                self.ends[q] = self._ways_of(self.first[q], q, reached, is_first=True)
            if q + 1 < self.walks.longest:
                self.inner.append(self._choices(self.walks.inner, q, is_first=False))
                ways = self._ways_of(self.inner[q], q, reached, is_first=False)
                self.ways.append(ways)
                reached = np.zeros_like(reached)
                reached.ravel()[ways.end] = True
        useful = np.zeros_like(reached)
        for q in range(self.walks.longest - 1, -1, -1):
            if q < len(self.ways):
                self.ways[q] = self.ways[q].some(useful.ravel()[self.ways[q].end])
                useful = np.zeros_like(reached)
                useful.ravel()[self.ways[q].start] = True
            if q in self.ends:
                useful.ravel()[self.ends[q].start] = True
        return False

    def _ways_of(self, choices: Choices, q: int, reached: Bools, *, is_first: bool) -> Ways:
        """Where a stage of each choice may lie, and where it leads to."""
        ticks = np.flatnonzero(reached.any(axis=0))
        # A few choices at a time, as all of them at all points would take gigabytes.
        pieces = in_pieces(len(choices.ticks), len(self.low) * len(ticks))
        found = []
        for piece in pieces:
            fits = self._fits(choices.some(piece), q, ticks, is_first=is_first) & reached[:, ticks]
            choice, row, at = np.nonzero(fits)
            found.append(np.stack([piece[choice], row, ticks[at]]))
        choice, row, behind = np.concatenate(found or [np.zeros((3, 0), dtype=np.int64)], axis=1)
        ahead = np.zeros_like(behind) if is_first else behind + choices.ticks[choice]
        return Ways.sort(choice, row, behind, ahead, self.width)

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

    def _fits(self, choices: Choices, q: int, count: Ints, *, is_first: bool) -> Bools:
        """Whether each choice keeps its rows with `count` ticks behind it, [choice, row, count]."""
        m = self.walks.num_microbatches
        behind, error = count * self.tick, q * self.tick
        t, f, b = (values[:, None, None] for values in (choices.time, choices.forward, choices.backward))
        hop, more = choices.least_hop[:, None, None], choices.most_hop[:, None, None]
        longer = np.maximum(f, b)
        follow = choices.follow[:, None, None]
        reached = follow <= self.most_follow[:, None]
        follow = np.maximum(follow, self.least_follow[:, None])
        k, r = divmod(m - 1, q + 1)
        if is_first:
            total = behind + choices.ticks[:, None, None] * self.tick
            inside = (
                reached & (total <= self.high[:, None]) & (total + error + self.tick >= self.low[:, None])
            )
            # Nothing lies before it, so that the rows rise with what lies behind.
            x = behind + hop
            step = np.maximum(m * t, (k + 1) * (t + x) + r * longer)
            if m >= q + 2:
                step = np.maximum(step, m * t + np.maximum(x - q * f, 0.0) + np.maximum(x - q * b, 0.0))
            last = choices.reduce[:, None, None] + follow
            return np.asarray(inside & (step + last <= self.limit))
        low = self.low[:, None]
        if m >= q + 2:
            x = np.clip(q * longer - hop, behind, behind + error)
            waits = np.maximum(x + hop - q * f, 0.0) + np.maximum(x + hop - q * b, 0.0)
            step = low - x - more - t + m * t + waits
            step = np.maximum(step, low + k * (t + behind + hop) + r * longer)
        else:
            step = np.maximum(low - behind - error - more - t + m * t, low + (m - 1) * longer)
        reached = reached & (behind + choices.ticks[:, None, None] * self.tick <= self.high[:, None])
        return np.asarray(reached & (step + follow <= self.limit))

    def most(self, price: Floats) -> Floats:
        """Most layers less the price of their shares, [length, row]; `price` is [row, kind] of a share."""
        paid = price @ self.walks.shares.taken.T
        ends = np.full((len(self.lengths), len(self.low)), -np.inf)
        most = np.full((len(self.low), self.width), -np.inf)
        most[:, 0] = 0.0
        self._most = [most]
        for q in range(self.walks.longest):
            if q in self.ends:
                found = self.ends[q].best(most, _worth(self.first[q], paid))
                ends[self._length_at[q]] = found[:, 0]
            if q < len(self.ways):
                most = self.ways[q].best(most, _worth(self.inner[q], paid))
                self._most.append(most)
        return ends

    def traced(self, row: int, length: int, price: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes and layers of the pipeline that holds most, of a length by its number, first stage first."""
        last, at = int(self.lengths[length]) - 1, 0
        paid = price @ self.walks.shares.taken.T
        order, split = [], []
        for q in range(last, -1, -1):
            choices, ways = (self.first[q], self.ends[q]) if q == last else (self.inner[q], self.ways[q])
            here = ways.into(row, at)
            choice, behind = ways.choice[here], ways.behind[here]
            best = int(np.argmax(self._most[q][row, behind] + _worth(choices, paid)[choice, row]))
            at = int(behind[best])
            order.append(int(choices.shape[choice[best]]))
            split.append(int(choices.layers[choice[best]]))
        return tuple(order), tuple(split)

    def longest_follow(self, order: tuple[int, ...], split: tuple[int, ...]) -> float:
        """The longest of what follows a pipeline on any of its stages."""
        last = len(order) - 1
        places = self.walks.inner.follow.shape[1] - 1
        found = [self.walks.first.follow[order[0], min(last, places), split[0]]]
        found += [
            self.walks.inner.follow[k, min(last - s, places), n]
            for s, (k, n) in enumerate(zip(order, split, strict=True))
            if s
        ]
        return float(max(found))


def _worth(choices: Choices, paid: Floats) -> Floats:
    """Layers less the price of the shares, [choice, row]; `paid` is [row, shape]."""
    worth: Floats = choices.layers[:, None] - paid[:, choices.shape].T
    return worth
