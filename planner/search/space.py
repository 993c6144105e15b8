"""The coarse parts of the space: rows of degrees with a number of stages, and the groups in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.pipelines import in_pipeline_of, least_fixed_bytes
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.bound_data import BoundData
from planner.search.bounds import group_bounds, relaxed_bounds
from planner.search.degrees import (
    LEAST_APART,
    DegreeTable,
    allowed_stages,
    one_virtual_stage_is_allowed,
)
from planner.search.empty import most_stages
from planner.search.floors import Floors
from planner.tolerances import COUNT_TOL


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

    def __len__(self) -> int:
        return len(self.counts)


def list_pairs(
    problem: Problem,
    table: DegreeTable,
    prices: Prices,
    data: BoundData,
    floors: Floors | None = None,
    *,
    num_empty: int | None = None,
) -> Pairs:
    """Every row of degrees with every number of stages that its classes can hold, and that can hold it.

    Bounds are no less than what is known of them (`floors`). `num_empty` stages may be without a layer where
    that is not the number of `most_without_layers`.
    """
    apart = np.arange(len(table)) >= (len(table) if table.num_plain is None else table.num_plain)
    limits = [most_stages(problem, predictions_apart=flag, num_empty=num_empty) for flag in (False, True)]
    limits = np.minimum(table.max_stages.sum(axis=1), np.where(apart, limits[1], limits[0]))
    allowed = [allowed_stages(problem.options, int(limit)) for limit in limits]
    choice = np.repeat(np.arange(len(table)), [len(counts) for counts in allowed])
    stages = np.array([count for counts in allowed for count in counts], dtype=np.int64)
    holds = stages >= fewest_stages(problem, table, prices)[choice]
    holds &= (stages >= LEAST_APART) | ~apart[choice]
    choice, stages = choice[holds], stages[holds]
    if len(stages) == 0 or not one_virtual_stage_is_allowed(problem.options):
        choice, stages = choice[:0], stages[:0]
        return Pairs(choice, stages, np.zeros(0))
    bounds = relaxed_bounds(data, choice, table.num_microbatches[choice], table.max_stages[choice], stages)
    if floors is not None:
        bounds = floors.raised(choice, stages, bounds)
    order = np.argsort(bounds, kind="stable")
    return Pairs(choice[order], stages[order], bounds[order])


def fewest_stages(problem: Problem, table: DegreeTable, prices: Prices) -> Floats:
    """Stages below which not even weights, gradients, optimizer and layer inputs fit, [choice].

    As if every stage had the class that a row can use of which the fewest hold them, held one micro-batch,
    and had the fewest communicators that a stage of any place has in a pipeline as long or longer.
    """
    kinds: Counter[str] = Counter(problem.model.kind_of_layer)
    counts = np.array([kinds[kind] for kind in prices.kinds], dtype=np.float64)
    prices, need = prices.rows(slice(len(table))), []
    for num_stages in (1, 2):
        own = in_pipeline_of(prices, num_stages)
        of_layer = own.layer_state_bytes.sum(axis=2)[..., None] + own.layer_activation_full_bytes
        need.append(np.einsum("ckn,k->cn", of_layer, counts))
    outside = least_fixed_bytes(prices).min(axis=3)
    room = np.where((table.max_stages > 0)[..., None], prices.limit_bytes[:, None] - outside, 0.0)
    # [choice, class, length]: what a pipeline of that length or longer needs, but no shorter one asks of it.
    of_length = np.stack([need[0], *need[1:] * (room.shape[2] - 1)], axis=2)
    each = of_length / prices.allocated_fraction / np.maximum(room, 1.0) * (1 - COUNT_TOL)
    needed = each.min(axis=1)
    lengths = np.arange(1, room.shape[2] + 1)
    holds = needed <= lengths
    holds[:, -1] = True
    fewest: Floats = np.where(holds, np.maximum(needed, lengths), np.inf).min(axis=1)
    return fewest


def list_groups(
    table: DegreeTable,
    data: BoundData,
    choice: int,
    stages: int,
    least_s: float,
    fewest: Sequence[int] | None = None,
    most: Sequence[int] | None = None,
) -> Groups:
    """Every number of stages on each class that adds up, with bounds no less than `least_s`.

    Classes that must not stay idle get one stage at least.
    """
    limits = table.max_stages[choice] if most is None else np.array(most)
    counts = _counts(np.zeros_like(limits) if fewest is None else np.array(fewest), limits, stages)
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
    return Groups(counts[order], bounds[order])


def fill_fastest(table: DegreeTable, data: BoundData, choice: int, stages: int) -> tuple[int, ...] | None:
    """Stages on each class where the fastest take all they can, and those that must work at least one."""
    limits = table.max_stages[choice]
    counts = np.zeros(len(limits), dtype=np.int64)
    counts[list(table.busy)] = np.minimum(limits[list(table.busy)], 1)
    left = stages - int(counts.sum())
    if left < 0 or (counts[list(table.busy)] == 0).any():
        return None
    for c in np.argsort(data.layer_s[choice], kind="stable"):
        more = min(left, int(limits[c] - counts[c]))
        counts[c] += more
        left -= more
    return tuple(int(count) for count in counts)


def _counts(fewest: NDArray[np.int64], most: NDArray[np.int64], stages: int) -> NDArray[np.int64]:
    """Stages on each class that add up to `stages`, [group, node_class].

    All classes but the roomiest run over their values; it takes what is left.
    """
    most = np.minimum(most, stages)
    roomiest = int(np.argmax(most - fewest))
    others = [c for c in range(len(most)) if c != roomiest]
    values = [np.arange(fewest[c], most[c] + 1) for c in others]
    counts = np.zeros((int(np.prod([len(v) for v in values], dtype=np.int64)), len(most)), dtype=np.int64)
    if others:
        counts[:, others] = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(others))
    counts[:, roomiest] = stages - counts.sum(axis=1)
    in_limits = (counts[:, roomiest] >= fewest[roomiest]) & (counts[:, roomiest] <= most[roomiest])
    listed: NDArray[np.int64] = counts[in_limits]
    return listed
