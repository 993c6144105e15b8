"""What the search knows of a row of degrees with virtual stages: coefficients, and stage times by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import (
    DealtTable,
    dealt_table,
    first_chunk_ms,
    first_forward_ms,
    least_reduction_ms,
    reduction_ms,
)
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search import shared
from planner.search.bound_data import BoundData
from planner.search.degrees import DegreeTable
from planner.search.empty import ends_may_be_empty
from planner.search.kinds import layer_kinds
from planner.search.tables import ClassTables
from planner.search.virtual.data import virtual_coefficients
from planner.simulate.schedules import in_flight_peaks
from planner.units import MS


@dataclass(frozen=True)
class StageTimes:
    """Least times of stages of each class at every place, sends left out."""

    virtual_stages: int
    times_ms: Floats
    """[node_class, stage, n] of a micro-batch; inf where n layers do not fit or the class is out."""
    follow_ms: Floats
    """[node_class, stage, n] what the stage adds after the pipeline."""
    first_ms: Floats
    """[node_class, stage] of chunk 0, forward and backward."""
    first_forward_ms: Floats
    """[node_class, stage] its forward alone."""
    reduction_ms: Floats
    """[node_class, stage, n] reduction left when its backwards have ended, where these count in full."""
    least_reduction_ms: Floats
    """[node_class, n] of the first stage, whatever it recomputes."""
    hop_ms: Floats
    """[node_class, node_class] of a send; within a host between stages of one class, where it holds two."""
    tied_ms: Floats
    """[node_class, node_class] sharing of an embedding with these at the ends; inf where one is out."""

    @property
    def constant_ms(self) -> float:
        """The least that every plan adds to the step."""
        return float(self.tied_ms.min())


@dataclass(frozen=True)
class VirtualClassTables:
    """Stages of each class at every place, however their layers are dealt; sends left out."""

    data: dict[int, VirtualSelectionData]
    """By class: as if all stages lay on it, but for the constant, which is the least of all orders."""
    tables: dict[int, DealtTable]
    times: StageTimes

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
        follow, reduction, first = times.copy(), times.copy(), np.full((num_classes, num_stages), np.inf)
        forward, least = first.copy(), times[:, 0].copy()
        data, tables = {}, {}
        used = np.flatnonzero(self.table.max_stages[choice])
        tied, ends = np.full((num_classes, num_classes), np.inf), np.ix_(used, used)
        tied[ends] = self.prices.tied_sync_s[choice][ends] / MS if num_stages > 1 else 0.0
        for c in used.tolist():
            one = virtual_coefficients(
                self.problem,
                self.prices,
                self.table,
                choice,
                virtual_stages,
                [c] * num_stages,
                with_sends=False,
            )
            one = replace(one, stage=replace(one.stage, constant_ms=float(tied.min())))
            data[c], tables[c] = one, dealt_table(one)
            times[c], follow[c] = tables[c].times_ms, tables[c].follow_ms
            first[c], forward[c] = first_chunk_ms(one), first_forward_ms(one)
            reduction[c], least[c] = reduction_ms(one, tables[c]), least_reduction_ms(one, tables[c])[0]
        hop = self._hop_ms(choice)
        summary = StageTimes(virtual_stages, times, follow, first, forward, reduction, least, hop, tied)
        return VirtualClassTables(data, tables, summary)

    def _hop_ms(self, choice: int) -> Floats:
        """Least time of a send between two classes, or within one."""
        hop, inside = self.prices.send_s[choice] / MS, self.prices.send_inside_s[choice] / MS
        nodes = np.array([node_class.chips_per_node for node_class in self.problem.cluster.classes])
        two_fit = 2 * int(self.table.stage_size[choice]) <= nodes
        stays = np.eye(len(hop), dtype=np.bool_) & two_fit[:, None]
        least: Floats = np.where(stays, np.minimum(hop, inside), hop)
        return least

    def whole_stages(
        self, whole: ClassTables, bounds: BoundData, choice: int, most_virtual: int
    ) -> StageTimes | None:
        """Times that hold for any number of virtual stages up to `most_virtual`, from tables of whole stages.

        Every chunk of stage s has at least p - s micro-batches in flight right before the first backward of
        s, as many as a whole stage has, so that no dealing needs less memory or recomputes less. None where
        leading layers are of another kind, as chunks recompute fewer of those first.
        """
        kinds = layer_kinds(self.problem.model)
        if kinds is None or kinds.num_lead:
            return None
        num_stages = whole.times_ms.shape[1]
        first = np.repeat(bounds.layer_s[choice][:, None], num_stages, axis=1)
        first[:, 0] *= not ends_may_be_empty(self.problem, num_stages * most_virtual)
        first[:, 0] += bounds.embedding_s[choice]
        reduction = np.zeros_like(whole.times_ms)
        reduction[:, 0] = (bounds.tail_s[choice] / MS)[:, None]
        hop = self._hop_ms(choice)
        times = whole.times_ms.copy()
        times[:, :, 0] = np.inf  # another chunk has a layer
        nothing = np.zeros_like(first)
        return StageTimes(
            1, times, whole.follow_ms, first / MS, nothing, reduction, reduction[:, 0], hop, whole.tied_ms
        )
