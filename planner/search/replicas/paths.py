"""Shortest paths over the stages of a chain, from the last one on; many boxes go through together.

A state is the stages placed, the layers on them, and where the slow stage is and the near one: both still to
come, so that they lie behind them and count by some share, or the near one alone or both placed.
`planner.search.replicas.steps` has what a stage costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Boxes, Found, Picked
from planner.search.replicas.chains import Chains
from planner.search.replicas.columns import Least, found_chain
from planner.search.replicas.items import StageTimes
from planner.search.replicas.space import Ints
from planner.search.replicas.steps import (
    AHEAD,
    BETWEEN,
    SHARES,
    Step,
    at_low,
    best_ways,
    closing,
    lent,
    make_step,
    moved,
    paces,
)

NUMBERS = 10_000
"""Boxes times layers that go through at once."""
Trail = tuple[Ints, Floats]
"""Boxes that are still open with so many stages placed, and their states [way, box, layers placed]."""


class Paths:
    """Shortest paths of one problem."""

    def __init__(self, chains: Chains, is_up: Callable[[], bool] = lambda: False) -> None:
        self.chains, self.num_layers, self.is_up = chains, chains.num_layers, is_up
        self._least: list[Least] = []

    def least(self, kind: int) -> Least:
        """Least times of the stages of a kind."""
        if len(self._least) <= kind:
            new = range(len(self._least), len(self.chains.kinds))
            self.chains.prepare(new)
            self._least += [Least(self.chains, number) for number in new]
        return self._least[kind]

    def worth(self, price: Floats) -> Floats:
        """Sequences that the chips of a stage are worth, [item]."""
        worth: Floats = price[self.chains.node_class] * self.chains.tensor_parallel
        return worth

    def paid(self, boxes: Boxes, price: Floats) -> Floats:
        """What the chips of a stage count at a box's weight, less what its adapters save, [box, item]."""
        kinds = self.chains.kinds
        sizes = np.array([kinds[k].microbatch_size for k in boxes.kind.tolist()], dtype=np.float64)
        paid: Floats = self.worth(price) * (boxes.weight / sizes)[:, None]
        return paid - self.chains.adapters * self._saved_ms(boxes)[:, None]

    def _saved_ms(self, boxes: Boxes) -> Floats:
        """By how much a rate of adapters lessens the exchange where that is taken for linear, [box]."""
        replicas = np.array([self.chains.most_replicas(k) for k in boxes.kind.tolist()])
        rate = np.where(boxes.adapters > 0, boxes.adapters, 1.0)
        saved: Floats = np.where(boxes.adapters > 0, 1 / (replicas * rate**2), 0.0)
        return saved

    def soonest(
        self, boxes: Boxes, price: Floats, limit_ms: float | Floats
    ) -> tuple[Floats, list[Found | None]]:
        """Least time of a chain of each box by its weight and shares, and the chain; the limit without one.

        Boxes that no time was left for have 0, and no chain.
        """
        values: Floats = np.zeros(len(boxes))
        limits = np.broadcast_to(limit_ms, len(boxes))
        found: list[Found | None] = [None] * len(boxes)
        for rows in self._parts(boxes):
            part = boxes.at(rows)
            values[rows], stages, trail = self._walk(part, price, limits[rows])
            for row, chain in zip(rows.tolist(), self._backward(part, price, stages, trail), strict=True):
                found[row] = chain
        return values, found

    def _parts(self, boxes: Boxes) -> Iterator[Ints]:
        """Pieces that stay in cache, boxes of like times together, and those with a near stage of its own."""
        most, order = max(NUMBERS // (self.num_layers + 1), 1), np.lexsort((boxes.high, boxes.near == 1))
        for start in range(0, len(boxes), most):
            yield order[start : start + most]

    def _walk(self, boxes: Boxes, price: Floats, limit_ms: Floats) -> tuple[Floats, Ints, list[Trail]]:
        """Values of all boxes, stages of their best chains (0 for none), and the states on the way."""
        num, num_layers, longest = len(boxes), self.num_layers, self.chains.longest
        after = np.array([self.least(k).after_ms for k in boxes.kind.tolist()])
        # 1 / (d w) is no less than its tangent at omega; beside it stands what any mix exchanges.
        exchange = 2 * boxes.adapters * self._saved_ms(boxes)
        exchange = np.where(boxes.adapters > 0, exchange - self.chains.exchange_ms, 0.0)
        constant = after + exchange + at_low(boxes)
        best, stages = limit_ms - constant, np.zeros(num, dtype=np.int64)
        rows, alive = np.arange(num), boxes
        pace = self._paces(boxes)
        state = np.full((AHEAD + 1, num, num_layers + 1), np.inf)
        state[:BETWEEN, :, 0] = 0.0
        trail: list[Trail] = []
        # What is left cannot cost less than its layers at the least cost of one.
        floors = self._floors(boxes, pace, price)[:, :, None] * np.arange(num_layers, -1, -1)
        for k, share in enumerate(SHARES):
            floors[k] += np.where(boxes.least_m <= longest, np.minimum(lent(boxes, share), 0.0), 0.0)[:, None]
        alike = range(0)
        for q in range(longest):
            if self.is_up():
                return np.zeros(num), np.zeros_like(stages), trail
            trail.append((rows, state))
            if q not in alike:
                alike = self._alike(alive, q)
                first, inner = (step.cheapest() for step in self._steps(alive, pace[:, rows], price, alike))
            closed = closing(state, first, num_layers)
            better = closed < best[rows]
            best[rows[better]], stages[rows[better]] = closed[better], q + 1
            if q + 1 == longest:
                break
            state = moved(state, inner)
            costs_much = state >= best[rows][:, None] - floors[:, rows]
            # What some share shows to cost too much is in no better chain, whatever the others say of it.
            costs_much[:BETWEEN] = costs_much[:BETWEEN].any(axis=0)
            state[costs_much] = np.inf
            goes_on = np.asarray(np.isfinite(state[[0, BETWEEN, AHEAD]]).any(axis=(0, 2)))
            rows, alive, first, inner = rows[goes_on], alive.at(goes_on), first.at(goes_on), inner.at(goes_on)
            state = state[:, goes_on]
            if not len(rows):
                break
        # Without a chain the limit itself: what the sum rounds off would leave the bound short of it.
        return np.where(stages > 0, constant + best, limit_ms), stages, trail

    def _backward(self, boxes: Boxes, price: Floats, stages: Ints, trail: list[Trail]) -> list[Found | None]:
        """The chains that gave the values, from the first stage to the last."""
        num = len(boxes)
        left, was = np.full(num, self.num_layers), np.full(num, AHEAD)
        picks: list[list[Picked]] = [[] for _ in range(num)]
        slow, by_partial = np.zeros(num, dtype=np.int64), np.zeros(num, dtype=np.bool_)
        share, pace = np.zeros(num, dtype=np.int64), self._paces(boxes)
        alike, last = range(0), np.zeros(0, dtype=np.int64)
        for q in range(int(stages.max(initial=0)) - 1, -1, -1):
            rows = np.flatnonzero(stages > q)
            if q not in alike or len(rows) > len(last):
                alike, last = self._alike(boxes.at(rows), q), rows
                both = self._steps(boxes.at(rows), pace[:, rows], price, alike)
            starts = stages[rows] == q + 1
            there, state = trail[q]
            at = np.searchsorted(there, rows)
            previous = state[:, at]
            for step, own in zip(both, (starts, ~starts), strict=True):
                at = rows[own]
                ways = best_ways(step, own, previous, left[at], was[at])
                left[at] -= ways.layers
                was[at] = ways.was
                near = at[ways.is_near]
                slow[near] = stages[near] - 1 - q
                share[near] = ways.share[ways.is_near]
                by_partial[near] = step.by_partial[own][ways.is_near]
                for j, row in enumerate(at.tolist()):
                    picks[row].append(Picked(int(ways.item[j]), int(ways.layers[j])))
        worth = self.worth(price)
        return [
            found_chain(
                self.chains,
                boxes,
                row,
                picks[row],
                worth,
                int(slow[row]),
                SHARES[share[row]],
                bool(by_partial[row]),
            )
            if stages[row]
            else None
            for row in range(num)
        ]

    def _alike(self, boxes: Boxes, behind: int) -> range:
        """Numbers of stages behind a stage, with one that is given, at which no box tells stages apart."""
        # Stages are told apart by what they hold, by whether they are the last, and by the row they count by.
        held = self.chains.held - 1
        held = held[held < boxes.least_m.max(initial=0)]
        starts = np.concatenate([[0, 1], held, boxes.least_m - 2, boxes.least_m - 1])
        after = starts[starts > behind]
        return range(int(starts[starts <= behind].max()), int(after.min(initial=self.chains.longest)))

    def _paces(self, boxes: Boxes) -> Floats:
        """What (partial) takes off for each stage behind the slow one, in times of that, [share, box]."""
        pace = np.empty(len(boxes))
        for number in np.unique(boxes.kind).tolist():
            rows = np.flatnonzero(boxes.kind == number)
            pace[rows] = self.least(number).pace((boxes.low * boxes.near)[rows], boxes.high[rows])
        return paces(pace)

    def _steps(self, boxes: Boxes, pace: Floats, price: Floats, behind: range) -> tuple[Step, Step]:
        """Costs of a stage that the pipeline begins with, and of one that others come before."""
        held = np.minimum(boxes.least_m, behind[0] + 1)
        keys, index = np.unique(boxes.kind * (self.num_layers + 1) + held, return_inverse=True)
        numbers, held = np.divmod(keys, self.num_layers + 1)
        both = [
            self.chains.stages(k, behind[0], h) for k, h in zip(numbers.tolist(), held.tolist(), strict=True)
        ]
        least_ms = [self.least(k).after_ms for k in numbers.tolist()]
        highest = float(boxes.high.max())
        paid, own = self.paid(boxes, price)[:, :, None], boxes.kind.tolist()
        hops = np.stack([self.chains.hops_ms(k) for k in own])[:, :, None]
        found = []
        for place in (0, 1):
            there = [stages[place] for stages in both]
            times = np.stack([stages.times for stages in there])
            width = int(np.flatnonzero((times <= highest).any(axis=(0, 1))).max(initial=0)) + 1
            after = forward = np.zeros((1, 1, 1))
            if place == 0 or boxes.late.any():
                more = [stages.after[:, :width] - ms for stages, ms in zip(there, least_ms, strict=True)]
                after = np.stack(more)[index]
            if boxes.late.any():
                forward = np.stack([stages.forward[:, :width] for stages in there])[index]
            stages = StageTimes(times[:, :, :width][index], after, forward, forward)
            found.append(make_step(boxes, pace, paid, hops, stages, behind, is_first=place == 0))
        return found[0], found[1]

    def _floors(self, boxes: Boxes, pace: Floats, price: Floats) -> Floats:
        """Least cost of a layer that is still to be placed, by the state, [way, box]."""
        times = np.stack([self.least(k).times_ms[:, 1:] for k in boxes.kind.tolist()])
        forward = np.stack([self.least(k).forward_ms[:, 1:] for k in boxes.kind.tolist()])
        width = int(np.flatnonzero((times <= boxes.high.max()).any(axis=(0, 1))).max(initial=0)) + 1
        times, forward = times[:, :, :width], forward[:, :, :width]
        n = np.arange(1, width + 1)
        paid = self.paid(boxes, price)[:, :, None]
        fits = times <= boxes.high[:, None, None]
        taken = np.where(fits, times, 0.0)
        late, apart = boxes.late[:, None, None], boxes.apart[:, None, None]
        less = late * (taken - forward)
        near = (1 - apart) * (taken - less)
        ahead = near + apart * taken

        def least(more: Floats | float) -> Floats:
            found: Floats = np.where(fits, (paid + more) / n, np.inf).min(axis=(1, 2))
            return np.where(np.isfinite(found), found, 0.0)

        low = (boxes.low * boxes.near)[:, None, None]
        behind = [
            least((1 - apart) * np.minimum(share * taken - own[:, None, None] * low, 0.0))
            for share, own in zip(SHARES, pace, strict=True)
        ]
        return np.stack([*behind, least(near), least(ahead)])
