"""What chains of some boxes cost at least, by their stages and layers.

`planner.search.replicas.room_boxes` has the cost c of a stage. A chain of p stages has all L layers. With any
price mu of a layer it costs no less than

    mu L + least first stage (c - mu n) + sum over inner stages of the least (c - mu n),

each least over all items and numbers of layers n of a stage at its place, however many these are in all
(Lagrangian relaxation). For each p the highest of several prices counts. It tells which boxes hold no chain
that costs as little as is asked, and how many stages one has at most, before any shortest path.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.room_boxes import Places, RoomBoxes
from planner.tolerances import COUNT_TOL

PRICES = 0.9, 1.0, 1.1
"""Prices of a layer, in times of the least cost of one. Any hold: guesses."""


class RoomFloors:
    """Least costs of the chains of some boxes."""

    def __init__(
        self, places: Places, boxes: RoomBoxes, longest: int | None = None, *, is_rough: bool = False
    ) -> None:
        """Of chains of up to `longest` stages, by default any; if rough, as if all places were one."""
        self.places, self.boxes = places, boxes
        longest = places.longest if longest is None else longest
        self.width = places.width(boxes)
        self._place_of = [0] * longest if is_rough else places.place_of[:longest]
        count = None if is_rough else self._place_of[-1] + 1
        self.first, self.inner = (
            places.least_costs(boxes, self.width, is_first=is_first, num_places=count)
            for is_first in (True, False)
        )
        """[place, box, n] least over the items, inf where there is none."""

    @cached_property
    def by_stages(self) -> Floats:
        """Floors of the costs of chains of p stages, inf where there are none, [p - 1, box]."""
        places, n = self.places, np.arange(self.width + 1)
        of_layer = np.minimum(self.first, self.inner)[:, :, 1:] / n[1:]
        least = of_layer.min(axis=(0, 2), initial=np.inf)
        least = np.where(np.isfinite(least), np.abs(least), 0.0)
        place_of = np.array(self._place_of)
        floors = np.full((len(place_of), len(self.boxes)), -np.inf)
        for price in PRICES:
            layers = (price * least)[:, None] * n
            inner = (self.inner - layers).min(axis=2)[place_of]
            behind = np.vstack([np.zeros_like(inner[:1]), np.cumsum(inner, axis=0)[:-1]])
            first = (self.first - layers).min(axis=2)[place_of]
            np.maximum(floors, first + behind + price * least * places.num_layers, out=floors)
        return floors - places.less_late(self.boxes, np.arange(len(place_of)))

    def most_stages(self, most: Floats) -> int:
        """Most stages of a chain of any box that may cost so much at most, [box]; 0 where there is none."""
        may = np.flatnonzero((self.by_stages <= most).any(axis=1))
        return int(may.max(initial=-1)) + 1

    def of_chains(self, most: Floats) -> Floats:
        """Least cost of a chain, [box]; inf where it may be more than `most`, [box]."""
        ahead = self.ahead(self.most_stages(most + COUNT_TOL * self.boxes.most_m))
        return ahead[0][:, self.places.num_layers] if ahead else np.full(len(self.boxes), np.inf)

    def ahead(self, longest: int) -> list[Floats]:
        """Least costs of the stages that have some others behind them or more, [behind][box, layers].

        Parameters
        ----------
        longest
            Most stages of the chains that are looked at.
        """
        places, num_layers, found = self.places, self.places.num_layers, list[Floats]()
        all_late = places.less_late(self.boxes, np.arange(longest))
        for behind in range(longest - 1, -1, -1):
            number = self._place_of[behind]
            least = np.full((len(self.boxes), num_layers + 1), np.inf)
            least[:, : self.width + 1] = self.first[number] - all_late[behind][:, None]
            if found:
                _add_stages(least, found[-1], self.inner[number])
            # Each of the stages behind has a layer or more.
            least[:, num_layers - behind + 1 :] = np.inf
            found.append(least)
        return found[::-1]


def _add_stages(least: Floats, ahead: Floats, inner: Floats) -> None:
    """Take inner stages of some numbers of layers before those that are ahead of them."""
    num_layers = least.shape[1] - 1
    placed = np.flatnonzero(np.isfinite(ahead).any(axis=0))
    if not len(placed):
        return
    begin, end = int(placed[0]), int(placed[-1])
    for n in np.flatnonzero(np.isfinite(inner).any(axis=0)).tolist():
        last = min(end + n, num_layers)
        if begin + n <= last:
            part = least[:, begin + n : last + 1]
            np.minimum(part, ahead[:, begin : last + 1 - n] + inner[:, n, None], out=part)
