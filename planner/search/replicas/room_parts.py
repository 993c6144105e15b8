"""Boxes of pipelines as they are told apart round by round, and the intervals of time that they are of.

`planner.search.replicas.whole_rooms` says which are looked at, `planner.search.replicas.room_boxes` what a
pipeline of one gains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools
from planner.search.replicas.room_boxes import Places, RoomBoxes
from planner.search.replicas.room_floors import RoomFloors
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL, ROUNDING_TOL

MANY_PLACES = 12
"""Places from which on they are looked at as one first. A guess."""
TOGETHER = 100
"""Boxes that are bounded together, and whose rooms are found together."""


@dataclass(frozen=True)
class Round:
    """How boxes are told apart."""

    ratio: float
    """Of the ends of a box's times at most."""
    is_exact: bool
    """Whether all layers are told apart, where else they are priced."""


ROUNDS = Round(1.03, False), Round(1.01, False), Round(1.001, True)
"""In the first one a box holds several numbers of replicas. Guesses."""
Times = tuple[Floats, Floats]
"""Lower and upper ends of intervals of time [ms]."""


@dataclass(frozen=True)
class Part:
    """Boxes of one kind that are told apart alike."""

    number: int
    """Rounds that they went through."""
    places: Places
    boxes: RoomBoxes
    left: Floats
    """Most that one replica of each box gains [micro-batches]."""
    once: Bools
    """Which boxes (once) says more of."""

    def gains(self, replicas: int, batch: int) -> tuple[Floats, Ints, Ints]:
        """Most gains with each number of micro-batches, the share of the batch, and the number of the box."""
        boxes = self.boxes
        count = boxes.most_m - boxes.least_m + 1
        at = np.repeat(np.arange(len(boxes)), count)
        m = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count) + boxes.least_m[at]
        sequences = replicas * self.places.size
        gain = sequences * np.minimum(self.left[at], m - boxes.worth[at])
        own = m * sequences < batch
        return gain[own], (m * sequences)[own], at[own]

    def at(self, rows: Ints) -> Part:
        """Some of the boxes."""
        return Part(self.number, self.places, self.boxes.at(rows), self.left[rows], self.once[rows])


def gathered(parts: list[Part]) -> list[Part]:
    """Boxes of the same places together, as far as that is not too many."""
    by_places: dict[Places, list[Part]] = {}
    for part in parts:
        by_places.setdefault(part.places, []).append(part)
    joined = list[Part]()
    for places, own in by_places.items():
        boxes = RoomBoxes.join([part.boxes for part in own])
        left, once = (np.concatenate([getattr(part, name) for part in own]) for name in ("left", "once"))
        order = np.argsort(boxes.low, kind="stable")
        all_of = Part(own[0].number, places, boxes, left, once)
        joined += [all_of.at(order[i : i + TOGETHER]) for i in range(0, len(order), TOGETHER)]
    return joined


def bounded(places: Places, boxes: RoomBoxes, deadline_ms: float, loss: float, of_round: int) -> Part:
    """Boxes with what pipelines of each that lose `loss` or less gain at most, by the row that says more.

    Parameters
    ----------
    of_round
        Number of the round, from 0.
    """
    sequences = places.replicas * places.size
    loss_m = loss / sequences

    def most(boxes: RoomBoxes) -> Floats:
        most, longest, open_ones = places.most(boxes, deadline_ms), places.longest, np.arange(len(boxes))
        left = np.full(len(boxes), np.inf)
        if places.num_places >= MANY_PLACES:
            rough = RoomFloors(places, boxes, is_rough=True)
            # Longer chains lose more.
            longest = rough.most_stages(most + loss_m + COUNT_TOL * boxes.most_m)
            left = most - rough.by_stages.min(axis=0)
            open_ones = np.flatnonzero(left >= -loss_m)
        if len(open_ones):
            own, at_most = boxes.at(open_ones, once=boxes.once), most[open_ones]
            floors = RoomFloors(places, own, longest)
            least = floors.by_stages.min(axis=0)
            if ROUNDS[of_round].is_exact:
                least = np.maximum(least, floors.of_chains(at_most + loss_m))
            left[open_ones] = np.minimum(left[open_ones], at_most - least)
        return left

    left, once = most(boxes), np.zeros(len(boxes), dtype=np.bool_)
    # Where there are more micro-batches than stages and (twice) says little, stages are hardly uneven.
    rows = np.flatnonzero((left > -loss_m) & (boxes.least_m <= places.longest))
    if len(rows):
        other = most(boxes.at(rows, once=True))
        once[rows] = other < left[rows]
        left[rows] = np.minimum(left[rows], other)
    return Part(of_round + 1, places, boxes, left, once)


def joined(times: list[Times]) -> Times:
    """Intervals in ascending order, those that touch as one."""
    low, high = (np.concatenate(ends) for ends in zip(*times, strict=True))
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    starts = np.flatnonzero(np.append(True, low[1:] > reach[:-1]))
    return low[starts], reach[np.append(starts[1:], len(low)) - 1]


def cut(low: float, high: float, ratio: float) -> Times:
    """Pieces of an interval with equal ratios of their ends, no wider than a ratio."""
    count = max(int(np.ceil(np.log(high / low) / np.log(ratio))), 1)
    edges = low * (high / low) ** (np.arange(count + 1) / count)
    # Rounding must not leave a gap.
    return edges[:-1] * (1 - ROUNDING_TOL), edges[1:] * (1 + ROUNDING_TOL)


def within(times_ms: Floats, within: Times, ratio: float) -> Times:
    """The least intervals that hold some times within others, no wider than a ratio."""
    low, high = [], []
    for first, last in zip(*within, strict=True):
        begin, end = np.searchsorted(times_ms, first), np.searchsorted(times_ms, last, side="right")
        while begin < end:
            stop = min(np.searchsorted(times_ms, times_ms[begin] * ratio, side="right"), end)
            low.append(times_ms[begin])
            high.append(times_ms[stop - 1])
            begin = stop
    return np.array(low), np.array(high)
