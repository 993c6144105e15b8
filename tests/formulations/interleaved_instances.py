"""Random coefficients of interleaved pipelines, as the search makes them of random problems."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from formulations.virtual_classes_data import VirtualClassesData
from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import dealt_table
from planner.cost.pricing import price
from planner.search.degrees import list_degrees
from planner.search.virtual.capacity import Capacity, VirtualLimits
from planner.search.virtual.follow import below
from planner.search.virtual.prefixes import Prefixes
from planner.search.virtual.tables import VirtualClassTables, VirtualTables
from tests.random_problems import random_interleaved_problem


def random_interleaved(seed: int) -> VirtualSelectionData:
    """Two or three stages of two or three chunks on random classes that may hold the layers."""
    rng = np.random.default_rng(seed)
    for at in itertools.count(int(rng.integers(10_000))):
        problem = random_interleaved_problem(at)
        table = list_degrees(problem)
        stages, chunks = int(rng.integers(2, 4)), int(rng.integers(2, 4))
        fits = [
            choice
            for choice in range(len(table))
            if table.num_microbatches[choice] % stages == 0 and stages * chunks <= problem.model.num_layers
        ]
        if not fits:
            continue
        choice = fits[int(rng.integers(len(fits)))]
        classes = np.flatnonzero(table.max_stages[choice])
        order = rng.choice(classes, size=stages).tolist()
        one = table.taken(np.array([choice]))
        data = VirtualTables(problem, price(problem, one.degrees), one).data(0, chunks, order)
        if holds_all(data):
            return data
    raise AssertionError("unreachable")


def holds_all(data: VirtualSelectionData) -> bool:
    """Whether the stages have memory for all layers."""
    fits = np.isfinite(dealt_table(data).backward_ms)
    return bool(
        np.where(fits, np.arange(fits.shape[1]), -data.num_layers).max(axis=1).sum() >= data.num_layers
    )


@dataclass(frozen=True)
class Part:
    """All orders of some classes: their data for a cutoff, and one of them at a time."""

    tables: VirtualTables
    choice: int
    virtual_stages: int
    num_stages: int
    limits: VirtualLimits

    @property
    def sends_block(self) -> bool:
        return not self.tables.problem.stack.overlaps_sends(self.virtual_stages)

    @cached_property
    def capacity(self) -> Capacity:
        m = int(self.tables.table.num_microbatches[self.choice])
        return Capacity(self.classes.times, self.limits, m, sends_block=self.sends_block)

    @property
    def classes(self) -> VirtualClassTables:
        return self.tables.of_classes(self.choice, self.virtual_stages, self.num_stages)

    def orders(self) -> list[tuple[int, ...]]:
        """Orders within the limits that begin as they say."""
        found = itertools.product(range(len(self.limits.most)), repeat=self.num_stages)
        prefix = self.limits.prefix
        return [order for order in found if order[: len(prefix)] == prefix and self._has_counts(order)]

    def _has_counts(self, order: tuple[int, ...]) -> bool:
        counts = [order.count(c) for c in range(len(self.limits.most))]
        limits = zip(self.limits.fewest, counts, self.limits.most, strict=True)
        return all(low <= count <= high for low, count, high in limits)

    def data(self, cutoff_ms: float) -> VirtualClassesData:
        classes, capacity = self.classes, self.capacity
        fits, follow_ms = below(capacity, Prefixes(capacity.places), cutoff_ms)
        return VirtualClassesData(
            classes={c: one for c, one in classes.data.items() if self.limits.most[c]},
            tables=classes.tables,
            fits=fits,
            fewest=capacity.fewest,
            most=capacity.most,
            hop_ms=classes.times.hop_ms,
            sends_block=self.sends_block,
            cutoff_ms=cutoff_ms,
            least_follow_ms=follow_ms,
        )


@cache
def random_part(seed: int) -> Part:
    """Two or three stages of two or three chunks on one or two classes, perhaps with the first given."""
    rng = np.random.default_rng(seed)
    for at in itertools.count(int(rng.integers(10_000))):
        problem = random_interleaved_problem(at, experts=at % 3 == 0)
        table = list_degrees(problem)
        stages, chunks = int(rng.integers(2, 4)), int(rng.integers(2, 4))
        fits = [
            choice
            for choice in range(len(table))
            if table.num_microbatches[choice] % stages == 0
            and stages * chunks <= problem.model.num_layers
            and table.max_stages[choice].sum() >= stages
        ]
        if not fits:
            continue
        choice = fits[int(rng.integers(len(fits)))]
        most = np.minimum(table.max_stages[choice], stages)
        prefix = (int(rng.choice(np.flatnonzero(most))),) if rng.random() < 0.5 else ()
        limits = VirtualLimits((0,) * len(most), tuple(most.tolist()), prefix)
        one = table.taken(np.array([choice]))
        return Part(VirtualTables(problem, price(problem, one.degrees), one), 0, chunks, stages, limits)
    raise AssertionError("unreachable")
