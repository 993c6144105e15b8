"""What the search knows of a row of degrees with virtual stages: coefficients, and stage times by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import DealtTable, dealt_table, first_chunk_ms
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search import shared
from planner.search.degrees import DegreeTable
from planner.search.virtual_data import virtual_coefficients
from planner.simulate.schedules import in_flight_peaks
from planner.units import MS


@dataclass(frozen=True)
class VirtualClassTables:
    """Stages of each class at every place, however their layers are dealt; sends left out."""

    virtual_stages: int
    data: dict[int, VirtualSelectionData]
    """By class: the pipeline as if all its stages lay on that class."""
    tables: dict[int, DealtTable]
    times_ms: Floats
    """[node_class, stage, n] least time of a micro-batch; inf where n layers do not fit."""
    follow_ms: Floats
    """[node_class, stage, n] what the stage adds after the pipeline."""
    first_ms: Floats
    """[node_class, stage] least time of chunk 0, forward and backward."""
    tail_ms: Floats
    """[node_class] tail of the reduction of the first stage."""
    hop_ms: Floats
    """[node_class, node_class] least time of a send; between stages of one class perhaps within a host."""
    constant_ms: float

    def with_microbatches(self, count: int) -> VirtualClassTables:
        """The same where a step has another number of micro-batches, of which as many are in flight."""
        if all(one.stage.num_microbatches == count for one in self.data.values()):
            return self
        stages = {c: replace(one.stage, num_microbatches=count) for c, one in self.data.items()}
        return replace(self, data={c: replace(one, stage=stages[c]) for c, one in self.data.items()})


class VirtualTables:
    """Coefficients by row of degrees and number of virtual stages."""

    def __init__(self, problem: Problem, prices: Prices, table: DegreeTable) -> None:
        self.problem, self.prices, self.table = problem, prices, table
        self._of_classes = lru_cache(maxsize=16)(self._compute)
        self._shared = shared.current()
        self._key = None if self._shared is None else shared.table_key(problem)

    def data(self, choice: int, virtual_stages: int, order: Sequence[int]) -> VirtualSelectionData:
        """Coefficients of one order of classes."""
        return virtual_coefficients(self.problem, self.prices, self.table, choice, virtual_stages, order)

    def of_classes(self, choice: int, virtual_stages: int, num_stages: int) -> VirtualClassTables:
        """Coefficients and least times of every class at every place."""
        return self._of_classes(choice, virtual_stages, num_stages)

    def _compute(self, choice: int, virtual_stages: int, num_stages: int) -> VirtualClassTables:
        if self._shared is None:
            return self._made(choice, virtual_stages, num_stages)
        # The number of micro-batches tells only what the stages hold at once, and how often all is done.
        count = int(self.table.num_microbatches[choice])
        held = tuple(in_flight_peaks(num_stages, s, count, virtual_stages) for s in range(num_stages))
        row = shared.degrees_key(self.table.degrees, choice)
        used = tuple(np.flatnonzero(self.table.max_stages[choice]).tolist())
        key = (self._key, row, "virtual", used, min(count, num_stages), held)
        found = self._shared.value(key, lambda: self._made(choice, virtual_stages, num_stages))
        return found.with_microbatches(count)

    def _made(self, choice: int, virtual_stages: int, num_stages: int) -> VirtualClassTables:
        num_classes = self.table.max_stages.shape[1]
        times = np.full((num_classes, num_stages, self.problem.model.num_layers + 1), np.inf)
        follow, first, tail = times.copy(), np.full((num_classes, num_stages), np.inf), np.zeros(num_classes)
        data, tables, constant = {}, {}, 0.0
        for c in np.flatnonzero(self.table.max_stages[choice]).tolist():
            one = virtual_coefficients(
                self.problem,
                self.prices,
                self.table,
                choice,
                virtual_stages,
                [c] * num_stages,
                with_sends=False,
            )
            data[c], tables[c] = one, dealt_table(one)
            times[c], follow[c] = tables[c].times_ms, tables[c].follow_ms
            first[c], tail[c] = first_chunk_ms(one), one.stage.reduce_tail_ms[0]
            constant = one.stage.constant_ms
        hop = self.prices.send_s[choice] / MS
        inside = self.prices.send_inside_s[choice] / MS
        hop = np.where(np.eye(num_classes, dtype=np.bool_), np.minimum(hop, inside), hop)
        return VirtualClassTables(virtual_stages, data, tables, times, follow, first, tail, hop, constant)
