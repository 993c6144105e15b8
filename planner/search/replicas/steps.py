"""What a stage adds to a chain of a box, by where it stands to the slow stage.

The rows of `planner.search.replicas.pricing`, stage by stage, for each of `SHARES` of what lies behind the
slow stage, and with the share theta (`Boxes.late`) of the end of the slow stage; y (`Boxes.weight`) counts
what its chips are worth. By which share the stages behind count is decided when the slow one comes: for every
number of stages and layers behind it by the one that says most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools, Boxes
from planner.search.replicas.chains import StageTimes
from planner.search.replicas.space import Ints

SHARES = (0.0, 1.0, 2.0)
"""alpha: how often the way from the slow stage to the last one and back counts."""
AHEAD, SLOW = len(SHARES), len(SHARES) + 1
"""What a stage is: ahead of the slow one, or it; a smaller number is the share of one behind it."""


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
    """[way, box, item, n] of stages behind the slow one by each share, and ahead of it."""
    slow: Floats
    """[share, box, item, n] of the slow stage."""
    by_partial: Bools
    """Whether a slow stage here counts by (partial), [box]."""

    def cheapest(self) -> Cheapest:
        """The least over the items."""
        return Cheapest(self.costs.min(axis=2), self.slow.min(axis=2))


@dataclass(frozen=True)
class Cheapest:
    """Least costs of stages over the items, [way, box, n] and [share, box, n], n = 0 unused."""

    costs: Floats
    slow: Floats

    def at(self, rows: Bools) -> Cheapest:
        """Of some boxes."""
        return Cheapest(self.costs[:, rows], self.slow[:, rows])


def at_low(boxes: Boxes, share: Floats | float = 1.0) -> Floats:
    """What a share of all micro-batches takes at the least time, less what the weight counts of it, [box]."""
    over = share * boxes.low - boxes.weight
    taken: Floats = over * np.where(over >= 0, boxes.least_m, boxes.most_m)
    return taken


def lent(boxes: Boxes, share: float) -> Floats:
    """What a slow stage by (deep) gets back of what both rows count beside the stages, [box]."""
    return at_low(boxes, 1 - share / 2) - at_low(boxes)


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

    def wide(values: Floats | Ints | Bools) -> Floats:
        return np.asarray(values, dtype=np.float64)[:, None, None]

    ends, starts = int(behind[-1] > 0), int(not is_first)
    low, late, least_m = wide(boxes.low), wide(boxes.late), wide(boxes.least_m)
    fits = stages.times <= wide(boxes.high)
    taken, after = np.where(fits, stages.times, 0.0), np.where(fits, stages.after, 0.0)
    is_slow = fits & (stages.times >= low)
    free = np.where(fits, paid, np.inf)
    by_partial = boxes.least_m - 2 >= behind[0]
    is_deep = ~wide(by_partial).astype(np.bool_)
    slow_at = np.where(is_slow, paid, np.inf) + (1 - late / 2) * starts * hop
    slow_at = slow_at + (after if is_first else late * after)
    slow = np.empty((len(SHARES), *free.shape))
    for k, share in enumerate(SHARES):
        # By (partial) times - low counts m' - beta q times, by (deep) psi times beside (work).
        counted = np.where(is_deep, least_m - share / 2 * (least_m - 1), least_m - wide(pace[k]) * behind[-1])
        beside = np.where(
            is_deep, share / 2 * (low + ends * hop) + wide(lent(boxes, share)), share * ends * hop
        )
        slow[k] = slow_at + beside + counted * (taken - low)
    # Up to the end of the slow stage only the forward of those ahead of it counts.
    ahead = free + taken + (ends + starts) * hop
    if boxes.late.any():
        ahead -= late * (taken - np.where(fits, stages.forward, 0.0) + (ends + starts) / 2 * hop)
    if is_first:
        costs = np.broadcast_to(ahead + (1 - late) * after, (1, *ahead.shape))
        return Step(stages.times, costs, slow, by_partial)
    costs = np.empty((len(SHARES) + 1, *free.shape))
    costs[AHEAD] = ahead
    beyond = np.where(is_slow, np.inf, free)
    both = taken + (ends + starts) * hop
    # By (deep) the last m' - 1 stages count twice, but for the send from the stage ahead of them.
    turns = wide(boxes.least_m - 2 == behind[0]) > 0
    for k, share in enumerate(SHARES):
        own = wide(pace[k]) * low
        back = np.where(turns, own * (least_m - 1) - share / 2 * starts * hop, 0.0)
        costs[k] = beyond + np.where(is_deep, share / 2 * both, share * both - own + back)
    return Step(stages.times, costs, slow, by_partial)


def closing(state: Floats, step: Cheapest, num_layers: int) -> Floats:
    """Least cost of chains whose first stage comes now, [box]."""
    left = state[:, :, num_layers::-1][:, :, : step.slow.shape[2]]
    slow = (left[:AHEAD] + step.slow).max(axis=0)
    closed: Floats = np.minimum(left[AHEAD] + step.costs[-1], slow).min(axis=1)
    return closed


def moved(state: Floats, step: Cheapest) -> Floats:
    """The states with one more stage, [way, box, layers placed]."""
    result = np.full_like(state, np.inf)
    placed = np.flatnonzero(np.isfinite(state).any(axis=(0, 1)))
    if not len(placed):
        return result
    first, end = int(placed[0]), int(placed[-1]) + 1
    may = np.isfinite(step.costs[:, :, 1:]).any(axis=(0, 1)) | np.isfinite(step.slow[:, :, 1:]).any(
        axis=(0, 1)
    )
    for n in (np.flatnonzero(may) + 1).tolist():
        last = min(end, state.shape[2] - n)
        if last > first:
            more, old = result[:, :, first + n : last + n], state[:, :, first:last]
            np.minimum(more, old + step.costs[:, :, n : n + 1], out=more)
            slow = (old[:AHEAD] + step.slow[:, :, n : n + 1]).max(axis=0)
            np.minimum(more[AHEAD], slow, out=more[AHEAD])
    return result


def best_ways(
    step: Step, own: Bools, previous: Floats, left: Ints, was: Ints
) -> tuple[Ints, Ints, Ints, Bools]:
    """Item and layers of the cheapest stage, what the stages behind it are, and whether it is slow, [box].

    Of the layers that are `left` it is the first in pipeline order; `was` tells what it is, AHEAD that it may
    be the slow one too.
    """
    rows, width = np.arange(len(left)), step.times.shape[2]
    at = left[:, None] - np.arange(width)
    before = np.where(at >= 0, np.take_along_axis(previous[:, own], np.maximum(at, 0)[None], axis=2), np.inf)
    ways = np.minimum(was, step.costs.shape[0] - 1) if step.costs.shape[0] > 1 else np.zeros_like(was)
    costs = step.costs[:, own][ways, rows]
    plain = before[was, rows][:, None, :] + costs
    slow_ways = before[:AHEAD, :, None, :] + step.slow[:, own]
    slow = np.where((was == AHEAD)[:, None, None], slow_ways.max(axis=0), np.inf)
    both = np.stack([plain, slow], axis=1).reshape(len(left), 2 * plain.shape[1] * width)
    flat = np.argmin(both, axis=1)
    is_slow, rest = np.divmod(flat, plain.shape[1] * width)
    item, layers = np.divmod(rest, width)
    share = np.argmax(slow_ways[:, rows, item, layers], axis=0)
    slow_now = is_slow > 0
    return item, layers, np.where(slow_now, share, was), slow_now
