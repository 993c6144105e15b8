"""Parameter tensors that one rank holds, in the order of the model, and the buckets of their gradients.

Totals are those of `parameters.py`; here stands each tensor, because Megatron-LM's distributed optimizer
lets every tensor begin at a multiple of 64 parameters, ends every bucket at a multiple of the ranks and of
128, and fills buckets from the last tensor to the first (core/distributed/param_and_grad_buffer.py, core
0.19).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

from planner.cost.parameters import padded_vocab
from planner.data.model_spec import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)

TENSOR_MULTIPLE = 64
"""With the distributed optimizer a tensor begins at a multiple of this (param_and_grad_buffer.py)."""
BUCKET_MULTIPLE = 128
"""With the distributed optimizer a bucket ends at a multiple of the ranks and of this (the same)."""


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor on one rank."""

    size: int
    """Parameters."""
    is_expert: bool = False
    """Whether it belongs to routed experts, whose gradients another group reduces."""
    own_bucket: bool = False
    """Whether first and last stage share it, so that the distributed optimizer gives it a bucket alone."""


@dataclass(frozen=True)
class Divisors:
    """Degrees that divide tensors."""

    tp: int = 1
    ep: int = 1
    etp: int = 1


def layer_tensors(model: ModelSpec, kind: LayerKind, degrees: Divisors) -> Iterator[Tensor]:
    """Tensors of one layer: norm and mixer, norm and feed-forward block."""
    norm = [Tensor(model.hidden_size)] * (1 if model.normalization == "rms" else 2)
    yield from norm
    if kind == "mamba":
        yield from _mamba(model, degrees.tp)
    elif kind in WITH_ATTENTION:
        yield from _latent_attention(model, degrees.tp) if model.mla else _attention(model, degrees.tp)
    elif kind in WITH_LINEAR_ATTENTION:
        yield from _linear_attention(model, degrees.tp)
    yield from norm * (model.norms_per_layer - 1)
    if kind in WITH_ONE_MLP:
        yield from _mlp(model, model.ffn_hidden_size, degrees.tp, model.linear_bias == "all")
    elif kind in WITH_EXPERTS:
        yield from _experts(model, degrees)


