"""Collectives once a step: gradients of norms, of shared embeddings, and of each data-parallel bucket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.cost.parameters import head_parameters, layer_parameters, mtp_parameters, padded_vocab
from planner.cost.stage_shape import HALF_BYTES, Collective, StageShape
from planner.cost.tensors import (
    Divisors,
    Tensor,
    bucket_sizes,
    embedding_tensors,
    head_tensors,
    layer_tensors,
    mtp_tensors,
)
from planner.data.model_spec import LayerKind, ModelSpec

DEFAULT_BUCKET = (40_000_000, 1_000_000)
"""Parameters from which a bucket is full: the larger of the first and the second times the ranks
(core/distributed/distributed_data_parallel.py of Megatron-LM core 0.19)."""


def stage_tensors(model: ModelSpec, shape: StageShape) -> list[Tensor]:
    """Parameter tensors of one rank of a stage, in the order of the model, the vocabulary padded.

    With multi-token prediction the last stage has a copy of the embedding (and a tied head weights besides).
    """
    degrees = Divisors(shape.tp, shape.ep, shape.etp)
    copied = shape.num_stages > 1 and model.copies_embedding
    found: list[Tensor] = []
    if shape.has_embedding or (shape.has_head and model.mtp_num_layers):
        found += embedding_tensors(model, shape.tp, copied)
    for kind in shape.kinds:
        found += layer_tensors(model, kind, degrees)
    if shape.has_head:
        found += head_tensors(model, shape.tp, has_embedding=shape.has_embedding)
        found += mtp_tensors(model, degrees)
    return found


def sequence_parallel_gradients(model: ModelSpec, kinds: Sequence[LayerKind], has_head: bool) -> int:
    """Elements whose gradients the tensor-parallel ranks add up with sequence parallelism.

    Norms, biases of row-parallel maps, norms of queries and keys, routers; all are held whole.
    """
    total = sum(layer_parameters(model, kind).replicated for kind in kinds)
    if not has_head:
        return total
    return total + head_parameters(model).replicated + mtp_parameters(model).replicated


def gradient_counts(model: ModelSpec, shape: StageShape) -> Iterator[Collective]:
    """Once a step: norms' gradients among tensor-parallel ranks, shared embeddings, data parallelism."""
    if shape.sequence_parallel:
        elements = sequence_parallel_gradients(model, shape.kinds, shape.has_head)
        size = float(shape.gradient_bytes * elements)
        yield Collective("gradients", "all_reduce", "tp", size, int(elements > 0))
    if model.copies_embedding and shape.num_stages > 1 and (shape.has_embedding or shape.has_head):
        vocab = padded_vocab(model.vocab_size, shape.tp)
        embedding = shape.gradient_bytes * vocab * model.hidden_size / shape.tp
        yield Collective("gradients", "all_reduce", "embedding", embedding, 1)
    tensors = stage_tensors(model, shape)
    ranks = shape.dp * shape.cp
    expert_ranks = shape.tp * ranks // (shape.ep * shape.etp)
    has_experts = any(tensor.is_expert for tensor in tensors)
    for group, size_of_group, is_expert in (("dp", ranks, False), ("expert_dp", expert_ranks, True)):
        held = [tensor for tensor in tensors if tensor.is_expert == is_expert]
        yield from _data_parallel(held, size_of_group, group, shape, has_experts)


def _data_parallel(
    tensors: Sequence[Tensor], ranks: int, group: str, shape: StageShape, has_experts: bool
) -> Iterator[Collective]:
    """Reduction of gradients and gathering of 16-bit parameters, a call a bucket.

    Only the first stage parts its gradients into buckets: nobody waits for those of the others
    (core/distributed/distributed_data_parallel.py). With experts and the distributed optimizer, the dense and
    the experts' optimizer each gather all parameters, unless gathering runs behind forward.
    """
    if ranks <= 1:
        return
    sharded = shape.dp_mode != "ddp"
    full = None
    if shape.overlap and shape.stage == 0:
        least, per_rank = DEFAULT_BUCKET
        full = shape.bucket_parameters or max(least, per_rank * shape.dp * shape.cp)
    shard = ranks // shape.optimizer_instances if sharded else ranks
    sizes = bucket_sizes(tensors, shard, sharded=sharded, bucket_parameters=full)
    for parameters, count in Counter(sizes).items():
        gradients = float(shape.gradient_bytes * parameters)
        if not sharded:
            yield Collective("gradients", "all_reduce", group, gradients, count)
            continue
        if shard > 1:
            yield Collective("gradients", "reduce_scatter", group, gradients, count)
            gathers = 2 if has_experts and not shape.overlap else 1
            yield Collective(
                "parameters", "all_gather", group, float(HALF_BYTES * parameters), gathers * count
            )
        if shape.optimizer_instances > 1:
            yield Collective("gradients", "all_reduce", f"{group}_instances", gradients / shard, count)
