"""Times of `stage_selection` in whole ticks, for its integer twin; the rounding is explained there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.pipeline_rows import Floats, step_bound
from formulations.stage_selection_data import RecomputeTable, StageSelectionData, least_bottleneck_ms

ROUNDING_SHARE = 1e-7
"""Share of the objective that rounding to ticks may cost."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ticks:
    """Times of every stage for every number of layers, rounded down; arrays [stage, n]."""

    tick_ms: float
    forward: Ints
    backward: Ints
    reduction: Ints
    follow: Ints
    send: Ints
    """[stage] hop to the next stage; 0 behind the last."""
    fits: NDArray[np.bool_]
    """[stage, n] whether n >= 1 layers fit with some recomputation."""


def tick_ms(data: StageSelectionData, table: RecomputeTable) -> float:
    """The largest power of two [ms] with which rounding costs at most ROUNDING_SHARE of the objective.

    The rows at one tick everywhere give the largest sum of factors, as every row is linear there.
    """
    one = np.ones(data.num_stages)
    factors = float(step_bound(one, one, one, data.num_microbatches, one)) + 1
    least = data.num_microbatches * least_bottleneck_ms(data, table)
    if not math.isfinite(least) or least <= 0:
        return 1.0
    return float(2.0 ** math.floor(math.log2(ROUNDING_SHARE * least / factors)))


def times_in_ticks(data: StageSelectionData, table: RecomputeTable) -> Ticks:
    """Every time that the program needs, for all numbers of layers that fit."""
    tick = tick_ms(data, table)
    fits = np.isfinite(table.extra_ms)
    n = np.arange(data.num_layers + 1, dtype=np.float64)[None, :]

    def line(layer: Floats, base: Floats) -> Floats:
        return layer[:, None] * n + base[:, None]

    def whole(times: Floats) -> Ints:
        return np.floor(times / tick).astype(np.int64)

    forward = line(data.forward_ms, data.base_forward_ms)
    backward = line(data.backward_ms, data.base_backward_ms) + np.where(fits, table.extra_ms, 0.0)
    hidden = data.hidden_fraction
    reduction = np.maximum(line(data.reduce_ms, data.base_reduce_ms) - hidden * backward, 0.0)
    gathering = np.maximum(line(data.gather_ms, data.base_gather_ms) - hidden * forward, 0.0)
    follow = line(data.optimizer_ms, data.base_optimizer_ms + data.gather_tail_ms) + gathering
    send = np.array(data.send_ms, dtype=np.float64, copy=True)
    send[-1] = 0.0
    return Ticks(
        tick_ms=tick,
        forward=whole(forward),
        backward=whole(backward),
        reduction=whole(reduction + data.reduce_tail_ms[:, None]),
        follow=whole(follow),
        send=whole(send),
        fits=fits,
    )
