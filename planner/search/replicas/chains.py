"""Stages of one replica of a pipeline, as pricing sees them: chips, and time by layers and place.

A *chain* is one replica. Chains of a *kind* share what all pipelines share and the micro-batch size, and are
run by a number of replicas in a range. Every price is the least over that range, so that a chain is never
slower or larger here than in a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.coefficients import Entries, entry_coefficients
from planner.search.degrees import DegreeTable
from planner.search.replicas.space import Ints, Shared
from planner.units import MS


@dataclass(frozen=True)
class Kind:
    """Chains of one micro-batch size, for a range of data-parallel degrees."""

    shared: Shared
    microbatch_size: int
    replicas: tuple[int, int]
    rows: tuple[int, ...]
    """[item] row of the least prices."""
    node_class: Ints
    """[item]"""
    tensor_parallel: Ints
    """[item] chips of a stage of one replica."""


@dataclass(frozen=True)
class StageTimes:
    """Times of the stages of a kind with some stages behind them, [item, n] in ms; inf where unfit."""

    first: Floats
    inner: Floats
    """None has no stage behind: there it is the last stage."""
    only: Floats | None
    """A pipeline of one stage; None with stages behind."""


class Chains:
    """All kinds of a problem, with their tables as they are asked for."""

    def __init__(self, problem: Problem, table: DegreeTable, prices: Prices) -> None:
        self.problem = problem
        self.kinds, groups = list_kinds(problem, table)
        self.prices = least_prices(prices, groups)
        self.times = lru_cache(maxsize=4096)(self._times)
        self.hops_ms = [self._least_hops_ms(kind) for kind in self.kinds]
        after = self.prices.reduce_tail_s + self.prices.gather_tail_s + self.prices.step_fixed_s
        self.after_ms = [float(after[list(kind.rows), kind.node_class].min()) / MS for kind in self.kinds]

    def _times(self, number: int, behind: int, in_flight: int) -> StageTimes:
        """Tables of stages of a kind with `behind` stages after them and at most so many micro-batches."""
        kind, blocks = self.kinds[number], not self.problem.stack.p2p_overlap
        hop = self.hops_ms[number] if blocks else np.zeros(len(kind.rows))
        first = self._table(kind, 0, behind + 1, in_flight) + (hop * (behind > 0))[:, None]
        sides = 2 if behind else 1
        inner = self._table(kind, 1, behind + 2, in_flight) + (hop * sides)[:, None]
        return StageTimes(first, inner, first if behind == 0 else None)

    def _table(self, kind: Kind, position: int, num_stages: int, in_flight: int) -> Floats:
        entries = Entries(
            choice=np.array(kind.rows, dtype=np.int64),
            node_class=kind.node_class,
            position=np.full(len(kind.rows), position),
            num_stages=num_stages,
        )
        none = np.zeros(len(kind.rows))
        data = entry_coefficients(self.problem, self.prices, entries, in_flight, none, none)
        return stage_times_ms(data, least_recompute(data))

    def _least_hops_ms(self, kind: Kind) -> Floats:
        """Least hop that a stage of each item takes part in, inside a host where it may, [item]."""
        rows, c = list(kind.rows), kind.node_class
        out = self.prices.send_s[rows, c].min(axis=1)
        into = self.prices.send_s[rows, :, c].min(axis=1)
        inside = self.prices.send_inside_s[rows, c]
        per_node = np.array([k.chips_per_node for k in self.problem.cluster.classes])[c]
        least = np.minimum(out, into)
        hops: Floats = np.where(
            kind.tensor_parallel * kind.replicas[0] < per_node, np.minimum(least, inside), least
        )
        return hops / MS


def list_kinds(problem: Problem, table: DegreeTable) -> tuple[list[Kind], list[list[int]]]:
    """The kinds, and the rows of the table that each of their rows stands for."""
    d, has_experts = table.degrees, problem.model.moe is not None
    members: dict[tuple[Shared, int, int], dict[tuple[int, int], list[int]]] = {}
    for row in range(len(table)):
        tp, dp = int(d.tensor_parallel[row]), int(d.data_parallel[row])
        ep = int(d.expert_parallel[row])
        etp = int(d.expert_tensor_parallel[row]) if has_experts else None
        octave = (dp - 1).bit_length()
        cuts = (True,) if d.sequence_parallel[row] else (False, True) if tp == 1 else (False,)
        for cut in cuts:
            of_kind = members.setdefault(((cut, ep, etp), int(d.microbatch_size[row]), octave), {})
            for c in np.flatnonzero(table.max_stages[row]).tolist():
                of_kind.setdefault((tp, c), []).append(row)
    kinds: list[Kind] = []
    groups: list[list[int]] = []
    for (shared, size, octave), items in members.items():
        if not items or (shared[0] and all(tp == 1 for tp, _ in items)):
            continue
        keys = sorted(items)
        first = len(groups)
        groups += [items[key] for key in keys]
        kinds.append(
            Kind(
                shared,
                size,
                ((1 << octave) // 2 + 1 if octave else 1, 1 << octave),
                tuple(range(first, len(groups))),
                np.array([c for _, c in keys]),
                np.array([tp for tp, _ in keys]),
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
