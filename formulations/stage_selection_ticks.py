"""Times of `stage_selection` in whole ticks, for its integer twin; the rounding is explained there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formulations.pipeline_rows import Floats, step_bound
from formulations.stage_selection_data import StageSelectionData, exposed_reduction_ms
from formulations.stage_selection_tables import RecomputeTable, least_bottleneck_ms

ROUNDING_SHARE = 1e-7
"""Share of the objective that rounding to ticks may cost."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ticks:
    """Times in ticks, rounded down. Arrays [stage], or [stage, n] where they depend on the layers."""

    tick_ms: float
    layer_forward: Ints
    base_forward: Ints
    layer_backward: Ints
    base_backward: Ints
    extra: Ints
    """[stage, n] what the least recomputation adds to the backward; 0 where n layers do not fit."""
    reduction: Ints
    """[stage, n] exposed reduction with its tail."""
    follow: Ints
    """[stage, n] optimizer, exposed gathering and its tail."""
    send: Ints
    """Hop to the next stage; 0 behind the last."""
    wait: Ints
    """What a stage waits between a backward and a forward."""
    fits: NDArray[np.bool_]
    """[stage, n] whether n layers fit with some recomputation, and are enough."""

    def forward(self, s: int, n: Any) -> Any:
        """Forward of stage s with n layers, a number or a solver's expression."""
        return int(self.layer_forward[s]) * n + int(self.base_forward[s])

    def backward(self, s: int, n: Any, extra: Any) -> Any:
        """Backward of stage s with n layers and what they recompute."""
        return int(self.layer_backward[s]) * n + int(self.base_backward[s]) + extra

    def longest(self) -> Ints:
        """[stage] the most that forward and backward of one micro-batch may take."""
        n = np.arange(self.fits.shape[1])[None, :]
        layer, base = self.layer_forward + self.layer_backward, self.base_forward + self.base_backward
        times: Ints = np.where(self.fits, layer[:, None] * n + base[:, None] + self.extra, 0).max(axis=1)
        return times


def tick_ms(
    num_stages: int, num_microbatches: int, loss: int, bottleneck_ms: float, *, waits: bool = False
) -> float:
    """The largest power of two [ms] with which rounding costs at most ROUNDING_SHARE of the objective.

    The rows at one tick everywhere give the largest sum of factors of a row, being linear between the maxima.

    Parameters
    ----------
    loss
        Ticks that the time of a stage loses at most.
    bottleneck_ms
        What the slowest stage takes at least; times the micro-batches, no choice undercuts it.
    waits
        Whether stages wait between a backward and a forward.
    """
    one = np.ones(num_stages)
    factors = float(step_bound(one, one, one, num_microbatches, one, one if waits else 0.0)) + 1
    least = num_microbatches * bottleneck_ms
    if not math.isfinite(least) or least <= 0:
        return 1.0
    return float(2.0 ** math.floor(math.log2(ROUNDING_SHARE * least / (factors * loss))))


def most_loss(num_layers: int) -> int:
    """Ticks that a time loses at most: one for each layer, one for the base, one for recomputation."""
    return num_layers + 2


def times_in_ticks(data: StageSelectionData, table: RecomputeTable, tick: float | None = None) -> Ticks:
    """Every time that the program needs, for all numbers of layers that fit.

    Parameters
    ----------
    tick
        Unit of time [ms]; the largest that ROUNDING_SHARE allows where absent.
    """
    if tick is None:
        bottleneck_ms = least_bottleneck_ms(data, table)
        waits, loss = bool(data.wait_ms.any()), most_loss(data.num_layers)
        tick = tick_ms(data.num_stages, data.num_microbatches, loss, bottleneck_ms, waits=waits)
    fits = np.isfinite(table.extra_ms)
    n = np.arange(data.num_layers + 1, dtype=np.float64)[None, :]

    def line(layer: Floats, base: Floats) -> Floats:
        return layer[:, None] * n + base[:, None]

    def whole(times: Floats) -> Ints:
        return np.floor(times / tick).astype(np.int64)

    forward = line(data.forward_ms, data.base_forward_ms)
    backward = line(data.backward_ms, data.base_backward_ms) + np.where(fits, table.extra_ms, 0.0)
    hidden = data.hidden_fraction
    reduction = exposed_reduction_ms(data, n.T, backward.T).T
    gathering = np.maximum(line(data.gather_ms, data.base_gather_ms) - hidden * forward, 0.0)
    follow = line(data.optimizer_ms, data.base_optimizer_ms + data.gather_tail_ms) + gathering
    send = np.array(data.send_ms, dtype=np.float64, copy=True)
    send[-1] = 0.0
    return Ticks(
        tick_ms=tick,
        layer_forward=whole(data.forward_ms),
        base_forward=whole(data.base_forward_ms),
        layer_backward=whole(data.backward_ms),
        base_backward=whole(data.base_backward_ms),
        extra=whole(np.where(fits, table.extra_ms, 0.0)),
        reduction=whole(reduction + data.reduce_tail_ms[:, None]),
        follow=whole(follow),
        send=whole(send),
        wait=whole(data.wait_ms),
        fits=fits,
    )
