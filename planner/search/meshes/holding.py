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
    m >= q + 2    S + (m - 1 - q) t + q max(f[i], b[i]) + o <= T              for i <= s               (paced)
                  core[s] + r[s] + o <= T                                                              (own)

and the first stage the same with nothing before it; its reduction counts as time of it for those behind. The
left sides never fall where f, b or t = f + b grow, so that least times of n layers serve, and hops as in
`planner.search.meshes.walks`: what one adds is shared by both of its stages.

Row (slow) says that a stage waits for slower ones before it: (through) with e = k = s, or (flush), in which
max f + max b, over the stages up to s, is no less than their largest t. It is what keeps slow stages from the
front of short pipelines of few micro-batches. Row (paced) is (through) with e = s where P or Q is taken with
k = s, paced by the slow stage, and the other one with k = p - 1, the whole way down: x cancels. Row (own) is
(work), (window), (mirror) and (partial, e = s) up to the end of s itself, with its reduction r and without
what lies before it: what is asked of a first stage.

Let Z[s] = S - x - t be what lies before s, with the reduction r[0] of the first stage, and the *excess*
E = max(0, max_s r[s] - Z[s]) over the stages behind it, J one that has it. Every s >= J keeps the first four
rows with E more on the left: up to the end of J they are less by the backwards and hops back before J,
which are no more than Z[J] - r[0], and r[J] follows. So do (slow) and (paced) where the slow stage is no
earlier than J, as it then paces the backwards that J waits for. And S - x - t >= r[s] - E for every s.

The longest of what follows, O = max_s o[s], is in every step beside each of the rows, as all stages meet
before. Sums are cut into brackets, and so are O, E and the time tau = max_s t[s] of the slowest stage; within
S1 <= S < S2 the rows are asked with S1, and within O1 <= O <= O2 with max(o[s], O1) in the place of o[s], of
stages with o[s] <= O2 alone. Within tau1 <= tau <= tau2 no stage takes longer than tau2 and one no less than
tau1; of all that take no less, let pi be the longest of the longer passes. Within pi1 <= pi <= pi2 none of
them has a longer one than pi2, and one takes no less than tau1 with a pass of no less than pi1. Let K be the
first such stage: those behind it keep (slow) and (paced) with the least time and the least longer pass of
any stage with both between the edges, and none before it is such a stage. Where tau1 rises pi1 is forgotten,
as the stage that has that pass may be faster; pi2 holds for the slower ones as well.

Within E1 <= E <= E2 all keep S2 - x - t >= r - E2, and where E1 > 0 one has r - (S1 - x - t) >= E1. Let J be
the first one with r - Z >= E1: those behind it keep their rows with E1, those before it S2 - x - t >= r - E1.
Points before and behind K and J are told apart.

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
from planner.search.meshes.brackets import EXCESS, PACE, SLOWEST, SUM, Brackets
from planner.search.meshes.choices import Choices, list_choices
from planner.search.meshes.places import Ints
from planner.search.meshes.spans import least_behind_excess, least_behind_slow, spans_of
from planner.search.meshes.walks import MeshWalks
from planner.search.meshes.ways import Bools, Few, RowWays, few, list_ways, most_within, within
from planner.search.meshes.windows import Windows
from planner.tolerances import BOUND_TOL

