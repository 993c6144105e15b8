"""What stages of every shape cost at every place, for pipelines of one batch and any length.

A place is told by the stages behind it, q: with 1F1B a stage holds min(m, q + 1) micro-batches, so that
places with q >= max(m - 1, 1) are alike, and stages in the middle do not depend on how long the pipeline
is. The last stage is the place q = 0; the first stage, which holds the embedding, has tables of its own.
Communicators, which grow by the pipeline up to a few stages, count as in the pipeline of any length that
takes the least: memory is a lower bound for all pipelines with such a stage at such a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import StageSelectionData, exposed_reduction_ms
from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.coefficients import entry_coefficients
from planner.search.entries import Entries
from planner.search.meshes.shapes import Batch
from planner.search.meshes.tables import cross_hops_ms, least_hops_ms, tied_ms, with_mode

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Stages:
    """Stages at several places, arrays [shape, place] unless said otherwise; sends left out of the times."""

    times_ms: Floats
    """[shape, place, n] with least recomputation, n = 0 .. L; inf where n layers do not fit."""
    forward_ms: Floats
    """Of each layer."""
    base_forward_ms: Floats
    follow_ms: Floats
    """[shape, place, n] optimizer, exposed gathering and what else follows the pipeline on the stage."""
    plain: Ints
    """Most layers without recomputation."""
    reduce_ms: Floats
    """[shape, place, n] exposed reduction with its tail."""


@dataclass(frozen=True)
class Places:
    """All stages of a batch in pipelines of up to so many stages."""

    inner: Stages
    """Behind the first stage; place q has q stages behind it."""
    first: Stages
    """The first stage of pipelines of 2, 3, ... stages; place 0 is a pipeline of one."""
    hop_ms: Floats
    """[shape] least time of a hop to or from it."""
    cross_ms: Floats
    """[shape, class] least time of a hop to or from a stage of another class."""
    constant_ms: tuple[float, float]
    """Least that every plan adds to the step: pipelines of one stage, and of more."""

    @property
    def num_places(self) -> int:
        """Places that are told apart."""
        return int(self.inner.times_ms.shape[1])


class PlaceTables:
    """Tables by batch, kept while the search comes back to them."""

    def __init__(self, problem: Problem, prices: Prices, batches: Sequence[Batch]) -> None:
        self.problem, self.prices, self.batches = problem, prices, batches
        self.of = lru_cache(maxsize=8)(self.make)

    def make(self, choice: int, longest: int) -> Places:
        """Tables of a batch for pipelines of up to so many stages."""
        batch = self.batches[choice]
        count = min(longest, max(batch.num_microbatches, 2))
        held = np.minimum(np.arange(1, count + 1), batch.num_microbatches)
        # The places of one long pipeline, its first stage left out: they end with q = 0.
        behind = np.arange(count)
        inner = self._stages(batch, count + 1, np.arange(count, 0, -1), held, behind + 2)
        first = self._stages(batch, 2, np.zeros(count, dtype=np.int64), held, behind + 1)
        alone = self._stages(batch, 1, np.zeros(1, dtype=np.int64), held[:1], behind[:1] + 1)
        for name in vars(first):
            getattr(first, name)[:, 0] = getattr(alone, name)[:, 0]
        tied = float(tied_ms(self.prices, batch).min())
        hop_ms = least_hops_ms(self.problem, self.prices, batch)
        return Places(inner, first, hop_ms, cross_hops_ms(self.prices, batch), (0.0, tied))

    def _stages(
        self, batch: Batch, num_stages: int, positions: Ints, held: Ints, fewest_stages: Ints
    ) -> Stages:
        num_shapes, width = len(batch.shapes), len(positions)
        entries = Entries(
            choice=np.repeat(batch.choice, width),
            node_class=np.repeat(batch.node_class, width),
            position=np.tile(positions, num_shapes),
            num_stages=num_stages,
            in_flight=np.tile(held, num_shapes).astype(np.float64),
            fewest_stages=np.tile(fewest_stages, num_shapes),
        )
        none = np.zeros(num_shapes * width)
        data = with_mode(
            entry_coefficients(self.problem, self.prices, entries, batch.num_microbatches, none, none),
            batch.selective,
        )
        table = least_recompute(data)
        times = stage_times_ms(data, table)
        plain = np.where(table.extra_ms == 0, np.arange(times.shape[1]), 0).max(axis=1)
        shape = (num_shapes, width)
        return Stages(
            times_ms=times.reshape(*shape, -1),
            forward_ms=data.forward_ms.reshape(shape),
            base_forward_ms=data.base_forward_ms.reshape(shape),
            follow_ms=following_ms(data, times.shape[1]).reshape(*shape, -1),
            plain=plain.reshape(shape),
            reduce_ms=_reduce(data, times).reshape(*shape, -1),
        )


def following_ms(data: StageSelectionData, width: int) -> Floats:
    """Optimizer, exposed gathering and what else follows the pipeline on each stage, [entry, n]."""
    n = np.arange(width, dtype=np.float64)[None, :]
    forward = data.forward_ms[:, None] * n + data.base_forward_ms[:, None]
    gathering = data.gather_ms[:, None] * n + data.base_gather_ms[:, None] - data.hidden_fraction * forward
    follow: Floats = data.optimizer_ms[:, None] * n + (data.base_optimizer_ms + data.gather_tail_ms)[:, None]
    return follow + np.maximum(gathering, 0.0)


def _reduce(data: StageSelectionData, times: Floats) -> Floats:
    """Exposed reduction with its tail, [entry, n]."""
    n = np.arange(times.shape[1], dtype=np.float64)[None, :]
    forward = data.forward_ms[:, None] * n + data.base_forward_ms[:, None]
    backward = np.where(np.isfinite(times), times - forward, 0.0)
    exposed: Floats = exposed_reduction_ms(data, n.T, backward.T).T + data.reduce_tail_ms[:, None]
    return exposed
