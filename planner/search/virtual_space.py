"""Bounds on the coarse parts of the space with virtual stages: pairs, groups, orders.

Every chunk of stage s has at least p - s micro-batches in flight right before the first backward of s, as
many as a whole stage has: the lesser of 2 (p - 1 - s) + 1 and p on the last chunk, no fewer on the others. So
tables of whole stages (`planner.search.tables`) count no more time and memory than stages of any number of
chunks need; but not where leading layers are of another kind, as chunks recompute fewer of those first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.rules.pipeline import interleaving_is_legal
from planner.rules.target import TARGETS
from planner.search.bounds import BoundData
from planner.search.degrees import DegreeTable, allowed_stages, allowed_virtual_stages
from planner.search.space import Groups, fewest_stages
from planner.search.virtual_bounds import after_pipeline_s, dealt_ms, sum_bound_ms, virtual_bounds
from planner.search.virtual_items import VirtualPair
from planner.search.virtual_tables import all_layers_held
from planner.units import MS

MAX_GROUPS_OF_PAIR = 200_000
"""Groups of one row and number of stages that are listed whole; beyond it a grid, and the rest bounded."""
BISECTIONS = 8
"""Halvings of the interval between a group's bound and the cutoff."""


class VirtualSpace:
    """The parts of one problem, with their bounds."""

    def __init__(self, problem: Problem, prices: Prices, table: DegreeTable, bounds: BoundData) -> None:
        self.problem, self.prices, self.table, self.bounds = problem, prices, table, bounds
        self.sends_block = not problem.stack.overlaps_sends(2)

    def pairs(self) -> list[tuple[float, VirtualPair]]:
        """Every row of degrees with every number of stages that can interleave, with its bound [s]."""
        if not TARGETS[self.problem.target].virtual_stages:
            return []
        most = min(self.problem.model.num_layers, self.problem.options.max_pipeline_parallel or 1 << 30)
        fewest = fewest_stages(self.problem, self.table, self.prices)
        found = []
        for choice in range(len(self.table)):
            m = int(self.table.num_microbatches[choice])
            limit = min(most, int(self.table.max_stages[choice].sum()))
            found += [
                (choice, p)
                for p in allowed_stages(self.problem.options, limit)
                if p > 1 and p >= fewest[choice] and interleaving_is_legal(p, m) and self.virtual_stages(p)
            ]
        if not found:
            return []
        choice, stages = np.array(found).T
        most_virtual = np.array([max(self.virtual_stages(p)) for _, p in found])
        room = self.table.max_stages[choice]
        layer = np.where(room > 0, self.bounds.layer_s[choice], np.inf)
        order = np.argsort(layer, axis=1, kind="stable")
        fastest = np.take_along_axis(room, order, axis=1)
        taken = np.clip(stages[:, None] - (np.cumsum(fastest, axis=1) - fastest), 0, fastest)
        counts = np.zeros_like(room)
        np.put_along_axis(counts, order, taken, axis=1)
        bounds_s = self._bounds_s(choice, counts, 2, most_virtual, any_class=room > 0)
        return [(bound_s, VirtualPair(*one)) for bound_s, one in zip(bounds_s.tolist(), found, strict=True)]

    def virtual_stages(self, stages: int) -> list[int]:
        """Numbers of virtual stages to look at: every chunk holds a layer."""
        return allowed_virtual_stages(self.problem, self.problem.model.num_layers // stages)

    def _bounds_s(
        self,
        choice: np.ndarray,
        counts: np.ndarray,
        fewest: int,
        most: np.ndarray,
        least_bottleneck_s: np.ndarray | None = None,
        any_class: np.ndarray | None = None,
    ) -> np.ndarray:
        return virtual_bounds(
            self.bounds,
            choice,
            self.table.num_microbatches[choice],
            counts,
            fewest,
            most,
            sends_block=self.sends_block,
            least_bottleneck_s=least_bottleneck_s,
            any_class=any_class,
        )

    def groups(self, choice: int, stages: int, bound_s: float) -> tuple[Groups, bool]:
        """Stages on each class that add up, with bounds no less than `bound_s`; and whether these are all."""
        counts, whole = list_counts(self.table.max_stages[choice], stages)
        counts = counts[(counts[:, list(self.table.busy)] > 0).all(axis=1)]
        rows, most = np.full(len(counts), choice, dtype=np.int64), max(self.virtual_stages(stages))
        bounds_s = np.maximum(self._bounds_s(rows, counts, 2, np.full(len(counts), most)), bound_s)
        order = np.argsort(bounds_s, kind="stable")
        return Groups(counts[order], bounds_s[order]), whole

    def may_beat(
        self,
        step_s: float,
        choice: int,
        counts: tuple[int, ...],
        times_ms: np.ndarray,
        fewest: int,
        most: int,
    ) -> bool:
        """Whether tables of stage times leave room for a step below `step_s`, in any order of the classes."""
        used = np.flatnonzero(counts)
        p, m = sum(counts), int(self.table.num_microbatches[choice])
        after_s = after_pipeline_s(self.bounds, np.array([choice]), np.array([counts]) > 0, np.array([p]))
        times, stages = times_ms[used], np.array(counts)[used]
        longest = float(times[np.isfinite(times)].max(initial=0.0))
        limit_ms = min((step_s - float(after_s[0])) / m / MS, longest)
        if not all_layers_held(times, stages.tolist(), fewest, limit_ms):
            return False
        sum_ms = sum_bound_ms(times, stages, limit_ms)
        return dealt_ms(sum_ms, p, m, most, limit_ms) * MS + float(after_s[0]) < step_s

    def group_bound_s(
        self,
        low_s: float,
        high_s: float,
        choice: int,
        v: int,
        counts: tuple[int, ...],
        times_ms: np.ndarray,
    ) -> float:
        """Bound of all orders of a group, between one that is known and `high_s` [s]."""
        for _ in range(BISECTIONS if np.isfinite(high_s) else 0):
            middle_s = (low_s + high_s) / 2
            beats = self.may_beat(middle_s, choice, counts, times_ms, v, v)
            low_s, high_s = (low_s, middle_s) if beats else (middle_s, high_s)
        return low_s

    def with_bottleneck_s(
        self, choice: int, fewest: int, most: int, counts: tuple[int, ...], bottleneck_s: float
    ) -> float:
        """Bound of an order, or of all orders, whose slowest stage takes at least so long [s]."""
        if not np.isfinite(bottleneck_s):
            return float("inf")
        bounds_s = self._bounds_s(
            np.array([choice]), np.array([counts]), fewest, np.array([most]), np.array([bottleneck_s])
        )
        return float(bounds_s[0])


def list_counts(max_stages: NDArray[np.int64], stages: int) -> tuple[NDArray[np.int64], bool]:
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