def _attention(model: ModelSpec, tp: int) -> Iterator[Tensor]:
    queries = model.num_attention_heads * model.head_dim
    qkv = model.query_maps_width
    yield Tensor(model.hidden_size * queries // tp)
    if model.linear_bias in ("all", "attention"):
        yield Tensor(model.hidden_size)
    yield Tensor(model.hidden_size * qkv // tp)
    if model.linear_bias in ("all", "attention", "qkv"):
        yield Tensor(qkv // tp)
    if model.attention_sinks:
        yield Tensor(model.num_attention_heads // tp)
    if model.qk_norm:
        yield from [Tensor(model.head_dim)] * (2 if model.normalization == "rms" else 4)


def _latent_attention(model: ModelSpec, tp: int) -> Iterator[Tensor]:
    mla, hidden, heads = model.mla, model.hidden_size, model.num_attention_heads
    assert mla is not None
    query_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    yield Tensor(heads * mla.v_head_dim * hidden // tp)
    if mla.q_lora_rank is None:
        yield Tensor(hidden * query_width // tp)
    else:
        yield Tensor(hidden * mla.q_lora_rank)
        yield Tensor(mla.q_lora_rank * query_width // tp)
    yield Tensor(hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim))
    yield Tensor(mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim) // tp)
    if mla.q_lora_rank is not None:
        yield Tensor(mla.q_lora_rank)
    yield Tensor(mla.kv_lora_rank)


def _linear_attention(model: ModelSpec, tp: int) -> Iterator[Tensor]:
    linear, hidden = model.linear_attention, model.hidden_size
    assert linear is not None
    yield from [Tensor(linear.value_heads // tp)] * 2
    yield Tensor(hidden * linear.input_width // tp)
    yield Tensor(linear.conv_width * linear.conv // tp)
    yield from [Tensor(linear.value_head_dim)] * (1 if model.normalization == "rms" else 2)
    yield Tensor(linear.value_width * hidden // tp)


def _mlp(model: ModelSpec, width: int, tp: int, bias: bool, is_expert: bool = False) -> Iterator[Tensor]:
    inner = (2 if model.gated_mlp else 1) * width
    outer = model.routed_width if is_expert else model.hidden_size
    yield Tensor(outer * inner // tp, is_expert)
    if bias:
        yield Tensor(inner // tp, is_expert)
    yield Tensor(width * outer // tp, is_expert)
    if bias:
        yield Tensor(outer, is_expert)


def _experts(model: ModelSpec, degrees: Divisors) -> Iterator[Tensor]:
    moe = model.moe
    assert moe is not None
    yield Tensor(moe.num_experts * model.hidden_size)
    if moe.router_bias:
        yield Tensor(moe.num_experts)
    if moe.latent_size is not None:
        yield from [Tensor(model.hidden_size * moe.latent_size)] * 2
    for _ in range(moe.num_experts // degrees.ep):
        yield from _mlp(model, moe.ffn_hidden_size, degrees.etp, moe.expert_bias, is_expert=True)
    if moe.shared_ffn_hidden_size:
        yield from _mlp(model, moe.shared_ffn_hidden_size, degrees.tp, bias=False)
    if moe.shared_expert_gate:
        yield Tensor(model.hidden_size)


def _mamba(model: ModelSpec, tp: int) -> Iterator[Tensor]:
    spec = model.hybrid
    assert spec is not None
    inner = spec.mamba_heads * spec.mamba_head_dim
    state = 2 * spec.groups * spec.ssm_state
    yield from [Tensor(spec.mamba_heads // tp)] * 3
    yield Tensor(model.hidden_size * (2 * inner + state + spec.mamba_heads) // tp)
    yield from (Tensor((inner + state) * spec.conv // tp), Tensor((inner + state) // tp))
    yield from (Tensor(inner // tp), Tensor(inner * model.hidden_size // tp))


def embedding_tensors(model: ModelSpec, tp: int, shared: bool) -> Iterator[Tensor]:
    """Tensors of the embedding; `shared` where another stage holds a copy."""
    yield Tensor(padded_vocab(model.vocab_size, tp) * model.hidden_size // tp, own_bucket=shared)
    if model.position_embedding == "learned":
        yield Tensor(model.max_position_embeddings * model.hidden_size)


def head_tensors(model: ModelSpec, tp: int, *, has_embedding: bool) -> Iterator[Tensor]:
    """Tensors of final norm and head; a tied head is the embedding's tensor, or a copy of it."""
    yield from [Tensor(model.hidden_size)] * (1 if model.normalization == "rms" else 2)
    if not (model.tied_embeddings and has_embedding):
        size = padded_vocab(model.vocab_size, tp) * model.hidden_size // tp
        yield Tensor(size, own_bucket=model.tied_embeddings and not model.mtp_num_layers)


def mtp_tensors(model: ModelSpec, degrees: Divisors) -> Iterator[Tensor]:
    """Tensors of the multi-token-prediction layers: three norms, the map of two states to one, a layer."""
    norms = [Tensor(model.hidden_size)] * (1 if model.normalization == "rms" else 2)
    for _ in range(model.own_predictions):
        yield from [*norms, *norms]
        yield Tensor(2 * model.hidden_size * model.hidden_size // degrees.tp)
        for kind in model.prediction_kinds:
            yield from layer_tensors(model, kind, degrees)
        yield from norms


def bucket_sizes(
    tensors: Sequence[Tensor], ranks: int, *, sharded: bool, bucket_parameters: int | None
) -> tuple[int, ...]:
    """Parameters of each bucket, padding included, in the order in which backward fills them.

    Parameters
    ----------
    ranks
        Ranks that share a bucket.
    sharded
        Whether the distributed optimizer is on, which pads.
    bucket_parameters
        Parameters from which a bucket is full; None puts all into one.
    """
    multiple = lcm(ranks, BUCKET_MULTIPLE)
    sizes: list[int] = []
    start = end = 0

    def close() -> None:
        nonlocal start, end
        if end > start:
            end = _padded(end, multiple) if sharded else end
            sizes.append(end - start)
        start = end

    for tensor in reversed(tensors):
        alone = sharded and tensor.own_bucket
        if alone:
            close()
        end = (_padded(end, TENSOR_MULTIPLE) if sharded else end) + tensor.size
        if alone or (bucket_parameters is not None and end - start >= bucket_parameters):
            close()
    close()
    return tuple(sizes)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
