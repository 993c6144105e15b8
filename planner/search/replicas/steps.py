"""What a stage adds to a chain of a box, by where it stands to the slow stage.

The rows of `planner.search.replicas.pricing`, stage by stage, with the share phi (`Boxes.fill`) of (partial)
or psi (`Boxes.deep`) of (deep) and the rest of (work), and the share theta (`Boxes.late`) of the end of the
slow stage; y (`Boxes.weight`) counts what its chips are worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools, Boxes
from planner.search.replicas.chains import StageTimes
from planner.search.replicas.space import Ints

State = tuple[Floats, Floats, Floats]
"""Least costs [box, layers placed]: slow stage to come, by (partial) or (deep), and slow stage placed."""
PARTIAL, DEEP, AHEAD, SLOW = range(4)
"""What a stage is: behind the slow one by either row, ahead of it, or it."""


@dataclass(frozen=True)
class Step:
    """Costs of the stages that some stages lie behind, [box, item, n], n = 0 unused."""

    times: Floats
    costs: tuple[Floats, Floats, Floats, Floats]
    """By what the stage is; a first stage is the slow one or ahead of it."""
    by_partial: Bools
    """Whether a slow stage here counts by (partial), [box]."""

    def cheapest(self) -> Cheapest:
        """The least over the items."""
        return Cheapest(np.stack([cost.min(axis=1) for cost in self.costs]), self.by_partial)


@dataclass(frozen=True)
class Cheapest:
    """Least costs of stages over the items, [way, box, n], n = 0 unused."""

    costs: Floats
    by_partial: Bools

    def at(self, rows: Bools) -> Cheapest:
        """Of some boxes."""
        return Cheapest(self.costs[:, rows], self.by_partial[rows])


def at_low(boxes: Boxes, share: Floats) -> Floats:
    """What a share of all micro-batches takes at the least time, less what the weight counts of it, [box]."""
    over = share * boxes.low - boxes.weight
    taken: Floats = over * np.where(over >= 0, boxes.least_m, boxes.most_m)
    return taken


def lent(boxes: Boxes) -> Floats:
    """What a slow stage by (deep) gets back of what both rows count beside the stages, [box]."""
    return at_low(boxes, 1 - boxes.deep) - at_low(boxes, np.ones(len(boxes)))


def make_step(
    boxes: Boxes, paid: Floats, hop: Floats, stages: StageTimes, behind: range, *, is_first: bool
) -> Step:
    """Costs of stages.

    Parameters
    ----------
    paid, hop
        [box, item, 1]: what the chips count, and the send to one side, one way [ms].
    stages
        Arrays [box, item, n].
    behind
        Numbers of stages behind them that the costs hold for: some number at which they are told apart, or
        several at which they are not.
    """

    def wide(values: Floats | Ints | Bools) -> Floats:
        return np.asarray(values, dtype=np.float64)[:, None, None]

    ends, starts = int(behind[-1] > 0), int(not is_first)
    low, fill, late, least_m = wide(boxes.low), wide(boxes.fill), wide(boxes.late), wide(boxes.least_m)
    deep = wide(boxes.deep)
    fits = stages.times <= wide(boxes.high)
    taken, after = np.where(fits, stages.times, 0.0), np.where(fits, stages.after, 0.0)
    is_slow = fits & (stages.times >= low)
    free = np.where(fits, paid, np.inf)
    by_partial = boxes.least_m - 2 >= behind[0]
    # The slow stage: by (partial) times - low counts m' - phi q times, by (deep) psi times beside (work).
    counted = np.where(wide(by_partial) > 0, least_m - fill * behind[-1], (1 - deep) * least_m + deep)
    beside = np.where(wide(by_partial) > 0, 0.0, deep * low + wide(lent(boxes)))
    hops = (np.where(wide(by_partial) > 0, 2 * fill, deep) * ends + (1 - late / 2) * starts) * hop
    slow = np.where(is_slow, paid + hops + beside + counted * (taken - low), np.inf)
    # Up to the end of the slow stage only the forward of those ahead of it counts.
    ahead = free + taken + (ends + starts) * hop
    if boxes.late.any():
        ahead -= late * (taken - np.where(fits, stages.forward, 0.0) + (ends + starts) / 2 * hop)
    if is_first:
        ahead, slow = ahead + (1 - late) * after, slow + after
        return Step(stages.times, (ahead, ahead, ahead, slow), by_partial)
    slow = slow + late * after
    beyond = np.where(is_slow, np.inf, free)
    behind_it = taken + (ends + starts) * hop
    # By (deep) the last m' - 1 stages count twice, but for the send from the stage ahead of them.
    twice = wide(by_partial) * behind_it - wide(boxes.least_m - 2 == behind[0]) * starts * hop
    costs = beyond + fill * (2 * behind_it - low), beyond + deep * (behind_it + twice), ahead, slow
    return Step(stages.times, costs, by_partial)


def closing(state: State, step: Cheapest, num_layers: int) -> Floats:
    """Least cost of chains whose first stage comes now, [box]."""
    partial, deep, ahead = (s[:, num_layers::-1][:, : step.costs[SLOW].shape[1]] for s in state)
    slow = np.where(step.by_partial[:, None], partial, deep) + step.costs[SLOW]
    closed: Floats = np.minimum(ahead + step.costs[AHEAD], slow).min(axis=1)
    return closed


def moved(state: State, step: Cheapest) -> State:
    """The states with one more stage."""
    to_come = np.where(step.by_partial[:, None], state[PARTIAL], state[DEEP])
    partial, deep, ahead, slow = _plus(np.stack([*state, to_come]), step.costs)
    return partial, deep, np.minimum(ahead, slow)


def _plus(state: Floats, cost: Floats) -> Floats:
    """Least of state[l - n] + cost[n] over n >= 1, [way, box, l]."""
    result = np.full_like(state, np.inf)
    placed = np.flatnonzero(np.isfinite(state).any(axis=(0, 1)))
    if not len(placed):
        return result
    first, end = int(placed[0]), int(placed[-1]) + 1
    for n in (np.flatnonzero(np.isfinite(cost[:, :, 1:]).any(axis=(0, 1))) + 1).tolist():
        last = min(end, state.shape[2] - n)
        if last > first:
            more = result[:, :, first + n : last + n]
            np.minimum(more, state[:, :, first:last] + cost[:, :, n : n + 1], out=more)
    return result


def best_ways(
    step: Step, own: Bools, previous: tuple[Floats, ...], left: Ints, was: Ints
) -> tuple[Ints, Ints, Ints]:
    """Item and layers of the cheapest stage, and what the stages behind it must be, [box].

    Of the layers that are `left` it is the first in pipeline order; `was` tells what may come.
    """
    rows, width = np.arange(len(left)), step.times.shape[2]
    before = [_reversed(s[own], left, width) for s in previous]
    by_partial = step.by_partial[own]
    before.append(np.where(by_partial[:, None], before[PARTIAL], before[DEEP]))
    costs = np.stack([cost[own] for cost in step.costs])
    may = np.stack([was == way if way in (PARTIAL, DEEP) else was == AHEAD for way in range(4)])
    totals = np.where(may[:, :, None], np.stack(before) + costs.min(axis=2), np.inf)
    flat = np.argmin(totals.transpose(1, 0, 2).reshape(len(left), 4 * width), axis=1)
    way, layers = np.divmod(flat, width)
    item = np.argmin(costs[way, rows, :, layers], axis=1)
    return item, layers, np.where(way == SLOW, np.where(by_partial, PARTIAL, DEEP), way)


def _reversed(state: Floats, left: Ints, width: int) -> Floats:
    """Values of a state with n layers fewer than are left, [box, n]."""
    at = left[:, None] - np.arange(width)
    values: Floats = np.where(at >= 0, np.take_along_axis(state, np.maximum(at, 0), axis=1), np.inf)
    return values
