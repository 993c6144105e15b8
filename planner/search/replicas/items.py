"""What chains are made of: items with their prices, and the numbers of micro-batches that stages hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.replicas.space import Ints

EVERY_HELD = 16
"""Micro-batches held up to which each number has its own times; beyond it eight to a doubling. A guess."""
Item = tuple[int, ...]
"""Tensor parallelism, class, split of the sequence, experts' degrees of a stage."""


def list_items(
    problem: Problem, table: DegreeTable
) -> tuple[list[Item], dict[int, dict[int, Sequence[int]]]]:
    """All items, and by micro-batch size and data-parallel degree the row of each, -1 without one."""
    d, has_experts = table.degrees, problem.model.moe is not None
    found: dict[int, dict[int, dict[Item, int]]] = {}
    for row in range(len(table)):
        experts = (int(d.expert_parallel[row]), int(d.expert_tensor_parallel[row]) if has_experts else 0)
        by_degree = found.setdefault(int(d.microbatch_size[row]), {})
        of_degree = by_degree.setdefault(int(d.data_parallel[row]), {})
        for c in np.flatnonzero(table.max_stages[row]).tolist():
            of_degree[int(d.tensor_parallel[row]), c, int(d.sequence_parallel[row]), *experts] = row
    items = sorted({item for by_degree in found.values() for of in by_degree.values() for item in of})
    rows: dict[int, dict[int, Sequence[int]]] = {
        size: {dp: [of.get(item, -1) for item in items] for dp, of in sorted(by_degree.items()) if of}
        for size, by_degree in found.items()
    }
    return items, {size: by_degree for size, by_degree in rows.items() if by_degree}


PASSES = (
    *("layer_forward_s", "layer_backward_s", "layer_selective_s", "layer_full_s"),
    *("embedding_forward_s", "embedding_backward_s", "head_forward_s", "head_backward_s"),
)
"""Prices of a micro-batch, beside which reductions and gathering hide."""


def least_prices(prices: Prices, groups: Sequence[Ints]) -> tuple[Prices, bool]:
    """Prices with one row a group: the least of every number over the rows of the group.

    Beside them stands whether all rows of a group price a micro-batch alike.
    """
    starts = np.cumsum([0, *[len(group) for group in groups[:-1]]])
    rows, values, is_alike = prices.rows(np.concatenate(groups)), {}, True
    for field in fields(rows):
        value = getattr(rows, field.name)
        if isinstance(value, np.ndarray) and field.name != "limit_bytes":
            least = np.minimum.reduceat(value, starts, axis=0)
            if field.name in PASSES:
                is_alike = is_alike and np.array_equal(least, np.maximum.reduceat(value, starts, axis=0))
            value = least
        values[field.name] = value
    return Prices(**values), is_alike


def held_levels(most: int) -> list[int]:
    """Every number up to `EVERY_HELD`, beyond it eight to each doubling."""
    levels, level, step = [], 1, 1
    while level <= most:
        levels.append(level)
        step = step if level < EVERY_HELD * step else 2 * step
        level += step
    return levels
