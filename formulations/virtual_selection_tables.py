"""Tables over the layers of a stage for `virtual_selection`: least recomputation over every dealing.

A stage deals its n layers to v chunks of at least l0[k] layers, and recomputes u layers of *every* chunk,
core attention of all layers, or nothing. At moment h a layer beyond the fewest is held at least as often as
the chunk with least in flight there holds one, so that with e[h,k] in flight

    kept(h) >= a (sum_k l[k] e[h,k] + (n - sum_k l[k]) min_k e[h,k]) - v2 u sum_k e[h,k],   l = max(l0, u)

and the same for the mean over the moments, which no chunk that is empty at one of them undercuts. A chunk
that needs no layer has one, l0 = 1, or none, and then it is left out of all sums. The table is the least of
what fits by these rows: no dealing that fits recomputes less. Times in ms, sizes in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_paths import Floats
from formulations.stage_selection_data import most_layers_in_step
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
    unhidden_ms: Floats
    """Reduction without its tail, less what hides it where nothing is recomputed; it may be negative."""
    most_extra_ms: Floats
    """The most that recomputation adds to the backward."""

    @property
    def times_ms(self) -> Floats:
        """Forward and backward."""
        return self.forward_ms + self.backward_ms


def fewest_layers(data: VirtualSelectionData) -> NDArray[np.int64]:
    """l0: one layer of every chunk, the leading ones, or none where the chunk has an end, [stage, chunk]."""
    fewest = np.ones((data.num_stages, data.virtual_stages), dtype=np.int64)
    fewest[0, 0] = max(1, int(data.stage.lead[0]))
    for s, _ in data.ends:
        if (k := data.may_be_empty(s)) is not None:
            fewest[s, k] = 0
    return fewest


def most_layers(data: VirtualSelectionData) -> int:
    """N: every other chunk keeps its fewest layers. Valid as a big-M: no feasible n[s,k] exceeds it."""
    fewest = fewest_layers(data)
    own = max(int(fewest.max()), 1)
    return max(data.num_layers - int(fewest.sum()), 0) + own


def dealt_table(data: VirtualSelectionData) -> DealtTable:
    """Least times of every stage, for every number of layers."""
    stage = data.stage
    n = np.arange(data.num_layers + 1, dtype=np.float64)[None, :]
    base_forward, base_backward = (base.sum(axis=1)[:, None] for base in data.base_ms())
    extra = _least_extra(data)
    forward = np.where(np.isfinite(extra), stage.forward_ms[:, None] * n + base_forward, np.inf)
    backward = stage.backward_ms[:, None] * n + base_backward + extra
    gathering = stage.gather_ms[:, None] * n + stage.base_gather_ms[:, None]
    with np.errstate(invalid="ignore"):
        gathering = np.maximum(gathering - stage.hidden_fraction * forward, 0.0)
    follow = stage.optimizer_ms[:, None] * n + (stage.base_optimizer_ms + stage.gather_tail_ms)[:, None]
    plain = stage.backward_ms[:, None] * n + base_backward
    return DealtTable(
        forward,
        backward,
        np.where(np.isfinite(extra), follow + gathering, np.inf),
        stage.reduce_ms[:, None] * n + stage.base_reduce_ms[:, None] - stage.hidden_fraction * plain,
        _most_extra(data, n),
    )


def _most_extra(data: VirtualSelectionData, n: Floats) -> Floats:
    """What the most recomputation adds to the backward, [stage, n]: of one kind, all layers."""
    stage, most = data.stage, np.zeros((data.num_stages, n.shape[1]))
    if "selective" in data.kinds:
        most = np.maximum(most, stage.selective_ms[:, None] * n + stage.selective_more_ms[:, None])
    if "full" in data.kinds:
        lead = stage.lead * np.maximum(stage.lead_full_ms - stage.full_ms, 0.0)
        most = np.maximum(most, stage.full_ms[:, None] * n + lead[:, None])
    return most


def reduction_ms(data: VirtualSelectionData, table: DealtTable) -> Floats:
    """Least that a stage still reduces when its backwards have ended, where they count, [stage, n].

    Where the end of a stage counts its own backward once or more, with all that is recomputed, recomputation
    hides less than it adds: the least goes with the least of it.
    """
    plain = data.stage.backward_ms[:, None] * np.arange(data.num_layers + 1)
    extra = table.backward_ms - plain - data.base_ms()[1].sum(axis=1)[:, None]
    return _exposed(data, table.unhidden_ms, np.where(np.isfinite(extra), np.maximum(extra, 0.0), 0.0))


def least_reduction_ms(data: VirtualSelectionData, table: DealtTable) -> Floats:
    """The same whatever the stage recomputes, [stage, n]."""
    return _exposed(data, table.unhidden_ms, table.most_extra_ms)


def _exposed(data: VirtualSelectionData, unhidden_ms: Floats, extra_ms: Floats) -> Floats:
    """Reduction with its tail where so much is recomputed, [stage, n]."""
    rest = np.maximum(unhidden_ms - data.stage.hidden_fraction * extra_ms, 0.0)
    exposed: Floats = rest + data.stage.reduce_tail_ms[:, None]
    return exposed


class _Memory:
    """What stages hold at least, [row, n]: a row is a moment of a stage, or the mean of its moments.

    Chunks that need no layer have none if they are `without`, else one or more.
    """

    def __init__(self, data: VirtualSelectionData, *, without: bool = False) -> None:
        rows = [np.concatenate([held, held.mean(axis=0)[None]]) for held in data.moments]
        left_out = [data.may_be_empty(s) if without else None for s in range(data.num_stages)]
        base = [np.append(one, one.mean()) for one in data.base_gib]
        self.stage = np.repeat(np.arange(data.num_stages), [len(one) for one in rows])
        """[row] stage of a row."""
        self.starts = np.flatnonzero(np.diff(self.stage, prepend=-1))
        """[stage] its first row."""
        self.held = np.concatenate(rows).astype(np.float64)
        has_layers = np.array([np.arange(data.virtual_stages) != k for k in left_out])
        self.chunks = has_layers.sum(axis=1)
        """[stage] chunks with layers."""
        counts = has_layers[self.stage]
        self.least = np.where(counts, self.held, np.inf).min(axis=1)
        self.held = np.where(counts, self.held, 0.0)
        self.all = self.held.sum(axis=1)
        fewest = fewest_layers(data).sum(axis=1)
        most = max(data.num_layers - int(fewest.sum() - fewest.max()), 0)  # every other stage has its fewest
        self.n = np.arange(most + 1, dtype=np.float64)
        self.room = (data.limit_gib[self.stage] - np.concatenate(base))[:, None] - data.state_gib * self.n
        least_of_chunk = np.where(has_layers, np.maximum(fewest_layers(data), 1), 0)
        self.may_hold = self.n >= least_of_chunk.sum(axis=1)[:, None]
        """[stage, n]"""
        self.fewest = least_of_chunk[self.stage].astype(np.float64)
        self.lead = data.stage.lead[self.stage].astype(np.float64)
        beyond = self.n - self.fewest.sum(axis=1)[:, None]
        self.main: Floats = (self.held * self.fewest).sum(axis=1)[:, None] + self.least[:, None] * beyond
        """[row, n] layers times micro-batches whose activations are held at least."""

    def kept(self, main_gib: Floats, lead_gib: float) -> Floats:
        """Least activations of n layers, of which those on a stage keep `main_gib` [stage] each."""
        of_row = main_gib[self.stage]
        total: Floats = of_row[:, None] * self.main
        if self.lead.any():
            total += (self.lead * (lead_gib - of_row) * self.held[:, 0])[:, None]
        return total

    def always(self, fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether something holds in all rows of a stage, [stage, n]."""
        kept: NDArray[np.bool_] = np.logical_and.reduceat(fits, self.starts, axis=0)
        return kept


