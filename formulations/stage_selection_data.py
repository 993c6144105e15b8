"""Data and answer of `stage_selection`, shared by its linear and its integer form.

Names as in the docstring of `stage_selection`; times in ms, sizes in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.pipeline_rows import Floats, RowName, core_values, row_name, step_bound

ROW_TOL = 1e-7
"""Relative violation of a row below which it is not added."""


@dataclass(frozen=True)
class StageSelectionData:
    """Coefficients of one outer choice; all arrays are [stage], names as in the module docstring."""

    num_layers: int
    num_microbatches: int
    forward_ms: Floats
    base_forward_ms: Floats
    backward_ms: Floats
    base_backward_ms: Floats
    selective_ms: Floats
    full_ms: Floats
    send_ms: Floats
    layer_gib: Floats
    base_gib: Floats
    selective_saves_gib: Floats
    full_saves_gib: Floats
    full_peak_gib: Floats
    limit_gib: Floats
    reduce_ms: Floats
    base_reduce_ms: Floats
    reduce_tail_ms: Floats
    gather_ms: Floats
    base_gather_ms: Floats
    gather_tail_ms: Floats
    optimizer_ms: Floats
    base_optimizer_ms: Floats
    hidden_fraction: float
    constant_ms: float
    """What every plan of the choice adds to the step (tied embeddings)."""

    @property
    def num_stages(self) -> int:
        """p."""
        return len(self.forward_ms)


@dataclass(frozen=True)
class StageChoice:
    """Answer: layers of every stage and what it recomputes."""

    layers: tuple[int, ...]
    recompute: tuple[str, ...]
    recompute_layers: tuple[int, ...]


def most_layers(data: StageSelectionData) -> NDArray[np.int64]:
    """N[s]: every other stage keeps one layer, and with all recomputed the layers must still fit.

    Valid as a big-M: no feasible n[s] exceeds it.
    """
    saved = np.maximum(np.maximum(data.full_saves_gib, data.selective_saves_gib), 0.0)
    least = data.layer_gib - saved
    room = data.limit_gib - data.base_gib
    by_memory = np.where(least > 0, np.floor(room / np.maximum(least, 1e-12) + 1e-9), data.num_layers)
    most = np.clip(by_memory, 0, data.num_layers - data.num_stages + 1)
    return most.astype(np.int64)


def times_ms(data: StageSelectionData, choice: StageChoice) -> tuple[Floats, Floats]:
    """Forward and backward of every stage for a choice, arrays [stage]."""
    n = np.array(choice.layers, dtype=np.float64)
    full = np.array(choice.recompute_layers, dtype=np.float64)
    selective = np.array([kind == "selective" for kind in choice.recompute])
    forward = data.forward_ms * n + data.base_forward_ms
    backward = data.backward_ms * n + data.base_backward_ms
    backward = backward + data.full_ms * full + np.where(selective, data.selective_ms * n, 0.0)
    return forward, backward


def objective_ms(data: StageSelectionData, choice: StageChoice) -> float:
    """The objective with every row in place: the tightest bound that the rows give for a choice."""
    n = np.array(choice.layers, dtype=np.float64)
    forward, backward = times_ms(data, choice)
    gathering = np.maximum(data.gather_ms * n + data.base_gather_ms - data.hidden_fraction * forward, 0.0)
    after = reductions_ms(data, choice) + data.reduce_tail_ms
    end = step_bound(forward, backward, data.send_ms, data.num_microbatches, after)
    follow = data.optimizer_ms * n + data.base_optimizer_ms + gathering + data.gather_tail_ms
    return float(end) + float(follow.max()) + data.constant_ms


def reductions_ms(data: StageSelectionData, choice: StageChoice) -> Floats:
    """Gradient reduction that stays exposed on every stage, tail apart, array [stage]."""
    n = np.array(choice.layers, dtype=np.float64)
    _, backward = times_ms(data, choice)
    total = data.reduce_ms * n + data.base_reduce_ms
    exposed: Floats = np.maximum(total - data.hidden_fraction * backward, 0.0)
    return exposed


def violated_rows(
    data: StageSelectionData,
    forward: Floats,
    backward: Floats,
    after: Floats,
    end_ms: float,
    limit: int = 6,
) -> list[tuple[RowName, int]]:
    """Rows that stage times break when they claim to end at `end_ms`, worst first.

    Parameters
    ----------
    forward, backward, after
        Arrays [stage]: passes of one micro-batch, and what follows the end of each stage [ms].
    """
    p = len(forward)
    values = core_values(forward, backward, data.send_ms, data.num_microbatches)
    reached = values.fill + values.core + values.drain
    claims = reached[:, None] - values.drain[None, :] + after[None, :]
    claims = np.where(np.arange(p)[None, :] <= np.arange(p)[:, None], claims, -np.inf)
    found = []
    for flat in np.argsort(-claims, axis=None, kind="stable")[:limit]:
        s, j = divmod(int(flat), p)
        if claims[s, j] > end_ms + ROW_TOL * max(end_ms, 1.0):
            found.append((row_name(values, s, forward, backward, data.send_ms), j))
    return found


@dataclass(frozen=True)
class RecomputeTable:
    """Least recomputation by stage and number of layers; arrays [stage, n], n = 0 .. L (n = 0 unused)."""

    extra_ms: Floats
    """What it adds to the backward; inf where the layers do not fit at all."""
    selective: NDArray[np.bool_]
    """Whether core attention is recomputed."""
    full_layers: NDArray[np.int64]
    """Layers recomputed in full."""


def least_recompute(data: StageSelectionData) -> RecomputeTable:
    """The cheapest recomputation that makes n layers fit on each stage, for every n.

    Nothing if all fits, else core attention of all layers or the fewest whole layers, whichever adds
    less time.
    """
    n = np.arange(data.num_layers + 1, dtype=np.float64)[None, :]
    room = (data.limit_gib - data.base_gib)[:, None]
    need = data.layer_gib[:, None] * n
    saves_selective, saves_full = data.selective_saves_gib[:, None], data.full_saves_gib[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        short = need + data.full_peak_gib[:, None] - room
        full = np.where(short > 0, np.ceil(short / saves_full - 1e-12), 0.0)
    full = np.maximum(np.nan_to_num(full, nan=np.inf, posinf=np.inf), 1.0)
    # Rounding in the division may leave the count one short.
    full = np.where(need - saves_full * full + data.full_peak_gib[:, None] > room, full + 1, full)
    full_ms = np.where((full <= n) & (saves_full > 0), data.full_ms[:, None] * np.minimum(full, n), np.inf)
    selective_fits = need - saves_selective * n <= room
    selective_ms = np.where(selective_fits, data.selective_ms[:, None] * n, np.inf)
    none_ms = np.where(need <= room, 0.0, np.inf)
    extra = np.minimum(none_ms, np.minimum(selective_ms, full_ms))
    extra[:, 0] = np.inf
    selective = (none_ms > extra) & (selective_ms <= full_ms) & np.isfinite(extra)
    in_full = (none_ms > extra) & ~selective & np.isfinite(extra)
    return RecomputeTable(extra, selective, np.where(in_full, full, 0.0).astype(np.int64))


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
    times = stage_times_ms(data, table)
    counts = np.arange(times.shape[1])

    def holds(limit: float) -> bool:
        most = np.where(times <= limit, counts, 0).max(axis=1)
        return bool(most.min() >= 1 and most.sum() >= data.num_layers)

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
        can_give = np.isfinite(times[stages, layers - 1])
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
    reduction = np.maximum(data.reduce_ms * n + data.base_reduce_ms - hidden * backward, 0.0)
    gathering = np.maximum(data.gather_ms * n + data.base_gather_ms - hidden * forward, 0.0)
    send = np.broadcast_to(data.send_ms, forward.shape)
    after = reduction + data.reduce_tail_ms
    end = step_bound(forward, backward, send, data.num_microbatches, after, spans=spans)
    follow = (data.optimizer_ms * n + data.base_optimizer_ms + gathering + data.gather_tail_ms).max(axis=-1)
    return np.where(unfit, np.inf, end + follow + data.constant_ms)
