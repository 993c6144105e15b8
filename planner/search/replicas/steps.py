"""What a stage adds to a chain of a box, by where it stands to the slow stage.

The rows of `planner.search.replicas.pricing`, stage by stage, with the share phi (`Boxes.fill`) of (partial)
or (window) and the rest of (work), and the share theta (`Boxes.late`) of the end of the slow stage; y
(`Boxes.weight`) counts what its chips are worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools, Boxes
from planner.search.replicas.chains import StageTimes
from planner.search.replicas.space import Ints

State = tuple[Floats, Floats, Floats]
"""Least costs [box, layers placed]: slow stage to come, by (partial) or (window), and slow stage placed."""
PARTIAL, WINDOW, AHEAD, SLOW = range(4)
"""What a stage is: behind the slow one by either row, ahead of it, or it."""


@dataclass(frozen=True)
class Step:
    """Costs of the stages that some stages lie behind, [box, item, n], n = 0 unused."""

    times: Floats
    costs: tuple[Floats, Floats, Floats, Floats]
    """By what the stage is; a first stage is the slow one or ahead of it."""
    by_partial: Bools
    """Whether a slow stage here counts by (partial), [box]."""

    def least(self, way: int) -> Floats:
        """Least cost over the items, [box, n]."""
        least: Floats = self.costs[way].min(axis=1)
        return least


def at_low(boxes: Boxes, share: Floats) -> Floats:
    """What a share of all micro-batches takes at the least time, less what the weight counts of it, [box]."""
    over = share * boxes.low - boxes.weight
    taken: Floats = over * np.where(over >= 0, boxes.least_m, boxes.most_m)
    return taken


def lent(boxes: Boxes) -> Floats:
    """What a slow stage by (window) gets back of what both rows count beside the stages, [box]."""
    return at_low(boxes, 1 - boxes.fill) - at_low(boxes, np.ones(len(boxes)))


def make_step(
    boxes: Boxes, paid: Floats, hop: Floats, stages: StageTimes, behind: int, *, is_first: bool
) -> Step:
    """Costs of stages.

    Parameters
    ----------
    paid, hop
        [box, item, 1]: what the chips count, and the send to one side, one way [ms].
    stages
        Arrays [box, item, n].
    behind
        Stages behind them.
    """

    def wide(values: Floats | Ints | Bools) -> Floats:
        return np.asarray(values, dtype=np.float64)[:, None, None]

    ends, starts = int(behind > 0), int(not is_first)
    low, fill, late, least_m = wide(boxes.low), wide(boxes.fill), wide(boxes.late), wide(boxes.least_m)
    fits = stages.times <= wide(boxes.high)
    taken, after = np.where(fits, stages.times, 0.0), np.where(fits, stages.after, 0.0)
    is_slow = fits & (stages.times >= low)
    free = np.where(fits, paid, np.inf)
    by_partial = behind <= boxes.least_m - 2
    # The slow stage: by (partial) times - low counts m' - phi q times, by (window) both parts of it.
    counted = np.where(
        wide(by_partial) > 0, least_m - fill * behind, (1 - fill) * least_m + fill * (least_m + 1) / 2
    )
    beside = np.where(wide(by_partial) > 0, 0.0, fill * (least_m + 1) / 2 * low + wide(lent(boxes)))
    hops = (np.where(wide(by_partial) > 0, 2 * fill, fill) * ends + (1 - late / 2) * starts) * hop
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
    behind_it = fill * (taken + (ends + starts) * hop)
    costs = beyond + 2 * behind_it - fill * low, beyond + behind_it, ahead, slow
    return Step(stages.times, costs, by_partial)


def closing(state: State, step: Step, num_layers: int) -> Floats:
    """Least cost of chains whose first stage comes now, [box]."""
    partial, window, ahead = (s[:, num_layers::-1][:, : step.times.shape[2]] for s in state)
    slow = np.where(step.by_partial[:, None], partial, window) + step.least(SLOW)
    closed: Floats = np.minimum(ahead + step.least(AHEAD), slow).min(axis=1)
    return closed


def moved(state: State, step: Step) -> State:
    """The states with one more stage."""
    to_come = np.where(step.by_partial[:, None], state[PARTIAL], state[WINDOW])
    return (
        _plus(state[PARTIAL], step.least(PARTIAL)),
        _plus(state[WINDOW], step.least(WINDOW)),
        np.minimum(_plus(state[AHEAD], step.least(AHEAD)), _plus(to_come, step.least(SLOW))),
    )


def _plus(state: Floats, cost: Floats) -> Floats:
    """Least of state[l - n] + cost[n] over n >= 1, [box, l]."""
    result = np.full_like(state, np.inf)
    if not np.isfinite(state).any():
        return result
    for n in range(1, cost.shape[1]):
        if np.isfinite(cost[:, n]).any():
            np.minimum(result[:, n:], state[:, :-n] + cost[:, n : n + 1], out=result[:, n:])
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
    before.append(np.where(by_partial[:, None], before[PARTIAL], before[WINDOW]))
    costs = np.stack([cost[own] for cost in step.costs])
    may = np.stack([was == way if way in (PARTIAL, WINDOW) else was == AHEAD for way in range(4)])
    totals = np.where(may[:, :, None], np.stack(before) + costs.min(axis=2), np.inf)
    flat = np.argmin(totals.transpose(1, 0, 2).reshape(len(left), 4 * width), axis=1)
    way, layers = np.divmod(flat, width)
    item = np.argmin(costs[way, rows, :, layers], axis=1)
    return item, layers, np.where(way == SLOW, np.where(by_partial, PARTIAL, WINDOW), way)


def _reversed(state: Floats, left: Ints, width: int) -> Floats:
    """Values of a state with n layers fewer than are left, [box, n]."""
    at = left[:, None] - np.arange(width)
    values: Floats = np.where(at >= 0, np.take_along_axis(state, np.maximum(at, 0), axis=1), np.inf)
    return values
