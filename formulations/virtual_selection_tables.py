"""Tables over the layers of a stage for `virtual_selection`: least recomputation over every dealing.

A stage deals its n layers to v chunks of at least l0[k] layers, and recomputes u layers of *every* chunk,
core attention of all layers, or nothing. At moment h a layer beyond the fewest is held at least as often as
the chunk with least in flight there holds one, so that with e[h,k] in flight

    kept(h) >= a (sum_k l[k] e[h,k] + (n - sum_k l[k]) min_k e[h,k]) - v2 u sum_k e[h,k],   l = max(l0, u)

and the same for the mean over the moments, which no chunk that is empty at one of them undercuts. The table
is the least of what fits by these rows: no dealing that fits recomputes less. Times in ms, sizes in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_rows import Floats
from formulations.virtual_selection_data import VirtualSelectionData

ROUNDING = 1e-9
"""Part of a layer by which rounding may raise the layers that must be recomputed."""


@dataclass(frozen=True)
class DealtTable:
    """Times of every stage with n layers however dealt, arrays [stage, n]; inf where n layers do not fit."""

    forward_ms: Floats
    backward_ms: Floats
    """With the least recomputation."""
    follow_ms: Floats
    """What the stage adds after all have met: optimizer, and gathering that stays exposed."""

    @property
    def times_ms(self) -> Floats:
        """Forward and backward."""
        return self.forward_ms + self.backward_ms


def fewest_layers(data: VirtualSelectionData) -> NDArray[np.int64]:
    """l0: one layer of every chunk, or the leading ones, [stage, chunk]."""
    fewest = np.ones((data.num_stages, data.virtual_stages), dtype=np.int64)
    fewest[0, 0] = max(1, int(data.stage.lead[0]))
    return fewest


def dealt_table(data: VirtualSelectionData) -> DealtTable:
    """Least times of every stage, for every number of layers."""
    stage = data.stage
    n = np.arange(data.num_layers + 1, dtype=np.float64)[None, :]
    base_forward, base_backward = (base.sum(axis=1)[:, None] for base in data.base_ms())
    extra = np.stack([_least_extra(data, s) for s in range(data.num_stages)])
    forward = np.where(np.isfinite(extra), stage.forward_ms[:, None] * n + base_forward, np.inf)
    backward = stage.backward_ms[:, None] * n + base_backward + extra
    gathering = stage.gather_ms[:, None] * n + stage.base_gather_ms[:, None]
    with np.errstate(invalid="ignore"):
        gathering = np.maximum(gathering - stage.hidden_fraction * forward, 0.0)
    follow = stage.optimizer_ms[:, None] * n + (stage.base_optimizer_ms + stage.gather_tail_ms)[:, None]
    return DealtTable(forward, backward, np.where(np.isfinite(extra), follow + gathering, np.inf))


class _Memory:
    """What one stage holds at least, [moment, n], the mean of all moments being one more."""

    def __init__(self, data: VirtualSelectionData, s: int) -> None:
        held = data.moments[s].astype(np.float64)
        self.held = np.concatenate([held, held.mean(axis=0)[None]])
        self.all, self.least = self.held.sum(axis=1), self.held.min(axis=1)
        base = np.append(data.base_gib[s], data.base_gib[s].mean())
        self.n = np.arange(data.num_layers + 1, dtype=np.float64)
        self.room = (data.limit_gib[s] - base)[:, None] - data.state_gib * self.n
        self.fewest = fewest_layers(data)[s].astype(np.float64)
        self.lead = float(data.stage.lead[s])

    def kept(self, main_gib: float, lead_gib: float, fewest: Floats) -> Floats:
        """Least activations of n layers, [moment, n]."""
        beyond = self.n - fewest.sum()
        main = (self.held @ fewest)[:, None] + self.least[:, None] * beyond
        total: Floats = main_gib * main + self.lead * (lead_gib - main_gib) * self.held[:, :1]
        return total


def _least_extra(data: VirtualSelectionData, s: int) -> Floats:
    """What the least recomputation adds to the backward of stage s, [n]; inf where nothing makes n fit."""
    memory, stage = _Memory(data, s), data.stage
    lead = memory.lead
    kept, selective, _ = data.lead_kept_gib
    fits = (memory.kept(data.kept_gib, kept, memory.fewest) <= memory.room).all(axis=0)
    extra = np.where(fits, 0.0, np.inf)
    if "selective" in data.kinds:
        need = memory.kept(data.kept_selective_gib, selective, memory.fewest) + data.selective_peak_gib[s]
        time = stage.selective_ms[s] * memory.n + lead * (stage.lead_selective_ms[s] - stage.selective_ms[s])
        extra = np.where((need <= memory.room).all(axis=0), np.minimum(extra, time), extra)
    if "full" in data.kinds and not fits.all():
        full = _with_leading(data, s, memory) if lead else _fewest_in_full(data, s, memory)
        extra = np.minimum(extra, full)
    return np.where(memory.n >= memory.fewest.sum(), extra, np.inf)


def _fewest_in_full(data: VirtualSelectionData, s: int, memory: _Memory) -> Floats:
    """Time of the fewest layers of every chunk recomputed in full, [n]: memory is linear in them."""
    v = data.virtual_stages
    saves = data.kept_gib - data.kept_full_gib
    short = data.kept_gib * memory.least[:, None] * memory.n - memory.room + data.full_peak_gib[s]
    each = (data.kept_gib * (memory.all - v * memory.least) - saves * memory.all)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        turn = -short / each
    least = np.where(each < 0, turn, np.where((each == 0) & (short > 0), np.inf, -np.inf)).max(axis=0)
    most = np.where(each > 0, turn, np.inf).min(axis=0)
    layers = np.maximum(np.ceil(least - ROUNDING), 1.0)
    fits = layers <= np.minimum(np.floor(most + ROUNDING), memory.n // v)
    return np.where(fits, data.stage.full_ms[s] * v * np.where(fits, layers, 0.0), np.inf)


def _with_leading(data: VirtualSelectionData, s: int, memory: _Memory) -> Floats:
    """The same where chunk 0 begins with layers of another kind, which are recomputed first."""
    v, stage, lead = data.virtual_stages, data.stage, memory.lead
    saves = data.kept_gib - data.kept_full_gib
    kept, _, full = data.lead_kept_gib
    extra = np.full(len(memory.n), np.inf)
    for u in range(data.num_layers // v, 0, -1):
        fewest = np.maximum(memory.fewest, u)
        of_lead = min(u, lead)
        saved = saves * u * memory.all + of_lead * (kept - full - saves) * memory.held[:, 0]
        need = memory.kept(data.kept_gib, kept, fewest) - saved[:, None] + data.full_peak_gib[s]
        fits = (need <= memory.room).all(axis=0) & (memory.n >= fewest.sum())
        time = stage.full_ms[s] * u * v + of_lead * (stage.lead_full_ms[s] - stage.full_ms[s])
        extra = np.where(fits, np.minimum(extra, time), extra)
    return extra


def first_chunk_ms(data: VirtualSelectionData) -> Floats:
    """Least time of chunk 0 of every stage, forward and backward, [stage]: one layer, or the leading ones."""
    layer = data.stage.forward_ms + data.stage.backward_ms
    least: Floats = layer * fewest_layers(data)[:, 0] + np.add(*data.base_ms())[:, 0]
    return least


def step_by_layers(data: VirtualSelectionData, table: DealtTable) -> Floats:
    """Least step where a stage holds n layers, [stage, n] in ms: (wait, k = 0) of `interleaved_rows`."""
    stage = data.stage
    reached = np.concatenate([[0.0], np.cumsum(first_chunk_ms(data) + 2 * data.send_ms)[:-1]])
    after = table.follow_ms + float(stage.reduce_tail_ms[0]) + stage.constant_ms
    values: Floats = stage.num_microbatches * table.times_ms + reached[:, None] + after
    return values
