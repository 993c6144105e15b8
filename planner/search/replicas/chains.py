"""Stages of one replica of a pipeline, as pricing sees them: chips, and time by layers and place.

A *chain* is one replica. Chains of a *kind* share the micro-batch size, and the pipeline that they belong to
has one of several data-parallel degrees, side by side among those that are looked at: its replicas share the
optimizer's state, so that few of them recompute more, and reduce their gradients. What all pipelines of a
plan share otherwise is left to each stage. Every number of a kind is the least over its degrees, so that a
chain is never slower or larger here than in a plan. As replicas times micro-batches are at most the batch,
many micro-batches leave room for few replicas. An *item* is a class with a tensor-parallel degree: what the
prices tell apart beyond it, such as the split of the sequence or experts' degrees, gives the least of each
number as well. Of many micro-batches held not every number has times of its own: fewer are held there, which
takes no more memory and no more time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from formulations.stage_selection_data import StageSelectionData, exposed_reduction_ms
from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.coefficients import entry_coefficients
from planner.search.degrees import DegreeTable
from planner.search.entries import Entries
from planner.search.meshes.places import following_ms
from planner.search.replicas.items import (
    StageTimes,
    held_levels,
    least_hops_s,
    least_prices,
    least_tied_ms,
    list_items,
)
from planner.search.replicas.space import Ints, adapter_rates, exchange_floor_s, exchanged_bytes
from planner.units import MS

FEW_HELD = 8
"""Numbers of micro-batches held for which times are made at first."""


@dataclass(frozen=True)
class Kind:
    """Chains of one micro-batch size whose pipelines have one of some data-parallel degrees."""

    microbatch_size: int
    first: int
    end: int
    """Degrees `first` .. `end - 1` of those that are looked at with this size, in ascending order."""

    @property
    def is_single(self) -> bool:
        """Whether the degree is decided."""
        return self.end - self.first == 1


@dataclass(frozen=True)
class _Items:
    """Items of a kind."""

    item: Ints
    prices: Prices
    """One row an item."""
    inside_ms: Floats
    """[sides, item] least of the hops within the time of each of all items, to one side and to both."""
    is_exact: bool
    """Whether the prices are those of one number of replicas."""
    is_alike: bool
    """Whether a micro-batch takes as long with any of the numbers."""


class Chains:
    """All kinds of a problem, with their tables as they are asked for."""

    def __init__(
        self, problem: Problem, table: DegreeTable, prices: Prices, rows: Sequence[int] | None = None
    ) -> None:
        """`rows` are those of the table that may take part, all by default."""
        self.problem, self.table, self.prices = problem, table, prices
        self.num_layers, self.batch = problem.model.num_layers, problem.workload.global_batch_size
        longest = min(self.num_layers, problem.options.max_pipeline_parallel or self.num_layers)
        self.longest = min(longest, problem.cluster.num_chips)
        """Most stages."""
        self.held = np.array(held_levels(self.longest))
        """Numbers of micro-batches held that are told apart; those between count as the one below them."""
        self.available = np.array([node_class.num_chips for node_class in problem.cluster.classes])
        """[class]"""
        listed, of_item = list_items(problem, table, range(len(table)) if rows is None else rows)
        items = sorted({item[:2] for item in listed})
        self.tensor_parallel = np.array([item[0] for item in items], dtype=np.int64)
        """[item] chips of a stage of one replica."""
        self.node_class = np.array([item[1] for item in items], dtype=np.int64)
        """[item]"""
        self._item = np.array([items.index(item[:2]) for item in listed], dtype=np.int64)
        """Item of each that the prices tell apart."""
        per_node = np.array([node_class.chips_per_node for node_class in problem.cluster.classes])
        hosts = self.tensor_parallel / per_node[self.node_class]
        model_bytes = exchanged_bytes(problem)
        self.adapters: Floats = adapter_rates(problem)[self.node_class] * hosts * MS / model_bytes
        """[item] rate of a stage's adapters, in gradients of the whole model a ms."""
        self.exchange_ms = exchange_floor_s(problem, 2) / MS
        """What all pipelines of any mix exchange at least."""
        self.replicas = {size: tuple(by_degree) for size, by_degree in of_item.items()}
        """Data-parallel degrees by micro-batch size."""
        self.rows = {size: np.array(list(by_degree.values())) for size, by_degree in of_item.items()}
        """By micro-batch size, [degree, item told apart] row of the prices; -1 where there is none."""
        self.kinds: list[Kind] = []
        self._numbers: dict[Kind, int] = {}
        self._hops: dict[int, Floats] = {}
        self._known: dict[tuple[int, bool], tuple[StageTimes, StageTimes]] = {}

    def number(self, kind: Kind) -> int:
        """The number of a kind."""
        known = self._numbers.setdefault(kind, len(self.kinds))
        if known == len(self.kinds):
            self.kinds.append(kind)
        return known

    def kind_of(self, microbatch_size: int, num_microbatches: int) -> int | None:
        """The kind of all chains that run so many micro-batches of a size or more."""
        degrees = self.replicas.get(microbatch_size, ())
        return self._of(microbatch_size, 0, len(degrees), num_microbatches)

    def with_more(self, number: int, num_microbatches: int) -> int | None:
        """The part of a kind that runs so many micro-batches or more; None where no degree leaves room."""
        kind = self.kinds[number]
        return self._of(kind.microbatch_size, kind.first, kind.end, num_microbatches)

    def halves(self, number: int) -> tuple[int, int]:
        """Two kinds with fewer and with more replicas."""
        kind = self.kinds[number]
        middle = (kind.first + kind.end) // 2
        fewer = Kind(kind.microbatch_size, kind.first, middle)
        return self.number(fewer), self.number(Kind(kind.microbatch_size, middle, kind.end))

    def _of(self, size: int, first: int, end: int, num_microbatches: int) -> int | None:
        most = self.batch // (size * num_microbatches)
        while end > first and self.replicas[size][end - 1] > most:
            end -= 1
        return self.number(Kind(size, first, end)) if end > first else None

    def stages(self, number: int, behind: int, held: int) -> tuple[StageTimes, StageTimes]:
        """A stage that a pipeline begins with, and one that others come before, arrays [item, n].

        Parameters
        ----------
        behind, held
            Stages behind it, and micro-batches that it holds at once.
        """
        level = int(np.searchsorted(self.held, held, side="right")) if behind else 1
        key = number, behind > 0
        known = self._known.get(key)
        if known is None or len(known[0].times) < level:
            most = max(2 * level, FEW_HELD) if behind else 1
            of, more = self._items_of(number), int(behind > 0)
            levels = self.held[len(known[0].times) if known else 0 : most]
            tables = self._table(of, 0, 1 + more, levels), self._table(of, 1, 2 + more, levels)
            known = (known[0].and_more(tables[0]), known[1].and_more(tables[1])) if known else tables
            self._known[key] = known
        return known[0].at(level), known[1].at(level)

    def room(self, number: int) -> Floats:
        """Chips of each class that one of the replicas may take at most, [class]."""
        kind = self.kinds[number]
        room: Floats = np.floor(self.available / self.replicas[kind.microbatch_size][kind.first])
        return room

    def most_replicas(self, number: int) -> int:
        """The most replicas of a pipeline of a kind."""
        kind = self.kinds[number]
        return self.replicas[kind.microbatch_size][kind.end - 1]

    def replicas_of(self, number: int) -> tuple[int, ...]:
        """Numbers of replicas of pipelines of a kind, ascending."""
        kind = self.kinds[number]
        return self.replicas[kind.microbatch_size][kind.first : kind.end]

    def least_sequences(self, number: int) -> int:
        """Sequences that the fewest replicas of a kind run at once."""
        return self.kinds[number].microbatch_size * self.replicas_of(number)[0]

    def singles(self, number: int) -> list[int]:
        """Kinds with one number of replicas each that make up a kind."""
        kind = self.kinds[number]
        ends = range(kind.first, kind.end)
        return [self.number(replace(kind, first=i, end=i + 1)) for i in ends]

    def least_times(self, number: int) -> Floats:
        """Least time of a stage of each item at any place, [item, n]."""
        tables = [*self.stages(number, 0, 1), *(self.stages(number, 1, 1) if self.longest > 1 else ())]
        least: Floats = np.min([table.times for table in tables], axis=0)
        return least

    def least_after_ms(self, number: int) -> float:
        """Least that follows any pipeline of a kind [ms]."""
        kind = self.kinds[number]
        rows = self.rows[kind.microbatch_size][kind.first : kind.end]
        there, item = np.nonzero(rows >= 0)
        at = rows[there, item], self.node_class[self._item[item]]
        prices = self.prices
        after = prices.reduce_tail_s[at] + prices.gather_tail_s[at] + prices.step_fixed_s[at]
        return float(after.min(initial=np.inf)) / MS

    def _items_of(self, number: int) -> _Items:
        """The items of a kind with the least of their prices over its degrees."""
        kind = self.kinds[number]
        rows = self.rows[kind.microbatch_size][kind.first : kind.end]
        item = np.flatnonzero((rows >= 0).any(axis=0))
        groups = [rows[rows[:, i] >= 0, i] for i in item.tolist()]
        prices, is_alike = least_prices(self.prices, groups)
        blocks = not self.problem.stack.p2p_overlap
        hops = self._least_hops_ms(number) if blocks else np.zeros((2, len(self.node_class)))
        return _Items(item, prices, hops, kind.is_single, is_alike)

    def hops_ms(self, number: int) -> Floats:
        """Least hop of a stage of each item beside its time, 0 where sends block, [item]."""
        if not self.problem.stack.p2p_overlap:
            return np.zeros(len(self.node_class))
        hops: Floats = self._least_hops_ms(number)[0]
        return hops

    def _table(self, of: _Items, position: int, num_stages: int, levels: Ints) -> StageTimes:
        """Stages at a position that hold so many micro-batches, [level, item, n]."""
        num, shape = len(of.item), (len(levels), len(self.node_class), self.num_layers + 1)
        item, starts = np.unique(self._item[of.item], return_index=True)
        held = np.repeat(levels, num)
        entries = Entries(
            choice=np.tile(np.arange(num), len(levels)),
            node_class=np.tile(self.node_class[self._item[of.item]], len(levels)),
            position=np.full(len(held), position),
            num_stages=num_stages,
            in_flight=held.astype(np.float64),
            fewest_stages=np.full(len(held), num_stages),
        )
        none = np.zeros(len(held))
        data = entry_coefficients(self.problem, of.prices, entries, 1, none, none)
        times = stage_times_ms(data, least_recompute(data))
        n = np.arange(self.num_layers + 1, dtype=np.float64)
        forward = data.forward_ms[:, None] * n + data.base_forward_ms[:, None]
        after = _after_ms(data, times, forward, of)
        if num_stages > 1:
            after = after + least_tied_ms(of.prices, entries)[:, None]
        sides = int(position > 0) + int(position < num_stages - 1)
        inside = np.vstack([np.zeros_like(of.inside_ms[:1]), of.inside_ms])[:, self._item[of.item]]
        hops = np.tile(inside[sides], len(levels))
        tables = np.full((2, *shape), np.inf)
        fitting = times + hops[:, None], np.where(np.isfinite(times), after, np.inf)
        for table, found in zip(tables, fitting, strict=True):
            each = found.reshape(len(levels), num, -1)
            table[:, item] = np.minimum.reduceat(each, starts, axis=1)
        least = np.zeros(shape[1:])
        least[item] = np.minimum.reduceat(forward[:num], starts, axis=0)
        most = np.zeros(shape[1:])
        # The forward ends with the hop to one side, which may be the longer one.
        longer = inside[sides] - inside[max(sides - 1, 0)]
        most[item] = np.maximum.reduceat(forward[:num] + longer[:, None], starts, axis=0)
        return StageTimes(tables[0], tables[1], least, most)

    def _least_hops_ms(self, number: int) -> Floats:
        """Least of the hops that a stage of each item of a kind takes part in, [sides, item]."""
        known = self._hops.get(number)
        if known is None:
            kind, num_items = self.kinds[number], len(self.node_class)
            replicas = np.array(self.replicas[kind.microbatch_size][kind.first : kind.end])
            rows = self.rows[kind.microbatch_size][kind.first : kind.end]
            there, listed = np.nonzero(rows >= 0)
            item = self._item[listed]
            chips = replicas[there] * self.tensor_parallel[item]
            of = rows[there, listed], self.node_class[item], there
            hops = least_hops_s(self.problem, self.prices, *of, chips) / MS
            # Stages that the kind never has cost nothing, as they do not come up.
            known = np.where(np.isin(np.arange(num_items), item), np.inf, np.zeros((2, num_items)))
            for least_of_sides, of_rows in zip(known, hops, strict=True):
                np.minimum.at(least_of_sides, item, of_rows)
            self._hops[number] = known
        return known


def _after_ms(data: StageSelectionData, times: Floats, forward: Floats, of: _Items) -> Floats:
    """Least that follows the last backward of stages, tied embeddings apart, [entry, n]."""
    n = np.arange(times.shape[1], dtype=np.float64)
    if not of.is_alike:
        least = data.optimizer_ms[:, None] * n + (data.base_optimizer_ms + data.gather_tail_ms)[:, None]
        return least + data.reduce_tail_ms[:, None]
    backward = np.where(np.isfinite(times), times - forward, 0.0)
    if not of.is_exact:
        # The number of replicas that reduces least may recompute most, which hides most.
        layer = data.backward_ms + np.maximum(data.full_ms, data.selective_ms)
        base = data.base_backward_ms + np.maximum(data.selective_more_ms, 0.0) + data.lead * data.lead_full_ms
        backward = layer[:, None] * n + base[:, None]
    exposed = exposed_reduction_ms(data, n[:, None], backward.T).T + data.reduce_tail_ms[:, None]
    after: Floats = exposed + following_ms(data, len(n))
    return after
