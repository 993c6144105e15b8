"""Stages of one replica of a pipeline, as pricing sees them: chips, and time by layers and place.

A *chain* is one replica. Chains of a *kind* share the micro-batch size, and are run by up to so many
replicas; what all pipelines of a plan share is left to each stage. Every price is the least over those
numbers, so that a chain is never slower or larger here than in a plan. As replicas times micro-batches are at
most the batch, the number of micro-batches says which kind a chain is of: few leave room for many replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.coefficients import Entries, entry_coefficients
from planner.search.degrees import DegreeTable
from planner.search.replicas.space import Ints
from planner.units import MS

FEW_HELD = 8
"""Micro-batches at once for which times are made at first."""


@dataclass(frozen=True)
class Kind:
    """Chains of one micro-batch size, with data-parallel degrees up to a power of two."""

    microbatch_size: int
    most_replicas: int
    rows: tuple[int, ...]
    """[item] row of the least prices."""
    node_class: Ints
    """[item]"""
    tensor_parallel: Ints
    """[item] chips of a stage of one replica."""


@dataclass(frozen=True)
class StageTimes:
    """Times of the stages of a kind, [micro-batches held - 1, item, n] in ms; inf where unfit."""

    first: Floats
    inner: Floats
    """With stages before and behind it."""
    last: Floats
    only: Floats
    """[item, n] of a pipeline's last stage, and of its only one."""


class Chains:
    """All kinds of a problem, with their tables as they are asked for."""

    def __init__(self, problem: Problem, table: DegreeTable, prices: Prices) -> None:
        self.problem = problem
        self.num_layers = problem.model.num_layers
        self.kinds, groups = list_kinds(problem, table)
        self.prices = least_prices(prices, groups)
        self._times: dict[int, StageTimes] = {}
        blocks = not problem.stack.p2p_overlap
        hops = [self._least_hops_ms(kind) for kind in self.kinds]
        none = [np.zeros_like(hop) for hop in hops]
        self._inside_ms, self.hops_ms = (hops, none) if blocks else (none, hops)
        """[kind][item] least hop of a stage: within its time where sends block, else beside it."""
        after = self.prices.reduce_tail_s + self.prices.gather_tail_s + self.prices.step_fixed_s
        self.after_ms = np.array(
            [float(after[list(kind.rows), kind.node_class].min()) / MS for kind in self.kinds]
        )
        longest = min(self.num_layers, problem.options.max_pipeline_parallel or self.num_layers)
        self.longest = min(longest, problem.cluster.num_chips)
        """Most stages."""
        self.batch = problem.workload.global_batch_size

    def kind_of(self, microbatch_size: int, num_microbatches: int) -> int | None:
        """The kind of all chains that run so many micro-batches of a size or more."""
        most = self.batch // (microbatch_size * num_microbatches)
        fits = [k for k, kind in enumerate(self.kinds) if kind.microbatch_size == microbatch_size]
        return next((k for k in fits if self.kinds[k].most_replicas >= most), fits[-1] if fits else None)

    def times(self, number: int, behind: int, held: int) -> tuple[Floats, Floats]:
        """Times of a stage that a pipeline begins with, and of one that others come before, [item, n].

        Parameters
        ----------
        behind, held
            Stages behind it, and micro-batches that it holds at once.
        """
        held = min(held, self.longest)
        known = self._times.get(number)
        if known is None or len(known.first) < held:
            known = self._times_of(number, min(max(2 * held, FEW_HELD), self.longest))
            self._times[number] = known
        if not behind:
            return known.only, known.last
        return known.first[held - 1], known.inner[held - 1]

    def _times_of(self, number: int, most_held: int) -> StageTimes:
        kind, hop = self.kinds[number], self._inside_ms[number]
        first = self._table(kind, 0, 2, most_held) + hop[:, None]
        inner = self._table(kind, 1, 3, most_held) + 2 * hop[:, None]
        last = self._table(kind, 1, 2, 1)[0] + hop[:, None]
        return StageTimes(first, inner, last, self._table(kind, 0, 1, 1)[0])

    def least_times(self, number: int) -> Floats:
        """Least time of a stage of each item at any place, [item, n]."""
        tables = [*self.times(number, 0, 1), *(self.times(number, 1, 1) if self.longest > 1 else ())]
        least: Floats = np.min(tables, axis=0)
        return least

    def _table(self, kind: Kind, position: int, num_stages: int, most_held: int) -> Floats:
        """Times of stages that hold 1, 2, .. micro-batches, [held - 1, item, n]."""
        rows = np.array(kind.rows, dtype=np.int64)
        held = np.repeat(np.arange(1, most_held + 1), len(rows))
        entries = Entries(
            choice=np.tile(rows, most_held),
            node_class=np.tile(kind.node_class, most_held),
            position=np.full(len(held), position),
            num_stages=num_stages,
            in_flight=held.astype(np.float64),
        )
        none = np.zeros(len(held))
        data = entry_coefficients(self.problem, self.prices, entries, 1, none, none)
        times = stage_times_ms(data, least_recompute(data))
        return times.reshape(most_held, len(rows), -1)

    def _least_hops_ms(self, kind: Kind) -> Floats:
        """Least hop that a stage of each item takes part in, inside a host where it may, [item]."""
        rows, c = list(kind.rows), kind.node_class
        out = self.prices.send_s[rows, c].min(axis=1)
        into = self.prices.send_s[rows, :, c].min(axis=1)
        inside = self.prices.send_inside_s[rows, c]
        per_node = np.array([k.chips_per_node for k in self.problem.cluster.classes])[c]
        least = np.minimum(out, into)
        hops: Floats = np.where(kind.tensor_parallel < per_node, np.minimum(least, inside), least)
        return hops / MS


