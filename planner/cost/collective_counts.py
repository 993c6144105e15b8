"""Which collectives one rank of a stage issues in a training step: operation, group, size, count.

Exact for Megatron-LM core 0.19 (counted on its own calls of torch.distributed; the tests compare).
Left out: broadcasts of the data, scalars of a few bytes, and context-parallel attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from planner.cost.parameters import (
    ParameterCounts,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    padded_vocab,
)
from planner.data.model_spec import LayerKind, ModelSpec

HALF_BYTES = 2
FLOAT_BYTES = 4
BUCKET_MULTIPLE = 128
"""Gradient buckets are padded to a multiple of the ranks and of this (core/distributed)."""


@dataclass(frozen=True)
class Collective:
    """One kind of call in a step."""

    phase: str
    """forward, backward, gradients (after the last backward) or parameters (before the first forward)."""
    op: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, send."""
    group: str
    """tp, dp (data x context), expert_dp, ep, etp, ep_etp, tp_cp, pp or embedding."""
    size_bytes: float
    """The full buffer: gathered, or before the reduction."""
    count: int
    """Calls in a step."""


@dataclass(frozen=True)
class StageShape:
    """One stage of a plan and what the degrees make of it."""

    kinds: tuple[LayerKind, ...]
    """Kinds of its layers."""
    has_embedding: bool
    has_head: bool
    stage: int
    num_stages: int
    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    microbatch_size: int = 1
    num_microbatches: int = 1
    virtual_stages: int = 1
    recomputed_layers: int = 0
    """Layers recomputed in full."""
    dp_mode: str = "distopt"
    fused_cross_entropy: bool = False
    gathers_twice: bool = False
    """Experts with the distributed optimizer and without overlapped gathering gather parameters twice."""


def collective_counts(model: ModelSpec, shape: StageShape, seq_length: int) -> tuple[Collective, ...]:
    """All collectives of one rank of a stage in one step.

    Parameters
    ----------
    seq_length
        Tokens of a sequence.
    """
    activation = seq_length * shape.microbatch_size * model.hidden_size * HALF_BYTES / shape.cp
    found: list[Collective] = []
    if shape.tp > 1:
        found += _tensor_layers(model, shape, activation)
        found += _tensor_ends(model, shape, activation, seq_length)
    if shape.num_stages > 1:
        found += _sends(shape, activation)
    found += _experts(model, shape, activation)
    found += _gradients(model, shape)
    return tuple(c for c in found if c.count > 0)


def _tensor_layers(model: ModelSpec, shape: StageShape, activation: float) -> Iterator[Collective]:
    """Layers: 2 all-reduce each way; with sequence parallelism 2 + 2 forward and 4 + 2 backward."""
    calls = sum(tensor_blocks(model, kind) for kind in shape.kinds) * shape.num_microbatches
    again = sum(tensor_blocks(model, kind) for kind in shape.kinds[: shape.recomputed_layers])
    again *= shape.num_microbatches
    if not shape.sequence_parallel:
        yield Collective("forward", "all_reduce", "tp", activation, calls)
        yield Collective("backward", "all_reduce", "tp", activation, calls + again)
        return
    yield Collective("forward", "all_gather", "tp", activation, calls)
    yield Collective("forward", "reduce_scatter", "tp", activation, calls)
    yield Collective("backward", "all_gather", "tp", activation, 2 * calls + again)
    yield Collective("backward", "reduce_scatter", "tp", activation, calls + again)


def tensor_blocks(model: ModelSpec, kind: LayerKind) -> int:
    """Pairs of a column- and a row-parallel map in a layer: shared experts are one, routed ones are not."""
    if kind == "moe":
        return 2 if model.moe is not None and model.moe.shared_ffn_hidden_size else 1
    return 2 if kind == "dense" else 1


def _tensor_ends(
    model: ModelSpec, shape: StageShape, activation: float, seq_length: int
) -> Iterator[Collective]:
    """Embedding, head and loss."""
    m = shape.num_microbatches
    if shape.has_embedding:
        learned = model.position_embedding == "learned"
        scatters = shape.sequence_parallel and not learned
        yield Collective("forward", "reduce_scatter" if scatters else "all_reduce", "tp", activation, m)
        if shape.sequence_parallel:
            yield Collective("backward", "all_gather", "tp", activation, m)
    if not shape.has_head:
        return
    if shape.sequence_parallel:
        yield Collective("forward", "all_gather", "tp", activation, m)
        yield Collective("backward", "all_gather", "tp", activation, m)
        yield Collective("backward", "reduce_scatter", "tp", activation, m)
    else:
        yield Collective("backward", "all_reduce", "tp", activation, m)
    rows = float(FLOAT_BYTES * seq_length * shape.microbatch_size / shape.cp)
    if shape.fused_cross_entropy:
        yield Collective("forward", "all_reduce", "tp", rows, m)
        yield Collective("forward", "all_reduce", "tp", 2 * rows, m)
    else:
        yield Collective("forward", "all_reduce", "tp", rows, 3 * m)


