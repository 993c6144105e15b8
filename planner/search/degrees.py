"""List the legal degrees: tensor, expert and data parallel, micro-batch, sequence parallelism.

Left out: context parallelism and virtual stages, which the plans of this search leave at 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Degrees
from planner.cost.profiles import is_measured
from planner.data.problem import Problem
from planner.rules.batch import microbatches
from planner.rules.chips import chip_supports, tp_fits_node
from planner.rules.experts import (
    expert_ranks_divide_stage,
    expert_replicas_match,
    expert_width_splits,
    experts_split,
)
from planner.rules.sequence import (
    fp8_tokens_fill_rows,
    sequence_parallel_is_legal,
    sequence_parallel_is_required,
)
from planner.rules.tensor import tp_is_legal


@dataclass(frozen=True)
class DegreeTable:
    """All legal rows of degrees, with what follows from them."""

    degrees: Degrees
    num_microbatches: NDArray[np.int64]
    """[choice] micro-batches of a step on one replica."""
    stage_size: NDArray[np.int64]
    """[choice] chips of a stage."""
    max_stages: NDArray[np.int64]
    """[choice, node_class] stages that a class can hold; 0 where it cannot take part."""

    def __len__(self) -> int:
        return len(self.num_microbatches)


def divisors(value: int) -> list[int]:
    """Divisors of a positive number, ascending."""
    small = [d for d in range(1, int(value**0.5) + 1) if value % d == 0]
    return sorted({*small, *(value // d for d in small)})


def list_degrees(problem: Problem) -> DegreeTable:
    """Every row of degrees that the rules allow and some class can hold."""
    rows = list(_rows(problem))
    columns = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(7)]
    tp, ep, etp, dp, mbs, sp, count = columns
    ones = np.ones(len(rows), dtype=np.int64)
    degrees = Degrees(tp, ones, ep, etp, dp, mbs, sp.astype(np.bool_))
    stage_size = tp * dp
    max_stages = np.zeros((len(rows), len(problem.cluster.classes)), dtype=np.int64)
    for c, node_class in enumerate(problem.cluster.classes):
        if not chip_supports(problem.chip_of(c), problem.workload.precision):
            continue
        fits = np.array(
            [
                tp_fits_node(int(degree), node_class.chips_per_node) and is_measured(problem, c, degree, size)
                for degree, size in zip(tp.tolist(), mbs.tolist(), strict=True)
            ],
            dtype=np.bool_,
        )
        max_stages[:, c] = np.where(fits, node_class.num_chips // stage_size, 0)
    useful = max_stages.sum(axis=1) > 0
    kept = np.flatnonzero(useful)
    return DegreeTable(
        Degrees(
            tp[kept], ones[kept], ep[kept], etp[kept], dp[kept], mbs[kept], degrees.sequence_parallel[kept]
        ),
        count[kept],
        stage_size[kept],
        max_stages[kept],
    )


def _rows(problem: Problem) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """tp, ep, etp, dp, micro-batch size, sequence parallel, number of micro-batches."""
    model, workload, options = problem.model, problem.workload, problem.options
    largest_node = max(c.chips_per_node for c in problem.cluster.classes)
    most_tp = min(largest_node, options.max_tensor_parallel or largest_node)
    most_chips = max(c.num_chips for c in problem.cluster.classes)
    for tp in range(1, most_tp + 1):
        if not tp_is_legal(model, tp):
            continue
        for sp in (0, 1):
            if sp and not sequence_parallel_is_legal(model, workload, tp, 1):
                continue
            if not sp and sequence_parallel_is_required(model, tp):
                continue
            for mbs in range(1, options.max_microbatch_size + 1):
                if workload.global_batch_size % mbs:
                    continue
                if fp8_tokens_fill_rows(workload, tp, 1, mbs, bool(sp)) is not None:
                    continue
                for dp in divisors(workload.global_batch_size // mbs):
                    count = microbatches(workload, mbs, dp)
                    if count is None or tp * dp > most_chips:
                        continue
                    for ep, etp in _expert_degrees(problem, tp, dp):
                        yield tp, ep, etp, dp, mbs, sp, count


def _expert_degrees(problem: Problem, tp: int, dp: int) -> Iterator[tuple[int, int]]:
    """Expert and expert-tensor parallel degrees; 1 and the tensor degree for a model without experts."""
    model = problem.model
    if model.moe is None:
        yield 1, tp
        return
    for ep in divisors(model.moe.num_experts):
        for etp in sorted({1, tp}):
            refusals = (
                experts_split(model, ep),
                expert_width_splits(model, etp),
                expert_ranks_divide_stage(tp, 1, dp, etp, ep),
                expert_replicas_match(tp, 1, dp, etp, ep, "tp-cp-ep-dp-pp"),
            )
            if all(refusal is None for refusal in refusals):
                yield ep, etp
