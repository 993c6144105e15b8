"""The coarse parts of the space with virtual stages: rows of degrees with a number of stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.rules.pipeline import interleaving_is_legal
from planner.rules.target import TARGETS
from planner.search.bound_data import BoundData
from planner.search.degrees import DegreeTable, allowed_stages, allowed_virtual_stages
from planner.search.empty import ends_may_be_empty, most_virtual_stages
from planner.search.space import fewest_stages
from planner.search.virtual.bounds import virtual_bounds
from planner.search.virtual.items import VirtualPair

PAIRS_AT_ONCE = 128
"""Pairs whose parts are bounded together."""


class VirtualSpace:
    """The pairs of one problem, with their bounds."""

    def __init__(self, problem: Problem, prices: Prices, table: DegreeTable, bounds: BoundData) -> None:
        self.problem, self.prices, self.table, self.bounds = problem, prices, table, bounds
        self._at: dict[VirtualPair, int] = {}
        """Pairs in the order of their bounds."""
        self._parts_s: dict[VirtualPair, dict[int, float]] = {}

    def pairs(self) -> list[tuple[float, VirtualPair]]:
        """Every row of degrees with every number of stages that can interleave, by ascending bound [s]."""
        if not TARGETS[self.problem.target].virtual_stages:
            return []
        most = min(self.problem.model.num_layers, self.problem.options.max_pipeline_parallel or 1 << 30)
        fewest = fewest_stages(self.problem, self.table, self.prices)
        allowed = allowed_stages(self.problem.options, most)
        most_virtual = {p: max(self.virtual_stages(p), default=0) for p in allowed if p > 1}
        found: list[tuple[int, int]] = []
        for choice in range(len(self.table)):
            if self.table.is_apart(choice):
                continue
            m = int(self.table.num_microbatches[choice])
            limit = int(self.table.max_stages[choice].sum())
            found += [
                (choice, p)
                for p, virtual in most_virtual.items()
                if virtual and fewest[choice] <= p <= limit and interleaving_is_legal(p, m)
            ]
        if not found:
            return []
        choice, stages = np.array(found).T
        highest = np.array([most_virtual[p] for _, p in found])
        bounds_s = self._bounds_s(choice, stages, np.full(len(found), 2), highest)
        pairs = [(bound_s, VirtualPair(*one)) for bound_s, one in zip(bounds_s.tolist(), found, strict=True)]
        pairs.sort(key=lambda one: one[0])
        self._at = {pair: i for i, (_, pair) in enumerate(pairs)}
        return pairs

    def bounds_of(self, pair: VirtualPair) -> dict[int, float]:
        """Bounds of a pair by number of virtual stages [s], worked out with those of the pairs behind it."""
        if pair not in self._at:
            return {}
        if pair not in self._parts_s:
            behind = list(islice(self._at, self._at[pair], self._at[pair] + PAIRS_AT_ONCE))
            self._parts_s = dict(zip(behind, self.parts(behind), strict=True))
        return self._parts_s[pair]

    def parts(self, pairs: Sequence[VirtualPair]) -> list[dict[int, float]]:
        """Bounds of pairs by number of virtual stages [s]."""
        counts = [self.virtual_stages(pair.stages) for pair in pairs]
        rows = [(pair.choice, pair.stages, v) for pair, some in zip(pairs, counts, strict=True) for v in some]
        choice, stages, virtual_stages = np.array(rows).T
        bounds_s = iter(self._bounds_s(choice, stages, virtual_stages, virtual_stages).tolist())
        return [{v: next(bounds_s) for v in some} for some in counts]

    def _bounds_s(
        self,
        choice: NDArray[np.int64],
        stages: NDArray[np.int64],
        fewest: NDArray[np.int64],
        most: NDArray[np.int64],
    ) -> Floats:
        """Bounds of pairs over numbers of virtual stages from `fewest` to `most` [pair]."""
        room = self.table.max_stages[choice]
        layer = np.where(room > 0, self.bounds.layer_s[choice], np.inf)
        order = np.argsort(layer, axis=1, kind="stable")
        fastest = np.take_along_axis(room, order, axis=1)
        taken = np.clip(stages[:, None] - (np.cumsum(fastest, axis=1) - fastest), 0, fastest)
        counts = np.zeros_like(room)
        np.put_along_axis(counts, order, taken, axis=1)
        return virtual_bounds(
            self.bounds,
            choice,
            self.table.num_microbatches[choice],
            counts,
            fewest,
            most,
            sends_block=not self.problem.stack.overlaps_sends(2),
            empty_ends=np.array([ends_may_be_empty(self.problem, n) for n in stages * most]),
            any_class=room > 0,
            crosses=room.max(axis=1) < stages,
        )

    def virtual_stages(self, stages: int) -> list[int]:
        """Numbers of virtual stages to look at: every chunk holds a layer but those that need none."""
        return allowed_virtual_stages(self.problem, most_virtual_stages(self.problem, stages))
