"""How fast the slowest stage of a pipeline can be, and how fast it must be to beat a cutoff.

Both hold for every order of classes: a stage is as fast as its class is anywhere, or as the fastest class is
in its place.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.walks.cheapest import Ints
from planner.tolerances import INTERVAL_TOL, NEXT_TO_NOTHING

HALVINGS = 16
"""Halvings of the interval of the least time; its lower end is a valid bound."""


def slowest_range(times: Floats, num_microbatches: int, most: Ints, cutoff_ms: float) -> tuple[float, float]:
    """Times between which the slowest stage of any order faster than the cutoff lies; empty where none does.

    It is slow enough for all stages to hold the layers. With M its time and Sigma the sum over all stages it
    is fast enough for (`formulations.stage_selection`, tighten_bottleneck)

        T >= m M,   T >= Sigma + (m - 1) M / 2,   T >= (m - p - 1) M + 2 Sigma  if m >= p + 1

    where Sigma is no less than that of the layers on the stages that need least time for one.

    Parameters
    ----------
    times
        [class, stage, n] in ms, with the least hops beside a stage; inf where n layers do not fit.
    most
        [class] stages.
    """
    m, p = num_microbatches, times.shape[1]
    room = _Room(times, most)
    high = cutoff_ms / m
    for _ in range(3):
        total = room.least_total(high)
        high = min(high, 2 * (cutoff_ms - total) / max(m - 1, NEXT_TO_NOTHING))
        if m > p + 1:
            high = min(high, (cutoff_ms - 2 * total) / (m - p - 1))
        if high <= 0:
            return 0.0, 0.0
    if not room.holds(high):
        return high, high
    # No order is faster than the slowest place is at its best.
    low, top = min(float(room.at_best.max()), high * (1 - INTERVAL_TOL)), high
    for _ in range(HALVINGS):
        middle = (low + top) / 2
        low, top = (low, middle) if room.holds(middle) else (middle, top)
    return low, high


def holds_layers(times: Floats, most: Ints) -> bool:
    """Whether stages hold all layers at any pace, counted by class and by place; where not, no order does.

    Arguments as of `slowest_range`.
    """
    return _Room(times, most).holds(float(np.finfo(np.float64).max))


def least_follow_ms(times: Floats, longest: Floats, follow: Floats, most: Ints, edges_ms: Floats) -> Floats:
    """What follows the pipeline at least where the slowest stage lies between two edges, [bracket].

    As much as what follows any stage whose time lies there. And the layers have to lie somewhere: with o the
    most that follows any stage, those held by stages for which neither the time exceeds the upper edge nor
    what follows exceeds o are no fewer than the model's, counted by class and by place. The least such o is
    found by halving, from below.

    Parameters
    ----------
    times, longest, follow
        [class, stage, n] in ms, the first with the least and the second with the most hops beside a stage.
    most
        [class] stages.
    edges_ms
        Ascending, one more than brackets.
    """
    held = _least_that_holds(times, follow, most, edges_ms[1:])
    paces = [(longest >= low) & (times <= high) for low, high in pairwise(edges_ms)]
    slowest = [np.where(there, follow, np.inf).min() for there in paces]
    return np.maximum(held, np.where(np.isfinite(slowest), slowest, 0.0))


def _least_that_holds(times: Floats, follow: Floats, most: Ints, edges_ms: Floats) -> Floats:
    """The o of `least_follow_ms` for each upper edge."""
    num_stages, num_layers = times.shape[1], times.shape[2] - 1
    n = np.arange(1, num_layers + 1)
    room = np.stack([np.where(times[:, :, 1:] <= edge, n, 0).max(axis=2) for edge in edges_ms])
    may_be_empty = np.isfinite(times[:, :, 0]).any(axis=0)
    # More layers that add less are as good as fewer.
    after = np.minimum.accumulate(follow[:, :, :0:-1].min(axis=1), axis=1)[:, ::-1]

    def hold(limit_ms: Floats) -> NDArray[np.bool_]:
        """Whether all layers fit, [edge]."""
        cap = np.stack([np.searchsorted(of_class, limit_ms, side="right") for of_class in after], axis=1)
        by_place = np.minimum(room, cap[:, :, None]).max(axis=1)
        by_class = np.minimum(room.max(axis=2), cap)
        order = np.argsort(-by_class, axis=1, kind="stable")
        stages = np.diff(np.minimum(np.cumsum(most[order], axis=1), num_stages), prepend=0, axis=1)
        held = (stages * np.take_along_axis(by_class, order, axis=1)).sum(axis=1)
        found: NDArray[np.bool_] = (
            ((by_place > 0) | may_be_empty).all(axis=1)
            & (by_place.sum(axis=1) >= num_layers)
            & (held >= num_layers)
        )
        return found

    finite = after[np.isfinite(after)]
    low = np.full(len(edges_ms), finite.min(initial=np.inf))
    if not len(finite):
        return np.zeros(len(edges_ms))
    high = np.full(len(edges_ms), finite.max())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        holds = hold(middle)
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return low


class _Room:
    """Layers that stages no slower than a limit can hold, counted by class and by place."""

    def __init__(self, times: Floats, most: Ints) -> None:
        self.most, self.num_stages, self.num_layers = most, times.shape[1], times.shape[2] - 1
        # More layers that take less time are as good as fewer.
        sooner = np.minimum.accumulate(times[:, :, :0:-1], axis=2)[:, :, ::-1]
        self.by_class, self.by_place = sooner.min(axis=1), sooner.min(axis=0)
        self.at_best = times.min(axis=(0, 2))
        """[stage] with one layer, or none where that may be."""
        rate = times[:, :, 1:] / np.arange(1, times.shape[2])
        self.class_rate, self.place_rate = rate.min(axis=(1, 2)), rate.min(axis=(0, 2))

    def holds(self, limit_ms: float) -> bool:
        """Whether all layers fit, by class and by place, at least one on each stage that needs it."""
        by_place = (self.by_place <= limit_ms).sum(axis=1)
        if self.at_best.max() > limit_ms or by_place.sum() < self.num_layers:
            return False
        by_class = (self.by_class <= limit_ms).sum(axis=1)
        order = np.argsort(-by_class, kind="stable")
        stages = np.diff(np.minimum(np.cumsum(self.most[order]), self.num_stages), prepend=0)
        return bool((stages * by_class[order]).sum() >= self.num_layers)

    def least_total(self, limit_ms: float) -> float:
        """Sum of the times of all stages, none slower than the limit: the larger of both counts."""
        by_class = self.most * (self.by_class <= limit_ms).sum(axis=1)
        by_place = (self.by_place <= limit_ms).sum(axis=1)
        return max(self._filled(by_class, self.class_rate), self._filled(by_place, self.place_rate))

    def _filled(self, held: Ints, rate: Floats) -> float:
        """Time of all layers where those that need least take all they hold; less where too few fit."""
        order = np.argsort(rate, kind="stable")
        taken = np.diff(np.minimum(np.cumsum(held[order]), self.num_layers), prepend=0)
        return float((taken * np.where(taken > 0, rate[order], 0.0)).sum())
