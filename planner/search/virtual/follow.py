"""What stages may hold in plans below a limit, and what follows the pipeline in all of them.

The slowest stage of a plan adds its optimizer and its gathering after the pipeline. Below a limit few numbers
of layers are left of each stage, and those with which no stage adds more than some time often cannot hold all
layers of the model: every plan then adds more than that, wherever its slowest stage is. With that the other
stages may hold less, and so on.
"""

from __future__ import annotations

import numpy as np

from planner.cost.prices import Bools
from planner.search.virtual.assignment import UNFIT, most_layers
from planner.search.virtual.capacity import ROUNDING, WALKS, Capacity
from planner.search.virtual.prefixes import Prefixes

TURNS = 3
"""Times that one of them tells the other. A guess."""


def below(
    capacity: Capacity, prefixes: Prefixes, limit_ms: float, known: Bools | None = None
) -> tuple[Bools, float]:
    """Numbers of layers of plans below a limit [class, stage, n], and what they add at least [ms].

    Parameters
    ----------
    known
        [class, stage, n] what is known of these numbers.
    """
    fits, follow_ms = capacity.fits(limit_ms) & prefixes.fits(limit_ms), 0.0
    if known is not None:
        fits &= known
    for _ in range(TURNS if np.isfinite(limit_ms) else 0):
        least_ms = _least_follow_ms(capacity, fits)
        if least_ms <= follow_ms:
            break
        follow_ms = least_ms
        fits &= capacity.fits(limit_ms, follow_ms) & prefixes.fits(limit_ms, follow_ms)
    return fits, follow_ms


def _least_follow_ms(capacity: Capacity, fits: Bools) -> float:
    """The least that the slowest stage of any plan adds after the pipeline.

    Parameters
    ----------
    fits
        [class, stage, n] that a plan may have. Stages that add no more than something less cannot hold all
        layers.
    """
    follow_ms, layers = capacity.places.follow_ms, np.arange(capacity.num_layers + 1)
    follow = np.unique(follow_ms[fits])
    low, high, needed = 0, len(follow) - 1, capacity.num_layers * (1 - ROUNDING)
    while low < high:
        middle = (low + high) // 2
        most = np.where(fits & (follow_ms <= follow[middle]), layers, UNFIT).max(axis=2)
        if most_layers(most, capacity.fewest, capacity.most, WALKS, np.array(needed)) < needed:
            low = middle + 1
        else:
            high = middle
    return float(follow[low]) if len(follow) else 0.0
