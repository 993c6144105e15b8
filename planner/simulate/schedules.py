"""The order of work on each stage: 1F1B and interleaved 1F1B, as Megatron-core runs them.

A stage runs its pieces in a fixed order, whatever their times are; `pipeline.py` finds when each
piece starts. With virtual stages a micro-batch passes a stage once for each of its chunks: the
pairs (micro-batch, chunk) in the order in which forwards run are the *virtual micro-batches*. The
backwards run in the same order with the chunks reversed.

References
----------
megatron-core 0.19.2 (Apache-2.0), megatron/core/pipeline_parallel/schedules.py:
`get_pp_rank_microbatches` (warm-up), `get_schedule_table` (virtual micro-batches),
`forward_backward_pipelining_with_interleaving`, `forward_backward_pipelining_without_interleaving`.
Leaves out the schedules that split the backward pass (zero bubble, DualPipe).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

GROUPS_WALKED = 4
"""Groups of p micro-batches that are walked for what is in flight; two are enough, by the argument there."""


@dataclass(frozen=True)
class StageOrder:
    """What one stage does, piece by piece: arrays of one length, axis `position`."""

    is_backward: NDArray[np.bool_]
    """Whether the piece is a backward pass."""
    chunk: Ints
    """Virtual stage of the piece."""
    microbatch: Ints
    """Micro-batch of the piece."""

    def __len__(self) -> int:
        return len(self.chunk)


def num_warmup_forwards(
    num_stages: int,
    stage: int,
    num_microbatches: int,
    virtual_stages: int = 1,
    group_size: int | None = None,
) -> int:
    """Forwards of (virtual) micro-batches that stage s runs before its first pair of forward and backward.

    p - 1 - s, or 2 (p - 1 - s) + (v - 1) g with v virtual stages and groups of g micro-batches, of p unless
    said otherwise; never more than there are.
    """
    if virtual_stages == 1:
        return min(num_stages - 1 - stage, num_microbatches)
    warmup = 2 * (num_stages - 1 - stage) + (virtual_stages - 1) * (group_size or num_stages)
    return min(warmup, num_microbatches * virtual_stages)


@lru_cache(maxsize=64)
def virtual_microbatches(
    num_stages: int, num_microbatches: int, virtual_stages: int = 1, group_size: int | None = None
) -> tuple[Ints, Ints]:
    """Micro-batch and chunk of every forward, in the order of the forwards, which all stages share.

    Groups of micro-batches, of p unless said otherwise, pass all chunks one after the other; a last group may
    be smaller.

    Returns
    -------
    tuple
        Two arrays [forward] of m v entries each.
    """
    size = group_size or num_stages
    microbatch: list[int] = []
    chunk: list[int] = []
    for first in range(0, num_microbatches, size):
        group = range(first, min(first + size, num_microbatches))
        for v in range(virtual_stages):
            microbatch.extend(group)
            chunk.extend([v] * len(group))
    return np.array(microbatch, dtype=np.int64), np.array(chunk, dtype=np.int64)


@lru_cache(maxsize=1024)
def order_of_work(
    num_stages: int,
    stage: int,
    num_microbatches: int,
    virtual_stages: int = 1,
    group_size: int | None = None,
) -> StageOrder:
    """All pieces of work of a stage in the order in which it runs them.

    Warm-up forwards, then one forward and one backward in turn, then the backwards that are left.
    """
    microbatch, chunk = virtual_microbatches(num_stages, num_microbatches, virtual_stages, group_size)
    total = len(microbatch)
    warmup = num_warmup_forwards(num_stages, stage, num_microbatches, virtual_stages, group_size)
    index = np.arange(total)
    forward_at = np.where(index < warmup, index, 2 * index - warmup)
    backward_at = np.where(index < total - warmup, warmup + 2 * index + 1, total + index)
    is_backward = np.zeros(2 * total, dtype=np.bool_)
    is_backward[backward_at] = True
    chunks = np.empty(2 * total, dtype=np.int64)
    microbatches = np.empty(2 * total, dtype=np.int64)
    chunks[forward_at], chunks[backward_at] = chunk, virtual_stages - 1 - chunk
    microbatches[forward_at] = microbatches[backward_at] = microbatch
    return StageOrder(is_backward, chunks, microbatches)


def in_flight_over_time(order: StageOrder, virtual_stages: int) -> Ints:
    """Micro-batches in flight on each chunk while each piece runs, array [position, chunk].

    A micro-batch is in flight on a chunk from the start of its forward to the end of its backward.
    """
    of_chunk = order.chunk[:, None] == np.arange(virtual_stages)[None, :]
    step = np.where(order.is_backward[:, None], -of_chunk.astype(np.int64), of_chunk.astype(np.int64))
    released = np.where(order.is_backward[:, None], step, 0)
    return np.cumsum(step, axis=0) - released


def in_flight_peaks(
    num_stages: int,
    stage: int,
    num_microbatches: int,
    virtual_stages: int = 1,
    group_size: int | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Counts in flight on each chunk at the moments that can be the peak, found by walking the order.

    A moment is left out where another holds at least as many micro-batches on every chunk. Which of
    the rest is the peak depends on how much each chunk keeps.

    A long order is walked for its first groups of p micro-batches only. The warm-up takes less than two of
    them (2 (p - 1) + (v - 1) p < (v + 1) p forwards of v p a group); from then on each forward is followed by
    the backward of the micro-batch as many places behind, on chunks that repeat with every group, so that
    later groups bring the counts of the ones before.
    """
    if group_size is None and num_microbatches % num_stages == 0:
        num_microbatches = min(num_microbatches, GROUPS_WALKED * num_stages)
    return _walked_peaks(num_stages, stage, num_microbatches, virtual_stages, group_size)


@lru_cache(maxsize=16384)
def _walked_peaks(
    num_stages: int,
    stage: int,
    num_microbatches: int,
    virtual_stages: int,
    group_size: int | None = None,
) -> tuple[tuple[int, ...], ...]:
    order = order_of_work(num_stages, stage, num_microbatches, virtual_stages, group_size)
    counts = in_flight_over_time(order, virtual_stages)
    # Counts grow until a backward follows a forward: no other moment can be a peak.
    follows = np.append(order.is_backward[1:], True)
    distinct = list(dict.fromkeys(map(tuple, counts[~order.is_backward & follows].tolist())))
    moments = np.array(distinct)
    covers = (moments[None, :] >= moments[:, None]).all(axis=2)
    return tuple(distinct[i] for i in np.flatnonzero(covers.sum(axis=1) == 1))


def peak_in_flight(
    num_stages: int,
    stage: int,
    num_microbatches: int,
    virtual_stages: int = 1,
    kept_bytes: Sequence[float] | None = None,
    group_size: int | None = None,
) -> tuple[int, ...]:
    """Micro-batches in flight on each chunk at the peak of a stage's activation memory.

    Parameters
    ----------
    kept_bytes
        What one micro-batch keeps on each chunk [bytes]; without it all chunks keep the same.
    """
    weights = [1.0] * virtual_stages if kept_bytes is None else kept_bytes
    peaks = in_flight_peaks(num_stages, stage, num_microbatches, virtual_stages, group_size)
    return max(peaks, key=lambda counts: (sum(n * w for n, w in zip(counts, weights, strict=True)), counts))
