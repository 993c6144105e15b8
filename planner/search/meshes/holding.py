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

                  S - x + max(0, m - 1 - q) t + min(q, m - 1) tau + o <= T    for t[i] >= tau, i <= s   (slow)

and the first stage the same with nothing before it; its reduction counts as time of it for those behind. The
left sides never fall where f, b or t = f + b grow, so that least times of n layers serve, and hops as in
`planner.search.meshes.walks`: what one adds is shared by both of its stages.

Row (slow) says that a stage waits for slower ones before it: (through) with e = k = s, or (flush), in which
max f + max b, over the stages up to s, is no less than their largest t. It is what keeps slow stages from the
front of short pipelines of few micro-batches.

The longest of what follows, O = max_s o[s], is in every step beside each of the rows, as all stages meet
before. Sums are cut into brackets, and so are O and the time tau = max_s t[s] of the slowest stage; within
S1 <= S < S2 the rows are asked with S1, and within O1 <= O <= O2 with max(o[s], O1) in the place of o[s], of
stages with o[s] <= O2 alone. Within tau1 <= tau <= tau2 no stage takes longer than tau2 and one no less than
tau1: those behind it keep (slow) with tau1, so that points before and behind it are told apart.

D is counted in whole ticks, each stage rounded down: with e = q ticks D lies between its count and e above
it. The first row, as a function of D, falls, then stands, then rises: its least is where it begins to rise,
or as near to that as can be.

Chips have prices lambda[c] >= 0 in layers. A pipeline of L layers on no more than N[c] chips of each class
has   sum_s (n[s] - lambda[c[s]] g[s]) + sum_c lambda[c] N[c] >= L,   so that where no pipeline that keeps the
rows has a left side of L there is no plan: all lengths whose most is less are closed. Stages of one class, as
many chips and as many ticks count as one that is best in all: that only lets more pipelines be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.brackets import SLOWEST, SUM, Brackets
from planner.search.meshes.choices import Choices, list_choices
from planner.search.meshes.places import Ints
from planner.search.meshes.spans import least_behind_slow, spans_of
from planner.search.meshes.walks import MeshWalks
from planner.search.meshes.ways import Bools, Few, RowWays, few, list_ways, most_within
from planner.tolerances import BOUND_TOL

OF_A_WAY = 2
"""How often a way is gone through in a round, about."""


