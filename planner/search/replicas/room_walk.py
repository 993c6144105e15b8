"""What pipelines of some boxes run at most, by the whole chips that they take of each class.

From the last stage to the first, with the layers placed and the chips taken: of all ways to the same place
only the one of least cost goes on (`planner.search.replicas.room_boxes`), and none that the least cost of the
stages ahead takes beyond what is asked.

Stages stand on the hosts of their class one after the other, a run of stages of one class from the start of
a host on (`planner.search.meshes.shapes.can_be_placed`). A run amid a pipeline, between two of other classes,
takes its last host whole: no other run shares it. Those at the ends may go on in the pipeline beside, and
take their chips alone. What is left idle in this way is paid for: all runs of a mix take no more chips than
there are, so that what they gain at the prices of all of these is 0 or more in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools
from planner.search.replicas.room_boxes import Places, RoomBoxes
from planner.search.replicas.room_floors import RoomFloors
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

MOST_WAYS = 200_000
"""Ways that go on side by side at most. A guess."""
NONE, END = -1, -1
"""Class of a run before there is one, and what is taken of the last host of a run at the end."""


@dataclass(frozen=True)
class _States:
    """Ways from the last stage on, arrays [way]."""

    box: Ints
    layers: Ints
    chips: Ints
    """[way, class]"""
    run: Ints
    """Class of the run that the last stage placed is of."""
    taken: Ints
    """Chips that an inner run takes of its last host."""
    cost: Floats

    def at(self, rows: Ints | Bools) -> _States:
        return _States(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Rooms:
    """Chips of pipelines, arrays [pipeline, class], and the most micro-batches of each, [pipeline]."""

    chips: Ints
    microbatches: Floats


class RoomWalk:
    """Pipelines of one kind."""

    def __init__(
        self, places: Places, price: Floats, per_host: Ints, is_up: Callable[[], bool] = lambda: False
    ) -> None:
        self.places, self.price, self.per_host, self.is_up = places, price, per_host, is_up
        self.chains = places.chains
        self.sequences = places.replicas * places.size
        self.stage_chips = self.chains.tensor_parallel * places.replicas
        rate = np.zeros(len(price))
        np.maximum.at(rate, self.chains.node_class, self.chains.adapters / self.chains.tensor_parallel)
        self._rate = rate

    def most(self, boxes: RoomBoxes, deadline_ms: float, least_gain: Floats) -> Rooms | None:
        """Most micro-batches by the chips of pipelines that gain some sequences or more, [box].

        None where there are too many of them, or time was up.
        """
        places, num_layers = self.places, self.places.num_layers
        most = places.most(boxes, deadline_ms) - least_gain / self.sequences + COUNT_TOL * boxes.most_m
        floors, width, num = RoomFloors(places, boxes), places.width(boxes), len(boxes)
        longest, classes = floors.most_stages(most), len(self.price)
        ahead, late = floors.ahead(longest), places.less_late(boxes, np.arange(longest))
        whole = np.zeros(num, dtype=np.int64)
        none = np.zeros((num, classes), dtype=np.int64)
        states = _States(np.arange(num), whole, none, whole + NONE, whole + END, np.zeros(num))
        found = [states.at(whole[:0])]
        for behind in range(longest):
            number = places.place_of[behind]
            first = places.costs(boxes, number, width, is_first=True)
            ending = states.at(num_layers - states.layers <= width)
            left = num_layers - ending.layers
            room = most[ending.box] - ending.cost + late[behind][ending.box] + COUNT_TOL
            for item in range(len(first)):
                own = first[item][ending.box, left]
                may = np.flatnonzero(own <= room)
                own = own[may] - late[behind][ending.box[may]]
                done = self._with(ending.at(may), item, left[may], own)
                found.append(done.at(done.cost <= most[done.box]))
            if behind + 1 == longest:
                break
            inner = places.costs(boxes, number, width, is_first=False)
            states = self._moved(states, inner, ahead[behind + 1], most)
            if len(states.box) > MOST_WAYS or self.is_up():
                return None
            if not len(states.box):
                break
        return self._rooms(found, boxes, deadline_ms)

    def _with(self, states: _States, item: int, layers: Ints | int, own: Floats) -> _States:
        """Ways with a stage more of one item; those that the chips are too few for are left out."""
        c, size = int(self.chains.node_class[item]), int(self.stage_chips[item])
        turns = (states.run != c) & (states.run != NONE)
        idle = np.where(turns & (states.taken != END), -states.taken % self.per_host[states.run], 0)
        chips = states.chips.copy()
        rows = np.arange(len(idle))
        chips[rows, states.run] += idle
        cost = states.cost + own + self.price[states.run] * idle / self.sequences
        chips[:, c] += size
        is_inner = turns | ((states.run == c) & (states.taken != END))
        taken = np.where(turns, size, states.taken + size) % self.per_host[c]
        fits = (chips <= self.chains.available).all(axis=1) & np.isfinite(cost)
        moved = _States(
            states.box,
            states.layers + layers,
            chips,
            np.full_like(states.run, c),
            np.where(is_inner, taken, END),
            cost,
        )
        return moved.at(fits)

    def _moved(self, states: _States, inner: Floats, ahead: Floats, most: Floats) -> _States:
        """Ways with an inner stage more, the cheapest to each place.

        Ways come box by box and by the layers placed: what a stage costs is looked at once for all of these.
        """
        num_layers, moved = self.places.num_layers, []
        place = states.box * (num_layers + 1) + states.layers
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        ways = np.diff(starts, append=len(place))
        box, layers = states.box[starts, None], states.layers[starts, None]
        room = most[states.box] - states.cost + COUNT_TOL
        most_room = np.maximum.reduceat(room, starts)[:, None]
        for item, costs in enumerate(inner):
            counts = np.flatnonzero(np.isfinite(costs).any(axis=0))
            if not len(counts):
                continue
            # [place, number of layers], without what a turn may leave idle.
            left = num_layers - layers - counts
            own = costs[box, counts]
            least = own + ahead[box, left]
            at, number = np.nonzero((left > 0) & (least <= most_room))
            of_way = np.repeat(np.arange(len(at)), ways[at])
            way = np.arange(len(of_way)) + (starts[at] - np.cumsum(ways[at]) + ways[at])[of_way]
            goes_on = least[at, number][of_way] <= room[way]
            way, of_way = way[goes_on], of_way[goes_on]
            part = self._with(states.at(way), item, counts[number[of_way]], own[at, number][of_way])
            goes_on = part.cost + ahead[part.box, num_layers - part.layers] <= most[part.box]
            moved.append(part.at(goes_on))
        joined = _join([states.at(np.zeros(0, dtype=np.int64)), *moved])
        return joined.at(self._cheapest(joined))

    def _cheapest(self, states: _States) -> Ints:
        """Of ways to the same place one of least cost."""
        key = states.box * (self.places.num_layers + 1) + states.layers
        for c, have in enumerate(self.chains.available.tolist()):
            key = key * (have + 1) + states.chips[:, c]
        key = (key * len(self.price) + states.run) * (int(self.per_host.max()) + 1) + states.taken + 1
        order = np.lexsort((states.cost, key))
        return order[np.flatnonzero(np.diff(key[order], prepend=-1))]

    def _rooms(self, found: list[_States], boxes: RoomBoxes, deadline_ms: float) -> Rooms:
        """Most micro-batches of finished ways; at least one."""
        done = _join(found)
        box = done.box
        counted = done.cost - done.chips @ self.price / self.sequences
        # 1 / (d w) is what a pipeline exchanges at least; that of any mix is no part of the deadline.
        exchange = 1 / (done.chips @ self._rate) - self.chains.exchange_ms
        own = counted + np.maximum(exchange, 0.0) / boxes.low[box]
        left = self.places.most(boxes, deadline_ms)[box] - own
        m = np.minimum(np.floor(left * (1 + COUNT_TOL)), boxes.most_m[box])
        runs = m >= 1
        return Rooms(done.chips[runs], m[runs])


def _join(parts: list[_States]) -> _States:
    names = _States.__dataclass_fields__
    return _States(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
