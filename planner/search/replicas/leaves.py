"""Boxes at one price, and what a pipeline of each gains at most by a deadline.

`planner.search.replicas.shares` has the mathematics.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Boxes
from planner.search.replicas.pricing import Pricing
from planner.search.replicas.refining import Asked
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

Objects = NDArray[np.object_]


class Leaves:
    """Boxes at one price that hold all pipelines, each with one number of replicas."""

    def __init__(self, boxes: Boxes, least: Floats, price: Floats, pricing: Pricing) -> None:
        self.price, self.pricing, self.chains = price, pricing, pricing.chains
        worth = self._worth(boxes)
        own = np.isfinite(worth)
        self.boxes, self.worth = boxes.at(own), worth[own]
        self.weight = self.boxes.low
        self.value = least[own] + self.weight * self.worth
        """Value and weight of the best bound of each."""
        self.asked = np.array([Asked() for _ in range(len(self.worth))], dtype=object)
        self.chain: Objects = np.full(len(self.worth), None, dtype=object)
        self.seen = np.zeros(len(self.worth), dtype=np.int64)
        """Times that a box was closed as far as was asked, by this deadline, or `STUCK`."""

    def _worth(self, boxes: Boxes) -> Floats:
        """Micro-batches that the chips of a replica are worth at least, [box]."""
        worth = np.full(len(boxes), np.inf)
        for number in np.unique(boxes.kind).tolist():
            rows = np.flatnonzero(boxes.kind == number)
            own = self.price / self.chains.kinds[number].microbatch_size
            high = boxes.high[rows]
            least = self.pricing.paths.least(number)
            worth[rows] = least.worth_of_chain(own, self.chains.num_layers, high)
        return worth

    def sequences(self) -> Ints:
        """d b of each, [box]."""
        kinds, chains = self.chains.kinds, self.chains
        by_kind = np.array([chains.most_replicas(k) * kind.microbatch_size for k, kind in enumerate(kinds)])
        found: Ints = by_kind[self.boxes.kind]
        return found

    def gains(self, rows: Ints, deadline_ms: float) -> tuple[Floats, Ints, Ints]:
        """Most that a pipeline of some boxes gains, its share, and number in `rows`, one for each of m."""
        boxes = self.boxes.at(rows)
        count = boxes.most_m - boxes.least_m + 1
        at = np.repeat(np.arange(len(rows)), count)
        m = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count) + boxes.least_m[at]
        sequences = self.sequences()[rows][at]
        chains = ((deadline_ms - self.value[rows]) / self.weight[rows])[at]
        gain = sequences * np.minimum(chains, m - self.worth[rows][at])
        gain[m * boxes.low[at] > deadline_ms * (1 + COUNT_TOL)] = -np.inf
        return gain, m * sequences, at

    def learn(self, row: int, value: float, weight: float, deadline_ms: float) -> None:
        """Keep the better of two bounds by a deadline."""
        if (deadline_ms - value) / weight <= (deadline_ms - self.value[row]) / self.weight[row]:
            self.value[row], self.weight[row] = value, weight

    def replace(self, parents: list[int], pieces: list[Boxes], asked: list[Asked]) -> Ints:
        """Take the pieces of some boxes for them, one of `parents` for each; the rows that stay."""
        stays = np.ones(len(self.worth), dtype=np.bool_)
        stays[parents] = False
        parts = Boxes.join(pieces)
        worth = np.maximum(self.worth[parents], self._worth(parts))
        self.boxes = Boxes.join([self.boxes.at(stays), parts])
        self.worth = np.append(self.worth[stays], worth)
        self.value = np.append(self.value[stays], self.value[parents])
        self.weight = np.append(self.weight[stays], self.weight[parents])
        self.chain = np.append(self.chain[stays], self.chain[parents])
        self.asked = np.append(self.asked[stays], np.array(asked, dtype=object))
        self.seen = np.append(self.seen[stays], np.zeros(len(parents), dtype=np.int64))
        return np.flatnonzero(stays)
