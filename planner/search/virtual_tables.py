"""What the search knows of a row of degrees with virtual stages: coefficients, and stage times by class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from formulations.stage_selection_tables import least_recompute, stage_times_ms
from formulations.virtual_selection_data import VirtualSelectionData
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.virtual_data import virtual_coefficients, whole_stages
from planner.units import MS

UNFIT = -1e6
"""Layers of a stage that not even the fewest fit: no sum with it reaches the model's layers."""


class VirtualTables:
    """Coefficients by row of degrees and number of virtual stages."""

    def __init__(self, problem: Problem, prices: Prices, table: DegreeTable) -> None:
        self.problem, self.prices, self.table = problem, prices, table
        self._times = lru_cache(maxsize=64)(self._compute)

    def data(self, choice: int, virtual_stages: int, order: Sequence[int]) -> VirtualSelectionData:
        """Coefficients of one order of classes."""
        return virtual_coefficients(self.problem, self.prices, self.table, choice, virtual_stages, order)

    def times_ms(self, choice: int, virtual_stages: int, num_stages: int) -> Floats:
        """Least time of one micro-batch on a stage with n layers, however dealt; sends left out.

        Array [node_class, stage, n] in ms; inf where n layers do not fit or the class is out.
        """
        return self._times(choice, virtual_stages, num_stages)

    def _compute(self, choice: int, virtual_stages: int, num_stages: int) -> Floats:
        num_classes = self.table.max_stages.shape[1]
        times = np.full((num_classes, num_stages, self.problem.model.num_layers + 1), np.inf)
        for c in np.flatnonzero(self.table.max_stages[choice]):
            order = [int(c)] * num_stages
            data = virtual_coefficients(
                self.problem, self.prices, self.table, choice, virtual_stages, order, with_sends=False
            )
            whole = whole_stages(data)
            times[c] = stage_times_ms(whole, least_recompute(whole))
        times[:, :, :virtual_stages] = np.inf
        return times

    def order_bottleneck_s(self, choice: int, virtual_stages: int, order: Sequence[int]) -> float:
        """The same for one order."""
        num_stages = len(order)
        times = self.times_ms(choice, virtual_stages, num_stages)[np.array(order), np.arange(num_stages)]
        layers = np.arange(times.shape[1])
        candidates = np.unique(times[np.isfinite(times)])

        def holds(limit: float) -> bool:
            most = np.where(times <= limit, layers, 0).max(axis=1)
            return bool(most.min() >= virtual_stages and most.sum() >= times.shape[1] - 1)

        if len(candidates) == 0 or not holds(float(candidates[-1])):
            return float("inf")
        low, high = 0, len(candidates) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(float(candidates[middle])) else (middle + 1, high)
        return float(candidates[low]) * MS


def all_layers_held(times_ms: Floats, counts: Sequence[int], fewest: int, limit_ms: float) -> bool:
    """Whether stages, none slower than the limit, may hold all layers in some order; never wrongly no.

    Parameters
    ----------
    times_ms
        [class, stage, n] time of a stage with n layers; inf where they do not fit [ms].
    counts
        Stages of each class.
    fewest
        Fewest layers of a stage.
    """
    held = np.isfinite(times_ms) & (times_ms <= limit_ms)
    most = np.where(held, np.arange(times_ms.shape[2]), 0).max(axis=2)
    held_layers = most_layers(np.where(most >= fewest, most, UNFIT), counts)
    return bool(held_layers >= times_ms.shape[2] - 1)


def most_layers(most: np.ndarray, counts: Sequence[int]) -> float:
    """Most layers of all stages, [class, stage] given so many stages of each class; never too small.

    An assignment problem, bounded by its dual: for any prices on the classes, every stage takes its
    best class at those prices, and the prices are paid back for the stages that each class has. Each
    price in turn is set so that its class is chosen as often as it should be; for two classes that is
    exact at once.
    """
    if len(counts) == 1:
        return float(most[0].sum())
    price = np.median(most, axis=1) - float(np.median(most[0]))
    best = float((most - price[:, None]).max(axis=0).sum() + price @ counts)
    for _ in range(1 if len(counts) == 2 else 3):
        for c in range(1, len(counts)):
            others = np.delete(most - price[:, None], c, axis=0).max(axis=0)
            gain = np.sort(most[c] - others)[::-1]
            price[c] = gain[counts[c] - 1]
            value = float((most - price[:, None]).max(axis=0).sum() + price @ counts)
            best = min(best, value)
    return best