SLOW_FIRST, EXCESS_FIRST, TO_EXCESS, TO_SLOW, PASSED = range(5)
"""Layers of points, from the last stage on: the slowest stage is still to come and the one with the excess
with it or later, or sooner; only the one with the excess is; only the slowest; neither."""
NUM_LAYERS, WAITS, BEHIND_EXCESS = 5, (SLOW_FIRST, EXCESS_FIRST, TO_SLOW), (TO_SLOW, PASSED)
BEFORE_SLOW = TO_EXCESS, PASSED
"""Layers of points before the slowest stage."""
TURNS = {
    SLOW_FIRST: (SLOW_FIRST, TO_EXCESS, PASSED),
    EXCESS_FIRST: (EXCESS_FIRST, TO_SLOW),
    TO_EXCESS: (TO_EXCESS, PASSED),
    TO_SLOW: (TO_SLOW, PASSED),
    PASSED: (PASSED,),
}
"""Layers that a stage may lead to."""

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
        windows: Windows | None = None,
    ) -> None:
        """Pipelines of each bracket, [row]; `limit_ms` is without what every plan adds.

        Once `is_up` no more is listed, and nothing may be asked of it. `windows` are what is left of choices.
        """
        self.walks, self.limit, self.tick = walks, limit_ms * (1 + BOUND_TOL), tick_ms
        self.windows = windows
        self.brackets, self.least, self.most = brackets, brackets.least, brackets.most
        self.width = int(self.most(SUM).max() / tick_ms) + 2
        """Ticks that are told apart: points from there on have passed the slowest stage."""
        knows_slow, knows_excess = brackets.knows_slow(), self.least(EXCESS) > 0
        begins = np.zeros((NUM_LAYERS, len(brackets)), dtype=np.bool_)
        begins[SLOW_FIRST] = begins[EXCESS_FIRST] = knows_slow & knows_excess
        begins[TO_EXCESS], begins[TO_SLOW] = knows_excess & ~knows_slow, knows_slow & ~knows_excess
        begins[PASSED] = ~knows_slow & ~knows_excess
        self.layers = np.arange(0 if knows_excess.any() else TO_SLOW, NUM_LAYERS)
        """Layers of points that are told apart."""
        self.begins = begins[self.layers].T
        """[row, layer] where pipelines begin; where nothing is known of a stage it counts as passed."""
        edges = (np.stack([self.least(one), self.most(one)], axis=1) for one in (SLOWEST, PACE))
        found = [walks.least_slow_ms(*both) for both in zip(*edges, strict=True)]
        self.slowest, self.pace = np.array(found).reshape(-1, 2).T
        """[row] least time of the slowest stage, and of its longer pass."""
        self.lengths = walks.lengths
        self.length_at = {int(p) - 1: i for i, p in enumerate(self.lengths)}
        self.inner: list[Choices] = []
        self.ways: list[list[RowWays]] = []
        """[place][row] ways of inner stages."""
        self.first: dict[int, Choices] = {}
        self.ends: dict[int, tuple[Ints, Ints]] = {}
        """By place, between which points each first stage may lie, [choice, row]: each choice as the slowest
        stage, then each behind which that has been passed."""
        self.is_cut = self._list_ways(is_up)
        self._held: list[Floats] = []
        self._ended: dict[int, Floats] = {}
        """By place, the most behind each first stage with its own, [2 choices, row]."""

    @property
    def num_ways(self) -> int:
        """Ways of all places and rows."""
        return sum(len(ways.choice) for of_place in self.ways for ways in of_place)

    def keep(self, rows: Bools) -> None:
        """Forget the other brackets."""
        self.brackets, self.begins = self.brackets.some(rows), self.begins[rows]
        self.least, self.most = self.brackets.least, self.brackets.most
        kept = np.flatnonzero(rows).tolist()
        self.ways = [[ways[row] for row in kept] for ways in self.ways]
        self.ends = {q: (low[:, rows], high[:, rows]) for q, (low, high) in self.ends.items()}

    def _list_ways(self, is_up: Callable[[], bool]) -> bool:
        """Choices and ways by place that stages are reached by and lead somewhere; whether it was cut."""
        walks, rows = self.walks, range(len(self.brackets))
        reached = np.zeros((len(rows), len(self.layers) * self.width), dtype=np.bool_)
        reached[:, :: self.width] = self.begins
        listed = []
        for q in range(walks.longest):
            if is_up():
                return True
            if q in self.length_at:
                self.first[q] = self._choices_of(q, is_first=True)
                self.ends[q] = self._ends_of(self.first[q], q)
            if q + 1 < walks.longest:
                self.inner.append(self._choices_of(q, is_first=False))
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
                useful[:, -2 * self.width :] |= within(*self.ends[q], 2 * self.width)
        return False

    def _choices_of(self, q: int, *, is_first: bool) -> Choices:
        """Choices of a place that keep their own rows and are left."""
        walks, window = self.walks, None
        if self.windows is not None:
            window = self.windows.first[q] if is_first else self.windows.inner[q]
        lines = walks.first if is_first else walks.inner
        return list_choices(walks, lines, q, self.limit, self.tick, window, is_first=is_first)

    def _ways_of(self, choices: Choices, q: int, reached: Bools) -> list[list[Few]]:
        """Choices of all ways of a place, points behind them and ahead, by row."""
        width, number = self.width, few(len(self.layers) * self.width)
        ticks, layers = choices.ticks.astype(number), self.layers.tolist()
        least_excess, listed = self.least(EXCESS), []
        can_be_slow, must_be_slow = choices.slow(self.brackets)
        excesses = (least_excess, 0.0) if len(layers) == NUM_LAYERS else (0.0, 0.0)
        before_excess = np.where(least_excess > 0, least_excess, self.most(EXCESS))
        spans = [
            spans_of(self, choices, q, excesses[0], is_first=False),
            spans_of(self, choices, q, excesses[1], before_excess, is_first=False),
        ]
        slow = [least_behind_slow(self, choices, q, excess) for excess in excesses]
        late = least_behind_excess(self, choices, q)
        for row in range(len(self.brackets)):
            is_slow, is_fast, ways = can_be_slow[:, row], ~must_be_slow[:, row], []
            for layer in layers:
                begin = (layer - layers[0]) * width
                seen = reached[row, begin : begin + width]
                if not seen.any():
                    continue
                low, high = (edge[:, row] for edge in spans[layer in BEHIND_EXCESS])
                if layer in BEFORE_SLOW:
                    high = np.where(is_fast, high, -1)
                for to in TURNS[layer]:
                    least, most = low, high
                    if layer in WAITS and to in WAITS:
                        least = np.maximum(low, slow[layer != SLOW_FIRST][:, row])
                    if layer in WAITS and to not in WAITS:
                        most = np.where(is_slow, high, -1)
                    if layer not in BEHIND_EXCESS and to in BEHIND_EXCESS:
                        least = np.maximum(least, late[:, row])
                    choice, behind = list_ways((least, most), seen)
                    ahead = behind + ticks[choice] + number((to - layers[0]) * width)
                    ways.append((choice, behind + number(begin), ahead))
            none = np.zeros(0, dtype=number)
            ways = ways or [(none.astype(few(len(choices.shape))), none, none)]
            listed.append([np.concatenate(parts) for parts in zip(*ways, strict=True)])
        return listed

    def _ends_of(self, choices: Choices, q: int) -> tuple[Ints, Ints]:
        """Between which points first stages may end a pipeline, [2 choices, row]."""
        low, high = spans_of(self, choices, q, is_first=True)
        is_slow, must_be_slow = choices.slow(self.brackets)
        passed = np.where((low <= high) & ~must_be_slow, high + self.width, 0)
        return np.concatenate([low, low + self.width]), np.concatenate([np.where(is_slow, high, 0), passed])

    def held(self, price: Floats, asked: Bools | None = None) -> Floats:
        """Most layers less the price of their shares, [length, row]; `price` is [row, kind] of a share.

        Rows that are not asked hold -inf.
        """
        paid = price @ self.walks.shares.taken.T
        rows = len(self.brackets)
        ends = np.full((len(self.lengths), rows), -np.inf)
        held = np.full((rows, len(self.layers) * self.width), -np.inf)
        every = np.flatnonzero(np.ones(rows) if asked is None else asked).tolist()
        held[every, :: self.width] = np.where(self.begins[every], 0.0, -np.inf)
        self._held = [held]
        for q in range(self.walks.longest):
            if q in self.ends:
                most = most_within(held[:, -2 * self.width :], *self.ends[q])
                most += np.tile(self.first[q].worth(paid).T, (2, 1))
                ends[self.length_at[q]] = most.max(axis=0, initial=-np.inf)
                self._ended[q] = most
            if q < len(self.ways):
                worth, before = self.inner[q].worth(paid), held
                held = np.full_like(before, -np.inf)
                for row in every:
                    ways = self.ways[q][row]
                    ways.best(before[row], worth[row], held[row])
                    self.walks.work += OF_A_WAY * len(ways.choice)
                self._held.append(held)
        return ends

    def held_at(self, q: int) -> Floats:
        """The most that lies behind a stage with q stages behind it, as found last, [row, point]."""
        return self._held[q]

    def traced(self, row: int, length: int, price: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes and layers of the pipeline that holds most, of a length by its number, first stage first."""
        last = int(self.lengths[length]) - 1
        paid = self.walks.shares.taken @ price[row]
        before = self._held[last].shape[1] - 2 * self.width
        held, first = self._held[last][row, before:], self.first[last]
        chosen = int(np.argmax(self._ended[last][:, row]))
        begin, end = (int(edge[chosen, row]) for edge in self.ends[last])
        at = before + begin + int(np.argmax(held[begin : end + 1]))
        chosen %= len(first.shape)
        order, split = [int(first.shape[chosen])], [int(first.layers[chosen])]
        for q in range(last - 1, -1, -1):
            choices, ways = self.inner[q], self.ways[q][row]
            here = ways.into(at)
            choice, behind = ways.choice[here], ways.behind[here]
            worth = choices.layers[choice] - paid[choices.shape[choice]]
            best = int(np.argmax(self._held[q][row, behind] + worth))
            at = int(behind[best])
            order.append(int(choices.shape[choice[best]]))
            split.append(int(choices.layers[choice[best]]))
        return tuple(order), tuple(split)
