"""What a stage adds to a chain of a box, by where it stands to the slow stage.

The rows of `planner.search.replicas.pricing`, stage by stage, for each of `SHARES` of what lies behind the
near stage, and with the share theta (`Boxes.late`) of the end of that; y (`Boxes.weight`) counts what its
chips are worth. The near stage is the slow one itself, or with nu < 1 (`Boxes.near`) may lie behind it. By
which share the stages behind it count is decided when it comes: for every number of stages and layers behind
it by the one that says most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools, Boxes
from planner.search.replicas.items import StageTimes
from planner.search.replicas.space import Ints

SHARES = (0.0, 1.0, 2.0)
"""alpha: how often the way from the slow stage to the last one and back counts."""
BETWEEN, AHEAD = len(SHARES), len(SHARES) + 1
"""What a stage is: ahead of the near one but behind the slow one, or ahead of both, or one of them; a smaller
number is the share of one behind both."""


def paces(pace: Floats) -> Floats:
    """beta: what (partial) takes off for each stage behind, in times of the slow stage, [share, box]."""
    alpha = np.array(SHARES)[:, None]
    taken: Floats = np.minimum(alpha, 1) * pace + np.maximum(alpha - 1, 0) * (1 - pace)
    return taken


@dataclass(frozen=True)
class Step:
    """Costs of the stages that some stages lie behind."""

    times: Floats
    """[box, item, n], n = 0 unused."""
    costs: Floats
    """[way, box, item, n] of stages behind the near one by each share, between, and ahead of both."""
    slow: Floats
    """[share, box, item, n] of the slow stage where it is the near one as well."""
    near: Floats
    """[share, box, item, n] of a near stage that the slow one is ahead of."""
    alone: Floats
    """[box, item, n] of the slow stage where it is not the near one."""
    by_partial: Bools
    """Whether a near stage here counts by (partial), [box]."""
    is_split: bool
    """Whether some box tells the near stage from the slow one."""

    def cheapest(self) -> Cheapest:
        """The least over the items."""
        near, alone = self.near.min(axis=2), self.alone.min(axis=1)
        return Cheapest(self.costs.min(axis=2), self.slow.min(axis=2), near, alone, is_split=self.is_split)


@dataclass(frozen=True)
class Cheapest:
    """Least costs of stages over the items, [way or share, box, n], n = 0 unused."""

    costs: Floats
    slow: Floats
    near: Floats
    alone: Floats
    """[box, n]"""
    is_split: bool

    def at(self, rows: Bools) -> Cheapest:
        """Of some boxes."""
        costs, slow, near = self.costs[:, rows], self.slow[:, rows], self.near[:, rows]
        return Cheapest(costs, slow, near, self.alone[rows], is_split=self.is_split)


def at_low(boxes: Boxes, share: Floats | float = 1.0) -> Floats:
    """What all micro-batches take at the least time, less what the weight counts of it, [box].

    Of what the near stage takes only a share counts.
    """
    over = boxes.low * (boxes.apart + (1 - boxes.apart) * share * boxes.near) - boxes.weight
    taken: Floats = over * np.where(over >= 0, boxes.least_m, boxes.most_m)
    return taken


def lent(boxes: Boxes, share: float) -> Floats:
    """What a near stage by (deep) gets back of what both rows count beside the stages, [box]."""
    return at_low(boxes, 1 - share / 2) - at_low(boxes)


def _wide(values: Floats | Ints | Bools) -> Floats:
    """[box, 1, 1]"""
    return np.asarray(values, dtype=np.float64)[:, None, None]


def make_step(
    boxes: Boxes,
    pace: Floats,
    paid: Floats,
    hop: Floats,
    stages: StageTimes,
    behind: range,
    *,
    is_first: bool,
) -> Step:
    """Costs of stages.

    Parameters
    ----------
    pace
        [share, box], as `paces` gives it.
    paid, hop
        [box, item, 1]: what the chips count, and the send to one side, one way [ms].
    stages
        Arrays [box, item, n].
    behind
        Numbers of stages behind them that the costs hold for: some number at which they are told apart, or
        several at which they are not.
    """
    ends, starts = int(behind[-1] > 0), int(not is_first)
    low, late, least_m = _wide(boxes.low), _wide(boxes.late), _wide(boxes.least_m)
    near_ms, apart, is_split = _wide(boxes.low * boxes.near), _wide(boxes.apart), bool((boxes.near < 1).any())
    fits = stages.times <= _wide(boxes.high)
    taken, after = np.where(fits, stages.times, 0.0), np.where(fits, stages.after, 0.0)
    by_partial = boxes.least_m - 2 >= behind[0]
    is_slow, is_near = fits & (stages.times >= low), fits & (stages.times >= near_ms)
    free = np.where(fits, paid, np.inf)
    late_after = after if is_first else late * after
    near_at = np.where(is_near, (1 - late / 2) * starts * hop + late_after, np.inf)
    near = paid + _near_costs(boxes, pace, near_at, taken, hop, behind)
    # Up to the end of the near stage only the forward of those ahead of it counts.
    ahead = taken + (ends + starts) * hop
    own_late = (1 - apart) * late
    if boxes.late.any():
        less = taken - np.where(fits, stages.forward, 0.0) + (ends + starts) / 2 * hop
        between, ahead = (1 - apart) * (ahead - late * less), ahead - own_late * less
    else:
        between = (1 - apart) * ahead
    ahead, between, slow = free + ahead, free + between, near
    alone = np.full_like(between, np.inf)
    if is_split:
        slow_at = apart * (least_m * (taken - low) + starts * hop)
        slow = np.where(is_slow, near + slow_at + (apart * after if is_first else 0.0), np.inf)
        alone = np.where(is_slow, between + slow_at, np.inf)
    if is_first:
        first_after = (1 - own_late) * after
        costs = np.broadcast_to(ahead + first_after, (1, *ahead.shape))
        return Step(stages.times, costs, slow, near[:0], alone + first_after, by_partial, is_split)
    behind_both = np.where(is_near, np.inf, free) + (1 - apart) * _behind_costs(
        boxes, pace, taken + (ends + starts) * hop, starts * hop, behind[0]
    )
    costs = np.concatenate([behind_both, between[None], ahead[None]])
    return Step(stages.times, costs, slow, near, alone, by_partial, is_split)


def _near_costs(
    boxes: Boxes, pace: Floats, near_at: Floats, taken: Floats, hop: Floats, behind: range
) -> Floats:
    """What near stages take, and what lies behind them beside those stages, [share, box, item, n].

    Parameters
    ----------
    near_at
        What follows them, and the send from the stage ahead of them.
    """
    near_ms, apart, least_m = _wide(boxes.low * boxes.near), _wide(boxes.apart), _wide(boxes.least_m)
    is_deep, ends = _wide(boxes.least_m - 2 < behind[0]) > 0, int(behind[-1] > 0)
    near = np.empty((len(SHARES), *near_at.shape))
    for k, share in enumerate(SHARES):
        # By (partial) times - low counts m' - beta q times, by (deep) psi times beside (work).
        counted = np.where(
            is_deep, least_m - share / 2 * (least_m - 1), least_m - _wide(pace[k]) * behind[-1]
        )
        beside = np.where(is_deep, share / 2 * (near_ms + ends * hop), share * ends * hop)
        near[k] = (1 - apart) * (near_at + beside + counted * (taken - near_ms))
        near[k] += np.where(is_deep, _wide(lent(boxes, share)), 0.0)
    return near


def _behind_costs(boxes: Boxes, pace: Floats, both: Floats, hop: Floats, behind: int) -> Floats:
    """What stages behind the near one count, with the sends on `both` sides, [share, box, item, n].

    Parameters
    ----------
    hop
        The send from the stage ahead of them.
    """
    near_ms, least_m = _wide(boxes.low * boxes.near), _wide(boxes.least_m)
    is_deep = _wide(boxes.least_m - 2 < behind) > 0
    # By (deep) the last m' - 1 stages count twice, but for the send from the stage ahead of them.
    turns = _wide(boxes.least_m - 2 == behind) > 0
    costs = np.empty((len(SHARES), *both.shape))
    for k, share in enumerate(SHARES):
        own = _wide(pace[k]) * near_ms
        back = np.where(turns, own * (least_m - 1) - share / 2 * hop, 0.0)
        costs[k] = np.where(is_deep, share / 2 * both, share * both - own + back)
    return costs


def closing(state: Floats, step: Cheapest, num_layers: int) -> Floats:
    """Least cost of chains whose first stage comes now, [box]."""
    left = state[:, :, num_layers::-1][:, :, : step.slow.shape[2]]
    slow = np.minimum((left[:BETWEEN] + step.slow).max(axis=0), left[BETWEEN] + step.alone)
    closed: Floats = np.minimum(left[AHEAD] + step.costs[-1], slow).min(axis=1)
    return closed


def moved(state: Floats, step: Cheapest) -> Floats:
    """The states with one more stage, [way, box, layers placed]."""
    result = np.full_like(state, np.inf)
    placed = np.flatnonzero(np.isfinite(state).any(axis=(0, 1)))
    if not len(placed):
        return result
    first, end = int(placed[0]), int(placed[-1]) + 1
    both = (step.costs, step.slow)
    may = np.any([np.isfinite(cost[:, :, 1:]).any(axis=(0, 1)) for cost in both], axis=0)
    for n in (np.flatnonzero(may) + 1).tolist():
        last = min(end, state.shape[2] - n)
        if last > first:
            more, old = result[:, :, first + n : last + n], state[:, :, first:last]
            for ways in (slice(None),) if step.is_split else (slice(BETWEEN), slice(AHEAD, None)):
                np.minimum(more[ways], old[ways] + step.costs[ways, :, n : n + 1], out=more[ways])
            slow = (old[:BETWEEN] + step.slow[:, :, n : n + 1]).max(axis=0)
            np.minimum(more[AHEAD], slow, out=more[AHEAD])
            if step.is_split:
                np.minimum(more[AHEAD], old[BETWEEN] + step.alone[:, n : n + 1], out=more[AHEAD])
                near = (old[:BETWEEN] + step.near[:, :, n : n + 1]).max(axis=0)
                np.minimum(more[BETWEEN], near, out=more[BETWEEN])
    return result


@dataclass(frozen=True)
class Ways:
    """The cheapest stages of some boxes, arrays [box]."""

    item: Ints
    layers: Ints
    was: Ints
    """What the stages behind them are."""
    share: Ints
    """Number of the share, where they are the near ones."""
    is_near: Bools


def best_ways(step: Step, own: Bools, previous: Floats, left: Ints, was: Ints) -> Ways:
    """The cheapest stages of boxes.

    Of the layers that are `left` each is the first in pipeline order; `was` tells what it is: AHEAD that it
    may be the slow one too, BETWEEN the near one.
    """
    rows, width = np.arange(len(left)), step.times.shape[2]
    at = left[:, None] - np.arange(width)
    before = np.where(at >= 0, np.take_along_axis(previous[:, own], np.maximum(at, 0)[None], axis=2), np.inf)
    before = before[:, :, None, :]
    is_first = step.costs.shape[0] == 1
    ways = np.zeros_like(was) if is_first else was
    plain = before[was, rows] + step.costs[:, own][ways, rows]
    is_ahead, is_between = (was == AHEAD)[:, None, None], (was == BETWEEN)[:, None, None]
    slow_ways = before[:BETWEEN] + step.slow[:, own]
    slow = np.where(is_ahead, slow_ways.max(axis=0), np.inf)
    alone = np.where(is_ahead, before[BETWEEN] + step.alone[own], np.inf)
    near, near_ways = np.full_like(plain, np.inf), slow_ways
    if step.is_split and not is_first:
        near_ways = before[:BETWEEN] + step.near[:, own]
        near = np.where(is_between, near_ways.max(axis=0), np.inf)
    each = plain.shape[1] * width
    all_ways = np.stack([plain, slow, alone, near], axis=1).reshape(len(left), 4 * each)
    way, rest = np.divmod(np.argmin(all_ways, axis=1), each)
    item, layers = np.divmod(rest, width)
    share = np.where(
        way == 1,
        np.argmax(slow_ways[:, rows, item, layers], axis=0),
        np.argmax(near_ways[:, rows, item, layers], axis=0),
    )
    is_near = (way == 1) | (way == 3)
    behind = np.where(is_near, share, np.where(way == 2, BETWEEN, was))
    return Ways(item, layers, behind, share, is_near)
