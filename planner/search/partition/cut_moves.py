"""Better splits of the layers among stages, by moving layers from one to another."""

from __future__ import annotations

import numpy as np

from formulations.layer_partition_data import Cuts, LayerPartitionData, objective_ms, objectives_ms

MAX_MOVES = 80
"""Moves after which a first split is good enough."""
FARTHEST = 8
"""Cuts in a row that are moved together at most. A guess."""


def improved(data: LayerPartitionData, cuts: Cuts) -> tuple[Cuts, float]:
    """Move neighbouring cuts by a layer or two while the objective falls; cuts and objective [ms].

    Moving all cuts between two stages takes layers from one to the other.
    """
    value, last = objective_ms(data, cuts), len(cuts)
    index = np.arange(last)
    moves = [
        by * ((index >= first) & (index <= end))
        for first in range(last)
        for end in range(first, min(first + FARTHEST, last))
        for by in (-2, -1, 1, 2)
    ]
    for _ in range(MAX_MOVES if moves else 0):
        moved = np.array(cuts) + np.array(moves)
        values = objectives_ms(data, moved)
        best = int(values.argmin())
        if values[best] >= value:
            break
        value, cuts = float(values[best]), tuple(moved[best].tolist())
    return cuts, value
