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

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.choices import Choices, list_choices
from planner.search.meshes.places import Ints
from planner.search.meshes.spans import spans_of
from planner.search.meshes.walks import MeshWalks
from planner.search.meshes.ways import Bools, RowWays, few, most_within
from planner.tolerances import BOUND_TOL


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
        self.ways: list[list[RowWays]] = []
        """[place][row] ways of inner stages."""
        self.first: dict[int, Choices] = {}
        self.spans: dict[int, tuple[Ints, Ints]] = {}
        """By place, between how many ticks behind it each first stage keeps its rows, [choice, row]."""
        self.is_cut = self._list_ways(is_up)
        self._most: list[Floats] = []

    def keep(self, rows: Bools) -> None:
        """Forget the other brackets."""
        self.low, self.high = self.low[rows], self.high[rows]
        self.least_follow, self.most_follow = self.least_follow[rows], self.most_follow[rows]
        kept = np.flatnonzero(rows).tolist()
        self.ways = [[ways[row] for row in kept] for ways in self.ways]
        self.spans = {q: (low[:, rows], high[:, rows]) for q, (low, high) in self.spans.items()}

    def _list_ways(self, is_up: Callable[[], bool]) -> bool:
        """Choices and ways by place that stages are reached by and lead somewhere; whether it was cut."""
        walks, rows = self.walks, range(len(self.low))
        reached = np.zeros((len(self.low), self.width), dtype=np.bool_)
        reached[:, 0] = True
        listed = []
        for q in range(walks.longest):
            if is_up():
                return True
            if q in self._length_at:
                self.first[q] = list_choices(walks, walks.first, q, self.limit, self.tick, is_first=True)
                self.spans[q] = spans_of(self, self.first[q], q, is_first=True)
            if q + 1 == walks.longest:
                break
            choices = list_choices(walks, walks.inner, q, self.limit, self.tick, is_first=False)
            low, high = spans_of(self, choices, q, is_first=False)
            ways = [RowWays.list((low[:, row], high[:, row]), reached[row]) for row in rows]
            ticks = choices.ticks.astype(few(self.width))
            reached = np.zeros_like(reached)
            for row, (choice, behind) in enumerate(ways):
                reached[row, behind + ticks[choice]] = True
            self.inner.append(choices)
            listed.append((ways, ticks))
        useful = np.zeros_like(reached)
        self.ways = [[] for _ in listed]
        for q in range(walks.longest - 1, -1, -1):
            if q < len(listed):
                ways, ticks = listed.pop()
                self.ways[q] = [RowWays.sort(*ways[row], ticks, useful[row]) for row in rows]
                useful = np.zeros_like(useful)
                for row in rows:
                    useful[row, self.ways[q][row].behind] = True
            if q in self.spans:
                useful |= self._within(self.spans[q])
        return False

    def _within(self, spans: tuple[Ints, Ints]) -> Bools:
        """Points within any of the spans, [row, point]."""
        low, high = spans
        choice, row = np.nonzero(low <= high)
        edges = np.zeros((len(self.low), self.width + 1), dtype=np.int64)
        np.add.at(edges, (row, low[choice, row]), 1)
        np.add.at(edges, (row, high[choice, row] + 1), -1)
        return np.asarray(np.cumsum(edges, axis=1)[:, :-1] > 0)

    def most(self, price: Floats) -> Floats:
        """Most layers less the price of their shares, [length, row]; `price` is [row, kind] of a share."""
        paid = price @ self.walks.shares.taken.T
        ends = np.full((len(self.lengths), len(self.low)), -np.inf)
        most = np.full((len(self.low), self.width), -np.inf)
        most[:, 0] = 0.0
        self._most = [most]
        for q in range(self.walks.longest):
            if q in self.spans:
                worth = self.first[q].worth(paid).T + most_within(most, *self.spans[q])
                ends[self._length_at[q]] = worth.max(axis=0, initial=-np.inf)
            if q < len(self.ways):
                worth, before = self.inner[q].worth(paid), most
                most = np.full_like(before, -np.inf)
                for row, ways in enumerate(self.ways[q]):
                    ways.best(before[row], worth[row], most[row])
                self._most.append(most)
        return ends

    def traced(self, row: int, length: int, price: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes and layers of the pipeline that holds most, of a length by its number, first stage first."""
        last = int(self.lengths[length]) - 1
        paid = price @ self.walks.shares.taken.T
        low, high = (edge[:, row : row + 1] for edge in self.spans[last])
        most = self._most[last][row]
        worth = self.first[last].worth(paid[row : row + 1])[0] + most_within(most[None], low, high)[:, 0]
        chosen = int(np.argmax(worth))
        begin, end = int(low[chosen, 0]), int(high[chosen, 0])
        at = begin + int(np.argmax(most[begin : end + 1]))
        order, split = [int(self.first[last].shape[chosen])], [int(self.first[last].layers[chosen])]
        for q in range(last - 1, -1, -1):
            choices, ways = self.inner[q], self.ways[q][row]
            here = ways.into(at)
            choice, behind = ways.choice[here], ways.behind[here]
            worth = choices.worth(paid[row : row + 1])[0]
            best = int(np.argmax(self._most[q][row, behind] + worth[choice]))
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
