"""Stages of one replica of a pipeline, as pricing sees them: chips, and time by layers and place.

A *chain* is one replica. Chains of a *kind* share the micro-batch size, and the pipeline that they belong to
has one of several data-parallel degrees, side by side among those that are looked at: its replicas share the
optimizer's state, so that few of them recompute more, and reduce their gradients. What all pipelines of a
plan share otherwise is left to each stage. Every number of a kind is the least over its degrees, so that a
chain is never slower or larger here than in a plan. As replicas times micro-batches are at most the batch,
many micro-batches leave room for few replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from formulations.stage_selection_data import StageSelectionData, exposed_reduction_ms
from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.coefficients import Entries, entry_coefficients
from planner.search.degrees import DegreeTable
from planner.search.meshes.places import following_ms
from planner.search.replicas.space import Ints, adapter_rates, exchange_floor_s, exchanged_bytes
from planner.units import MS

FEW_HELD = 8
"""Micro-batches at once for which times are made at first."""


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
class StageTimes:
    """Stages of one place, arrays [..., item, n] in ms; inf where n layers do not fit."""

    times: Floats
    """Forward and backward of a micro-batch."""
    after: Floats
    """Least of what follows its last backward: exposed reduction, tied embeddings, update, gathering."""
    forward: Floats
    """[item, n] of a micro-batch; 0 where there is no such item."""

    def at(self, held: int) -> StageTimes:
        """Of [held - 1, item, n] those of one number of micro-batches held."""
        return StageTimes(self.times[held - 1], self.after[held - 1], self.forward)

    def of(self, item: int, layers: int) -> tuple[float, float, float]:
        """Time, what follows it, and forward of one stage."""
        return tuple(float(v[item, layers]) for v in (self.times, self.after, self.forward))  # type: ignore


@dataclass(frozen=True)
class _Items:
    """Items of a kind."""

    item: Ints
    prices: Prices
    """One row an item."""
    inside_ms: Floats
    """Least hop within the time of each of all items."""
    is_exact: bool
    """Whether the prices are those of one number of replicas."""
    is_alike: bool
    """Whether a micro-batch takes as long with any of the numbers."""


class Chains:
    """All kinds of a problem, with their tables as they are asked for."""

    def __init__(self, problem: Problem, table: DegreeTable, prices: Prices) -> None:
        self.problem, self.prices = problem, prices
        self.num_layers, self.batch = problem.model.num_layers, problem.workload.global_batch_size
        longest = min(self.num_layers, problem.options.max_pipeline_parallel or self.num_layers)
        self.longest = min(longest, problem.cluster.num_chips)
        """Most stages."""
        items, rows = list_items(problem, table)
        self.tensor_parallel = np.array([item[0] for item in items], dtype=np.int64)
        """[item] chips of a stage of one replica."""
        self.node_class = np.array([item[1] for item in items], dtype=np.int64)
        """[item]"""
        per_node = np.array([node_class.chips_per_node for node_class in problem.cluster.classes])
        hosts = self.tensor_parallel / per_node[self.node_class]
        model_bytes = exchanged_bytes(problem)
        self.adapters: Floats = adapter_rates(problem)[self.node_class] * hosts * MS / model_bytes
        """[item] rate of a stage's adapters, in gradients of the whole model a ms."""
        self.exchange_ms = exchange_floor_s(problem, 2) / MS
        """What all pipelines of any mix exchange at least."""
        self.replicas = {size: tuple(by_degree) for size, by_degree in rows.items()}
        """Data-parallel degrees by micro-batch size."""
        self.rows = {size: np.array(list(by_degree.values())) for size, by_degree in rows.items()}
        """By micro-batch size, [degree, item] row of the prices; -1 where there is none."""
        self.kinds: list[Kind] = []
        self._numbers: dict[Kind, int] = {}
        blocks = not problem.stack.p2p_overlap
        hops = {size: self._least_hops_ms(size) for size in self.rows}
        none = {size: np.zeros_like(hop) for size, hop in hops.items()}
        self._inside_ms, self.hops_ms = (hops, none) if blocks else (none, hops)
        """By size, [item] least hop of a stage: within its time where sends block, else beside it."""
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
        held = min(held, self.longest) if behind else 1
        key = number, behind > 0
        known = self._known.get(key)
        if known is None or len(known[0].times) < held:
            most = min(max(2 * held, FEW_HELD), self.longest) if behind else 1
            of, more = self._items_of(number), int(behind > 0)
            known = self._table(of, 0, 1 + more, most), self._table(of, 1, 2 + more, most)
            self._known[key] = known
        return known[0].at(held), known[1].at(held)

    def most_replicas(self, number: int) -> int:
        """The most replicas of a pipeline of a kind."""
        kind = self.kinds[number]
        return self.replicas[kind.microbatch_size][kind.end - 1]

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
        at = rows[there, item], self.node_class[item]
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
        return _Items(item, prices, self._inside_ms[kind.microbatch_size], kind.is_single, is_alike)

    def _table(self, of: _Items, position: int, num_stages: int, most_held: int) -> StageTimes:
        """Stages at a position that hold 1, 2, .. micro-batches, [held - 1, item, n]."""
        num, shape = len(of.item), (most_held, len(self.node_class), self.num_layers + 1)
        held = np.repeat(np.arange(1, most_held + 1), num)
        entries = Entries(
            choice=np.tile(np.arange(num), most_held),
            node_class=np.tile(self.node_class[of.item], most_held),
            position=np.full(len(held), position),
            num_stages=num_stages,
            in_flight=held.astype(np.float64),
        )
        none = np.zeros(len(held))
        data = entry_coefficients(self.problem, of.prices, entries, 1, none, none)
        times = stage_times_ms(data, least_recompute(data))
        n = np.arange(self.num_layers + 1, dtype=np.float64)
        forward = data.forward_ms[:, None] * n + data.base_forward_ms[:, None]
        after = _after_ms(data, times, forward, of)
        if num_stages > 1:
            after = after + (of.prices.tied_sync_s[entries.choice] / MS)[:, None]
        sides = int(position > 0) + int(position < num_stages - 1)
        hops = sides * np.tile(of.inside_ms[of.item], most_held)
        tables = np.full((2, *shape), np.inf)
        tables[0][:, of.item] = (times + hops[:, None]).reshape(most_held, num, -1)
        tables[1][:, of.item] = np.where(np.isfinite(times), after, np.inf).reshape(most_held, num, -1)
        least = np.zeros(shape[1:])
        least[of.item] = forward[:num]
        return StageTimes(tables[0], tables[1], least)

    def _least_hops_ms(self, size: int) -> Floats:
        """Least hop that a stage of each item takes part in, inside a host where it may, [item]."""
        rows, least = self.rows[size], np.full(len(self.node_class), np.inf)
        there, item = np.nonzero(rows >= 0)
        row, c = rows[there, item], self.node_class[item]
        hops = np.minimum(self.prices.send_s[row, c].min(axis=1), self.prices.send_s[row, :, c].min(axis=1))
        per_node = np.array([k.chips_per_node for k in self.problem.cluster.classes])[c]
        inside = self.prices.send_inside_s[row, c]
        hops = np.where(self.tensor_parallel[item] < per_node, np.minimum(hops, inside), hops)
        np.minimum.at(least, item, hops)
        # Stages that never have the size cost nothing, as they do not come up.
        found: Floats = np.where(np.isfinite(least), least, 0.0) / MS
        return found


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
