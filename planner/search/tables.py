"""What the search knows of a row of degrees and a number of stages: stage times by class and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from formulations.stage_selection_data import (
    StageSelectionData,
    least_recompute,
    stage_times_ms,
)
from planner.cost.hops import hop_send_s
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.coefficients import stage_coefficients
from planner.search.degrees import DegreeTable
from planner.units import MS

BISECTIONS = 30
"""Halvings of a bottleneck interval: its lower end, a valid bound, is then within 1e-9 of its width."""


@dataclass(frozen=True)
class ClassTables:
    """Times of one micro-batch on a stage with least recomputation, sends left out."""

    times_ms: Floats
    """[node_class, stage, n] inf where n layers do not fit, or the class takes no part."""


class Tables:
    """Coefficients by row of degrees, kept while the search comes back to them."""

    def __init__(self, problem: Problem, prices: Prices, table: DegreeTable) -> None:
        self.problem, self.prices, self.table = problem, prices, table
        self._class_tables = lru_cache(maxsize=128)(self._compute)

    def data(self, choice: int, class_of_stage: Sequence[int]) -> StageSelectionData:
        """Coefficients of one order of classes."""
        return stage_coefficients(
            self.problem,
            self.prices,
            choice,
            int(self.table.stage_size[choice]),
            int(self.table.num_microbatches[choice]),
            class_of_stage,
        )

    def of_classes(self, choice: int, num_stages: int) -> ClassTables:
        """Stage times by class, position and layers."""
        return self._class_tables(choice, num_stages)

    def _compute(self, choice: int, num_stages: int) -> ClassTables:
        shape = (self.table.max_stages.shape[1], num_stages, self.problem.model.num_layers + 1)
        times = np.full(shape, np.inf)
        for c in np.flatnonzero(self.table.max_stages[choice]):
            data = stage_coefficients(
                self.problem,
                self.prices,
                choice,
                int(self.table.stage_size[choice]),
                int(self.table.num_microbatches[choice]),
                [int(c)] * num_stages,
                with_sends=False,
            )
            times[c] = stage_times_ms(data, least_recompute(data))
        return ClassTables(times)

    def least_bottleneck_s(self, choice: int, counts: Sequence[int]) -> float:
        """Least time of the slowest stage over all orders of a group [s]; inf where nothing fits.

        The largest number of layers that stages no slower than tau can hold is an assignment of classes
        to positions; bounded here by Lagrange multipliers on the counts, exactly for two classes.
        """
        num_stages = sum(counts)
        times = self.of_classes(choice, num_stages).times_ms
        used = [c for c, count in enumerate(counts) if count]
        layers = np.arange(times.shape[2])
        finite = times[used][np.isfinite(times[used])]
        if len(finite) == 0:
            return float("inf")

        def holds(limit: float) -> bool:
            most = np.where(times[used] <= limit, layers, 0).max(axis=2)
            held: float = _most_layers(most, [counts[c] for c in used])
            return bool(held >= times.shape[2] - 1)

        low, high = 0.0, float(finite.max())
        if not holds(high):
            return float("inf")
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return low * MS

    def hops_s(self, choice: int, order: Sequence[int]) -> Floats:
        """Time of each hop of an order, [stage]; the last is 0 [s]."""
        per_node = [node_class.chips_per_node for node_class in self.problem.cluster.classes]
        size = int(self.table.stage_size[choice])
        hops = hop_send_s(
            self.prices.send_s[choice], self.prices.send_inside_s[choice], order, size, per_node
        )
        hops[-1] = 0.0
        return hops

    def order_bottleneck_s(self, choice: int, order: Sequence[int]) -> float:
        """Least time of the slowest stage for one order [s]; inf where nothing fits."""
        num_stages = len(order)
        times = self.of_classes(choice, num_stages).times_ms[np.array(order), np.arange(num_stages)]
        if not self.problem.stack.p2p_overlap:
            hops_ms = self.hops_s(choice, order) / MS
            times = times + (hops_ms + np.concatenate([[0.0], hops_ms[:-1]]))[:, None]
        layers = np.arange(times.shape[1])
        low, high = 0.0, float(np.where(np.isfinite(times), times, 0.0).max())

        def holds(limit: float) -> bool:
            most = np.where(times <= limit, layers, 0).max(axis=1)
            return bool(most.min() >= 1 and most.sum() >= times.shape[1] - 1)

        if not holds(high):
            return float("inf")
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return low * MS


def _most_layers(most: np.ndarray, counts: Sequence[int]) -> float:
    """Most layers of all stages, [class, stage] given so many stages of each class; never too small.

    An assignment problem, bounded by its dual: for any prices on the classes, every stage takes its
    best class at those prices, and the prices are paid back for the stages that each class has. Each
    price in turn is set so that its class is chosen as often as it should be; for two classes that is
    exact at once.
    """
    price = np.zeros(len(counts))
    best = float("inf")
    for _ in range(1 if len(counts) <= 2 else 4):
        for c in range(1, len(counts)):
            others = np.delete(most - price[:, None], c, axis=0).max(axis=0)
            gain = np.sort(most[c] - others)[::-1]
            price[c] = gain[counts[c] - 1]
            value = float((most - price[:, None]).max(axis=0).sum() + price @ counts)
            best = min(best, value)
    return best if len(counts) > 1 else float(most[0].sum())
