"""Time of an all-reduce along trees between nodes: NCCL reduces along trees or a ring, whichever is faster.

A double binary tree sends a buffer up and down once: between nodes each carries what the other nodes need,
2 (n - 1) / n of the buffer, at a little less than a ring's rate, and its latency grows with the logarithm of
their number. What one of its channels moves is limited as well, and a buffer crosses it twice, on whatever
number of nodes: 403 MB among 16 A100s of two nodes with four adapters each take 8.5 ms.
"""

from __future__ import annotations

import math

from planner.cost.elementwise import Values, maximum, where
from planner.data.chip import Chip
from planner.units import GB

TREE_EFFICIENCY, TREE_STEP_S = 0.92 * 0.85, 28e-6
"""Rate of double binary trees over a ring's between two nodes, and the latency of one of their steps [s]
(NVIDIA nccl, src/graph/tuning.cc, Tree with Simple). The measured efficiency falls with the number of nodes
as a ring's does; a tree's does not."""

CHANNEL_GB_PER_S = ((9.0, 41.4, 36.0), (8.0, 23.6, 17.8), (7.0, 18.5, 10.0))
"""Least compute capability, and the most that a channel of a tree moves between two nodes and among more
[GB/s]: perChMaxTreeBws (NVIDIA nccl, src/graph/tuning.cc)."""

ADAPTER_CHANNEL_GB_PER_S = 25.0
"""Most that one channel asks of an adapter [GB/s]: an adapter of 400 Gbit/s has two (guess; the largest rate
between nodes that NCCL tries is 24 GB/s before and 48 since Hopper, src/graph/search.cc)."""


def channel_rates(chip: Chip, adapters: int, adapter_bytes_per_s: float) -> tuple[float, float]:
    """What all channels of a node's trees move between two nodes and among more [bytes/s]; no limit for
    chips of other makers."""
    capability = chip.compute_capability or 0.0
    for least, two, more in CHANNEL_GB_PER_S:
        if capability >= least and adapters > 0:
            channels = adapters * max(1, math.ceil(adapter_bytes_per_s / (ADAPTER_CHANNEL_GB_PER_S * GB)))
            return channels * two * GB, channels * more * GB
    return math.inf, math.inf


def tree_s(
    size_bytes: Values,
    nodes: Values,
    levels: Values,
    rate_bytes_per_s: Values,
    channel_bytes_per_s: tuple[float, float],
) -> Values:
    """Time of an all-reduce along trees between nodes, without its launch [s].

    Parameters
    ----------
    levels
        Binary logarithm of the nodes, rounded up.
    rate_bytes_per_s
        What a ring would move between two nodes [bytes/s].
    channel_bytes_per_s
        From `channel_rates`.
    """
    sent = 2 * (nodes - 1) / nodes * size_bytes / (TREE_EFFICIENCY * rate_bytes_per_s)
    two, more = channel_bytes_per_s
    through = 2 * size_bytes / where(nodes > 2, more, two)
    return maximum(sent, through) + 2 * levels * TREE_STEP_S