class Holding:
    """Pipelines whose steps are no longer than a limit, for brackets of the sum of their stages."""

    def __init__(
        self,
        walks: MeshWalks,
        limit_ms: float,
        brackets: Brackets,
        tick_ms: float,
        is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Pipelines of each bracket, [row]; `limit_ms` is without what every plan adds.

        Once `is_up` no more is listed, and nothing may be asked of it.
        """
        self.walks, self.limit, self.tick = walks, limit_ms * (1 + BOUND_TOL), tick_ms
        self.brackets, self.least, self.most = brackets, brackets.least, brackets.most
        self.width = int(self.most(SUM).max() / tick_ms) + 2
        """Ticks that are told apart: points from there on have passed the slowest stage."""
        self.begin = np.where(self.least(SLOWEST) > 0, 0, self.width)
        """[row] point behind the last stage; where nothing is known of the slowest it counts as passed."""
        self.lengths = walks.lengths
        self._length_at = {int(p) - 1: i for i, p in enumerate(self.lengths)}
        self.inner: list[Choices] = []
        self.ways: list[list[RowWays]] = []
        """[place][row] ways of inner stages."""
        self.first: dict[int, Choices] = {}
        self.ends: dict[int, tuple[Ints, Ints]] = {}
        """By place, between which points each first stage may lie, [choice, row]: each choice as the slowest
        stage, then each behind which that has been passed."""
        self.is_cut = self._list_ways(is_up)
        self._held: list[Floats] = []

    @property
    def num_ways(self) -> int:
        """Ways of all places and rows."""
        return sum(len(ways.choice) for of_place in self.ways for ways in of_place)

    def keep(self, rows: Bools) -> None:
        """Forget the other brackets."""
        self.brackets, self.begin = self.brackets.some(rows), self.begin[rows]
        self.least, self.most = self.brackets.least, self.brackets.most
        kept = np.flatnonzero(rows).tolist()
        self.ways = [[ways[row] for row in kept] for ways in self.ways]
        self.ends = {q: (low[:, rows], high[:, rows]) for q, (low, high) in self.ends.items()}

    def _list_ways(self, is_up: Callable[[], bool]) -> bool:
        """Choices and ways by place that stages are reached by and lead somewhere; whether it was cut."""
        walks, rows = self.walks, range(len(self.brackets))
        reached = np.zeros((len(rows), 2 * self.width), dtype=np.bool_)
        reached[rows, self.begin] = True
        listed = []
        for q in range(walks.longest):
            if is_up():
                return True
            if q in self._length_at:
                self.first[q] = list_choices(walks, walks.first, q, self.limit, self.tick, is_first=True)
                self.ends[q] = self._ends_of(self.first[q], q)
            if q + 1 < walks.longest:
                self.inner.append(list_choices(walks, walks.inner, q, self.limit, self.tick, is_first=False))
                listed.append(self._ways_of(self.inner[q], q, reached))
                reached = np.zeros_like(reached)
                for row in rows:
                    reached[row, listed[q][row][2]] = True
        useful = np.zeros_like(reached)
        self.ways = [[] for _ in listed]
        for q in range(walks.longest - 1, -1, -1):
            if q < len(listed):
                ways = listed.pop()
                self.ways[q] = [RowWays.sort(ways[row], useful[row]) for row in rows]
                useful = np.zeros_like(useful)
                for row in rows:
                    useful[row, self.ways[q][row].behind] = True
            if q in self.ends:
                useful |= _within(*self.ends[q], 2 * self.width)
        return False

    def _ways_of(self, choices: Choices, q: int, reached: Bools) -> list[list[Few]]:
        """Choices of all ways of a place, points behind them and ahead, by row."""
        low, high = spans_of(self, choices, q, is_first=False)
        behind_slow = np.maximum(low, least_behind_slow(self, choices, q))
        width, number = self.width, few(2 * self.width)
        ticks = choices.ticks.astype(number)
        listed = []
        for row, begin in enumerate(self.begin.tolist()):
            passed = list_ways((low[:, row], high[:, row]), reached[row, width:])
            ways = [(passed[0], passed[1] + number(width), passed[1] + ticks[passed[0]] + number(width))]
            if begin == 0:
                # The slowest is still to come, or is this one.
                kept = list_ways((behind_slow[:, row], high[:, row]), reached[row, :width])
                slow = np.where(choices.most_time >= self.least(SLOWEST)[row], high[:, row], -1)
                turned = list_ways((low[:, row], slow), reached[row, :width])
                ways.append((*kept, kept[1] + ticks[kept[0]]))
                ways.append((*turned, turned[1] + ticks[turned[0]] + number(width)))
            listed.append([np.concatenate(parts) for parts in zip(*ways, strict=True)])
        return listed

    def _ends_of(self, choices: Choices, q: int) -> tuple[Ints, Ints]:
        """Between which points first stages may end a pipeline, [2 choices, row]."""
        low, high = spans_of(self, choices, q, is_first=True)
        is_slow = (choices.most_time[:, None] >= self.least(SLOWEST)) & (self.begin == 0)
        passed = np.where(low <= high, high + self.width, 0)
        return np.concatenate([low, low + self.width]), np.concatenate([np.where(is_slow, high, 0), passed])

    def held(self, price: Floats) -> Floats:
        """Most layers less the price of their shares, [length, row]; `price` is [row, kind] of a share."""
        paid = price @ self.walks.shares.taken.T
        rows = len(self.brackets)
        ends = np.full((len(self.lengths), rows), -np.inf)
        held = np.full((rows, 2 * self.width), -np.inf)
        held[np.arange(rows), self.begin] = 0.0
        self._held = [held]
        self.walks.work += OF_A_WAY * self.num_ways
        for q in range(self.walks.longest):
            if q in self.ends:
                worth = np.tile(self.first[q].worth(paid).T, (2, 1)) + most_within(held, *self.ends[q])
                ends[self._length_at[q]] = worth.max(axis=0, initial=-np.inf)
            if q < len(self.ways):
                worth, before = self.inner[q].worth(paid), held
                held = np.full_like(before, -np.inf)
                for row, ways in enumerate(self.ways[q]):
                    ways.best(before[row], worth[row], held[row])
                self._held.append(held)
        return ends

    def traced(self, row: int, length: int, price: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes and layers of the pipeline that holds most, of a length by its number, first stage first."""
        last = int(self.lengths[length]) - 1
        paid = price[row : row + 1] @ self.walks.shares.taken.T
        low, high = (edge[:, row : row + 1] for edge in self.ends[last])
        held, first = self._held[last][row], self.first[last]
        worth = np.tile(first.worth(paid)[0], 2) + most_within(held[None], low, high)[:, 0]
        chosen = int(np.argmax(worth))
        begin, end = int(low[chosen, 0]), int(high[chosen, 0])
        at = begin + int(np.argmax(held[begin : end + 1]))
        chosen %= len(first.shape)
        order, split = [int(first.shape[chosen])], [int(first.layers[chosen])]
        for q in range(last - 1, -1, -1):
            choices, ways = self.inner[q], self.ways[q][row]
            here = ways.into(at)
            choice, behind = ways.choice[here], ways.behind[here]
            best = int(np.argmax(self._held[q][row, behind] + choices.worth(paid)[0][choice]))
            at = int(behind[best])
            order.append(int(choices.shape[choice[best]]))
            split.append(int(choices.layers[choice[best]]))
        return tuple(order), tuple(split)


def _within(low: Ints, high: Ints, points: int) -> Bools:
    """Points within any of the spans, [row, point]; spans are [choice, row]."""
    choice, row = np.nonzero(low <= high)
    edges = np.zeros((low.shape[1], points + 1), dtype=np.int64)
    np.add.at(edges, (row, low[choice, row]), 1)
    np.add.at(edges, (row, high[choice, row] + 1), -1)
    return np.asarray(np.cumsum(edges, axis=1)[:, :-1] > 0)
