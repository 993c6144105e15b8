"""The coarse parts of the space: rows of degrees with a number of stages, and the groups in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.bounds import BoundData, group_bounds, relaxed_bounds
from planner.search.degrees import DegreeTable, allowed_stages

MAX_GROUPS_OF_PAIR = 200_000
"""Groups of one row and number of stages that are listed whole; beyond it a grid, and the rest bounded."""


@dataclass(frozen=True)
class Pairs:
    """Rows of degrees with a number of stages, by ascending bound."""

    choice: NDArray[np.int64]
    """[pair] row of degrees."""
    stages: NDArray[np.int64]
    """[pair] number of stages."""
    bound_s: Floats
    """[pair]"""

    def __len__(self) -> int:
        return len(self.choice)


@dataclass(frozen=True)
class Groups:
    """Groups of one pair by ascending bound."""

    counts: NDArray[np.int64]
    """[group, node_class] stages on each class."""
    bound_s: Floats
    """[group]"""
    whole: bool
    """Whether these are all."""

    def __len__(self) -> int:
        return len(self.counts)


def list_pairs(problem: Problem, table: DegreeTable, prices: Prices, data: BoundData) -> Pairs:
    """Every row of degrees with every number of stages that its classes can hold, and that can hold it."""
    most = min(problem.model.num_layers, problem.options.max_pipeline_parallel or problem.model.num_layers)
    limits = np.minimum(table.max_stages.sum(axis=1), most)
    allowed = [allowed_stages(problem.options, int(limit)) for limit in limits]
    choice = np.repeat(np.arange(len(table)), [len(counts) for counts in allowed])
    stages = np.array([count for counts in allowed for count in counts], dtype=np.int64)
    holds = stages >= _fewest_stages(problem, table, prices)[choice]
    choice, stages = choice[holds], stages[holds]
    if len(stages) == 0:
        return Pairs(choice, stages, np.zeros(0))
    bounds = relaxed_bounds(data, choice, table.num_microbatches[choice], table.max_stages[choice], stages)
    order = np.argsort(bounds, kind="stable")
    return Pairs(choice[order], stages[order], bounds[order])


def _fewest_stages(problem: Problem, table: DegreeTable, prices: Prices) -> Floats:
    """Stages below which not even weights, gradients, optimizer and layer inputs fit, [choice].

    As if every stage had the roomiest class that a row can use, and held one micro-batch.
    """
    index_of = {kind: i for i, kind in enumerate(prices.kinds)}
    layer = prices.layer_state_bytes.sum(axis=2) + prices.layer_activation_full_bytes
    need = sum(layer[:, index_of[kind]] for kind in problem.model.kind_of_layer)
    room = np.where(table.max_stages > 0, prices.limit_bytes - prices.fixed_bytes, 0.0).max(axis=1)
    fewest: Floats = need / prices.allocated_fraction / np.maximum(room, 1.0)
    return fewest * (1 - 1e-9)


def list_groups(table: DegreeTable, data: BoundData, choice: int, stages: int, least_s: float) -> Groups:
    """Every number of stages on each class that adds up, with bounds no less than `least_s`.

    Classes that must not stay idle get one stage at least.
    """
    counts, whole = _counts(table.max_stages[choice], stages)
    counts = counts[(counts[:, list(table.busy)] > 0).all(axis=1)]
    rows = len(counts)
    bounds = np.maximum(
        group_bounds(
            data,
            np.full(rows, choice, dtype=np.int64),
            np.full(rows, table.num_microbatches[choice], dtype=np.int64),
            counts,
        ),
        least_s,
    )
    order = np.argsort(bounds, kind="stable")
    return Groups(counts[order], bounds[order], whole)


def _counts(max_stages: NDArray[np.int64], stages: int) -> tuple[NDArray[np.int64], bool]:
    """Stages on each class [group, node_class] that add up to `stages`, and whether these are all.

    All classes but the roomiest run over their values; it takes what is left.
    """
    limits = np.minimum(max_stages, stages)
    roomiest = int(np.argmax(limits))
    others = [c for c in range(len(limits)) if c != roomiest]
    whole = bool(np.prod(limits[others] + 1.0) <= MAX_GROUPS_OF_PAIR)
    values = [np.arange(limits[c] + 1) if whole else _grid(int(limits[c])) for c in others]
    counts = np.zeros((int(np.prod([len(v) for v in values], dtype=np.int64)), len(limits)), dtype=np.int64)
    if others:
        counts[:, others] = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(others))
    counts[:, roomiest] = stages - counts.sum(axis=1)
    return counts[(counts[:, roomiest] >= 0) & (counts[:, roomiest] <= limits[roomiest])], whole


def _grid(limit: int) -> NDArray[np.int64]:
    """None, all, and a few in between."""
    steps = {0, 1, limit, *(limit * eighth // 8 for eighth in range(1, 8))}
    return np.array(sorted(steps), dtype=np.int64)