def _least_extra(data: VirtualSelectionData) -> Floats:
    """What the least recomputation adds to the backward, [stage, n]; inf where nothing makes n fit, and where
    the other stages would have less than their fewest layers."""
    extra = _least_extra_by(data, _Memory(data))
    if any(data.may_be_empty(s) is not None for s, _ in data.ends):
        extra = np.minimum(extra, _least_extra_by(data, _Memory(data, without=True)))
    least = np.full((data.num_stages, data.num_layers + 1), np.inf)
    least[:, : extra.shape[1]] = extra
    return least


def _least_extra_by(data: VirtualSelectionData, memory: _Memory) -> Floats:
    """The same where chunks hold what is said there, [stage, n]."""
    stage = data.stage
    kept, selective, _ = data.lead_kept_gib
    fits = memory.always(memory.kept(data.kept_gib, kept) <= memory.room)
    extra = np.where(fits, 0.0, np.inf)
    if "selective" in data.kinds and not fits.all():
        need = memory.kept(data.kept_selective_gib, selective)
        need += data.selective_peak_gib[memory.stage][:, None]
        time = stage.selective_ms[:, None] * memory.n + stage.selective_more_ms[:, None]
        extra = np.where(memory.always(need <= memory.room), np.minimum(extra, time), extra)
    if "full" in data.kinds and not fits.all():
        full = _fewest_in_full(data, memory)
        for s in np.flatnonzero(stage.lead):
            full[s] = _with_leading(data, int(s), memory)
        extra = np.minimum(extra, full)
    held = memory.may_hold & (memory.n <= most_layers_in_step(stage)[:, None])
    return np.where(held, extra, np.inf)


