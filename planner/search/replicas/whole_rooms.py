"""What no mix of whole pipelines undercuts, by the whole chips that they take, where chips are few.

The prices of `planner.search.replicas.mixes` let any fraction of a pipeline run, and what
`planner.search.replicas.shares` tells whole pipelines apart by are their shares of the batch alone. Here each
takes whole chips of each class, and a run of stages amid it whole hosts (`room_walk`).
Pipelines side by side are to fit into the cluster: `formulations.room_totals` says how many sequences they
run in all by a deadline. Fewer than the batch, and no mix is done by then.

At prices of a chip at which all are worth the batch S, a pipeline gains what it runs beyond what its chips
are worth. The gains of a mix are 0 or more in all, as its chips are worth S at most and it runs S. So where
the pipelines beside one of n sequences gain G[n] at most (`formulations.share_totals`), only those that gain
-G[n] or more are in a mix. That leaves few of them, of which the most that each room runs is found exactly.

Pipelines with d replicas are cut into boxes by the time of their slowest stage (`planner.search.replicas.
room_boxes`), in intervals that get narrower round by round, as far as stages differ at all. Boxes that are
not listed gain less than -g: with all gains of listed ones, of any share, g at most, these are in no mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from formulations.room_totals import most_together
from formulations.share_totals import most_beside
from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools
from planner.search.replicas.chains import Chains, Kind
from planner.search.replicas.pricing import Pricing
from planner.search.replicas.room_boxes import Places, RoomBoxes
from planner.search.replicas.room_floors import RoomFloors
from planner.search.replicas.room_walk import RoomWalk
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

MOST_ROOMS, MOST_SEQUENCES = 10_000, 2048
"""Rooms and sequences of a step up to which they are told apart."""
RATIOS = 1.03, 1.006, 1.0006
"""Ratio of the ends of a box's times, by round; in the first layers are priced, not told apart."""
FIRST_LOSS, MORE_LOSS = 0.05, 1.25
"""Share of the batch that a pipeline may lose at first, and ratio of the next one to the most any gains."""
TOGETHER = 100
"""Boxes that are bounded together, and whose rooms are found together."""
MOST_OPEN = 2000
"""Boxes whose rooms are looked at: where more stay open, prices are poor."""
LEAST_WAY = 1e-3
"""Relative distance to the bound below which no other deadline is looked at. All of these are guesses: they
say what is looked at, never what is proven."""


@dataclass(frozen=True)
class _Part:
    """Boxes of one kind that are told apart alike."""

    places: Places
    boxes: RoomBoxes
    gain: Floats
    """Most that a pipeline of each box gains [sequences]."""
    once: Bools
    """Which boxes (once) says more of."""

    def gains(self, batch: int) -> tuple[Floats, Ints, Ints]:
        """Most gains with each number of micro-batches, the share of the batch, and the number of the box."""
        boxes = self.boxes
        count = boxes.most_m - boxes.least_m + 1
        at = np.repeat(np.arange(len(boxes)), count)
        m = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count) + boxes.least_m[at]
        sequences = self.places.replicas * self.places.size
        gain = np.minimum(self.gain[at], sequences * (m - boxes.worth[at]))
        own = m * sequences < batch
        return gain[own], (m * sequences)[own], at[own]


def are_few(chains: Chains) -> bool:
    """Whether there are so few rooms that all are told apart."""
    return int(np.prod(chains.available + 1)) <= MOST_ROOMS and chains.batch <= MOST_SEQUENCES


