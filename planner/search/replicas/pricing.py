"""The chain that runs its share soonest: all pipelines at once, without listing any.

At prices lambda[c] of a chip of class c, in sequences, a chain of stages on t(s) chips is to run the
sequences that its chips are worth, in W / b = sum_s lambda[c(s)] t(s) / b micro-batches of b, rounded up to
m. Let T be the least time of any chain. Where all chips together are worth the batch, some pipeline of every
mix runs at least what its chips are worth, so that no mix is done before T.

Let s be the last stage in pipeline order that takes tau[s] >= a, where [a, a'] holds the time of the slowest
stage, and q the stages behind s. The rows (partial, e = s), (work) and, for m = 1, (window) of
`formulations.pipeline_rows` read, with h the sends at a stage (of one way, to either side),

    T >= m tau[s] + sum_{i>s} (2 t[i] + 2 h[i] - tau[s]) + 2 h[s] + up        (partial), m >= q + 2
    T >= (m' + 1) / 2 tau[s] + sum_{i>s} (t[i] + h[i]) + h[s] + up            (window), m >= m'
    T >= m tau[s] + up                                                        (work)
    up = sum_{i<s} (t[i] + h[i]) + h[s]

((window) is the mean of that row and its mirror for one window, k = 0, at m' <= q + 1; more micro-batches
take no less.) For m in [m', m''] a box counts phi of (partial), or of (window) where m' < q + 2, and 1 - phi
of (work). Of what it then counts for m tau[s], tau[s] - a is taken m' times, and of m a, or (1 - phi) m a
with (window), any y >= 0 leaves at least

    y W / b + (a - y) m'       y <= a     (m'' for m' where y > a)

All of it is a sum over the stages, so that the least over all chains,
with whole layers and memory by the place in the pipeline, is a shortest path over (stages behind, layers
placed, where s is). A box is refined where its best chain asks for it: another y towards the highest bound,
as a concave function of it, less phi where what lies behind would shorten the chain, and else two pieces, cut
where the chain leaves most between this and what it takes itself: at the micro-batches that its chips are
worth, which are to be whole, or in the middle of [a, a'].

References
----------
Prices of columns that are not listed: M. Luebbecke, J. Desrosiers, "Selected topics in column generation",
Operations Research 53(6), 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Boxes, Column, Found
from planner.search.replicas.chains import Chains
from planner.search.replicas.paths import Paths
from planner.search.replicas.refining import CLOSE, Asked, refined
from planner.search.replicas.space import Ints

COARSE = 1.25
"""Ratio of the ends of a box's times at first."""
LONGEST = 1e6
"""The same of the box of the longest times."""
WIDE = 6, 5
"""The same of its micro-batches."""
TOGETHER = 80
"""Boxes that are evaluated together, those of the least bounds first."""
MOST_BOXES = 3000
"""Boxes that are evaluated in one look."""
COLUMNS = 12
"""Chains that one look returns."""


@dataclass(frozen=True)
class Priced:
    """What one look at prices found."""

    bound_ms: float
    """No chain runs what its chips are worth sooner."""
    columns: list[Column]
    """Chains that are done soonest."""


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

    def worth(self, column: Column) -> float:
        """Sequences that the chips of a chain are worth."""
        return float(np.dot(self.price, column.chips))

    def take(self, chain: Found | None) -> None:
        """Keep a chain."""
        if chain is None:
            return
        column = chain.column
        time_ms = column.time_ms(self.worth(column))
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


def _pieces(
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
            box, worth = boxes.at(np.array([row])), look.worth(chain.column)
            pieces, line = refined(box, float(now[row]), chain, worth, lines[row])
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
        self.first = self._first_boxes()
        self.evaluated = 0

    def soonest(self, price: Floats, limit_ms: float, enough_ms: float = 0.0) -> Priced:
        """Least time of a chain that runs what its chips are worth.

        Parameters
        ----------
        price
            Sequences that a chip of each class is worth.
        limit_ms
            Times from which on nothing needs to be known.
        enough_ms
            Time below which it is enough to know some chain.
        """
        look = _Look(price, limit_ms)
        pool = self._open(self.first, np.zeros(len(self.first)), [Asked()] * len(self.first), look)
        looked = 0
        while len(pool[0]) and looked < MOST_BOXES and look.best_ms >= enough_ms and not self.is_up():
            taken, rest = _least_of(pool, look)
            boxes, values, asked = taken
            looked += len(boxes)
            now, chains = self.paths.soonest(boxes, price, limit_ms)
            values = np.maximum(values, now)
            for chain in chains:
                look.take(chain)
            pieces = self._open(*_pieces(boxes, values, now, chains, asked, look), look)
            pool = Boxes.join([pieces[0], rest[0]]), np.append(pieces[1], rest[1]), pieces[2] + rest[2]
        self.evaluated += looked
        return Priced(min(look.shut_ms, float(pool[1].min(initial=np.inf))), look.columns())

    def _open(self, boxes: Boxes, values: Floats, lines: list[Asked], look: _Look) -> _Open:
        """Boxes that the least worth of a layer leaves open, with their bounds."""
        values = np.maximum(values, self._quick(boxes, look.price))
        rows = np.flatnonzero(values < look.limit_ms)
        return boxes.at(rows), values[rows], [lines[row] for row in rows.tolist()]

    def _first_boxes(self) -> Boxes:
        """Intervals of micro-batches and of time."""
        parts = [Boxes.none()]
        chains = self.chains
        for size in dict.fromkeys(kind.microbatch_size for kind in chains.kinds):
            least, most = 1, chains.batch // size
            while least <= most:
                last = min(least * WIDE[0] // WIDE[1], most)
                kind = chains.kind_of(size, least)
                if kind is not None:
                    parts.append(self._boxes_of(kind, least, last))
                least = last + 1
        return Boxes.join(parts)

    def _boxes_of(self, kind: int, least_m: int, most_m: int) -> Boxes:
        times = self.paths.least_ms[kind][:, 1:]
        finite = times[np.isfinite(times)]
        if not len(finite):
            return Boxes.none()
        edges = [float(finite.min())]
        while edges[-1] <= float(finite.max()):
            edges.append(edges[-1] * COARSE)
        # Stages at some places take longer than the least.
        edges.append(edges[-1] * LONGEST)
        low, same = np.array(edges[:-1]), np.ones(len(edges) - 1, dtype=np.int64)
        high = np.array(edges[1:])
        return Boxes(same * kind, same * least_m, same * most_m, low, high, low, np.ones(len(low)))

    def _quick(self, boxes: Boxes, price: Floats) -> Floats:
        """Bound of every box by the least worth of a layer, inf where its chips are worth too much, [box]."""
        values = np.full(len(boxes), np.inf)
        worth, num_layers = self.paths.worth(price), self.paths.num_layers
        for kind in np.unique(boxes.kind).tolist():
            rows = np.flatnonzero(boxes.kind == kind)
            times = self.paths.least_ms[kind][:, 1:]
            each = (worth[kind][:, None] / np.arange(1, num_layers + 1)).ravel()
            order = np.argsort(times, axis=None)
            least = np.minimum.accumulate(each[order])
            at = np.searchsorted(times.ravel()[order], boxes.high[rows], side="right") - 1
            part = boxes.at(rows)
            m = np.where(at >= 0, num_layers * least[np.maximum(at, 0)], np.inf)
            time = self.chains.after_ms[kind] + part.low * np.maximum(m, part.least_m)
            values[rows] = np.where(m > part.most_m * (1 + 1e-9), np.inf, time)
        return values