def list_kinds(problem: Problem, table: DegreeTable) -> tuple[list[Kind], list[list[int]]]:
    """The kinds, fewer replicas first, and the rows of the table that each of their rows stands for."""
    d, has_experts = table.degrees, problem.model.moe is not None
    members: dict[int, dict[int, dict[tuple[int, ...], list[int]]]] = {}
    for row in range(len(table)):
        tp, dp = int(d.tensor_parallel[row]), int(d.data_parallel[row])
        experts = (int(d.expert_parallel[row]), int(d.expert_tensor_parallel[row]) if has_experts else 0)
        of_octave = members.setdefault(int(d.microbatch_size[row]), {}).setdefault((dp - 1).bit_length(), {})
        for c in np.flatnonzero(table.max_stages[row]).tolist():
            of_octave.setdefault((tp, c, int(d.sequence_parallel[row]), *experts), []).append(row)
    kinds: list[Kind] = []
    groups: list[list[int]] = []
    for size, octaves in members.items():
        items: dict[tuple[int, ...], list[int]] = {}
        for octave in sorted(octaves):
            for key, rows in octaves[octave].items():
                items[key] = [*items.get(key, []), *rows]
            keys, first = sorted(items), len(groups)
            groups += [items[key] for key in keys]
            kinds.append(
                Kind(
                    size,
                    1 << octave,
                    tuple(range(first, len(groups))),
                    np.array([key[1] for key in keys], dtype=np.int64),
                    np.array([key[0] for key in keys], dtype=np.int64),
                )
            )
    return kinds, groups


def least_prices(prices: Prices, groups: Sequence[Sequence[int]]) -> Prices:
    """Prices with one row a group: the least of every number over the rows of the group."""
    flat = np.array([row for group in groups for row in group], dtype=np.int64)
    starts = np.cumsum([0, *[len(group) for group in groups[:-1]]])
    rows = prices.rows(flat)
    values = {}
    for field in fields(rows):
        value = getattr(rows, field.name)
        if isinstance(value, np.ndarray) and field.name != "limit_bytes":
            value = np.minimum.reduceat(value, starts, axis=0)
        values[field.name] = value
    return Prices(**values)
