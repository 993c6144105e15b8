"""Good layer counts without a solver: fill to the least bottleneck, then move layers while it helps."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import StageSelectionData, least_layers
from formulations.stage_selection_tables import (
    RecomputeTable,
    least_bottleneck_ms,
    objectives_ms,
    stage_times_ms,
)
from planner.tolerances import ROUNDING_TOL

MAX_MOVES = 60
"""Moves of one layer after which the search is content."""
ALL_PAIRS = 24
"""Stages up to which every pair is looked at."""
CANDIDATES = 12
"""Beyond it, stages that give, and stages that take, in one look around."""


def first_layers(
    data: StageSelectionData, table: RecomputeTable, bottleneck_ms: float | None = None
) -> NDArray[np.int64] | None:
    """Layer counts [stage] whose slowest stage is as fast as possible; None where nothing fits.

    `bottleneck_ms` is the least possible time of the slowest stage, where that is known.
    """
    bottleneck = least_bottleneck_ms(data, table) if bottleneck_ms is None else bottleneck_ms
    if not np.isfinite(bottleneck):
        return None
    times = stage_times_ms(data, table)
    counts = np.arange(times.shape[1])
    layers: NDArray[np.int64] = np.where(times <= bottleneck, counts, 0).max(axis=1).astype(np.int64)
    while layers.sum() > data.num_layers:
        # Take a layer where a stage loses most time by it, and keep the stage within what fits.
        shorter = np.maximum(layers - 1, 0)
        stages = np.arange(data.num_stages)
        gives = (layers > 0) & np.isfinite(times[stages, shorter])
        gain = np.where(gives, times[stages, layers] - np.where(gives, times[stages, shorter], 0.0), -np.inf)
        if not np.isfinite(gain).any():
            return None
        layers[int(np.argmax(gain))] -= 1
    return layers


def repaired_layers(
    data: StageSelectionData, table: RecomputeTable, layers: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """The same layers [stage], made to add up where the slowest stage grows least; None where none fits."""
    times = stage_times_ms(data, table)
    stages, counts = np.arange(data.num_stages), layers.copy()
    while counts.sum() != data.num_layers:
        if counts.sum() > data.num_layers:
            gives = (counts > 0) & np.isfinite(times[stages, np.maximum(counts - 1, 0)])
            busy = np.where(gives, times[stages, counts], -np.inf)
            if not np.isfinite(busy).any():
                return None
            counts[int(np.argmax(busy))] -= 1
        else:
            longer = times[stages, np.minimum(counts + 1, data.num_layers)]
            if not np.isfinite(longer).any():
                return None
            counts[int(np.argmin(longer))] += 1
    return counts if np.isfinite(times[stages, counts]).all() else None


def all_splits(num_layers: int, num_stages: int, limit: int) -> NDArray[np.int64] | None:
    """Every split of the layers into stages of at least one, [split, stage]; None beyond `limit` of them."""
    if comb(num_layers - 1, num_stages - 1) > limit:
        return None
    cuts = np.array(list(combinations(range(1, num_layers), num_stages - 1)), dtype=np.int64)
    cuts = cuts.reshape(comb(num_layers - 1, num_stages - 1), num_stages - 1)
    edges = np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (0, num_layers)))
    splits: NDArray[np.int64] = np.diff(edges, axis=1)
    return splits


def improve_layers(
    data: StageSelectionData, table: RecomputeTable, layers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], float]:
    """Move single layers between stages while the objective falls; counts and objective [ms]."""
    value = float(objectives_ms(data, table, layers, spans=False))
    for _ in range(MAX_MOVES):
        givers, takers = _promising(data, table, layers)
        if not len(givers):
            break
        moved = np.repeat(layers[None, :], len(givers), axis=0)
        rows = np.arange(len(givers))
        moved[rows, givers] -= 1
        moved[rows, takers] += 1
        moved = np.minimum(moved, data.num_layers)
        values = objectives_ms(data, table, moved, spans=False)
        best = int(np.argmin(values))
        if not values[best] < value * (1 - ROUNDING_TOL):
            break
        layers, value = moved[best], float(values[best])
    return layers, float(objectives_ms(data, table, layers))


def _promising(
    data: StageSelectionData, table: RecomputeTable, layers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stages that give and stages that take a layer, one entry a move.

    All pairs where they are few; else those of the stages where a layer less, or one more, leaves the least
    objective by itself.
    """
    p = data.num_stages
    can_give = np.flatnonzero(layers > least_layers(data))
    takers = np.arange(p)
    if p > ALL_PAIRS:
        one = np.eye(p, dtype=np.int64)
        less = objectives_ms(data, table, layers - one[can_give], spans=False)
        more = objectives_ms(data, table, np.minimum(layers + one, data.num_layers), spans=False)
        can_give = can_give[np.argsort(less, kind="stable")[:CANDIDATES]]
        takers = np.argsort(more, kind="stable")[:CANDIDATES]
    first, second = np.repeat(can_give, len(takers)), np.tile(takers, len(can_give))
    return first[first != second], second[first != second]
