"""Many plans that change at once in small random steps: the loop that all annealing shares.

References
----------
S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats
from planner.search.walks import Ints

WALKERS = 48
LOOK_AT_CLOCK = 50
"""Steps between two looks at the clock."""


@dataclass(frozen=True)
class Cooling:
    """How long walkers go on, and what losses they take."""

    steps: int
    warmth: float
    """Loss that the first step keeps with probability 1/e, relative to the step time; it cools to nothing."""
    follow_every: int
    """Steps after which the last quarter of the walkers goes on from where the first quarter is."""


def walk(
    order: Ints,
    layers: Ints,
    value: Floats,
    change: Callable[[Ints, Ints], tuple[Ints, Ints, Floats]],
    cooling: Cooling,
    random: np.random.Generator,
    is_up: Callable[[], bool],
) -> tuple[Ints, Ints, Floats]:
    """The best that each walker has met: orders, layers [walker, stage] and values [walker].

    Parameters
    ----------
    order, layers, value
        Where the walkers begin, and what that is worth; inf where it fits nowhere.
    change
        One random change of every walker, and its new values.
    is_up
        Whether the time is up.
    """
    best_order, best_layers, best = order.copy(), layers.copy(), value.copy()
    for step in range(cooling.steps):
        if step % LOOK_AT_CLOCK == 0 and is_up():
            break
        new_order, new_layers, new = change(order, layers)
        least = float(best.min())
        warmth = cooling.warmth * (1 - step / cooling.steps) ** 2 * (least if np.isfinite(least) else 1.0)
        kept = new <= value - warmth * np.log1p(-random.random(len(value)))
        order = np.where(kept[:, None], new_order, order)
        layers = np.where(kept[:, None], new_layers, layers)
        value = np.where(kept, new, value)
        better = value < best
        best_order[better], best_layers[better] = order[better], layers[better]
        best = np.where(better, value, best)
        if step % cooling.follow_every == cooling.follow_every - 1:
            rank = np.argsort(value, kind="stable")
            ahead, behind = rank[: len(rank) // 4], rank[-(len(rank) // 4) :]
            order[behind], layers[behind], value[behind] = order[ahead], layers[ahead], value[ahead]
    return best_order, best_layers, best
