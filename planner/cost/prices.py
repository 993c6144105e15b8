"""What the pieces of a stage cost, as arrays that the search, the formulations and the referee read.

A stage costs the sum of its layers, its embedding or head, its share of the gradient
synchronisation and of the optimizer. All of these are linear in the layers of the stage, so a
table of prices by (choice of degrees, layer kind, node class) says everything. This file holds the
shape of that table; `pricing.py` and `memory_pricing.py` fill it, `stage.py` and `stage_memory.py` add it up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.cost.lazy import lazy

Floats = NDArray[np.float64]

PARTS = ("compute", "tp", "cp", "ep", "dp", "host")
"""Last axis of every time: computation, exposed communication by the group that causes it (with sharded
parameters the data-parallel group works in every micro-batch), and waiting for the host's launches."""

ENDS = ("embedding", "head", "head_beside_embedding")
"""Pieces beside layers, as the arrays hold them; the head on a stage without the embedding, and with it."""

TASKS = ("reduce", "gather", "optimizer")
"""What is done once a step with each piece's parameters."""

STATES = ("weights", "gradients", "optimizer")
"""Last axis of every state size."""

SIZES_BY_CLASS = (
    "layer_activation_bytes",
    "layer_activation_selective_bytes",
    "layer_activation_full_bytes",
    "layer_working_bytes",
    "layer_recompute_peak_bytes",
    "head_activation_bytes",
)
"""Sizes that differ by class with its attention; their last axis."""

