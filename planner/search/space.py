"""The groups of the search: how many stages on each class, for every row of degrees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.data.problem import Problem
from planner.search.bounds import BoundData, group_bounds, row_bounds
from planner.search.degrees import DegreeTable

MAX_GROUPS_OF_ROW = 60_000
"""Groups of one row of degrees that are listed whole; beyond it a grid of them, and the rest bounded."""


@dataclass(frozen=True)
class Groups:
    """Groups by ascending bound."""

    choice: NDArray[np.int64]
    """[group] row of degrees."""
    counts: NDArray[np.int64]
    """[group, node_class] stages on each class."""
    bound_s: Floats
    """[group]"""
    unlisted_s: float | None
    """Least bound of the groups that are not listed; None where all are."""

    def __len__(self) -> int:
        return len(self.choice)

    def first_of_each(self, limit: int) -> list[tuple[int, tuple[int, ...]]]:
        """The group of least bound for each row of degrees and number of stages, best first."""
        stages = self.counts.sum(axis=1)
        key = self.choice * (int(stages.max()) + 1) + stages
        _, first = np.unique(key, return_index=True)
        chosen = np.sort(first)[:limit]
        return [(int(self.choice[i]), tuple(int(k) for k in self.counts[i])) for i in chosen]


def list_groups(problem: Problem, table: DegreeTable, data: BoundData) -> Groups:
    """All groups (or, for rows with too many, a grid of them) with their bounds, the least first."""
    most = min(problem.model.num_layers, problem.options.max_pipeline_parallel or problem.model.num_layers)
    choices, counts = [], []
    partly: list[int] = []
    for choice in range(len(table)):
        found, whole = _counts_of_row(table.max_stages[choice], most)
        counts.append(found)
        choices.append(np.full(len(found), choice, dtype=np.int64))
        if not whole:
            partly.append(choice)
    choice_of, counts_of = np.concatenate(choices), np.concatenate(counts)
    bounds = _in_pieces(data, choice_of, table.num_microbatches[choice_of], counts_of)
    order = np.argsort(bounds, kind="stable")
    unlisted = None
    if partly:
        rows = np.array(partly, dtype=np.int64)
        unlisted = float(
            row_bounds(data, rows, table.num_microbatches[rows], table.max_stages[rows], most).min()
        )
    return Groups(choice_of[order], counts_of[order], bounds[order], unlisted)


def _counts_of_row(max_stages: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], bool]:
    """Stages on each class, [group, node_class], and whether these are all."""
    limits = np.minimum(max_stages, most)
    whole = bool(np.prod(limits + 1.0) <= MAX_GROUPS_OF_ROW)
    values = [np.arange(limit + 1) if whole else _grid(int(limit)) for limit in limits]
    counts = np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(limits))
    total = counts.sum(axis=1)
    return counts[(total >= 1) & (total <= most)].astype(np.int64), whole


def _grid(limit: int) -> NDArray[np.int64]:
    """None, all, and a few in between."""
    steps = {0, 1, limit, *(limit * eighth // 8 for eighth in range(1, 8))}
    return np.array(sorted(steps), dtype=np.int64)


def _in_pieces(
    data: BoundData, choice: NDArray[np.int64], microbatches: NDArray[np.int64], counts: NDArray[np.int64]
) -> Floats:
    """Bounds in pieces, so that the temporary arrays stay small."""
    pieces = [
        group_bounds(data, choice[piece], microbatches[piece], counts[piece])
        for piece in _slices(len(choice), 200_000)
    ]
    bounds: Floats = np.concatenate(pieces)
    return bounds


def _slices(length: int, step: int) -> Iterator[slice]:
    for start in range(0, length, step):
        yield slice(start, start + step)
