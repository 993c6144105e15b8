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

Pipelines are cut into boxes by the time of their slowest stage (`planner.search.replicas.room_boxes`), in
intervals that get narrower round by round, as far as stages differ at all. Boxes that are not listed gain
less than -g: with all gains of listed ones, of any share, g at most, these are in no mix. At first a box
holds several numbers of replicas: its stages are of least times, and each gains that many times one replica.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from formulations.room_totals import most_together
from formulations.share_totals import most_beside
from planner.cost.prices import Floats
from planner.search.replicas.chains import Chains, Kind
from planner.search.replicas.pricing import Pricing
from planner.search.replicas.room_boxes import Places, RoomBoxes
from planner.search.replicas.room_parts import (
    ROUNDS,
    TOGETHER,
    Part,
    Times,
    bounded,
    cut,
    gathered,
    joined,
    within,
)
from planner.search.replicas.room_walk import RoomWalk
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

MOST_ROOMS, MOST_SEQUENCES = 10_000, 2048
"""Rooms and sequences of a step up to which they are told apart."""
TOPS = 0.25
"""Share of the most that a pipeline gains above which boxes are told apart before others."""
WIDEST = 2
"""Ratio of the most to the fewest replicas of a box."""
FEW_HELD = np.array([1, 2, 4, 8])
"""Numbers of micro-batches held that are told apart in the first round."""
FIRST_LOSS, MORE_LOSS = 0.05, 1.25
"""Share of the batch that a pipeline may lose at first, and ratio of the next one to the most any gains."""
MOST_OPEN = 2000
"""Boxes whose rooms are looked at: where more stay open, prices are poor."""
LEAST_WAY = 1e-3
"""Relative distance to the bound below which no other deadline is looked at. All of these are guesses: they
say what is looked at, never what is proven."""


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
        self._places: dict[tuple[int, int, bool], Places] = {}
        self._times: dict[int, Floats] = {}

    def improve(self, least_ms: float, most_ms: float, open_ms: float = np.inf) -> float:
        """The latest time, up to a last one, by which it was proven that no mix is done [ms].

        Parameters
        ----------
        least_ms, most_ms
            What is known already, and what it is to be raised to, both without the least exchange.
        open_ms
            A time that they were found not to close.
        """
        bound_ms, way = least_ms, 1.0 if most_ms < open_ms else 0.5
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
        loss, parts = FIRST_LOSS * self.batch, list[Part]()
        while not self.is_up():
            parts = self._with_fine_tops(self._first_parts(deadline_ms, loss), deadline_ms, loss)
            most = float(most_beside(self._most_gains(parts)).max())
            if most <= loss * (1 + COUNT_TOL):
                break
            # Pipelines that lose more may be in a mix as well.
            loss = MORE_LOSS * most
        for number in range(1, len(ROUNDS) + 1):
            beside = most_beside(self._most_gains(parts))
            parts = [part.at(self._kept(part, beside)) for part in parts]
            parts = [part for part in parts if len(part.boxes)]
            if self.is_up() or not parts:
                return not self.is_up()
            now = [part for part in parts if part.number == number]
            if number < len(ROUNDS):
                parts = [part for part in parts if part.number > number]
                parts += self._next_parts(now, deadline_ms, max(float(beside.max()), 0.0))
        if sum(len(part.boxes) for part in parts) > MOST_OPEN:
            return False
        runs = self.most_runs(parts, beside, deadline_ms)
        return runs is not None and most_together(runs) < self.batch

    def _with_fine_tops(self, parts: list[Part], deadline_ms: float, loss: float) -> list[Part]:
        """Boxes, of which those that gain most are told apart in all rounds."""
        while not self.is_up():
            gains = [self._gain_of_boxes(part) for part in parts]
            most = max((float(gain.max(initial=-np.inf)) for gain in gains), default=-np.inf)
            fine = [gain for part, gain in zip(parts, gains, strict=True) if part.number == len(ROUNDS)]
            least = max(
                max((float(gain.max(initial=-np.inf)) for gain in fine), default=0.0), TOPS * most, 0.0
            )
            now, rest = list[Part](), list[Part]()
            for part, gain in zip(parts, gains, strict=True):
                asked = (gain > least) & (part.number < len(ROUNDS))
                now.append(part.at(np.flatnonzero(asked)))
                rest.append(part.at(np.flatnonzero(~asked)))
            now = [part for part in now if len(part.boxes)]
            if not now:
                break
            parts = [part for part in rest if len(part.boxes)]
            for number in range(1, len(ROUNDS)):
                parts += self._next_parts([part for part in now if part.number == number], deadline_ms, loss)
        return parts

    def _gain_of_boxes(self, part: Part) -> Floats:
        """Most that a pipeline of each box gains, with any number of replicas."""
        most = np.full(len(part.boxes), -np.inf)
        for replicas in self.chains.replicas_of(part.places.number):
            gain, _, at = part.gains(replicas, self.batch)
            np.maximum.at(most, at, gain)
        return most

    def _next_parts(self, parts: list[Part], deadline_ms: float, loss: float) -> list[Part]:
        """Boxes of one round as they are in the next one."""
        found = list[Part]()
        if not parts:
            return found
        number = parts[0].number
        for kind, times in self._times_of(parts).items():
            if self.is_up():
                break
            own = within(self._times_ms(kind), times, ROUNDS[number].ratio)
            found += self._parts(kind, own, deadline_ms, loss, number)
        return found

    def _first_parts(self, deadline_ms: float, loss: float) -> list[Part]:
        """Boxes of all times; kinds with many numbers of replicas are told apart as far as any are open."""
        chains, parts = self.chains, list[Part]()
        todo = self._kinds()
        while todo and not self.is_up():
            number = todo.pop()
            kind, least = chains.kinds[number], self.paths.least(number)
            low, most = float(least.times_ms.min()), deadline_ms - least.after_ms
            if not low <= most:
                continue
            times = cut(low, most, ROUNDS[0].ratio)
            own = self._parts(number, times, deadline_ms, loss, 0)
            if kind.is_single or chains.most_replicas(number) <= WIDEST * chains.replicas_of(number)[0]:
                parts += own
            elif any((part.left >= -loss / chains.least_sequences(number)).any() for part in own):
                todo += chains.halves(number)
        return parts

    def _kinds(self) -> list[int]:
        """Kinds with all numbers of replicas that leave room for another pipeline, by micro-batch size."""
        chains, kinds = self.chains, list[int]()
        for size, degrees in chains.replicas.items():
            most = min((self.batch - 1) // size, int(chains.available.max()))
            count = sum(degree <= most for degree in degrees)
            kinds += [chains.number(Kind(size, 0, count))] if count else []
        return kinds

    def _places_of(self, number: int, least_m: int, *, is_first: bool = False) -> Places:
        """Stages of chains that run so many micro-batches or more, or a little fewer."""
        longest, levels = self.chains.longest, FEW_HELD if is_first else self.chains.held
        held = longest if least_m >= longest else min(1 << (least_m.bit_length() - 1), longest)
        held = min(held, int(levels[-1]))
        known = self._places.get((number, held, is_first))
        if known is None:
            known = Places(self.chains, self.paths.least(number), number, held, self.price, levels)
            self._places[number, held, is_first] = known
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
        times: Times,
        deadline_ms: float,
        loss: float,
        of_round: int,
    ) -> list[Part]:
        """Boxes of a kind with some intervals of time, but those that surely lose more than `loss`."""
        chains, least, (low, high) = self.chains, self.paths.least(number), times
        sequences = chains.least_sequences(number)
        worth = least.worth_of_chain(
            self.price / chains.kinds[number].microbatch_size, chains.num_layers, high
        )
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
        places = [self._places_of(number, m, is_first=of_round == 0) for m in boxes.least_m.tolist()]
        parts = []
        for of in dict.fromkeys(places):
            rows = np.flatnonzero([place is of for place in places])
            for start in range(0, len(rows), TOGETHER):
                some = boxes.at(rows[start : start + TOGETHER])
                parts.append(bounded(of, some, deadline_ms, loss, of_round))
        return parts

    def _most_gains(self, parts: list[Part]) -> Floats:
        """Most that a pipeline of each share gains, [n]."""
        most = np.full(self.batch + 1, -np.inf)
        for part in parts:
            for replicas in self.chains.replicas_of(part.places.number):
                gain, share, _ = part.gains(replicas, self.batch)
                np.maximum.at(most, share, gain)
        return most

    def _kept(self, part: Part, beside: Floats) -> Ints:
        """The boxes whose pipelines may be in a mix with what others gain."""
        rows = []
        for replicas in self.chains.replicas_of(part.places.number):
            gain, share, at = part.gains(replicas, self.batch)
            rows.append(at[gain + beside[share] >= -COUNT_TOL * self.batch])
        return np.unique(np.concatenate(rows))

    def _times_of(self, parts: list[Part]) -> dict[int, Times]:
        """Intervals of the boxes by each number of replicas."""
        found: dict[int, list[Times]] = {}
        for part in parts:
            for one in self.chains.singles(part.places.number):
                found.setdefault(one, []).append((part.boxes.low, part.boxes.high))
        return {one: joined(times) for one, times in found.items()}

    def most_runs(self, parts: list[Part], beside: Floats, deadline_ms: float) -> Floats | None:
        """Most sequences that a pipeline runs by the chips that it takes, -inf for none, [.. class ..].

        None where there were too many, or time was up.
        """
        runs = np.full(tuple((self.chains.available + 1).tolist()), -np.inf)
        for part in gathered(parts):
            gain, share, at = part.gains(part.places.replicas, self.batch)
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
