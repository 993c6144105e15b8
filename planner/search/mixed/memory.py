"""The memory of stages that mix classes: every class holds the same layers, each in its own room.

Classes whose attention keeps its scores hold more of a layer than others
(`planner.data.attention_kernels`). A stage is planned in the memory of the class that holds most, and in the
room of the tightest: exact where that is the same, or where all hold as much; else `is_cautious`, and what
that leaves out is looked at by itself, in the memory of each class at once (`fitting_all`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import StageSelectionData
from formulations.stage_selection_tables import RecomputeTable, least_recompute
from planner.cost.memory.pipelines import outside_bytes
from planner.cost.prices import Floats, Prices
from planner.units import GIB


def limits_of_kinds(prices: Prices) -> Floats:
    """Memory limit of the whole stages of each class, then of mixed ones of its pace [bytes].

    Some rank of a mixed stage is on another class, so that it has no more room than the roomiest of them,
    unless that holds less of a layer.
    """
    whole, kept = prices.limit_bytes, _kept_of_layers(prices)
    mixed = whole.copy()
    for c in range(len(whole)):
        others = np.delete(np.arange(len(whole)), c)
        if (kept[:, others] >= kept[:, [c]]).all():
            mixed[c] = min(whole[c], whole[others].max() + _spread(prices))
    return np.concatenate([whole, mixed])


def fullest(prices: Prices, choice: int, classes: Sequence[int]) -> int:
    """The class of a stage that holds most of a layer, the first where several do."""
    kept = _kept_of_layers(prices)[choice]
    return max(classes, key=lambda c: float(kept[c]))


def less_room_gib(
    prices: Prices, choice: int, classes: Sequence[int], *, is_end: bool, num_stages: int
) -> float:
    """How much less the tightest class of a stage has than the one that holds most."""
    own = np.array(classes)
    room = prices.limit_bytes[own] - outside_bytes(prices, choice, own, is_end, num_stages)
    return float(room[classes.index(fullest(prices, choice, classes))] - room.min()) / GIB


def is_cautious(prices: Prices, choice: int, classes: Sequence[int]) -> bool:
    """Whether a stage may fit that `fullest` and `less_room_gib` rule out: the tightest class holds less."""
    kept, limits = _kept_of_layers(prices)[choice], prices.limit_bytes
    most = fullest(prices, choice, classes)
    lighter = [c for c in classes if kept[c] < kept[most]]
    return any(limits[c] < limits[most] + _spread(prices) for c in lighter)


def fitting_all(datas: Sequence[StageSelectionData]) -> RecomputeTable:
    """Least recomputation by stage and number of layers that fits in the memory of each class.

    No plan takes less. Where classes differ in what they recompute, that of the dearest stands, which may not
    fit the others.
    """
    tables = [least_recompute(data) for data in datas]
    dearest = np.argmax([table.extra_ms for table in tables], axis=0)[None]

    def of_dearest(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        chosen: NDArray[Any] = np.take_along_axis(np.array(values), dearest, axis=0)[0]
        return chosen

    return RecomputeTable(
        of_dearest([table.extra_ms for table in tables]),
        of_dearest([table.selective for table in tables]),
        of_dearest([table.full_layers for table in tables]),
    )


def _kept_of_layers(prices: Prices) -> Floats:
    """What layers of all kinds keep together, [choice, node_class]."""
    kept: Floats = prices.layer_activation_bytes.sum(axis=1)
    return kept


def _spread(prices: Prices) -> float:
    """The most by which memory outside the allocator differs between classes [bytes]."""
    fixed = prices.fixed_bytes
    return float((fixed.max(axis=1) - fixed.min(axis=1)).max(initial=0.0))