def _sends(shape: StageShape, activation: float) -> Iterator[Collective]:
    """Sends to the neighbours: with virtual stages the last rank sends on to the first, and back."""
    size = activation / (shape.tp if shape.sequence_parallel else 1)
    v, m = shape.virtual_stages, shape.num_microbatches
    forward = v - 1 if shape.stage == shape.num_stages - 1 else v
    backward = v - 1 if shape.stage == 0 else v
    yield Collective("forward", "send", "pp", size, forward * m)
    yield Collective("backward", "send", "pp", size, backward * m)


def _experts(model: ModelSpec, shape: StageShape, activation: float) -> Iterator[Collective]:
    """Mixture-of-experts layers with the all-to-all dispatcher; sizes for perfect balance."""
    calls = shape.kinds.count("moe") * shape.num_microbatches
    if model.moe is None or not calls:
        return
    moe = model.moe
    tokens = activation * moe.top_k / (shape.tp if shape.sequence_parallel else 1)
    probabilities = tokens / model.hidden_size / HALF_BYTES * FLOAT_BYTES
    group = shape.ep * shape.etp
    if shape.ep > 1:
        for phase in ("forward", "backward"):
            yield Collective(phase, "all_to_all", "ep", tokens, 2 * calls)
            yield Collective(phase, "all_to_all", "ep", probabilities, calls)
    if group > 1:
        yield Collective("forward", "all_gather", "ep_etp", 8.0 * moe.num_experts * group, calls)
    if shape.etp > 1:
        received = tokens * shape.etp
        yield Collective("forward", "all_gather", "etp", received, calls)
        yield Collective("forward", "all_gather", "etp", probabilities * shape.etp, calls)
        yield Collective("forward", "reduce_scatter", "etp", received, calls)
        yield Collective("backward", "all_gather", "etp", received, calls)
        yield Collective("backward", "reduce_scatter", "etp", received, calls)
        yield Collective("backward", "reduce_scatter", "etp", probabilities * shape.etp, calls)


def stage_parameters(model: ModelSpec, shape: StageShape) -> ParameterCounts:
    """Parameters of a stage over all its ranks, the vocabulary padded."""
    vocab = padded_vocab(model.vocab_size, shape.tp)
    counts = ParameterCounts()
    for kind in shape.kinds:
        counts += layer_parameters(model, kind)
    if shape.has_embedding:
        counts += embedding_parameters(model, vocab)
    if shape.has_head:
        counts += head_parameters(model, vocab)
        if model.tied_embeddings and not shape.has_embedding:
            counts += ParameterCounts(tensor_sharded=vocab * model.hidden_size)
    return counts


def sequence_parallel_gradients(model: ModelSpec, kinds: Sequence[LayerKind], has_head: bool) -> int:
    """Elements whose gradients the tensor-parallel ranks add up with sequence parallelism.

    Norms, biases of row-parallel maps, norms of queries and keys, routers; all are held whole.
    """
    total = sum(layer_parameters(model, kind).replicated for kind in kinds)
    return total + (head_parameters(model).replicated if has_head else 0)


def _gradients(model: ModelSpec, shape: StageShape) -> Iterator[Collective]:
    """Once a step: norms' gradients among tensor-parallel ranks, tied embeddings, data parallelism."""
    if shape.sequence_parallel:
        elements = sequence_parallel_gradients(model, shape.kinds, shape.has_head)
        yield Collective("gradients", "all_reduce", "tp", float(FLOAT_BYTES * elements), int(elements > 0))
    if model.tied_embeddings and shape.num_stages > 1 and (shape.has_embedding or shape.has_head):
        vocab = padded_vocab(model.vocab_size, shape.tp)
        size = FLOAT_BYTES * vocab * model.hidden_size / shape.tp
        yield Collective("gradients", "all_reduce", "embedding", size, 1)
    counts = stage_parameters(model, shape)
    dense = counts.tensor_sharded / shape.tp + counts.replicated
    expert = counts.expert / (shape.ep * shape.etp)
    ranks = shape.dp * shape.cp
    expert_ranks = shape.tp * ranks // (shape.ep * shape.etp)
    yield from _data_parallel(dense, ranks, "dp", shape)
    yield from _data_parallel(expert, expert_ranks, "expert_dp", shape)


def _data_parallel(parameters: float, ranks: int, group: str, shape: StageShape) -> Iterator[Collective]:
    """Reduction of fp32 gradients and gathering of 16-bit parameters, as one bucket."""
    if ranks <= 1 or not parameters:
        return
    if shape.dp_mode == "ddp":
        yield Collective("gradients", "all_reduce", group, FLOAT_BYTES * parameters, 1)
        return
    multiple = lcm(ranks, BUCKET_MULTIPLE)
    padded = -(-int(parameters) // multiple) * multiple
    yield Collective("gradients", "reduce_scatter", group, float(FLOAT_BYTES * padded), 1)
    gathers = 2 if shape.gathers_twice else 1
    yield Collective("parameters", "all_gather", group, float(HALF_BYTES * padded), gathers)