ROLES = ("inner", "end")
"""What a stage is in its pipeline, as far as its communicators go: between two others; first, last or the
only one."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Degrees:
    """Choices of degrees to price, one a row: integer arrays of one length, axis `choice`."""

    tensor_parallel: NDArray[np.int64]
    context_parallel: NDArray[np.int64]
    expert_parallel: NDArray[np.int64]
    expert_tensor_parallel: NDArray[np.int64]
    data_parallel: NDArray[np.int64]
    microbatch_size: NDArray[np.int64]
    sequence_parallel: NDArray[np.bool_]
    dp_mode: str = "distopt"

    def __len__(self) -> int:
        return len(self.tensor_parallel)

    @staticmethod
    def single(
        *,
        tensor_parallel: int = 1,
        context_parallel: int = 1,
        expert_parallel: int = 1,
        expert_tensor_parallel: int = 1,
        data_parallel: int = 1,
        microbatch_size: int = 1,
        sequence_parallel: bool = False,
        dp_mode: str = "distopt",
    ) -> Degrees:
        """One row."""

        degrees = (tensor_parallel, context_parallel, expert_parallel, expert_tensor_parallel, data_parallel)
        t, c, e, et, d, b = (np.array([n], dtype=np.int64) for n in (*degrees, microbatch_size))
        return Degrees(t, c, e, et, d, b, np.array([sequence_parallel], dtype=np.bool_), dp_mode)


@dataclass(frozen=True)
class Prices:
    """Prices of the pieces of a stage.

    Axes, in this order: `choice` (row of Degrees), `kind` (model.layer_kinds), `node_class`
    (cluster.classes), `part` (PARTS) or `state` (STATES). Times are of one micro-batch [s] unless
    said otherwise; sizes are of one chip [bytes]. What layers keep differs by class with their attention.
    """

    kinds: tuple[str, ...]
    """Layer kinds of the `kind` axis."""

    layer_forward_s: Floats
    """[choice, kind, node_class, part] forward of one layer."""
    layer_backward_s: Floats
    """[choice, kind, node_class, part] backward of one layer, nothing recomputed."""
    layer_selective_s: Floats
    """[choice, kind, node_class, part] more backward where the core attention is recomputed."""
    layer_full_s: Floats
    """[choice, kind, node_class, part] more backward where the whole layer is recomputed."""
    embedding_forward_s: Floats
    """[choice, node_class, part] forward of the embedding."""
    embedding_backward_s: Floats
    """[choice, node_class, part] backward of the embedding."""
    head_forward_s: Floats
    """[choice, node_class, part] forward of final norm, head and loss."""
    head_backward_s: Floats
    """[choice, node_class, part] backward of the same."""

    send_s: Floats
    """[choice, node_class from, node_class to] one activation to the next stage over the network."""
    send_inside_s: Floats
    """[choice, node_class] the same between two stages within one node."""

    layer_reduce_s: Floats
    """[choice, kind, node_class] gradient reduction of one layer, once a step."""
    embedding_reduce_s: Floats
    """[choice, node_class] gradient reduction of the embedding, once a step."""
    head_reduce_s: Floats
    """[choice, node_class] gradient reduction of the head, once a step."""
    reduce_tail_s: Floats
    """[choice, node_class] part of the reduction that nothing can hide."""
    layer_gather_s: Floats
    """[choice, kind, node_class] parameter gathering of one layer, once a step."""
    embedding_gather_s: Floats
    """[choice, node_class] parameter gathering of the embedding, once a step."""
    head_gather_s: Floats
    """[choice, node_class] parameter gathering of the head, once a step."""
    gather_tail_s: Floats
    """[choice, node_class] part of the gathering that nothing can hide."""
    hidden_fraction: float
    """Share of the last backward (first forward) that hides reduction (gathering); 0 without overlap."""

    layer_optimizer_s: Floats
    """[choice, kind, node_class] optimizer step of one layer's parameters, once a step, and what hidden
    synchronisation of them takes from computation."""
    embedding_optimizer_s: Floats
    """[choice, node_class] the same for the embedding."""
    head_optimizer_s: Floats
    """[choice, node_class] the same for the head."""
    head_beside_embedding_reduce_s: Floats
    """[choice, node_class] reduction of the head on a stage that also holds the embedding."""
    head_beside_embedding_gather_s: Floats
    """[choice, node_class] its gathering."""
    head_beside_embedding_optimizer_s: Floats
    """[choice, node_class] its optimizer step."""
    step_fixed_s: Floats
    """[choice, node_class] gradient norm, scalar reductions, host work: once a step, after all stages met."""
    tied_sync_s: Floats
    """[choice, node_class, node_class] all-reduce of an embedding that two stages of these classes hold, the
    first and the last; 0 where only one does."""

    layer_state_bytes: Floats
    """[choice, kind, state] weights, main gradients and optimizer state of one layer."""
    embedding_state_bytes: Floats
    """[choice, state] the same for the embedding."""
    head_state_bytes: Floats
    """[choice, state] the same for final norm, head and predictions on a stage without the embedding: with a
    copy of the embedding where the head is tied to it or predictions read it."""
    head_beside_embedding_state_bytes: Floats
    """[choice, state] the same on a stage that also holds the embedding, where it needs no copy."""
    layer_activation_bytes: Floats
    """[choice, kind, node_class] kept from forward to backward of one layer, nothing recomputed."""
    layer_activation_selective_bytes: Floats
    """[choice, kind, node_class] the same with the core attention recomputed."""
    layer_activation_full_bytes: Floats
    """[choice, kind, node_class] the same with the whole layer recomputed: its input."""
    embedding_activation_bytes: Floats
    """[choice] kept by the embedding for one micro-batch."""
    head_activation_bytes: Floats
    """[choice, node_class] kept by final norm, head and predictions for one micro-batch, logits apart."""
    layer_working_bytes: Floats
    """[choice, kind, node_class] passing buffers of one layer's backward, and placeholders of the layers'
    gradients."""
    layer_placeholder_bytes: Floats
    """[choice, kind] placeholders of the layers' gradients, which stay."""
    layer_waiting_bytes: Floats
    """[choice, kind] gradients of one layer that wait whole for the end of a backward, beyond those kept."""
    layer_recompute_peak_bytes: Floats
    """[choice, kind, node_class] activations of one layer that exist again while it is recomputed."""
    head_peak_bytes: Floats
    """[choice] logits and their gradients in the loss, and placeholders of the layers' gradients."""
    embedding_peak_bytes: Floats
    """[choice] what the embedding's backward makes, and placeholders of the layers' gradients, beyond what
    the embedding kept: its micro-batch's activations are gone then."""
    pipeline_buffer_bytes: Floats
    """[choice] receive buffers, where there is more than one stage."""
    fixed_bytes: Floats
    """[choice, node_class, length, role] device context and communicators, outside the allocator, in a
    pipeline of length + 1 stages; the last also in any longer one."""
    allocated_fraction: float
    """Allocated over reserved memory."""
    limit_bytes: Floats
    """[node_class] reserved memory that a plan may reach."""

    error_band: float
    """Relative error that the times may have."""
    assumptions: tuple[str, ...]
    """What was taken for granted."""
    num_predictions: int = 0
    """Multi-token predictions; the head's prices hold them, nothing recomputed."""
    prediction_kinds: tuple[int, ...] = (0,)
    """Kinds of the layers of one."""
    later_stages_have_one_bucket: bool = False
    """Whether a stage after the first begins to reduce when its last backward has ended."""
    scales_s: Floats | None = None
    """[choice, node_class] what each pass of a chunk takes to agree on its scales; None takes nothing."""
    plans_memory: bool = False
    """Whether a stage has a place for every micro-batch that may be in flight (`in_flight_1f1b`)."""
    step_copy_share: float = 0.0
    """Gradients that the optimizer's step makes anew in fp32, over its state."""
    slowed_fraction: float = 0.0
    """What hidden synchronisation takes from computation, over the prices of reduction and gathering; the
    optimizer's prices contain it."""
    end_shown_s: Floats | None = None
    """[choice, piece, node_class] synchronisation of each of the `ENDS` that nothing hides, which the
    optimizer's prices contain; None where there is none."""

    @lazy
    def layer_rows_s(self) -> Floats:
        """[row, choice, kind, node_class]: forward, backward, selective and full, all parts together; then
        reduction, gathering, optimizer."""
        times = (self.layer_forward_s, self.layer_backward_s, self.layer_selective_s, self.layer_full_s)
        rows = np.empty((7, *self.layer_reduce_s.shape))
        np.add.reduce(np.array(times), axis=-1, out=rows[:4])
        rows[4], rows[5], rows[6] = self.layer_reduce_s, self.layer_gather_s, self.layer_optimizer_s
        return rows

    @lazy
    def predictions_selective_s(self) -> Floats:
        """[choice, node_class, part] what selective recomputation adds to a backward for all predictions."""
        if not self.num_predictions:
            return np.zeros_like(self.head_backward_s)
        total: Floats = self.num_predictions * self.layer_selective_s[:, self.prediction_kinds].sum(axis=1)
        return total

    @lazy
    def end_rows_s(self) -> Floats:
        """[piece, row, choice, node_class]: embedding, head, head beside the embedding; forward and backward,
        all parts together, reduction, gathering, optimizer."""
        times = (
            (self.embedding_forward_s, self.embedding_backward_s),
            (self.head_forward_s, self.head_backward_s),
        )
        rows = np.empty((len(ENDS), 2 + len(TASKS), *self.reduce_tail_s.shape))
        np.add.reduce(np.array(times), axis=-1, out=rows[:2, :2])
        rows[2, :2] = rows[1, :2]
        of_tasks = [getattr(self, f"{piece}_{task}_s") for piece in ENDS for task in TASKS]
        rows[:, 2:] = np.array(of_tasks).reshape(rows[:, 2:].shape)
        return rows

    @lazy
    def stage_rows_s(self) -> Floats:
        """[row, choice, node_class]: what nothing can hide of reduction and of gathering, what the step takes
        when all stages met, and `predictions_selective_s`, all parts together."""
        rows = np.empty((4, *self.reduce_tail_s.shape))
        rows[0], rows[1], rows[2] = self.reduce_tail_s, self.gather_tail_s, self.step_fixed_s
        rows[3] = self.predictions_selective_s.sum(axis=-1) if self.num_predictions else 0.0
        return rows

    @lazy
    def layer_held_bytes(self) -> Floats:
        """[choice, kind] weights, gradients and optimizer state of a layer."""
        held: Floats = np.add.reduce(self.layer_state_bytes, -1)
        return held

    @lazy
    def layer_rows_bytes(self) -> Floats:
        """[row, choice, kind, node_class]: what a layer keeps with nothing, core attention and all of it
        recomputed, what passes in its backward, and what exists again while it is recomputed."""
        names = ("activation", "activation_selective", "activation_full", "working", "recompute_peak")
        return np.array([getattr(self, f"layer_{name}_bytes") for name in names])

    @lazy
    def end_rows_bytes(self) -> Floats:
        """[row, choice]: weights, gradients and optimizer state of embedding, head, and head beside the
        embedding; what the embedding keeps, what passes in its backward and in the head's, and receive
        buffers."""
        states = [getattr(self, f"{piece}_state_bytes") for piece in ENDS]
        others = [self.embedding_activation_bytes, self.embedding_peak_bytes, self.head_peak_bytes]
        return np.array((*np.array(states).sum(axis=-1), *others, self.pipeline_buffer_bytes))

    def at(self, choice: int) -> Prices:
        """The prices of one choice alone, with a `choice` axis of length one."""
        return self.rows(slice(choice, choice + 1))

    def rows(self, choices: slice | NDArray[np.int64]) -> Prices:
        """The prices of some choices, in the order asked for."""
        values = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray) and field.name != "limit_bytes":
                value = value[choices]
            values[field.name] = value
        return Prices(**values)
