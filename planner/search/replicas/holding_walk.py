"""One run of `planner.search.replicas.holding`: from the last stage to the first, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.replicas.holding_rows import ChainStages, SumBracket, first_high, inner_range
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

Chain = tuple[tuple[int, int], ...]
"""Item and layers of every stage, in pipeline order; the layers need not be all."""
BOUNDLESS = 1e300
"""What a stage gains a ms that counts none."""


@dataclass(frozen=True)
class Most:
    """Most that pipelines gain at a price of a layer, and layers and stages of that one."""

    gain: float
    layers: int
    chain: Chain | None


@dataclass(frozen=True)
class _Ways:
    """Stages that may stand at a place, arrays [way], where the count of what is behind is in some range."""

    item: Ints
    layers: Floats
    worth: Floats
    first: Ints
    last: Ints
    ticks: Ints
    """What inner ones add to the count."""
    taken_ms: Floats
    """What is left for others is less by that."""


@dataclass(frozen=True)
class _Inner:
    """Inner stages by ascending ticks; those of as many ticks count as one that is best in all, [group]."""

    ways: _Ways
    starts: Ints
    """Number of the first way of each group."""
    first: Ints
    last: Ints
    ticks: Ints
    taken_ms: Floats


@dataclass(frozen=True)
class _Step:
    """Groups of inner stages of a pipeline that may be the best, and what each gains."""

    inner: _Inner
    rows: Ints
    gain: Floats


class Walk:
    """Most that pipelines that keep the rows gain, up to what decides whether they are worth `need`."""

    def __init__(
        self, choices: Callable[..., ChainStages], asked: SumBracket, num_layers: int, longest: int
    ) -> None:
        """`choices` gives the stages with some number behind."""
        self._choices, self.asked, self.num_layers, self.longest = choices, asked, num_layers, longest
        self.width = int(asked.high / asked.tick_ms) + 1
        self._left_ms = np.maximum(asked.high - np.arange(self.width) * asked.tick_ms, 0.0)
        self._inner: list[_Inner] = []
        self._closing: list[_Ways] = []
        """By the stages behind, inner ones and first ones."""
        self._rated = self._list_rated()

    def run(self, mu: float) -> Most:
        """The most at a price of a layer; it is what decides where no pipeline gains more."""
        best = mu * self.num_layers - self.asked.need
        rates = self._rates(mu)
        most = np.full(self.width, -np.inf)
        most[0] = 0.0
        begin = end = 0
        states: list[Floats] = []
        trail: list[_Step] = []
        closed: tuple[int, int, int] | None = None
        for behind in range(self.longest):
            states.append(most)
            # Nothing ahead gains more a ms than the best rate there.
            band, rate = most[begin : end + 1], rates[min(behind, len(rates) - 1)]
            room = float((band + rate * self._left_ms[begin : end + 1]).max()) - best
            found = self._close(behind, mu, (most, begin, end), best)
            if found is not None:
                best, closed = found[0], (behind, found[1], found[2])
            if behind + 1 == self.longest:
                break
            step = self._step(behind, mu, rate, room)
            most, begin, end = self._moved(step, most, begin, end)
            trail.append(step)
            if begin > end:
                break
            part = most[begin : end + 1]
            ahead = rates[min(behind + 1, len(rates) - 1)] * self._left_ms[begin : end + 1]
            part[part + ahead < best] = -np.inf
            live = np.flatnonzero(part > -np.inf)
            if not len(live):
                break
            begin, end = begin + int(live[0]), begin + int(live[-1])
        return self._traced(mu, best, closed, states, trail)

    def _list_rated(self) -> tuple[Floats, Floats, Floats, Ints]:
        """Layers, worth and time of all stages of places that differ, and where those of each place start."""
        parts: list[tuple[NDArray[np.floating], ...]] = []
        starts: list[int] = []
        size = 0
        last: tuple[ChainStages, ChainStages] | None = None
        self._place_of: list[int] = []
        # With as many behind as micro-batches and more, no stage holds more of them.
        for behind in range(min(self.asked.least_m + 1, self.longest)):
            both = self._choices(behind, is_first=True), self._choices(behind, is_first=False)
            if behind < 2 or last is None or both[0] is not last[0] or both[1] is not last[1]:
                taken = self._first_ms(both[0], behind), self._ticks(both[1], behind) * self.asked.tick_ms
                starts.append(size)
                for choices, own_ms in zip(both, taken, strict=True):
                    parts.append((choices.layers, choices.worth, np.asarray(own_ms)))
                    size += len(choices)
            last = both
            self._place_of.append(len(starts) - 1)
        layers, worth, taken_ms = (np.concatenate(values) for values in zip(*parts, strict=True))
        return layers, worth, taken_ms, np.array(starts)

    def _rates(self, mu: float) -> Floats:
        """Most that a stage gains a ms of the time that it counts, of those with so many behind or more."""
        layers, worth, taken_ms, starts = self._rated
        gain = mu * layers - worth
        if not len(gain) or (gain[taken_ms <= 0] > 0).any():
            # A stage that counts no tick: nothing is left out.
            return np.array([BOUNDLESS])
        rate = np.where(gain > 0, gain / np.where(taken_ms > 0, taken_ms, 1.0), 0.0)
        of_place = np.maximum.reduceat(rate, np.minimum(starts, len(rate) - 1))
        least: Floats = np.maximum.accumulate(of_place[::-1])[::-1][self._place_of] * (1 + COUNT_TOL)
        return least

    def _first_ms(self, choices: ChainStages, behind: int) -> Floats:
        taken: Floats = choices.times + choices.hop * (behind > 0) + choices.after
        return taken

    def _ticks(self, choices: ChainStages, behind: int) -> Ints:
        """Whole ticks of inner stages with their sends."""
        both = choices.times + choices.hop * (1 + (behind > 0))
        ticks: Ints = np.floor(both / self.asked.tick_ms * (1 - COUNT_TOL)).astype(np.int64)
        return ticks

    def _range(self, low: Floats, high: Floats, choices: ChainStages, behind: int) -> tuple[Ints, Ints]:
        """Counts of what is behind with which x may lie between two ends, first and last."""
        hop, tick_ms, near = choices.hop * (behind > 0), self.asked.tick_ms, COUNT_TOL * self.width
        first = np.ceil(np.maximum((low - hop) / tick_ms - behind - near, 0.0))
        last = np.floor(np.minimum(np.maximum((high - hop) / tick_ms + near, -1.0), self.width - 1.0))
        return np.minimum(first, self.width).astype(np.int64), last.astype(np.int64)

    def _closing_of(self, behind: int) -> _Ways:
        """First stages with some others behind them."""
        while len(self._closing) <= behind:
            q = len(self._closing)
            choices = self._choices(q, is_first=True)
            own_ms: Floats = self._first_ms(choices, q)
            first, last = self._range(np.zeros(len(choices)), first_high(self.asked, choices, q), choices, q)
            # The sum lies in the bracket, as many ticks above the count at most as stages are behind.
            near = COUNT_TOL * self.width
            least = np.ceil((self.asked.low - own_ms) / self.asked.tick_ms - q - near)
            greatest = np.floor((self.asked.high - own_ms) / self.asked.tick_ms + near)
            first = np.maximum(first, least.astype(np.int64))
            last = np.minimum(last, np.maximum(greatest, -1.0).astype(np.int64))
            self._closing.append(
                _Ways(choices.item, choices.layers, choices.worth, first, last, 0 * first, own_ms)
            )
        return self._closing[behind]

    def _inner_of(self, behind: int) -> _Inner:
        """Inner stages with some others behind them."""
        while len(self._inner) <= behind:
            q = len(self._inner)
            choices = self._choices(q, is_first=False)
            ticks = self._ticks(choices, q)
            first, last = self._range(*inner_range(self.asked, choices, q), choices, q)
            last = np.minimum(last, self.width - 1 - ticks)
            rows = np.flatnonzero(first <= last)
            rows = rows[np.argsort(ticks[rows], kind="stable")]
            choices, ticks, first, last = choices.at(rows), ticks[rows], first[rows], last[rows]
            taken_ms = np.asarray(ticks * self.asked.tick_ms, dtype=np.float64)
            ways = _Ways(choices.item, choices.layers, choices.worth, first, last, ticks, taken_ms)
            starts = np.flatnonzero(np.diff(ticks, prepend=-1))
            if len(starts):
                first, last = np.minimum.reduceat(first, starts), np.maximum.reduceat(last, starts)
            self._inner.append(_Inner(ways, starts, first, last, ticks[starts], taken_ms[starts]))
        return self._inner[behind]

    def _close(
        self, behind: int, mu: float, state: tuple[Floats, int, int], best: float
    ) -> tuple[float, int, int] | None:
        """The best pipeline whose first stage comes now: what it gains, its way, and the count there."""
        most, begin, end = state
        ways = self._closing_of(behind)
        gain = mu * ways.layers - ways.worth
        first, last = np.maximum(ways.first, begin), np.minimum(ways.last, end)
        highest = float(most[begin : end + 1].max())
        found = None
        for j in np.flatnonzero((first <= last) & (highest + gain > best)).tolist():
            low = int(first[j])
            part = most[low : int(last[j]) + 1]
            at = int(part.argmax())
            value = float(part[at] + gain[j])
            if value > best:
                best = value
                found = value, j, low + at
        return found

    def _step(self, behind: int, mu: float, rate: float, room: float) -> _Step:
        """Inner stages that may be part of a better pipeline."""
        inner = self._inner_of(behind)
        gain = mu * inner.ways.layers - inner.ways.worth
        if len(inner.starts):
            gain = np.maximum.reduceat(gain, inner.starts)
        rows = np.flatnonzero(rate * inner.taken_ms - gain <= room)
        return _Step(inner, rows, gain[rows])

    def _moved(self, step: _Step, most: Floats, begin: int, end: int) -> tuple[Floats, int, int]:
        """The most with one more stage, and the counts that it lies between."""
        moved, inner = np.full(self.width, -np.inf), step.inner
        first, last = np.maximum(inner.first[step.rows], begin), np.minimum(inner.last[step.rows], end)
        may = np.flatnonzero(first <= last)
        if not len(may):
            return moved, 0, -1
        first, last, ticks = first[may], last[may] + 1, inner.ticks[step.rows[may]]
        columns = (first, last, first + ticks, last + ticks, step.gain[may])
        for low, high, to, until, gain in zip(*(column.tolist() for column in columns), strict=True):
            part = moved[to:until]
            np.maximum(part, most[low:high] + gain, out=part)
        return moved, int(columns[2].min()), int(columns[3].max()) - 1

    def _traced(
        self,
        mu: float,
        best: float,
        closed: tuple[int, int, int] | None,
        states: list[Floats],
        trail: list[_Step],
    ) -> Most:
        """The stages of the best pipeline, from the first to the last."""
        if closed is None:
            return Most(best, 0, None)
        behind, j, at = closed
        closing = self._closing[behind]
        stages = [(int(closing.item[j]), int(closing.layers[j]))]
        while behind > 0:
            behind -= 1
            step, value = trail[behind], states[behind + 1][at]
            inner, rows = step.inner, step.rows
            before = at - inner.ticks[rows]
            may = (before >= inner.first[rows]) & (before <= inner.last[rows])
            from_value = np.where(may, states[behind][np.maximum(before, 0)] + step.gain, -np.inf)
            k = int(np.argmin(np.abs(from_value - value)))
            start, ways = int(inner.starts[rows[k]]), inner.ways
            same = ways.ticks[start:] == inner.ticks[rows[k]]
            gain = np.where(same, mu * ways.layers[start:] - ways.worth[start:], -np.inf)
            j = start + int(gain.argmax())
            stages.append((int(ways.item[j]), int(ways.layers[j])))
            at = int(before[k])
        return Most(best, sum(n for _, n in stages), tuple(stages))
