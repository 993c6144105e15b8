"""Shortest paths over the stages of a chain; `planner.search.replicas.pricing` has the rows that they go by.

A state is the stages placed from the last one on, the layers on them, and where the slowest stage is: still
to come, so that they lie behind it by the row (partial) or by (work), or placed. A bracket is an interval of
the slowest stage's time; all brackets of a kind and octave go through together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.replicas.chains import Chains
from planner.search.replicas.space import Ints

State = tuple[Floats, Floats, Floats]
"""Least costs [bracket, layers placed]: slowest to come, by (partial) and by (work), and slowest placed."""


@dataclass(frozen=True)
class Column:
    """A chain, or one no worse than any of a bracket: chips, and sequences by a deadline."""

    kind: int
    items: tuple[int, ...]
    """Item of every stage, in pipeline order."""
    layers: tuple[int, ...]
    chips: tuple[float, ...]
    """By class."""
    microbatch_size: int
    most_m: int
    """Micro-batches that it has the memory for."""
    slowest_ms: float
    other_ms: float
    """What it takes beside the time of its slowest stage for every micro-batch."""
    credit: float
    """What its bracket grants it, in times of what it does; hardly above 1."""

    def sequences(self, deadline_ms: float) -> float:
        """Sequences that it is credited with at a deadline."""
        m = min((deadline_ms - self.other_ms) / self.slowest_ms, self.most_m)
        return self.credit * self.microbatch_size * m


@dataclass(frozen=True)
class Part:
    """Brackets of tau of one kind and octave, arrays [bracket]."""

    kind: int
    least_m: int
    most_m: int
    low: Floats
    high: Floats
    y: Floats

    def at(self, rows: Ints | NDArray[np.bool_]) -> Part:
        return replace(self, low=self.low[rows], high=self.high[rows], y=self.y[rows])


class Paths:
    """Shortest paths of one problem."""

    def __init__(self, chains: Chains) -> None:
        problem = chains.problem
        self.chains = chains
        self.num_layers = problem.model.num_layers
        self.blocks = not problem.stack.p2p_overlap
        self.num_classes = len(problem.cluster.classes)
        self.longest = min(self.num_layers, problem.options.max_pipeline_parallel or self.num_layers)

    def quick_times(self, kind: int) -> Floats:
        """Least time of a stage of each item at any place, [item, n]."""
        beside, end = self.chains.times(kind, 1, 1), self.chains.times(kind, 0, 1)
        times = np.minimum(np.minimum(beside.first, beside.inner), end.inner)
        assert end.only is not None
        return np.minimum(times, end.only)

    def paths(
        self, part: Part, price: Floats, deadline_ms: float, *, keep: bool = False
    ) -> tuple[Floats, list[State], Ints]:
        """V of every bracket, the states on the way (with `keep`), and the stages of the best chain."""
        kind = self.chains.kinds[part.kind]
        b, left, num_layers = (
            kind.microbatch_size,
            deadline_ms - self.chains.after_ms[part.kind],
            self.num_layers,
        )
        rows = len(part.low)
        worth = (b - part.y * part.low) * part.most_m + part.y * left
        partial = np.full((rows, num_layers + 1), np.inf)
        partial[:, 0] = 0.0
        turned = np.full_like(partial, np.inf)
        has_work = part.least_m - 1 < self.longest and self.longest > 1
        state: State = (partial, partial.copy() if has_work else turned, turned)
        best, stages = np.full(rows, np.inf), np.zeros(rows, dtype=np.int64)
        states = [state]
        open_rows, floors = np.arange(rows), self._floors(part, price)
        for q in range(self.longest):
            is_partial = q <= part.least_m - 2 or self.longest == 1
            inner, hops, first, first_hops = self._stage(part, q)
            width = _width(first, part)
            last = self._closing(part, price, first[:, : width + 1], first_hops, state, is_partial)
            better = last < best[open_rows]
            best[open_rows[better]], stages[open_rows[better]] = last[better], q + 1
            width = _width(inner, part)
            if width == 0:
                break
            c = self._costs(part, price, inner[:, : width + 1], hops)
            ahead = _plus(state[2], c[2])
            np.minimum(ahead, _plus(state[0], c[3]) if is_partial else _plus(state[1], c[4]), out=ahead)
            moved = _plus(state[0], c[0]), _plus(state[1], c[1]) if has_work else turned[open_rows], ahead
            # What is left cannot cost less than its layers at the least cost of one.
            rest = np.arange(num_layers, -1, -1)
            limits = [
                np.minimum(worth, best)[open_rows][:, None] - least[open_rows][:, None] * rest
                for least in floors
            ]
            state = (
                np.where(moved[0] < limits[0], moved[0], np.inf),
                np.where(moved[1] < limits[1], moved[1], np.inf),
                np.where(moved[2] < limits[2], moved[2], np.inf),
            )
            alive = np.logical_or.reduce([np.isfinite(s).any(axis=1) for s in state])
            if keep:
                states.append(state)
            elif not alive.all():
                state = state[0][alive], state[1][alive], state[2][alive]
                open_rows, part = open_rows[alive], part.at(alive)
            if not alive.any():
                break
        return worth - best, states, stages

    def column(self, part: Part, price: Floats, deadline_ms: float) -> tuple[Column, float]:
        """The chain of the only bracket, and the sequences that it does for sure as these rows count."""
        _, states, stages = self.paths(part, price, deadline_ms, keep=True)
        kind, p = self.chains.kinds[part.kind], int(stages[0])
        left, state, is_slow_partial = self.num_layers, -1, True
        picked: list[tuple[int, int, float, float, int]] = []
        for q in range(p - 1, -1, -1):
            inner, inner_hops, first, first_hops = self._stage(part, q)
            times, hops = (first, first_hops) if q == p - 1 else (inner, inner_hops)
            costs = [cost[0][:, : left + 1] for cost in self._costs_of_items(part, price, times, hops)]
            partial, work, turned = (s[0][left::-1][: left + 1] for s in states[q])
            is_partial = q <= part.least_m - 2 or self.longest == 1
            ways = {0: partial + costs[0], 1: work + costs[1], 2: turned + costs[2]}
            ways[3] = partial + costs[3] if is_partial else work + costs[4]
            # From the first stage: before the slowest, then itself, then behind it by one of the rows.
            allowed = (2, 3) if state in (-1, 2) else (state,)
            way = min(allowed, key=lambda w: float(ways[w].min()))
            item, n = (int(i) for i in np.unravel_index(int(np.argmin(ways[way])), ways[way].shape))
            picked.append((item, n, float(times[item, n]), float(hops[item]), way))
            left -= n
            if way == 3:
                state, is_slow_partial = (0, True) if is_partial else (1, False)
            else:
                state = way
        y, low, b = float(part.y[0]), float(part.low[0]), kind.microbatch_size
        slow = max(t for _, _, t, _, _ in picked)
        own = self._taken(picked, slow, is_slow_partial)
        after = self.chains.after_ms[part.kind]
        chips = np.zeros(self.num_classes)
        for item, *_ in picked:
            chips[kind.node_class[item]] += kind.tensor_parallel[item]
        items, layers = tuple(i for i, *_ in picked), tuple(n for _, n, *_ in picked)
        column = Column(
            part.kind, items, layers, tuple(chips.tolist()), b, part.most_m, slow, after + own, 1.0
        )
        sequences = column.sequences(deadline_ms)
        granted = (b - y * low) * part.most_m + y * (
            deadline_ms - after - self._taken(picked, low, is_slow_partial)
        )
        return replace(column, credit=max(granted / sequences, 1.0) if sequences > 0 else 1.0), sequences

    def _taken(self, picked: list[tuple[int, int, float, float, int]], slow: float, partial: bool) -> float:
        """What the stages take beside m times the slowest, by the row (partial) or by (work)."""
        total = 0.0
        for _, _, t, h, way in picked:
            if way == 0:
                total += 2 * t + h - slow
            elif way == 2:
                total += t + h
            elif way == 3 and partial:
                total += h
        return total

    def _closing(
        self,
        part: Part,
        price: Floats,
        first: Floats,
        hops: Floats,
        state: State,
        is_partial: bool,
    ) -> Floats:
        """Least cost of chains whose first stage comes now, [bracket]."""
        c = self._costs(part, price, first, hops)
        partial, work, turned = (s[:, self.num_layers :: -1][:, : c[0].shape[1]] for s in state)
        slow = partial + c[3] if is_partial else work + c[4]
        least: Floats = np.minimum(turned + c[2], slow).min(axis=1)
        return least

    def _stage(self, part: Part, behind: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Times and hops of a stage that others come before, and of the first one."""
        held = min(part.least_m, behind + 1)
        times = self.chains.times(part.kind, behind, held)
        hop = np.zeros_like(self.chains.hops_ms[part.kind]) if self.blocks else self.chains.hops_ms[part.kind]
        return times.inner, hop * (2 if behind else 1), times.first, hop * (1 if behind else 0)

    def _costs(self, part: Part, price: Floats, times: Floats, hops: Floats) -> list[Floats]:
        """Least costs over the items of a stage, [bracket, n]: see `_costs_of_items`."""
        return [cost.min(axis=1) for cost in self._costs_of_items(part, price, times, hops)]

    def _costs_of_items(
        self, part: Part, price: Floats, times: Floats, hops: Floats
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Costs of a stage [bracket, item, n]: behind the slowest by (partial) or (work), before, itself."""
        kind = self.chains.kinds[part.kind]
        paid = (price[kind.node_class] * kind.tensor_parallel)[None, :, None]
        low, y = part.low[:, None, None], part.y[:, None, None]
        t, h = times[None], hops[None, :, None]
        fits = t <= part.high[:, None, None]
        timed = y * (np.where(np.isfinite(t), t, 0.0) + h)
        free = np.where(fits, paid, np.inf)
        before = free + timed
        behind = before + timed - y * (h + low)
        slow_work = np.where(t >= low, free, np.inf)
        return behind, free, before, slow_work + y * h, slow_work

    def _floors(self, part: Part, price: Floats) -> tuple[Floats, Floats, Floats]:
        """Least cost of a layer that is still to be placed, by the three states, [bracket]."""
        kind = self.chains.kinds[part.kind]
        times = self.quick_times(part.kind)[:, 1:]
        n = np.arange(1, times.shape[1] + 1)
        paid = (price[kind.node_class] * kind.tensor_parallel)[:, None]
        fits = times[None] <= part.high[:, None, None]
        t = np.where(np.isfinite(times), times, 0.0)
        behind = part.y[:, None, None] * (2 * t - part.high[:, None, None])
        none = np.zeros_like(behind)
        # The slowest stage itself costs no time: its own is at most a' less than a stage behind or before it.
        slack = part.y * part.high

        def least(more: Floats) -> Floats:
            found: Floats = np.where(fits, (paid + more) / n, np.inf).min(axis=(1, 2))
            return np.where(np.isfinite(found), found, 0.0)

        return (
            least(np.minimum(behind, none))
            if part.least_m <= self.longest
            else least(behind) - slack / self.num_layers,
            least(none),
            least(part.y[:, None, None] * t),
        )


def _width(times: Floats, part: Part) -> int:
    """Most layers that some item takes in the time of a bracket."""
    return int(np.flatnonzero((times <= part.high.max()).any(axis=0)).max(initial=0))


def _plus(state: Floats, cost: Floats) -> Floats:
    """Least of state[l - n] + cost[n] over n >= 1, [bracket, l]."""
    result = np.full_like(state, np.inf)
    for n in range(1, cost.shape[1]):
        if np.isfinite(cost[:, n]).any():
            np.minimum(result[:, n:], state[:, :-n] + cost[:, n : n + 1], out=result[:, n:])
    return result
