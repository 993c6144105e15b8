"""How a box is refined whose best chain is bounded lower than it takes itself.

`planner.search.replicas.pricing` has what weight and fill of a box mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.search.replicas.boxes import Boxes, Found

FINEST = 1.0005
"""Ratio of the ends of a box's times at last."""
CLOSE = 5e-4
"""Relative distance to the best chain at which a box is closed."""
HEAVIEST, LIGHTEST = 8, 1 / 8
"""Weights at most and at least, in times of the least time of a box, before one is bracketed."""
LEAST_FILL = 0.25
"""Fill from which on it is not lowered any more."""
NARROW = 0.02
"""Distance between two weights, in the same times, between which none is tried."""


@dataclass(frozen=True)
class Line:
    """A weight that was tried, with the value and its slope there."""

    weight: float
    value: float
    slope: float


@dataclass(frozen=True)
class Asked:
    """The last weights of a box where its value still rises, and already falls."""

    rising: Line | None = None
    falling: Line | None = None


def refined(box: Boxes, value: float, found: Found, worth: float, asked: Asked) -> tuple[list[Boxes], Asked]:
    """A box with a better weight or fill, or in two pieces; nothing where it cannot be cut any more.

    Parameters
    ----------
    value, found
        What the box is bounded by [ms], and the chain that gave it.
    worth
        Sequences that the chips of the chain are worth.
    """
    low, weight, fill = float(box.low[0]), float(box.weight[0]), float(box.fill[0])
    microbatches = worth / found.column.microbatch_size
    slope = _slope(box, found, microbatches)
    if slope < 0:
        asked = replace(asked, falling=Line(weight, value, slope))
    elif slope > 0:
        asked = replace(asked, rising=Line(weight, value, slope))
    better = _weight(low, asked, value) if slope else None
    if better is not None:
        return [replace(box, weight=np.array([better]))], asked
    if _gain_of_fill(box, found) < -CLOSE * value and fill > LEAST_FILL:
        return [replace(box, fill=np.array([fill / 2]))], Asked()
    return _cut(box, value, found, microbatches), Asked()


def _slope(box: Boxes, found: Found, microbatches: float) -> float:
    """How the value changes with the weight; 0 where it is highest."""
    weight, least_m, most_m = float(box.weight[0]), int(box.least_m[0]), int(box.most_m[0])
    # Where the weight takes over all that the row counts of a micro-batch, the slope jumps.
    jump = float(box.low[0]) * (1.0 if found.by_partial else 1 - float(box.fill[0]))
    if weight == jump:
        return min(microbatches - least_m, 0.0) + max(microbatches - most_m, 0.0)
    return microbatches - (least_m if weight < jump else most_m)


def _weight(low: float, asked: Asked, value: float) -> float | None:
    """The next weight to try: where two lines meet; None where none promises more."""
    left, right = asked.rising, asked.falling
    if right is None:
        return left.weight * 2 if left is not None and left.weight < HEAVIEST * low else None
    if left is None:
        return right.weight / 2 if right.weight > LIGHTEST * low else None
    if right.weight - left.weight < NARROW * low:
        return None
    rise = right.value - left.value + left.slope * left.weight - right.slope * right.weight
    cross = rise / (left.slope - right.slope)
    promised = left.value + left.slope * (cross - left.weight)
    if promised <= value * (1 + CLOSE / 2) or not left.weight < cross < right.weight:
        return None
    return cross


def _gain_of_fill(box: Boxes, found: Found) -> float:
    """How much more the row of what lies behind the slow stage counts than (work) [ms]."""
    column, slow = found.column, found.slow
    behind, time = column.behind_ms[slow], column.stages_ms[slow]
    if found.by_partial:
        return 2 * behind - (len(column.layers) - 1 - slow) * time
    return behind - (int(box.least_m[0]) - 1) / 2 * time


def _cut(box: Boxes, value: float, found: Found, microbatches: float) -> list[Boxes]:
    """Two pieces, or none."""
    low, high = float(box.low[0]), float(box.high[0])
    least_m, most_m, column = int(box.least_m[0]), int(box.most_m[0]), found.column
    rounding = 0.0
    if least_m <= microbatches <= most_m:
        rounding = column.slowest_ms * (float(np.ceil(microbatches - 1e-9)) - microbatches)
    rest = column.time_ms(microbatches * column.microbatch_size) - value - rounding
    can_cut_m, can_cut_time = most_m > least_m, high > low * FINEST
    if can_cut_m and (rounding >= rest or not can_cut_time or most_m / least_m > (high / low) ** 2):
        middle = int(np.clip(np.floor(microbatches + 1e-9), least_m, most_m - 1))
        return [replace(box, most_m=np.array([middle])), replace(box, least_m=np.array([middle + 1]))]
    if can_cut_time:
        middle_ms = np.array([float(np.sqrt(low * high))])
        upper = replace(box, low=middle_ms, weight=middle_ms * (float(box.weight[0]) / low))
        return [replace(box, high=middle_ms), upper]
    return []
