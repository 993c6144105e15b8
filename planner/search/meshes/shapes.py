"""What a stage may be where stages differ: class, tensor and data parallelism, and what all share.

A *batch* is what all stages have in common: the B sequences that run at a time over all replicas, hence the
number of micro-batches, sequence and expert parallelism, and whether core attention is recomputed
everywhere. A *shape* is the rest: node class, tensor parallel t, data parallel d, so that a replica runs
B / d sequences at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.resharding import StageShape
from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.rules.flagscale import rows_divide, shared_rows
from planner.search.degrees import DegreeTable


@dataclass(frozen=True)
class Batch:
    """What all stages share, and the shapes that go with it."""

    sequences: int
    """B: sequences of a micro-batch over all replicas."""
    num_microbatches: int
    sequence_parallel: bool
    expert_parallel: int
    expert_tensor_parallel: int | None
    """None for a model without experts."""
    selective: bool | None
    """Whether all stages recompute core attention, or none does; None where each may choose."""
    shapes: tuple[StageShape, ...]
    """`choice` is the row of the degree table."""

    @property
    def shared(self) -> tuple[bool, int, int | None]:
        """What pipelines side by side must share: the split of the sequence and the experts' degrees."""
        return self.sequence_parallel, self.expert_parallel, self.expert_tensor_parallel

    @cached_property
    def choice(self) -> NDArray[np.int64]:
        """[shape] row of the prices."""
        return np.array([shape.choice for shape in self.shapes], dtype=np.int64)

    @cached_property
    def node_class(self) -> NDArray[np.int64]:
        """[shape]"""
        return np.array([shape.node_class for shape in self.shapes], dtype=np.int64)

    @cached_property
    def tensor_parallel(self) -> NDArray[np.int64]:
        """[shape]"""
        return np.array([shape.tensor_parallel for shape in self.shapes], dtype=np.int64)

    @cached_property
    def data_parallel(self) -> NDArray[np.int64]:
        """[shape]"""
        return np.array([shape.data_parallel for shape in self.shapes], dtype=np.int64)

    @cached_property
    def num_chips(self) -> NDArray[np.int64]:
        """[shape] chips of a stage."""
        return np.array([shape.num_chips for shape in self.shapes], dtype=np.int64)


def list_batches(problem: Problem, table: DegreeTable, prices: Prices) -> tuple[Batch, ...]:
    """Everything that stages may share under FlagScale, with the shapes for it.

    Without sequence parallelism FlagScale passes whole activations on, which needs one tensor-parallel degree
    for all stages; with it stages of tensor parallel 1 take part with whole sequences.
    """
    degrees = table.degrees
    shapes: dict[tuple[int, ...], list[StageShape]] = {}
    has_experts = problem.model.moe is not None
    for row in np.flatnonzero(degrees.context_parallel == 1).tolist():
        tp, dp = int(degrees.tensor_parallel[row]), int(degrees.data_parallel[row])
        together = dp * int(degrees.microbatch_size[row])
        etp = int(degrees.expert_tensor_parallel[row]) if has_experts else 0
        ep, split = int(degrees.expert_parallel[row]), bool(degrees.sequence_parallel[row])
        found = [
            StageShape(row, int(c), tp, dp, tp * dp) for c in np.flatnonzero(table.max_stages[row]).tolist()
        ]
        # With tensor parallel 1 the whole sequence lies on each rank, whatever the others do with it.
        keys = [(1, 0)] if split else [(1, 0), (0, 1)] if tp == 1 else [(0, tp)]
        for key in keys:
            shapes.setdefault((together, *key, ep, etp), []).extend(found)
    batches = []
    for (together, cut, _, ep, etp), listed in shapes.items():
        if cut and all(shape.tensor_parallel == 1 for shape in listed):
            continue
        for selective in _recompute_modes(problem, prices):
            batches.append(
                Batch(
                    sequences=together,
                    num_microbatches=problem.workload.global_batch_size // together,
                    sequence_parallel=bool(cut),
                    expert_parallel=ep,
                    expert_tensor_parallel=etp if has_experts else None,
                    selective=selective,
                    shapes=tuple(listed),
                )
            )
    return tuple(batches)


def shape_key(shape: StageShape) -> tuple[int, int, int]:
    """What tells the shapes of a batch apart: class, tensor and data parallelism."""
    return shape.node_class, shape.tensor_parallel, shape.data_parallel


def shape_numbers(batch: Batch) -> dict[tuple[int, int, int], int]:
    """Number of each shape of a batch by its key."""
    return {shape_key(shape): k for k, shape in enumerate(batch.shapes)}


def _recompute_modes(problem: Problem, prices: Prices) -> list[bool]:
    """Whether core attention may be recomputed on all stages, as well as on none."""
    saves = prices.layer_activation_selective_bytes < prices.layer_activation_bytes
    useful = bool(saves.any()) and "recompute=selective" not in problem.options.forbid
    return [False, True] if useful else [False]


def can_be_placed(problem: Problem, batch: Batch, sequence: tuple[int, ...]) -> bool:
    """Whether the classes have the hosts that a sequence of shapes takes, in whole tensor-parallel groups."""
    classes = problem.cluster.classes
    left = [node_class.num_nodes for node_class in classes]
    order = [batch.shapes[k].node_class for k in sequence]
    if problem.options.keep_class_order and order != sorted(order):
        return False
    start, before = 0, -1
    for k in sequence:
        shape = batch.shapes[k]
        if shape.node_class != before:
            if before >= 0:
                left[before] -= -(-start // classes[before].chips_per_node)
            start, before = 0, shape.node_class
        if start % shape.tensor_parallel:
            return False
        start += shape.num_chips
    left[before] -= -(-start // classes[before].chips_per_node)
    return min(left) >= 0


def ends_match(problem: Problem, batch: Batch, first: int, last: int) -> bool:
    """Whether first and last stage can share the gradient of weights that both hold."""
    if not problem.model.copies_embedding:
        return True
    a, b = batch.shapes[first], batch.shapes[last]
    divides = a.data_parallel % b.data_parallel == 0 or b.data_parallel % a.data_parallel == 0
    return a.tensor_parallel == b.tensor_parallel and divides


def leads_to_its_end(problem: Problem, batch: Batch, sequence: tuple[int, ...]) -> bool:
    """Whether FlagScale pairs the ranks of first and last stage that hold the same part of such weights.

    Source: `planner.rules.flagscale_config`: no stage between may join what the ends hold apart.
    """
    first, *between, last = (batch.shapes[k] for k in (sequence if len(sequence) > 1 else sequence * 2))
    if not ends_match(problem, batch, sequence[0], sequence[-1]):
        return False
    if not problem.model.copies_embedding or problem.target != "flagscale":
        return True
    fewest = min(first.data_parallel, last.data_parallel)
    rows = shared_rows(problem.model.vocab_size, first.tensor_parallel)
    return rows_divide(rows, first.data_parallel, last.data_parallel) and all(
        shape.tensor_parallel % first.tensor_parallel == 0 and shape.data_parallel % fewest == 0
        for shape in between
    )
