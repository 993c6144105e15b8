"""When fractions of the chains found first run the batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.cost.prices import Floats

HALVINGS = 12
"""Halvings of the interval in which fractions of the chains found first run the batch."""


def first_reach(
    program: Callable[[float], tuple[Floats, float]], batch: int, low_ms: float, limit_ms: float, near: float
) -> tuple[float, Floats]:
    """When fractions of the chains found first run the batch, inf beyond a limit; prices before it.

    Parameters
    ----------
    program
        Prices by a deadline, and what all chips are worth at least by then.
    near
        Relative distance at which it is known well enough.
    """
    low, high = low_ms, limit_ms
    price, worth = program(limit_ms)
    if worth < batch:
        return np.inf, price
    price, _ = program(low)
    for _ in range(HALVINGS):
        if high - low <= near * high:
            break
        middle = (low + high) / 2
        at, worth = program(middle)
        if worth < batch:
            low, price = middle, at
        else:
            high = middle
    return high, price
