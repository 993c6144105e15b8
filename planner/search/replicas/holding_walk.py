"""One run of `planner.search.replicas.holding`: from the last stage to the first, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.holding_places import Placed, Places
from planner.search.replicas.holding_rows import SumBracket
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
    taken_ms: Floats
    """What is left for others is less by that."""
    behind: Ints
    starts: list[int]
    """By the number behind where they begin, and the end of the last."""


@dataclass(frozen=True)
class _Groups:
    """Inner stages by ascending ticks; those of as many ticks count as one that is best in all, [group]."""

    ways: _Ways
    of_way: Ints
    """Number of the first way of each group."""
    first: Ints
    last: Ints
    ticks: Ints
    """What they add to the count."""
    taken_ms: Floats
    behind: Ints
    starts: list[int]


@dataclass(frozen=True)
class _Step:
    """Groups of inner stages of a pipeline that may be the best, and what each gains."""

    rows: Ints
    gain: Floats


class Walk:
    """Most that pipelines that keep the rows gain, up to what decides whether they are worth `need`."""

    def __init__(self, places: Places, asked: SumBracket, num_layers: int) -> None:
        self.places, self.asked, self.num_layers, self.longest = places, asked, num_layers, places.longest
        self.width = int(asked.high / asked.tick_ms) + 1
        self._left_ms = np.maximum(asked.high - np.arange(self.width) * asked.tick_ms, 0.0)
        self._closing, self._inner = self._list_closing(), self._list_inner()
        self._filled = [_filled(of.starts) for of in (self._closing, self._inner)]

    def run(self, mu: float) -> Most:
        """The most at a price of a layer; it is what decides where no pipeline gains more."""
        best = mu * self.num_layers - self.asked.need
        closing, inner = self._closing, self._inner
        gains = mu * closing.layers - closing.worth, self._group_gains(mu)
        rates, highest = self._rates(gains), self._highest(gains[0])
        most = np.full(self.width, -np.inf)
        most[0] = 0.0
        begin = end = 0
        states: list[Floats] = []
        trail: list[_Step] = []
        closed: tuple[int, int, int] | None = None
        for behind in range(self.longest):
            states.append(most)
            # Nothing ahead gains more a ms than the best rate there.
            band, rate = most[begin : end + 1], rates[behind]
            room = float((band + rate * self._left_ms[begin : end + 1]).max()) - best
            if float(band.max()) + highest[behind] > best:
                found = self._close(behind, gains[0], (most, begin, end), best)
                if found is not None:
                    best, closed = found[0], (behind, found[1], found[2])
            if behind + 1 == self.longest:
                break
            step = _step(inner, behind, gains[1], rate, room)
            most, begin, end = self._moved(step, most, begin, end)
            trail.append(step)
            if begin > end:
                break
            part = most[begin : end + 1]
            part[part + rates[behind + 1] * self._left_ms[begin : end + 1] < best] = -np.inf
            live = np.flatnonzero(part > -np.inf)
            if not len(live):
                break
            begin, end = begin + int(live[0]), begin + int(live[-1])
        return self._traced(mu, best, closed, states, trail)

    def _group_gains(self, mu: float) -> Floats:
        """What each group gains at most."""
        ways = self._inner.ways
        gain: Floats = mu * ways.layers - ways.worth
        return np.maximum.reduceat(gain, self._inner.of_way) if len(gain) else gain

    def _rates(self, gains: tuple[Floats, Floats]) -> list[float]:
        """Most that a stage gains a ms of the time that it counts, of those with so many behind or more."""
        most = np.zeros(self.longest)
        of_both = (self._closing.taken_ms, self._closing.starts), (self._inner.taken_ms, self._inner.starts)
        for (taken_ms, starts), gain, filled in zip(of_both, gains, self._filled, strict=True):
            if not len(gain):
                continue
            if (gain[taken_ms <= 0] > 0).any():
                # A stage that counts no tick: nothing is left out.
                return [BOUNDLESS] * self.longest
            rate = np.where(gain > 0, gain / np.where(taken_ms > 0, taken_ms, 1.0), 0.0)
            own = np.maximum.reduceat(rate, np.array(starts)[filled])
            most[filled] = np.maximum(most[filled], own)
        rates: list[float] = (np.maximum.accumulate(most[::-1])[::-1] * (1 + COUNT_TOL)).tolist()
        return rates

    def _highest(self, gain: Floats) -> list[float]:
        """Most that a first stage with so many behind gains."""
        most = np.full(self.longest, -np.inf)
        if len(gain):
            filled = self._filled[0]
            most[filled] = np.maximum.reduceat(gain, np.array(self._closing.starts)[filled])
        found: list[float] = most.tolist()
        return found

    def _range(self, low: Floats, high: Floats, placed: Placed) -> tuple[Ints, Ints]:
        """Counts of what is behind with which x may lie between two ends, first and last."""
        tick_ms, near = self.asked.tick_ms, COUNT_TOL * self.width
        first = np.ceil(np.maximum((low - placed.hop) / tick_ms - placed.behind - near, 0.0))
        last = np.floor(np.minimum(np.maximum((high - placed.hop) / tick_ms + near, -1.0), self.width - 1.0))
        return np.minimum(first, self.width).astype(np.int64), last.astype(np.int64)

    def _list_closing(self) -> _Ways:
        """First stages."""
        placed, own_ms, near = self.places.first, self.places.first_ms, COUNT_TOL * self.width
        first, last = self._range(np.zeros(len(own_ms)), placed.own_ms, placed)
        # The sum lies in the bracket, as many ticks above the count at most as stages are behind.
        least = np.ceil((self.asked.low - own_ms) / self.asked.tick_ms - placed.behind - near)
        greatest = np.floor((self.asked.high - own_ms) / self.asked.tick_ms + near)
        first = np.maximum(first, least.astype(np.int64))
        last = np.minimum(last, np.maximum(greatest, -1.0).astype(np.int64))
        return self._ways(placed, np.flatnonzero(first <= last), first, last, own_ms)

    def _list_inner(self) -> _Groups:
        """Inner stages."""
        placed, (ticks, order) = self.places.inner, self.places.ticked(self.asked.tick_ms)
        first, last = self._range(*self.places.inner_range(self.asked), placed)
        last = np.minimum(last, self.width - 1 - ticks)
        rows = order[first[order] <= last[order]]
        taken_ms: Floats = np.asarray(ticks * self.asked.tick_ms, dtype=np.float64)
        ways = self._ways(placed, rows, first, last, taken_ms)
        ticks = ticks[rows]
        differs = (np.diff(ticks, prepend=-1) != 0) | (np.diff(ways.behind, prepend=-1) != 0)
        of_way = np.flatnonzero(differs)
        first, last = ways.first, ways.last
        if len(of_way):
            first, last = np.minimum.reduceat(first, of_way), np.maximum.reduceat(last, of_way)
        behind = ways.behind[of_way]
        starts = np.searchsorted(behind, np.arange(self.longest + 1)).tolist()
        return _Groups(ways, of_way, first, last, ticks[of_way], ways.taken_ms[of_way], behind, starts)

    def _ways(self, placed: Placed, rows: Ints, first: Ints, last: Ints, taken_ms: Floats) -> _Ways:
        """Some of the stages of all places, by the number behind."""
        of, behind = placed.stages, placed.behind[rows]
        starts = np.searchsorted(behind, np.arange(self.longest + 1)).tolist()
        at = of.item[rows], of.layers[rows], of.worth[rows], first[rows], last[rows]
        return _Ways(*at, taken_ms[rows], behind, starts)

    def _close(
        self, behind: int, gains: Floats, state: tuple[Floats, int, int], best: float
    ) -> tuple[float, int, int] | None:
        """The best pipeline whose first stage comes now: what it gains, its way, and the count there."""
        most, begin, end = state
        ways, start = self._closing, self._closing.starts[behind]
        own = slice(start, ways.starts[behind + 1])
        gain = gains[own]
        first, last = np.maximum(ways.first[own], begin), np.minimum(ways.last[own], end)
        highest = float(most[begin : end + 1].max())
        found = None
        for j in np.flatnonzero((first <= last) & (highest + gain > best)).tolist():
            low = int(first[j])
            part = most[low : int(last[j]) + 1]
            at = int(part.argmax())
            value = float(part[at] + gain[j])
            if value > best:
                best = value
                found = value, start + j, low + at
        return found

    def _moved(self, step: _Step, most: Floats, begin: int, end: int) -> tuple[Floats, int, int]:
        """The most with one more stage, and the counts that it lies between."""
        moved, inner = np.full(self.width, -np.inf), self._inner
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
        closing, inner, ways = self._closing, self._inner, self._inner.ways
        stages = [(int(closing.item[j]), int(closing.layers[j]))]
        while behind > 0:
            behind -= 1
            step, value = trail[behind], states[behind + 1][at]
            before = at - inner.ticks[step.rows]
            may = (before >= inner.first[step.rows]) & (before <= inner.last[step.rows])
            from_value = np.where(may, states[behind][np.maximum(before, 0)] + step.gain, -np.inf)
            k = int(np.argmin(np.abs(from_value - value)))
            group = int(step.rows[k])
            start = int(inner.of_way[group])
            end = int(inner.of_way[group + 1]) if group + 1 < len(inner.of_way) else len(ways.layers)
            j = start + int((mu * ways.layers[start:end] - ways.worth[start:end]).argmax())
            stages.append((int(ways.item[j]), int(ways.layers[j])))
            at = int(before[k])
        return Most(best, sum(n for _, n in stages), tuple(stages))


def _filled(starts: list[int]) -> Ints:
    """Numbers behind with which there are any."""
    return np.flatnonzero(np.diff(starts))


def _step(inner: _Groups, behind: int, gains: Floats, rate: float, room: float) -> _Step:
    """Inner stages that may be part of a better pipeline."""
    start, end = inner.starts[behind], inner.starts[behind + 1]
    gain = gains[start:end]
    rows = np.flatnonzero(rate * inner.taken_ms[start:end] - gain <= room)
    return _Step(start + rows, gain[rows])
