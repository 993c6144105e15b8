"""Coefficients of stages of any shape: of one pipeline, and of all shapes at all positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from formulations.stage_selection_data import StageSelectionData
from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.cost.prices import Floats, Prices
from planner.cost.resharding import mesh_hops_s
from planner.data.problem import Problem
from planner.search.coefficients import Entries, entry_coefficients
from planner.search.meshes.shapes import Batch
from planner.search.tables import Start, start_of
from planner.units import MS

COARSE_GROUPS = 4
"""Groups of neighbours that the inner stages of a long pipeline are first taken as."""


@dataclass(frozen=True)
class PairTable:
    """Stages of one batch in pipelines of one length, arrays [shape, position] unless said otherwise.

    A position may stand for several neighbours: it is then the last of them, which holds the fewest
    micro-batches, so that nothing fits less or takes longer on it.

    The time of n layers is bounded below by two lines that meet at `bend`: exact up to it, where
    recomputation begins, and below the steps of recomputation behind it.
    """

    positions: NDArray[np.int64]
    """[position] place in the pipeline."""
    num_stages: int
    """Stages of the pipeline."""
    times_ms: Floats
    """[shape, position, n] with least recomputation, n = 0 .. L; inf where n layers do not fit."""
    fewest: NDArray[np.int64]
    """Fewest layers."""
    bend: NDArray[np.int64]
    """Most layers without recomputation, at least `fewest`."""
    most: NDArray[np.int64]
    """Most layers that fit; 0 where none do."""
    steeper_ms: Floats
    """Least time of each layer behind the bend."""
    longer_fraction: float
    """Least share of the longer of its two passes in the time of any stage."""
    hop_ms: Floats
    """[shape] least time of a hop to or from it."""
    after_ms: Floats
    """Least that follows the pipeline on the stage, with no layers."""
    after_layer_ms: Floats
    """Least that each layer adds to it."""
    reduce_ms: Floats
    """[shape] least exposed reduction of stage 0, with no layers."""
    reduce_layer_ms: Floats
    """[shape] least that each layer adds to it."""
    constant_ms: float
    """Least that every plan adds to the step."""


class MeshTables:
    """Coefficients by batch, kept while the search comes back to them."""

    def __init__(self, problem: Problem, prices: Prices, batches: Sequence[Batch]) -> None:
        self.problem, self.prices, self.batches = problem, prices, batches
        self.pair = lru_cache(maxsize=256)(self._pair)

    def data(self, choice: int, order: Sequence[int]) -> StageSelectionData:
        """Coefficients of one pipeline: batch number `choice`, the shape of every stage."""
        batch = self.batches[choice]
        shapes = [batch.shapes[k] for k in order]
        hops = mesh_hops_s(self.problem, self.prices, shapes)
        hops[-1] = 0.0
        entries = Entries(
            choice=batch.choice[list(order)],
            node_class=batch.node_class[list(order)],
            position=np.arange(len(order)),
            num_stages=len(order),
        )
        returning = np.concatenate([[0.0], hops[:-1]])
        data = entry_coefficients(self.problem, self.prices, entries, batch.num_microbatches, hops, returning)
        tied = max(float(self.prices.tied_sync_s[shapes[end].choice]) for end in (0, -1))
        return _with_mode(replace(data, constant_ms=tied / MS if len(order) > 1 else 0.0), batch.selective)

    def start(self, choice: int, order: Sequence[int]) -> Start:
        """Coefficients of one pipeline, and what follows from them before any layer is placed."""
        return start_of(self.data(choice, order))

    def _pair(self, choice: int, num_stages: int, coarse: bool = False) -> PairTable:
        """All positions of a pipeline, or with `coarse` the ends and a few in between."""
        batch, p = self.batches[choice], num_stages
        positions = coarse_positions(p) if coarse else np.arange(p)
        num_shapes = len(batch.shapes)
        entries = Entries(
            choice=np.repeat(batch.choice, len(positions)),
            node_class=np.repeat(batch.node_class, len(positions)),
            position=np.tile(positions, num_shapes),
            num_stages=p,
        )
        none = np.zeros(num_shapes * len(positions))
        data = _with_mode(
            entry_coefficients(self.problem, self.prices, entries, batch.num_microbatches, none, none),
            batch.selective,
        )
        table = least_recompute(data)
        times = stage_times_ms(data, table)
        n = np.arange(times.shape[1])
        fits = np.isfinite(times)
        most = np.where(fits, n, 0).max(axis=1)
        fewest = np.where(fits.any(axis=1), fits.argmax(axis=1), 1)
        plain = fits & (table.extra_ms == 0)
        bend = np.maximum(np.where(plain, n, 0).max(axis=1), fewest)
        at_bend = np.take_along_axis(times, bend[:, None], axis=1)
        beyond = fits & (n[None, :] > bend[:, None])
        with np.errstate(invalid="ignore"):
            slopes = (times - at_bend) / np.maximum(n[None, :] - bend[:, None], 1)
        steeper = np.where(beyond, slopes, np.inf).min(axis=1)
        hidden = data.hidden_fraction > 0
        shape = (num_shapes, len(positions))
        reduce = np.where(hidden, 0.0, data.base_reduce_ms) + data.reduce_tail_ms
        after = data.base_optimizer_ms + data.gather_tail_ms + np.where(hidden, 0.0, data.base_gather_ms)
        tied = min(float(self.prices.tied_sync_s[c]) for c in batch.choice) / MS if p > 1 else 0.0
        return PairTable(
            positions=positions,
            num_stages=p,
            times_ms=times.reshape(*shape, -1),
            fewest=fewest.reshape(shape),
            bend=bend.reshape(shape),
            most=most.reshape(shape),
            steeper_ms=np.where(np.isfinite(steeper), steeper, 0.0).reshape(shape),
            longer_fraction=_longer_fraction(data, times),
            hop_ms=self._least_hops_ms(batch) if p > 1 else np.zeros(num_shapes),
            after_ms=after.reshape(shape),
            after_layer_ms=(data.optimizer_ms + np.where(hidden, 0.0, data.gather_ms)).reshape(shape),
            reduce_ms=reduce.reshape(shape)[:, 0],
            reduce_layer_ms=np.where(hidden, 0.0, data.reduce_ms).reshape(shape)[:, 0],
            constant_ms=tied,
        )

    def _least_hops_ms(self, batch: Batch) -> Floats:
        """Least time of a hop that a stage of each shape takes part in, [shape].

        Inside a host only where the stage leaves room for another one in it.
        """
        per_node = np.array([c.chips_per_node for c in self.problem.cluster.classes])
        out = self.prices.send_s[batch.choice, batch.node_class].min(axis=1)
        into = self.prices.send_s[batch.choice, :, batch.node_class].min(axis=1)
        inside = self.prices.send_inside_s[batch.choice, batch.node_class]
        through = np.minimum(out, into)
        hop: Floats = np.where(
            batch.num_chips < per_node[batch.node_class], np.minimum(through, inside), through
        )
        return hop / MS


def coarse_positions(num_stages: int) -> NDArray[np.int64]:
    """The first stage, the last of each group of neighbours, and the last stage."""
    inner = np.linspace(0, max(num_stages - 2, 0), COARSE_GROUPS + 1).astype(np.int64)
    return np.unique(np.concatenate([inner, [num_stages - 1]]))


def _longer_fraction(data: StageSelectionData, times_ms: Floats) -> float:
    """Least share of the longer pass in the time of any stage, sends left out."""
    n = np.arange(times_ms.shape[1])
    forward = data.forward_ms[:, None] * n + data.base_forward_ms[:, None]
    fits = np.isfinite(times_ms)
    both = np.where(fits, times_ms, 1.0)
    longer = np.maximum(forward, both - forward) / both
    return float(np.where(fits, longer, 1.0).min())


def _with_mode(data: StageSelectionData, selective: bool | None) -> StageSelectionData:
    """Coefficients where core attention is recomputed on every stage, or on none."""
    if selective is None:
        return data
    none = np.zeros_like(data.selective_saves_gib)
    if not selective:
        return replace(data, selective_saves_gib=none, lead_selective_saves_gib=none)
    lead = data.lead
    return replace(
        data,
        backward_ms=data.backward_ms + data.selective_ms,
        base_backward_ms=data.base_backward_ms + data.selective_more_ms,
        layer_gib=data.layer_gib - data.selective_saves_gib,
        base_gib=data.base_gib
        + data.selective_peak_gib
        - lead * (data.lead_selective_saves_gib - data.selective_saves_gib),
        selective_peak_gib=none,
        selective_saves_gib=none,
        lead_selective_saves_gib=none,
        full_saves_gib=none,
        lead_full_saves_gib=none,
    )
