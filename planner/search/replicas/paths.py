"""Shortest paths over the stages of a chain, from the last one on; many boxes go through together.

A state is the stages placed, the layers on them, and where the slow stage is: still to come, so that they lie
behind it by one row or another, or placed. `planner.search.replicas.steps` has what a stage costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Boxes, Column, Found, Picked
from planner.search.replicas.chains import Chains
from planner.search.replicas.space import Ints
from planner.search.replicas.steps import (
    AHEAD,
    WINDOW,
    State,
    Step,
    at_low,
    best_ways,
    closing,
    lent,
    make_step,
    moved,
)

NUMBERS = 10_000
"""Boxes times layers that go through at once."""
Trail = tuple[Ints, State]
"""Boxes that are still open with so many stages placed, and their states."""


class Paths:
    """Shortest paths of one problem."""

    def __init__(self, chains: Chains, is_up: Callable[[], bool] = lambda: False) -> None:
        self.chains, self.num_layers, self.is_up = chains, chains.num_layers, is_up
        kinds = chains.kinds
        self.num_items = max((len(kind.rows) for kind in kinds), default=0)
        shape = len(kinds), self.num_items
        self.sizes = np.array([kind.microbatch_size for kind in kinds], dtype=np.float64)
        self.node_class = np.zeros(shape, dtype=np.int64)
        self.tensor_parallel = np.zeros(shape)
        self.hops_ms = np.zeros(shape)
        self.least_ms = np.full((*shape, self.num_layers + 1), np.inf)
        """[kind, item, n] least time of a stage at any place."""
        for k, kind in enumerate(kinds):
            i = len(kind.rows)
            self.node_class[k, :i], self.tensor_parallel[k, :i] = kind.node_class, kind.tensor_parallel
            self.hops_ms[k, :i] = chains.hops_ms[k]
            self.least_ms[k, :i] = chains.least_times(k)

    def worth(self, price: Floats) -> Floats:
        """Micro-batches that the chips of a stage are worth, [kind, item]."""
        worth: Floats = price[self.node_class] * self.tensor_parallel / self.sizes[:, None]
        return worth

    def soonest(self, boxes: Boxes, price: Floats, limit_ms: float) -> tuple[Floats, list[Found | None]]:
        """Least time of a chain of each box by its weight and fill, and the chain; the limit without one.

        Boxes that no time was left for have 0, and no chain.
        """
        values: Floats = np.zeros(len(boxes))
        found: list[Found | None] = [None] * len(boxes)
        for rows in self._parts(boxes):
            part = boxes.at(rows)
            values[rows], stages, trail = self._walk(part, price, limit_ms)
            for row, chain in zip(rows.tolist(), self._backward(part, price, stages, trail), strict=True):
                found[row] = chain
        return values, found

    def _parts(self, boxes: Boxes) -> Iterator[Ints]:
        """Pieces that stay in cache, boxes of like times together."""
        most, order = max(NUMBERS // (self.num_layers + 1), 1), np.argsort(boxes.high, kind="stable")
        for start in range(0, len(boxes), most):
            yield order[start : start + most]

    def _walk(self, boxes: Boxes, price: Floats, limit_ms: float) -> tuple[Floats, Ints, list[Trail]]:
        """Values of all boxes, stages of their best chains (0 for none), and the states on the way."""
        num, num_layers, longest = len(boxes), self.num_layers, self.chains.longest
        constant = self.chains.after_ms[boxes.kind] + at_low(boxes, np.ones(num))
        best, stages = limit_ms - constant, np.zeros(num, dtype=np.int64)
        rows, alive = np.arange(num), boxes
        partial = np.full((num, num_layers + 1), np.inf)
        partial[:, 0] = 0.0
        window = np.where((boxes.least_m <= longest)[:, None], partial, np.inf)
        state: State = (partial, window, np.full_like(partial, np.inf))
        trail: list[Trail] = []
        # What is left cannot cost less than its layers at the least cost of one.
        rest = np.arange(num_layers, -1, -1)
        floors = [floor[:, None] * rest for floor in self._floors(boxes, price)]
        floors[WINDOW] += np.minimum(lent(boxes), 0.0)[:, None]
        for q in range(longest):
            if self.is_up():
                return np.zeros(num), np.zeros_like(stages), trail
            trail.append((rows, state))
            first, inner = self._steps(alive, price, q)
            closed = closing(state, first, num_layers)
            better = closed < best[rows]
            best[rows[better]], stages[rows[better]] = closed[better], q + 1
            if q + 1 == longest:
                break
            partial, window, ahead = (
                np.where(costs < best[rows][:, None] - floor[rows], costs, np.inf)
                for costs, floor in zip(moved(state, inner), floors, strict=True)
            )
            goes_on = np.isfinite(np.minimum(np.minimum(partial, window), ahead)).any(axis=1)
            rows, alive = rows[goes_on], alive.at(goes_on)
            state = partial[goes_on], window[goes_on], ahead[goes_on]
            if not len(rows):
                break
        return constant + best, stages, trail

    def _backward(self, boxes: Boxes, price: Floats, stages: Ints, trail: list[Trail]) -> list[Found | None]:
        """The chains that gave the values, from the first stage to the last."""
        num = len(boxes)
        left, was = np.full(num, self.num_layers), np.full(num, AHEAD)
        picks: list[list[Picked]] = [[] for _ in range(num)]
        slow, by_partial = np.zeros(num, dtype=np.int64), np.zeros(num, dtype=np.bool_)
        for q in range(int(stages.max(initial=0)) - 1, -1, -1):
            rows = np.flatnonzero(stages > q)
            starts = stages[rows] == q + 1
            there, state = trail[q]
            at = np.searchsorted(there, rows)
            previous = state[0][at], state[1][at], state[2][at]
            for step, own in zip(self._steps(boxes.at(rows), price, q), (starts, ~starts), strict=True):
                at = rows[own]
                before = was[at]
                item, layers, was[at] = best_ways(step, own, previous, left[at], before)
                left[at] -= layers
                is_slow = (before == AHEAD) & (was[at] != AHEAD)
                slow[at[is_slow]] = stages[at[is_slow]] - 1 - q
                by_partial[at[is_slow]] = step.by_partial[own][is_slow]
                taken = step.times[own][np.arange(len(at)), item, layers]
                hops = step.hops[own][np.arange(len(at)), item, 0]
                for j, row in enumerate(at.tolist()):
                    picks[row].append(Picked(int(item[j]), int(layers[j]), float(taken[j]), float(hops[j])))
        return [
            Found(column_of(self.chains, boxes, row, picks[row]), int(slow[row]), bool(by_partial[row]))
            if stages[row]
            else None
            for row in range(num)
        ]

    def _steps(self, boxes: Boxes, price: Floats, behind: int) -> tuple[Step, Step]:
        """Costs of a stage that the pipeline begins with, and of one that others come before."""
        held = np.minimum(boxes.least_m, behind + 1)
        keys, index = np.unique(boxes.kind * (self.num_layers + 1) + held, return_inverse=True)
        both = [
            self._padded(int(k), behind, int(h))
            for k, h in zip(*divmod(keys, self.num_layers + 1), strict=True)
        ]
        highest = float(boxes.high.max())
        paid = self.worth(price)[boxes.kind] * boxes.weight[:, None]
        hops = self.hops_ms[boxes.kind]
        found = []
        for place in (0, 1):
            times = np.stack([tables[place] for tables in both])
            width = int(np.flatnonzero((times <= highest).any(axis=(0, 1))).max(initial=0))
            taken = times[:, :, : width + 1][index]
            step = make_step(boxes, paid[:, :, None], taken, hops[:, :, None], behind, is_first=place == 0)
            found.append(step)
        return found[0], found[1]

    def _padded(self, kind: int, behind: int, held: int) -> tuple[Floats, Floats]:
        first, inner = self.chains.times(kind, behind, held)
        missing = self.num_items - len(first)
        if not missing:
            return first, inner
        unfit = np.full((missing, self.num_layers + 1), np.inf)
        return np.concatenate([first, unfit]), np.concatenate([inner, unfit])

    def _floors(self, boxes: Boxes, price: Floats) -> tuple[Floats, Floats, Floats]:
        """Least cost of a layer that is still to be placed, by the three states, [box]."""
        times = self.least_ms[boxes.kind][:, :, 1:]
        width = int(np.flatnonzero((times <= boxes.high.max()).any(axis=(0, 1))).max(initial=0)) + 1
        times = times[:, :, :width]
        n = np.arange(1, width + 1)
        paid = (self.worth(price)[boxes.kind] * boxes.weight[:, None])[:, :, None]
        fits = times <= boxes.high[:, None, None]
        taken = np.where(fits, times, 0.0)

        def least(more: Floats | float) -> Floats:
            found: Floats = np.where(fits, (paid + more) / n, np.inf).min(axis=(1, 2))
            return np.where(np.isfinite(found), found, 0.0)

        return (
            least(boxes.fill[:, None, None] * np.minimum(2 * taken - boxes.low[:, None, None], 0.0)),
            least(0.0),
            least(taken),
        )


def column_of(chains: Chains, boxes: Boxes, row: int, picked: list[Picked]) -> Column:
    """A chain of a box by its stages, in pipeline order."""
    number, p = int(boxes.kind[row]), len(picked)
    kind = chains.kinds[number]
    chips = np.zeros(len(chains.problem.cluster.classes))
    for stage in picked:
        chips[kind.node_class[stage.item]] += kind.tensor_parallel[stage.item]
    taken = np.array([stage.time_ms for stage in picked])
    hop = np.array([stage.hop_ms for stage in picked])
    ahead, back = hop * (np.arange(p) > 0), hop * (np.arange(p) < p - 1)
    both = taken + ahead + back
    before = np.concatenate([[0.0], np.cumsum(both)[:-1]]) + ahead + chains.after_ms[number]
    behind = np.concatenate([np.cumsum(both[::-1])[::-1][1:], [0.0]]) + back
    # With no more stages than micro-batches no stage ever holds more of them.
    is_full = p <= int(boxes.least_m[row])
    return Column(
        kind=number,
        items=tuple(stage.item for stage in picked),
        layers=tuple(stage.layers for stage in picked),
        chips=tuple(chips.tolist()),
        microbatch_size=kind.microbatch_size,
        most_m=chains.batch // kind.microbatch_size if is_full else int(boxes.most_m[row]),
        stages_ms=tuple(taken.tolist()),
        before_ms=tuple(before.tolist()),
        behind_ms=tuple(behind.tolist()),
    )