class WholeRooms:
    """Bounds on mixes of whole pipelines at one price."""

    def __init__(self, pricing: Pricing, price: Floats, is_up: Callable[[], bool] = lambda: False) -> None:
        """`price` is what a chip of each class is worth, all together the batch [sequences]."""
        self.chains, self.paths, self.price, self.is_up = pricing.chains, pricing.paths, price, is_up
        self.batch = self.chains.batch
        nodes = self.chains.problem.cluster.classes
        self.per_host = np.array([node_class.chips_per_node for node_class in nodes])
        self._places: dict[tuple[int, int], Places] = {}
        self._times: dict[int, Floats] = {}

    def improve(self, least_ms: float, most_ms: float) -> float:
        """The latest time, up to a last one, by which it was proven that no mix is done [ms].

        Parameters
        ----------
        least_ms, most_ms
            What is known already, and what it is to be raised to, both without the least exchange.
        """
        bound_ms, way = least_ms, 1.0
        while bound_ms < most_ms and not self.is_up():
            step_ms = way * (most_ms - bound_ms)
            if self.excludes(bound_ms + step_ms):
                bound_ms = most_ms if way == 1 else bound_ms + step_ms
            elif step_ms <= LEAST_WAY * bound_ms:
                break
            else:
                way /= 2
        return bound_ms

    def excludes(self, deadline_ms: float) -> bool:
        """Whether it was found that no mix of two or more pipelines is done by a deadline."""
        parts, beside = self._open(deadline_ms)
        if self.is_up():
            return False
        if not parts or sum(len(part.boxes) for part in parts) > MOST_OPEN:
            return not parts
        runs = self.most_runs(parts, beside, deadline_ms)
        return runs is not None and most_together(runs) < self.batch

    def _open(self, deadline_ms: float) -> tuple[list[_Part], Floats]:
        """Boxes that hold pipelines of a mix, and what others gain beside each share at most."""
        loss = FIRST_LOSS * self.batch
        intervals = {number: [(0.0, np.inf)] for number in self._kinds()}
        parts: list[_Part] = []
        beside = np.zeros(self.batch + 1)
        for ratio in RATIOS:
            while True:
                parts = []
                for number, own in intervals.items():
                    if self.is_up():
                        return [], beside
                    parts += self._parts(number, own, ratio, deadline_ms, loss)
                beside = most_beside(self._most_gains(parts))
                most = max(float(beside.max()), 0.0)
                if most <= loss * (1 + COUNT_TOL):
                    break
                # Pipelines that lose more may be in a mix as well.
                loss = MORE_LOSS * most
            loss = most
            parts = [part for part in (self._kept(part, beside) for part in parts) if len(part.boxes)]
            intervals = {}
            for part in parts:
                ends = zip(part.boxes.low.tolist(), part.boxes.high.tolist(), strict=True)
                intervals.setdefault(part.places.number, []).extend(ends)
        return parts, beside

    def _kinds(self) -> list[int]:
        """Kinds with one number of replicas that leave room for another pipeline."""
        chains = self.chains
        return [
            chains.number(Kind(size, i, i + 1))
            for size, degrees in chains.replicas.items()
            for i, degree in enumerate(degrees)
            if size * degree < self.batch and (chains.available >= degree).any()
        ]

    def _places_of(self, number: int, least_m: int) -> Places:
        """Stages of chains that run so many micro-batches or more, or a little fewer."""
        held = min(1 << (least_m.bit_length() - 1), self.chains.longest)
        held = self.chains.longest if least_m >= self.chains.longest else held
        known = self._places.get((number, held))
        if known is None:
            known = Places(self.chains, self.paths.least(number), number, held, self.price)
            self._places[number, held] = known
        return known

    def _times_ms(self, number: int) -> Floats:
        """All times of stages of a kind, however many micro-batches its chains run, ascending.

        With one stage behind or more, what holds h > 1 micro-batches at most takes as long as the stage with
        h - 1 behind it; only what never holds more than one is not among those of all places.
        """
        known = self._times.get(number)
        if known is None:
            ends = self._places_of(number, 1), self._places_of(number, self.chains.longest)
            known = np.unique(np.concatenate([places.times_ms() for places in ends]))
            self._times[number] = known
        return known

    def _parts(
        self,
        number: int,
        intervals: list[tuple[float, float]],
        ratio: float,
        deadline_ms: float,
        loss: float,
    ) -> list[_Part]:
        """Boxes of a kind within some intervals of time, but those that surely lose more than `loss`."""
        chains, least = self.chains, self.paths.least(number)
        low, high = _intervals(self._times_ms(number), intervals, ratio)
        size = chains.kinds[number].microbatch_size
        sequences = size * chains.most_replicas(number)
        worth = least.worth_of_chain(self.price / size, chains.num_layers, high)
        most_m = np.floor((deadline_ms - least.after_ms) / low * (1 + COUNT_TOL))
        most_m = np.minimum(most_m, (self.batch - 1) // sequences)
        own = np.flatnonzero(worth - loss / sequences <= most_m * (1 + COUNT_TOL))
        own = own[most_m[own] >= 1]
        least_m = np.maximum(np.ceil((worth[own] - loss / sequences) * (1 - COUNT_TOL)), 1)
        boxes = RoomBoxes(
            low[own],
            high[own],
            worth[own],
            np.minimum(least_m, most_m[own]).astype(np.int64),
            most_m[own].astype(np.int64),
        )
        places = np.array([id(self._places_of(number, m)) for m in boxes.least_m.tolist()])
        parts = []
        for key in np.unique(places).tolist():
            rows = np.flatnonzero(places == key)
            of = self._places_of(number, int(boxes.least_m[rows[0]]))
            for start in range(0, len(rows), TOGETHER):
                some = boxes.at(rows[start : start + TOGETHER])
                parts.append(_bounded(of, some, deadline_ms, loss, is_exact=ratio < RATIOS[0]))
        return parts

    def _most_gains(self, parts: list[_Part]) -> Floats:
        """Most that a pipeline of each share gains, [n]."""
        most = np.full(self.batch + 1, -np.inf)
        for part in parts:
            gain, share, _ = part.gains(self.batch)
            np.maximum.at(most, share, gain)
        return most

    def _kept(self, part: _Part, beside: Floats) -> _Part:
        """The boxes whose pipelines may be in a mix with what others gain."""
        gain, share, at = part.gains(self.batch)
        rows = np.unique(at[gain + beside[share] >= -COUNT_TOL * self.batch])
        return _Part(part.places, part.boxes.at(rows), part.gain[rows], part.once[rows])

    def most_runs(self, parts: list[_Part], beside: Floats, deadline_ms: float) -> Floats | None:
        """Most sequences that a pipeline runs by the chips that it takes, -inf for none, [.. class ..].

        None where there were too many, or time was up.
        """
        runs = np.full(tuple((self.chains.available + 1).tolist()), -np.inf)
        for part in parts:
            gain, share, at = part.gains(self.batch)
            least = np.full(len(part.boxes), np.inf)
            own = gain + beside[share] >= -COUNT_TOL * self.batch
            np.minimum.at(least, at[own], -beside[share[own]])
            walk = RoomWalk(part.places, self.price, self.per_host, self.is_up)
            for once in (False, True):
                rows = np.flatnonzero(part.once == once)
                if len(rows):
                    rooms = walk.most(part.boxes.at(rows, once=once), deadline_ms, least[rows])
                    if rooms is None:
                        return None
                    np.maximum.at(runs, tuple(rooms.chips.T), rooms.microbatches * walk.sequences)
        return runs


def _bounded(places: Places, boxes: RoomBoxes, deadline_ms: float, loss: float, *, is_exact: bool) -> _Part:
    """Boxes with what pipelines of each that lose `loss` or less gain at most, by the row that says more.

    Parameters
    ----------
    is_exact
        Whether the layers are told apart, which takes longer.
    """
    sequences = places.replicas * places.size

    def most(boxes: RoomBoxes) -> Floats:
        floors, most = RoomFloors(places, boxes), places.most(boxes, deadline_ms)
        least = floors.of_chains(most + loss / sequences) if is_exact else floors.by_stages.min(axis=0)
        gain: Floats = sequences * (most - least)
        return gain

    gain, once = most(boxes), np.zeros(len(boxes), dtype=np.bool_)
    # Where there are more micro-batches than stages and (twice) says little, stages are hardly uneven.
    rows = np.flatnonzero((gain > -loss) & (boxes.least_m <= places.longest))
    if len(rows):
        other = most(boxes.at(rows, once=True))
        once[rows] = other < gain[rows]
        gain[rows] = np.minimum(gain[rows], other)
    return _Part(places, boxes, gain, once)


def _intervals(times_ms: Floats, within: list[tuple[float, float]], ratio: float) -> tuple[Floats, Floats]:
    """The least intervals that hold some times within others, no wider than a ratio."""
    low, high = [], []
    for first, last in within:
        begin, end = np.searchsorted(times_ms, first), np.searchsorted(times_ms, last, side="right")
        while begin < end:
            stop = min(np.searchsorted(times_ms, times_ms[begin] * ratio, side="right"), end)
            low.append(times_ms[begin])
            high.append(times_ms[stop - 1])
            begin = stop
    return np.array(low), np.array(high)
