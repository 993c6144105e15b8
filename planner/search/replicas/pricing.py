"""The chain that runs its share soonest: all pipelines at once, without listing any.

At prices lambda[c] of a chip of class c, in sequences, a chain of stages on t(s) chips is to run the
sequences that its chips are worth, in W / b = sum_s lambda[c(s)] t(s) / b micro-batches of b, rounded up to
m. Let T be the least time of any chain. Where all chips together are worth the batch, some pipeline of every
mix runs at least what its chips are worth, so that no mix is done before T.

Let s be the last stage in pipeline order that takes tau[s] >= a, where [a, a'] holds the time of the slowest
stage, and q the stages behind s. The rows (partial, e = s) and (work) of `formulations.pipeline_rows` read,
with h the sends at a stage (of one way, to either side),

    T >= m tau[s] + sum_{i>s} (2 t[i] + 2 h[i] - tau[s]) + 2 h[s] + up        (partial), m >= q + 2
    T >= m tau[s] + sum_{i>s} (t[i] + h[i] - f[s]) + h[s] + up                (once), m >= q + 2
    T >= tau[s] + sum_{i>s} (t[i] + h[i]) + h[s]
         + sum_{i>=j} (t[i] + h[i]) - g[j] + up                               (deep), m >= m', q >= m' - 1
    T >= m tau[s] + up                                                        (work)
    up = sum_{i<s} (t[i] + h[i]) + h[s]

(once) is the row (partial) with A by the way there and back, and Z by the backwards of s: it takes f[s] off
for each stage behind, where (partial) counts them twice and takes tau[s] off. With rho the most share of the
forward in the time of a stage that lies in [a, a'], rho tau[s] is no less than f[s].

(deep) is (partial) of the stage j that m' - 2 stages lie behind, instead of s: the last m' - 1 stages count
twice, all others once, as m' tau[j] - (m' - 2) tau[j] = 2 tau[j]; g[j] is the send to j from the stage before
it. For m' = 1 there is no j, and one micro-batch goes through all stages.

Here what follows the end of stage 0 adds to up. What follows the end of s adds instead where the step is
followed to there, with the forward f[i] alone of the stages ahead:

    up' = sum_{i<s} (f[i] + h[i] / 2) + h[s] / 2

A box counts theta of that and 1 - theta of the other. What follows a stage is its exposed reduction, the
tied embeddings and its part of the tail, all with the replicas of the kind.

The pipelines of a mix then exchange their gradients P. With d replicas, whose stages send w[s] bytes a
second each, a pipeline takes no less than P / (d sum_s w[s]) (`planner.search.replicas.space`), and by the
tangent of that convex function at any omega > 0

    exchange >= 2 P / (d omega) - sum_s P w[s] / (d omega^2)

with the most replicas of the kind: a term of each stage again. A box may count it in the place of what all
pipelines of any mix exchange, which is added to every bound.

With m in [m', m''], (work), (once) and (partial) count what lies behind s alpha = 0, 1 and 2 times; where
m' < q + 2 the same alpha counts psi = alpha / 2 of (deep), and of (work) the rest. Of what a row then counts
for m tau[s], tau[s] - a is taken m' times, and of m a, or (1 - psi) m a with (deep), any y >= 0 leaves at
least

    y W / b + (a - y) m'       y <= a     (m'' for m' where y > a)

Where micro-batches are few, the slow stage may stand ahead of others that are nearly as slow and say more.
So a box may count two stages: s is the last one that takes nu a or more, with 0 < nu <= 1, and r, s or a
stage ahead of it, takes a or more, as some stage does. T is no less than the row (work) of r, nor than any
row of s, which hold with nu a in the place of a, and so for any share kappa

    T >= kappa (m tau[r] + sum_{i<r} (t[i] + h[i]) + h[r] + what follows stage 0) + (1 - kappa) (row of s)

Stages ahead of r count as before, those between r and s 1 - kappa of that, those behind s 1 - kappa of what
they count there; a micro-batch takes kappa a + (1 - kappa) nu a at least. With nu = 1 and kappa = 0 the slow
stage s stands alone.

All of it is a sum over the stages, so that the least over all chains, with whole layers and memory by the
place in the pipeline, is a shortest path over (stages behind, layers placed, where s is). Up to s there is
one path for each alpha. When s comes, behind it q stages with l layers, the most that they say counts:

    min over chains of max over alpha
        >= min over (q, l) of max over alpha of min over chains through (q, l)

A box is refined where its best chain asks for it: another y towards the highest bound, as a concave function
of it, other theta or omega, or nu and kappa, where they say more of the chain found, and else two pieces, cut
where the chain leaves most between this and what it takes itself with one number of replicas: by those
numbers, at the micro-batches that its chips are worth, which are to be whole, or in the middle of [a, a'].

Before any path a box is bounded by its chips alone: d replicas of a chain have no more of a class than the
cluster, so that the layers go to the classes where one is worth least, as far as N[c] / d chips of each
reach.

References
----------
Prices of columns that are not listed: M. Luebbecke, J. Desrosiers, "Selected topics in column generation",
Operations Research 53(6), 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Boxes, Column, Found, Priced, time_intervals
from planner.search.replicas.chains import Chains
from planner.search.replicas.paths import Paths
from planner.search.replicas.refining import CLOSE, Asked, refined
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

WIDE = 6, 5
"""Ratio of the ends of a box's micro-batches at first."""
TOGETHER = 80
"""Boxes that are evaluated together, those of the least bounds first."""
MOST_BOXES = 3000
"""Boxes that are evaluated in one look at prices of which it is known that they do not suffice."""
COLUMNS = 12
"""Chains that one look returns."""


