"""Tables over the layers of a stage for `stage_selection`: least recomputation, times, bottleneck.

Shared by the tightening cuts, the integer form and the search. Times in ms, sizes in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.pipeline_rows import Floats, step_bound
from formulations.stage_selection_data import (
    StageChoice,
    StageSelectionData,
    exposed_reduction_ms,
    least_layers,
    most_layers_in_step,
)


@dataclass(frozen=True)
class RecomputeTable:
    """Least recomputation by stage and number of layers; arrays [stage, n], n = 0 .. L."""

    extra_ms: Floats
    """What it adds to the backward; inf where so many layers do not fit, or fewer than there must be."""
    selective: NDArray[np.bool_]
    """Whether core attention is recomputed."""
    full_layers: NDArray[np.int64]
    """Layers recomputed in full."""


def least_recompute(data: StageSelectionData) -> RecomputeTable:
    """The cheapest recomputation that makes n layers fit on each stage, for every n.

    Nothing if all fits, else core attention of all layers or the fewest whole layers, whichever adds
    less time. Where stages are `alike` always whole layers: as many as all of them must, or all it has.
    Nothing without a layer.
    """
    n = np.arange(data.num_layers + 1, dtype=np.float64)[None, :]
    lead = data.lead[:, None].astype(np.float64)
    less: Floats = np.zeros((3, 1, 1))
    if data.alone_gib is not None:
        less = np.where(n == lead, data.alone_gib[:3, :, None], 0.0)
    room = (data.limit_gib - data.base_gib)[:, None]
    need = data.layer_gib[:, None] * n
    more_selective = lead * (data.lead_selective_saves_gib - data.selective_saves_gib)[:, None]
    selective_saves = data.selective_saves_gib[:, None] * n + more_selective
    selective_fits = need - selective_saves + data.selective_peak_gib[:, None] <= room + less[1]
    selective_ms = data.selective_ms[:, None] * n
    selective_ms = selective_ms + data.selective_more_ms[:, None]
    selective_ms = np.where(selective_fits, selective_ms, np.inf)
    full, full_ms = _fewest_in_full(data, n, need - less[2], room)
    none_ms = np.where(need <= room + less[0], 0.0, np.inf)
    if data.alike is not None:
        full, full_ms = _at_least(data, n, full, full_ms, *data.alike)
        none_ms = np.where(n == 0, none_ms, np.inf)
        selective_ms = np.full_like(selective_ms, np.inf)
    extra = np.minimum(none_ms, np.minimum(selective_ms, full_ms))
    held = (n >= least_layers(data)[:, None]) & (n <= most_layers_in_step(data)[:, None])
    if data.must_be_empty is not None:
        held &= (n == 0) | ~data.must_be_empty[:, None]
    extra = np.where(held, extra, np.inf)
    fits = np.isfinite(extra)
    selective = (none_ms > extra) & (selective_ms <= full_ms) & fits
    in_full = (none_ms > extra) & ~selective & fits
    return RecomputeTable(extra, selective, np.where(in_full, full, 0.0).astype(np.int64))


def _fewest_in_full(data: StageSelectionData, n: Floats, need: Floats, room: Floats) -> tuple[Floats, Floats]:
    """Fewest whole layers whose recomputation makes n fit, and its time (inf where none does), [stage, n]."""
    saves, peak = data.full_saves_gib[:, None], data.full_peak_gib[:, None]
    useful = np.where(saves > 0, saves, 1.0)
    short = need + peak - room
    full = np.maximum(np.where(short > 0, np.ceil(short / useful - 1e-12), 0.0), 1.0)
    # Rounding in the division may leave the count one short.
    full = np.where(need - saves * full + peak > room, full + 1, full)
    full_ms = np.where((full <= n) & (saves > 0), data.full_ms[:, None] * np.minimum(full, n), np.inf)
    led = np.flatnonzero(data.lead)
    if len(led):
        full[led], full_ms[led] = _fewest_with_lead(data, led, n, need[led], room[led])
    return full, full_ms


def _fewest_with_lead(
    data: StageSelectionData, led: NDArray[np.int64], n: Floats, need: Floats, room: Floats
) -> tuple[Floats, Floats]:
    """The same of stages `led`, whose first layers are of another kind and are recomputed first, [led, n].

    More layers save more, but the first one behind the leading layers passes another peak: the fewest of
    the leading layers, else the fewest beyond them.
    """
    lead = data.lead[led][:, None].astype(np.float64)
    saves, lead_saves = data.full_saves_gib[led][:, None], data.lead_full_saves_gib[led][:, None]
    peak, lead_peak = data.full_peak_gib[led][:, None], data.lead_full_peak_gib[led][:, None]

    def fits(count: Floats) -> NDArray[np.bool_]:
        first = np.minimum(count, lead)
        saved = saves * (count - first) + lead_saves * first
        there: NDArray[np.bool_] = need - saved + np.where(count > lead, peak, lead_peak) <= room
        return there & (count <= n)

    def fewest(least: Floats, each: Floats, short: Floats) -> Floats:
        more = np.ceil(short / np.where(each > 0, each, 1.0) - 1e-12)
        count = least + np.where((short > 0) & (each > 0), more, 0.0)
        # Rounding in the division may leave the count one short.
        return np.where(fits(count), count, count + 1)

    first = fewest(np.ones_like(lead), lead_saves, need - lead_saves + lead_peak - room)
    beyond = fewest(lead + 1, saves, need - lead_saves * lead - saves + peak - room)
    in_lead = (first <= lead) & fits(first)
    full = np.where(in_lead, first, np.where(fits(beyond), beyond, 0.0))
    leading = np.minimum(full, lead)
    time = data.full_ms[led][:, None] * (full - leading) + data.lead_full_ms[led][:, None] * leading
    return full, np.where(full > 0, time, np.inf)


def _at_least(
    data: StageSelectionData, n: Floats, full: Floats, full_ms: Floats, least: int, most: int
) -> tuple[Floats, Floats]:
    """The same where a stage recomputes at least `least` of its layers or all, and must do with `most`."""
    count = np.maximum(full, np.minimum(least, n))
    first = np.minimum(count, data.lead[:, None])
    time = data.full_ms[:, None] * (count - first) + data.lead_full_ms[:, None] * first
    return count, np.where(np.isfinite(full_ms) & (full <= most), time, np.inf)


def with_least_recompute(table: RecomputeTable, layers: tuple[int, ...]) -> StageChoice | None:
    """The best choice for given layer counts; None where some stage does not fit."""
    stages = np.arange(len(layers))
    counts = np.array(layers)
    if not np.isfinite(table.extra_ms[stages, counts]).all():
        return None
    full = table.full_layers[stages, counts]
    kinds = tuple(
        "selective" if table.selective[s, n] else "full" if full[s] else "none"
        for s, n in zip(stages, counts, strict=True)
    )
    return StageChoice(tuple(int(n) for n in layers), kinds, tuple(int(u) for u in full))


def stage_times_ms(data: StageSelectionData, table: RecomputeTable) -> Floats:
    """Forward and backward of one micro-batch with least recomputation, [stage, n]; inf where unfit."""
    n = np.arange(data.num_layers + 1, dtype=np.float64)[None, :]
    layer = (data.forward_ms + data.backward_ms)[:, None]
    base = (data.base_forward_ms + data.base_backward_ms)[:, None]
    times: Floats = layer * n + base + table.extra_ms
    return times


def least_bottleneck_ms(data: StageSelectionData, table: RecomputeTable) -> float:
    """The least possible time of the slowest stage, over all whole layer counts; inf where none fits.

    The least entry tau of the table such that the stages, each as full as tau allows, hold all layers.
    """
    return least_bottleneck_of_ms(stage_times_ms(data, table), data.num_layers)


def least_bottleneck_of_ms(times: Floats, num_layers: int) -> float:
    """The same of a table of stage times, [stage, n]; inf where layers do not fit."""
    counts = np.arange(times.shape[1])

    def holds(limit: float) -> bool:
        most = np.where(times <= limit, counts, 0).max(axis=1)
        return bool((times <= limit).any(axis=1).all() and most.sum() >= num_layers)

    candidates = np.unique(times[np.isfinite(times)])
    if len(candidates) == 0 or not holds(float(candidates[-1])):
        return float("inf")
    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(float(candidates[middle])) else (middle + 1, high)
    return float(candidates[low])


def bottleneck_layers(data: StageSelectionData, table: RecomputeTable) -> tuple[int, ...] | None:
    """Layer counts that reach the least bottleneck: every stage full, then the slowest gives one away.

    A good choice to start from; None where no choice fits, or where taking a layer away fails to fit.
    """
    times = stage_times_ms(data, table)
    limit = least_bottleneck_ms(data, table)
    if not np.isfinite(limit):
        return None
    stages = np.arange(data.num_stages)
    layers = np.where(times <= limit, np.arange(times.shape[1]), 0).max(axis=1)
    while layers.sum() > data.num_layers:
        can_give = (layers > 0) & np.isfinite(times[stages, layers - 1])
        if not can_give.any():
            return None
        layers[int(np.argmax(np.where(can_give, times[stages, layers], -np.inf)))] -= 1
    return tuple(int(n) for n in layers)


def objectives_ms(
    data: StageSelectionData, table: RecomputeTable, layers: NDArray[np.int64], *, spans: bool = True
) -> Floats:
    """Objective with least recomputation of many layer counts, [..., stage] -> [...]; inf where unfit.

    Without `spans` some rows are left out, which is faster and bounds a little less.
    """
    stages = np.arange(data.num_stages)
    n = layers.astype(np.float64)
    extra = table.extra_ms[stages, layers]
    unfit = ~np.isfinite(extra).all(axis=-1)
    forward = data.forward_ms * n + data.base_forward_ms
    backward = data.backward_ms * n + data.base_backward_ms + np.where(np.isfinite(extra), extra, 0.0)
    hidden = data.hidden_fraction
    gathering = np.maximum(data.gather_ms * n + data.base_gather_ms - hidden * forward, 0.0)
    send = np.broadcast_to(data.send_ms, forward.shape)
    after = exposed_reduction_ms(data, n, backward) + data.reduce_tail_ms
    end = step_bound(forward, backward, send, data.num_microbatches, after, data.wait_ms, spans=spans)
    follow = (data.optimizer_ms * n + data.base_optimizer_ms + gathering + data.gather_tail_ms).max(axis=-1)
    return np.where(unfit, np.inf, end + follow + data.constant_ms)
