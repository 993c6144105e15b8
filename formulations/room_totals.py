"""What pipelines side by side run in all, by the whole chips that each of them takes: a knapsack.

Sets       c in C                        node classes
           r in R                        rooms: whole chips of each class, 0 <= r[c] <= N[c]
Data       N[c]          available       chips of class c
           v[r]          most            most sequences that one pipeline on r runs; -inf where none is
Asked      max sum_r v[r] y[r] over whole y >= 0 with sum_r r[c] y[r] <= N[c] for all c, sum_r y[r] >= 2
Recursion  V[r] = max(v[r], V[r - e[c]] for all c, max_{s < r} v[s] + V[r - s])       one or more within r
           max_{0 < s < N} v[s] + V[N - s]                                            what is asked
Size       |R| states, |R|^2 / 2^|C| transitions.
Exact      yes, by dynamic programming.
Leaves out hosts, but for what the rooms hold of them, and what pipelines exchange.
Source     unbounded knapsack in several dimensions: S. Martello, P. Toth, "Knapsack Problems", Wiley 1990,
           chapter 3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def most_together(most: Floats) -> float:
    """Most sequences that two or more pipelines run on all chips, -inf where no two are.

    Parameters
    ----------
    most
        v, one axis a class, of N[c] + 1 each; what none of no chips runs is not looked at.
    """
    own = most.copy()
    own.flat[0] = -np.inf
    for axis in range(own.ndim):
        np.maximum.accumulate(own, axis=axis, out=own)
    own.flat[0] = -np.inf
    within = own.copy()
    for room in np.ndindex(*own.shape):
        if any(room):
            within[room] = max(float(own[room]), _beside(own, within, room))
    return _beside(own, within, tuple(n - 1 for n in own.shape))


def _beside(own: Floats, within: Floats, room: tuple[int, ...]) -> float:
    """Most of a pipeline and one or more others within a room."""
    part = tuple(slice(0, n + 1) for n in room)
    turned = np.flip(within[part])
    # All of the room or nothing of it is no part: one pipeline alone.
    return float((own[part] + turned).max(initial=-np.inf))
