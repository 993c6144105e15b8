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

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.degrees import DegreeTable
from planner.search.replicas.items import StageTimes, held_levels, least_hops_s, list_items
from planner.search.replicas.space import adapter_rates, exchange_floor_s, exchanged_bytes
from planner.search.replicas.stage_tables import stage_tables
from planner.units import MS

FEW_HELD = 8
"""Numbers of micro-batches held for which times are made at first."""
TOGETHER = 64
"""Kinds whose tables are made together at most. Guesses, both."""


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
        self.item_of = np.array([items.index(item[:2]) for item in listed], dtype=np.int64)
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
            levels = self.held[len(known[0].times) if known else 0 : most]
            tables = stage_tables(self, [number], levels, has_behind=behind > 0)[0]
            known = (known[0].and_more(tables[0]), known[1].and_more(tables[1])) if known else tables
            self._known[key] = known
        return known[0].at(level), known[1].at(level)

    def prepare(self, numbers: Sequence[int]) -> None:
        """Make what `stages` is first asked for, of several kinds together: each alone takes far longer."""
        for has_behind in (False, True)[: self.longest]:
            new = [number for number in numbers if (number, has_behind) not in self._known]
            levels = self.held[: FEW_HELD if has_behind else 1]
            for i in range(0, len(new), TOGETHER):
                some = new[i : i + TOGETHER]
                tables = stage_tables(self, some, levels, has_behind=has_behind)
                self._known |= {(number, has_behind): own for number, own in zip(some, tables, strict=True)}

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
        at = rows[there, item], self.node_class[self.item_of[item]]
        prices = self.prices
        after = prices.reduce_tail_s[at] + prices.gather_tail_s[at] + prices.step_fixed_s[at]
        return float(after.min(initial=np.inf)) / MS

    def hops_ms(self, number: int) -> Floats:
        """Least hop of a stage of each item beside its time, 0 where sends block, [item]."""
        if not self.problem.stack.p2p_overlap:
            return np.zeros(len(self.node_class))
        hops: Floats = self.least_hops_ms(number)[0]
        return hops

    def least_hops_ms(self, number: int) -> Floats:
        """Least of the hops that a stage of each item of a kind takes part in, [sides, item]."""
        known = self._hops.get(number)
        if known is None:
            kind, num_items = self.kinds[number], len(self.node_class)
            replicas = np.array(self.replicas[kind.microbatch_size][kind.first : kind.end])
            rows = self.rows[kind.microbatch_size][kind.first : kind.end]
            there, listed = np.nonzero(rows >= 0)
            item = self.item_of[listed]
            chips = replicas[there] * self.tensor_parallel[item]
            of = rows[there, listed], self.node_class[item], there
            hops = least_hops_s(self.problem, self.prices, *of, chips) / MS
            # Stages that the kind never has cost nothing, as they do not come up.
            known = np.where(np.isin(np.arange(num_items), item), np.inf, np.zeros((2, num_items)))
            for least_of_sides, of_rows in zip(known, hops, strict=True):
                np.minimum.at(least_of_sides, item, of_rows)
            self._hops[number] = known
        return known
