"""Batch arithmetic: sequences of a step over micro-batches and replicas.

Each rule returns None where it holds, else a sentence with the thing, the value and the way out.
Line numbers are those of megatron-core 0.19.2 (Apache-2.0).
"""

from __future__ import annotations

from planner.data.workload import Workload


def batch_divides(workload: Workload, microbatch_size: int, data_parallel: int) -> str | None:
    """Every replica runs as many whole micro-batches: gbs % (mbs dp) == 0.

    Source: megatron/core/num_microbatches_calculator.py:381; megatron/training/arguments.py:694.
    """
    step = microbatch_size * data_parallel
    if workload.global_batch_size % step == 0:
        return None
    below = workload.global_batch_size // step * step
    nearest = f"{below} or {below + step}" if below else f"{step}"
    return (
        f"global_batch_size {workload.global_batch_size}: is no multiple of microbatch_size "
        f"{microbatch_size} x data_parallel {data_parallel} = {step}; nearest legal: {nearest}"
    )


def microbatch_count_agrees(
    workload: Workload, microbatch_size: int, data_parallel: int, num_microbatches: int
) -> str | None:
    """The number of micro-batches is no choice: gbs / (mbs dp).

    Source: megatron/core/num_microbatches_calculator.py:381; the launcher derives it and takes no flag.
    """
    count = microbatches(workload, microbatch_size, data_parallel)
    if count is None or count == num_microbatches:
        return None
    return (
        f"num_microbatches {num_microbatches}: global_batch_size {workload.global_batch_size} / "
        f"(microbatch_size {microbatch_size} x data_parallel {data_parallel}) is {count}; write {count}"
    )


def microbatches(workload: Workload, microbatch_size: int, data_parallel: int) -> int | None:
    """Micro-batches of a step on one replica; None where the batch does not divide."""
    if batch_divides(workload, microbatch_size, data_parallel) is not None:
        return None
    return workload.global_batch_size // (microbatch_size * data_parallel)