def _fewest_in_full(data: VirtualSelectionData, memory: _Memory) -> Floats:
    """Time of the fewest layers of every chunk recomputed in full, [stage, n]: memory is linear in them."""
    v, of_stage = memory.chunks[memory.stage], memory.chunks[:, None]
    kept, full = data.kept_gib[memory.stage], data.kept_full_gib[memory.stage]
    short = (kept * memory.least)[:, None] * memory.n
    short -= memory.room
    short += data.full_peak_gib[memory.stage][:, None]
    each = kept * (memory.all - v * memory.least) - (kept - full) * memory.all
    more, same = each > 0, each == 0
    least = np.divide(-short, each[:, None], out=np.zeros_like(short), where=~same[:, None])
    most: Floats | float = np.inf
    if more.any():
        most = np.minimum.reduceat(np.where(more[:, None], least, np.inf), memory.starts, axis=0)
        least[more] = -np.inf
    least[same] = np.where(short[same] > 0, np.inf, -np.inf)
    least = np.maximum.reduceat(least, memory.starts, axis=0)
    layers = np.maximum(np.ceil(least - ROUNDING), 1.0)
    fits = layers <= np.minimum(np.floor(most + ROUNDING), memory.n // of_stage)
    return np.where(fits, data.stage.full_ms[:, None] * of_stage * np.where(fits, layers, 0.0), np.inf)


def _with_leading(data: VirtualSelectionData, s: int, memory: _Memory) -> Floats:
    """The same [n] where chunk 0 begins with layers of another kind, which are recomputed first."""
    v, stage, lead = data.virtual_stages, data.stage, int(data.stage.lead[s])
    main_gib, saves = data.kept_gib[s], data.kept_gib[s] - data.kept_full_gib[s]
    kept, _, full = data.lead_kept_gib
    rows = memory.stage == s
    held, least, everywhere = memory.held[rows], memory.least[rows], memory.all[rows]
    extra = np.full(len(memory.n), np.inf)
    for u in range(data.num_layers // v, 0, -1):
        fewest, of_lead = np.maximum(memory.fewest[rows][0], u), min(u, lead)
        main = (held @ fewest)[:, None] + least[:, None] * (memory.n - fewest.sum())
        of_chunk = lead * (kept - main_gib) - of_lead * (kept - full - saves)
        need = main_gib * main + (of_chunk * held[:, 0] - saves * u * everywhere)[:, None]
        fits = (need + data.full_peak_gib[s] <= memory.room[rows]).all(axis=0) & (memory.n >= fewest.sum())
        time = stage.full_ms[s] * u * v + of_lead * (stage.lead_full_ms[s] - stage.full_ms[s])
        extra = np.where(fits, np.minimum(extra, time), extra)
    return extra


def first_chunk_ms(data: VirtualSelectionData) -> Floats:
    """Least time of chunk 0 of every stage, forward and backward, [stage]: with its fewest layers."""
    layer = data.stage.forward_ms + data.stage.backward_ms
    least: Floats = layer * fewest_layers(data)[:, 0] + np.add(*data.base_ms())[:, 0]
    return least


def first_forward_ms(data: VirtualSelectionData) -> Floats:
    """The same of its forward alone, [stage]."""
    least: Floats = data.stage.forward_ms * fewest_layers(data)[:, 0] + data.base_ms()[0][:, 0]
    return least


def step_by_layers(data: VirtualSelectionData, table: DealtTable) -> Floats:
    """Least step where a stage holds n layers, [stage, n] in ms: (wait, k = 0) of `interleaved_rows`."""
    stage = data.stage
    reached = np.concatenate([[0.0], np.cumsum(first_chunk_ms(data) + 2 * data.send_ms)[:-1]])
    after = table.follow_ms + float(stage.reduce_tail_ms[0]) + stage.constant_ms
    values: Floats = stage.num_microbatches * table.times_ms + reached[:, None] + after
    return values