_Open = tuple[Boxes, Floats, list[Asked]]
"""Boxes, bounds of them, and what was asked of them."""


class _Look:
    """What one look has found."""

    def __init__(self, price: Floats, limit_ms: float) -> None:
        self.price, self.limit_ms = price, limit_ms
        self.best_ms = np.inf
        """When the best chain is done."""
        self.shut_ms = limit_ms
        """Least bound of the boxes that are closed."""
        self._found: dict[tuple[object, ...], tuple[float, Column]] = {}

    def take(self, chain: Found | None) -> None:
        """Keep a chain."""
        if chain is None:
            return
        column = chain.column
        time_ms = column.time_ms(chain.worth)
        self.best_ms = min(self.best_ms, time_ms)
        known = self._found.get(column.key)
        if known is None or column.most_m > known[1].most_m:
            self._found[column.key] = time_ms, column

    @property
    def cutoff_ms(self) -> float:
        """Bound from which on a box is closed."""
        return min(self.limit_ms, self.best_ms * (1 - CLOSE))

    def columns(self) -> list[Column]:
        """The chains that are done soonest."""
        order = sorted(self._found.values(), key=lambda entry: entry[0])
        return [column for _, column in order[:COLUMNS]]


def _least_of(pool: _Open, look: _Look) -> tuple[_Open, _Open]:
    """The boxes of least bounds and the others, those closed that cannot be better."""
    boxes, values, asked = pool
    order = np.argsort(values, kind="stable")
    closed = values[order] >= look.cutoff_ms
    look.shut_ms = min(look.shut_ms, float(values[order[closed]].min(initial=np.inf)))
    order = order[~closed]

    def of(rows: Ints) -> _Open:
        return boxes.at(rows), values[rows], [asked[row] for row in rows.tolist()]

    return of(order[:TOGETHER]), of(order[TOGETHER:])


def _joined(one: _Open, other: _Open) -> _Open:
    """All boxes of two lists."""
    return Boxes.join([one[0], other[0]]), np.append(one[1], other[1]), one[2] + other[2]


def _pieces(
    of: Chains,
    boxes: Boxes,
    values: Floats,
    now: Floats,
    chains: list[Found | None],
    lines: list[Asked],
    look: _Look,
) -> _Open:
    """Open boxes refined, the others closed."""
    children, floors, asked = [Boxes.none()], [], []
    for row, chain in enumerate(chains):
        pieces: list[Boxes] = []
        if values[row] < look.cutoff_ms and chain is not None:
            box = boxes.at(np.array([row]))
            pieces, line = refined(of, box, float(now[row]), chain, lines[row], look.cutoff_ms)
            asked += [line] * len(pieces)
        if not pieces:
            look.shut_ms = min(look.shut_ms, float(values[row]))
        children += pieces
        floors += [float(values[row])] * len(pieces)
    return Boxes.join(children), np.array(floors), asked


