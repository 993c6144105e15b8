"""Times of `layer_partition` in whole ticks, for its integer twin, which explains the rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulations.layer_partition_data import LayerPartitionData, least_bottleneck
from formulations.pipeline_rows import Floats
from formulations.stage_selection_ticks import Ints, tick_ms


@dataclass(frozen=True)
class PartitionTicks:
    """Times in ticks, rounded down, [stage, first, end]; 0 where layers do not fit."""

    tick_ms: float
    forward: Ints
    backward: Ints
    reduction: Ints
    follow: Ints
    send: Ints
    """[stage]"""
    wait: Ints
    """[stage]"""


def partition_ticks(data: LayerPartitionData) -> PartitionTicks:
    """Every time of the program."""
    bottleneck_ms = least_bottleneck(data)[0]
    tick = tick_ms(data.num_stages, data.num_microbatches, 1, bottleneck_ms, waits=bool(data.wait_ms.any()))
    allowed = data.allowed()

    def whole(times: Floats) -> Ints:
        return np.floor(np.where(allowed, times, 0.0) / tick).astype(np.int64)

    return PartitionTicks(
        tick_ms=tick,
        forward=whole(data.forward_ms),
        backward=whole(data.backward_ms),
        reduction=whole(data.reduction_ms),
        follow=whole(data.follow_ms),
        send=np.floor(data.send_ms / tick).astype(np.int64),
        wait=np.floor(data.wait_ms / tick).astype(np.int64),
    )
