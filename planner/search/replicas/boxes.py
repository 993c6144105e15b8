"""Boxes of chains, and the chains found in them: what pricing and its shortest paths pass to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.replicas.space import Ints
from planner.tolerances import ROUNDING_TOL

Bools = NDArray[np.bool_]

COARSE = 1.25
"""Ratio of the ends of a box's times at first. A guess."""
LONGEST = 1e6
"""The same of the box of the longest times: more than any stage takes. A guess."""


def time_intervals(times_ms: Floats) -> tuple[Floats, Floats]:
    """Lower and upper ends of intervals that hold the given times, none where there are none [ms]."""
    if not len(times_ms):
        return np.zeros(0), np.zeros(0)
    edges = [float(times_ms.min())]
    while edges[-1] <= float(times_ms.max()):
        edges.append(edges[-1] * COARSE)
    # Stages at some places take longer than the least.
    edges.append(edges[-1] * LONGEST)
    return np.array(edges[:-1]), np.array(edges[1:])


@dataclass(frozen=True)
class Boxes:
    """Kinds with intervals of micro-batches and of the slowest stage's time; arrays [box]."""

    kind: Ints
    least_m: Ints
    most_m: Ints
    low: Floats
    high: Floats
    """Some stage takes `low` or more, none more than `high` [ms]."""
    weight: Floats
    """y: what a micro-batch's worth of chips counts [ms]."""
    late: Floats
    """theta: share of what follows the slow stage; what follows the first one has the rest."""

    adapters: Floats
    """omega: rate of a pipeline's adapters at which the exchange is taken for linear; 0 for the least one."""
    near: Floats
    """nu: the last stage of `near * low` or more counts by what lies behind it; 1 for the slow one."""
    apart: Floats
    """kappa: share of the row of the slow stage; that of the last one near it has the rest."""

    def __len__(self) -> int:
        return len(self.kind)

    def at(self, rows: Ints | Bools) -> Boxes:
        """Some of them."""
        return Boxes(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    @staticmethod
    def none() -> Boxes:
        """No boxes."""
        whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Boxes(whole, whole, whole, real, real, real, real, real, real, real)

    @staticmethod
    def single(kind: int, least_m: int, most_m: int) -> Boxes:
        """One box of any times."""
        whole = [np.array([n]) for n in (kind, least_m, most_m)]
        none, one = np.zeros(1), np.ones(1)
        return Boxes(whole[0], whole[1], whole[2], none, np.inf * one, none, none, none, one, none)

    @staticmethod
    def join(parts: Sequence[Boxes]) -> Boxes:
        """All of several."""
        names = Boxes.__dataclass_fields__
        return Boxes(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class Column:
    """A chain, as the rows of all its stages count it."""

    kind: int
    items: tuple[int, ...]
    """Item of every stage, in pipeline order."""
    layers: tuple[int, ...]
    chips: tuple[float, ...]
    """By class."""
    microbatch_size: int
    most_m: int
    """Micro-batches that it has the memory for."""
    stages_ms: tuple[float, ...]
    before_ms: tuple[float, ...]
    """By stage: what fills and drains the pipeline before it, and what follows the first stage; or what
    fills it, and what follows this one. In it is what the pipeline exchanges beyond the least of all."""
    behind_ms: tuple[float, ...]
    """By stage: the way from it to the last one and back."""

    @cached_property
    def times_ms(self) -> Floats:
        """Least times of 1, 2, .. micro-batches by (partial) or (window) and (work), not falling [m]."""
        m = np.arange(1, self.most_m + 1)[:, None]
        stage, before, behind = (np.array(v) for v in (self.stages_ms, self.before_ms, self.behind_ms))
        times: Floats = np.maximum.accumulate(rows_ms(stage, before, behind, m))
        return times

    @property
    def key(self) -> tuple[object, ...]:
        """What tells chains apart."""
        return self.kind, self.items, self.layers

    @property
    def slowest_ms(self) -> float:
        """Time of its slowest stage."""
        return max(self.stages_ms)

    def sequences(self, deadline_ms: float) -> int:
        """Sequences that it runs by a deadline, in whole micro-batches."""
        return self.microbatch_size * int(np.searchsorted(self.times_ms, deadline_ms, side="right"))

    def time_ms(self, sequences: float) -> float:
        """When it has run so many sequences, in whole micro-batches; inf where it has not the memory."""
        m = max(int(np.ceil(sequences / self.microbatch_size * (1 - ROUNDING_TOL))), 1)
        return float(self.times_ms[m - 1]) if m <= self.most_m else float("inf")


def rows_ms(stages_ms: Floats, before_ms: Floats, behind_ms: Floats, m: int | Ints) -> Floats:
    """Time of m micro-batches by the rows of all stages: (partial) or (window), and (work), [..., stage]."""
    q = np.arange(stages_ms.shape[-1])[::-1]
    partial = m * stages_ms + 2 * behind_ms - q * stages_ms
    window = (m + 1) / 2 * stages_ms + behind_ms
    core = np.maximum(np.where(m >= q + 2, partial, window), m * stages_ms)
    times: Floats = (core + before_ms).max(axis=-1)
    return times


@dataclass(frozen=True)
class Found:
    """The chain of a box, and the row that it is bounded by there."""

    column: Column
    worth: float
    """Sequences that its chips are worth."""
    slow: int
    """Its stage."""
    share: float
    """Of what lies behind it; twice that of (deep) where it counts by that."""
    by_partial: bool
    adapters: float
    """Rate of its adapters."""
    gain_ms: float
    """How much more the end of the slow stage says than that of the first one, as `Boxes.late` rises."""
    behind_ms: float
    """What it takes by the stages behind the slow one that are near it."""
    loss_ms: float
    """By how much it is slower with any one number of replicas than with the best for each number."""


@dataclass(frozen=True)
class Picked:
    """A stage of a chain."""

    item: int
    layers: int


@dataclass(frozen=True)
class Priced:
    """What one look at prices found."""

    bound_ms: float
    """No chain runs what its chips are worth sooner."""
    columns: list[Column]
    """Chains that are done soonest."""