class Pricing:
    """Looks for the chain that is done soonest."""

    def __init__(self, chains: Chains, is_up: Callable[[], bool] = lambda: False) -> None:
        self.chains, self.is_up = chains, is_up
        self.paths = Paths(chains, is_up)
        self._unlisted = self._first_boxes()
        self.first = Boxes.none()
        self.evaluated = 0
        self._left: tuple[_Open, _Look] | None = None
        """Where the last look ended."""

    def soonest(
        self, price: Floats, limit_ms: float, enough_ms: float = 0.0, most_boxes: float = np.inf
    ) -> Priced:
        """Least time of a chain that runs what its chips are worth, with what it exchanges beyond any mix.

        Parameters
        ----------
        price
            Sequences that a chip of each class is worth.
        limit_ms
            Times from which on nothing needs to be known.
        enough_ms
            Time below which it is enough to know some chain.
        most_boxes
            Boxes after which the look ends; the next one goes on where it ended.
        """
        if not self.list_first():
            return Priced(0.0, [])
        pool, look = self._begin(price, limit_ms)
        looked = 0
        while looked < most_boxes and self._goes_on(pool, look, enough_ms):
            if looked >= MOST_BOXES and look.best_ms < limit_ms:
                # Other prices are asked for: at these no bound reaches the limit.
                break
            taken, rest = _least_of(pool, look)
            pool = _joined(taken, rest)
            boxes, values, asked = taken
            now, chains = self.paths.soonest(boxes, price, look.cutoff_ms)
            if self.is_up():
                # Boxes that no time was left for stay open, and count as not looked at.
                break
            looked += len(boxes)
            values = np.maximum(values, now)
            for chain in chains:
                look.take(chain)
            pieces = _pieces(self.chains, boxes, values, now, chains, asked, look)
            pool = _joined(self._open(*pieces, look), rest)
        self.evaluated += looked
        self._left = pool, look
        return Priced(min(look.shut_ms, float(pool[1].min(initial=np.inf))), look.columns())

    def _begin(self, price: Floats, limit_ms: float) -> tuple[_Open, _Look]:
        """The open boxes of a look, where it ended if the last one was at the same prices."""
        if self._left is not None:
            pool, look = self._left
            if limit_ms <= look.limit_ms and np.array_equal(look.price, price):
                look.limit_ms = limit_ms
                return pool, look
        look = _Look(price, limit_ms)
        return self._open(self.first, np.zeros(len(self.first)), [Asked()] * len(self.first), look), look

    def _goes_on(self, pool: _Open, look: _Look, enough_ms: float) -> bool:
        """Whether open boxes may still raise the bound above that of the closed ones."""
        least_ms = float(pool[1].min(initial=np.inf))
        return least_ms < look.shut_ms and look.best_ms >= enough_ms and not self.is_up()

    def _open(self, boxes: Boxes, values: Floats, lines: list[Asked], look: _Look) -> _Open:
        """Boxes that the least worth of a layer leaves open, with their bounds."""
        values = np.maximum(values, self._quick(boxes, look.price))
        rows = np.flatnonzero(values < look.limit_ms)
        return boxes.at(rows), values[rows], [lines[row] for row in rows.tolist()]

    def list_first(self) -> bool:
        """Whether all first boxes are listed; where time is up before, the next look goes on with it."""
        for part in self._unlisted:
            self.first = Boxes.join([self.first, part])
            if self.is_up():
                return False
        return True

    def _first_boxes(self) -> Iterator[Boxes]:
        """Intervals of micro-batches and of time, with any number of replicas that they leave room for."""
        chains = self.chains
        for size in chains.replicas:
            least, most, kinds = 1, chains.batch // size, list[tuple[int | None, int, int]]()
            while least <= most:
                last = min(least * WIDE[0] // WIDE[1], most)
                kinds.append((chains.kind_of(size, least), least, last))
                least = last + 1
            # All are known before the tables of the first are made, which makes those of all.
            yield from (self.boxes_of(kind, first, last) for kind, first, last in kinds if kind is not None)

    def boxes_of(self, kind: int, least_m: int, most_m: int) -> Boxes:
        """Intervals of time of a kind, with some numbers of micro-batches."""
        times = self.paths.least(kind).times_ms[:, 1:]
        low, high = time_intervals(times[np.isfinite(times)])
        same = np.ones(len(low), dtype=np.int64)
        none = np.zeros(len(low))
        return Boxes(same * kind, same * least_m, same * most_m, low, high, low, none, none, 1 + none, none)

    def _quick(self, boxes: Boxes, price: Floats) -> Floats:
        """Bound of every box by the least worth of a chain, inf where its chips are worth too much, [box]."""
        values = np.full(len(boxes), np.inf)
        for number in np.unique(boxes.kind).tolist():
            rows = np.flatnonzero(boxes.kind == number)
            least, size = self.paths.least(number), self.chains.kinds[number].microbatch_size
            part = boxes.at(rows)
            m = least.worth_of_chain(price / size, self.paths.num_layers, part.high)
            time = least.after_ms + part.low * np.maximum(m, part.least_m)
            values[rows] = np.where(m > part.most_m * (1 + COUNT_TOL), np.inf, time)
        return values
