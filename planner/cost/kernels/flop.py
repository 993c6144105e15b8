"""FLOP that the model needs, by operator: the count that MFU divides by.

Nothing recomputed, attention's causal half, forward plus twice that for the backward. FLOP that a
plan adds (recomputation, padding, replicated work) do not count here.
"""

from __future__ import annotations

from planner.cost.kernels.attention import visible_fraction
from planner.cost.kernels.operators import attention_dims
from planner.cost.parameters import layer_parameters
from planner.data.model_spec import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)
from planner.data.problem import Problem

BACKWARD_OVER_FORWARD = 2.0
"""A product's backward is two products of the same size."""


def matmul_flop(m: float, n: float, k: float) -> float:
    """C[m, n] = A[m, k] B[k, n]: a multiplication and an addition each."""
    return 2.0 * m * n * k


def attention_scores_flop(model: ModelSpec, seq_length: float) -> float:
    """Forward of queries times keys and scores times values over one sequence, the causal half."""
    query_dim, value_dim = attention_dims(model)
    scores = model.num_attention_heads * seq_length * seq_length / 2 * visible_fraction(model, seq_length)
    return 2.0 * scores * (query_dim + value_dim)


def attention_maps_flop(model: ModelSpec, tokens: float) -> float:
    """Forward of the maps into queries, keys and values, and out of attention."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.mla is None:
        return matmul_flop(tokens, model.query_maps_width, hidden) + matmul_flop(
            tokens, hidden, heads * model.head_dim
        )
    mla = model.mla
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    total = matmul_flop(tokens, mla.kv_lora_rank + mla.qk_rope_head_dim, hidden)
    total += matmul_flop(tokens, heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
    total += matmul_flop(tokens, hidden, heads * mla.v_head_dim)
    if mla.q_lora_rank is None:
        return total + matmul_flop(tokens, heads * query_dim, hidden)
    return (
        total
        + matmul_flop(tokens, mla.q_lora_rank, hidden)
        + matmul_flop(tokens, heads * query_dim, mla.q_lora_rank)
    )


def feed_forward_flop(model: ModelSpec, width: float, tokens: float, outer: float | None = None) -> float:
    """Forward of a feed-forward block of a width: three matrices with a gate, else two.

    Parameters
    ----------
    outer
        Width of what it reads and writes; the hidden one where absent.
    """
    return matmul_flop(tokens, width, outer or model.hidden_size) * (3 if model.gated_mlp else 2)


def experts_flop(model: ModelSpec, tokens: float) -> float:
    """Forward of router, the experts that tokens visit, and the shared experts."""
    moe = model.moe
    assert moe is not None, "a moe layer in a model without experts"
    return (
        matmul_flop(tokens, moe.num_experts, model.hidden_size)
        + feed_forward_flop(model, moe.ffn_hidden_size, tokens * moe.top_k, model.routed_width)
        + 2 * matmul_flop(tokens, moe.latent_size or 0, model.hidden_size)
        + feed_forward_flop(model, moe.shared_ffn_hidden_size, tokens)
    )


def mamba_flop(model: ModelSpec, tokens: float) -> float:
    """Forward of a Mamba-2 mixer: its maps, and six FLOP a token for each element of the state."""
    spec = model.hybrid
    assert spec is not None, "a mamba layer in a model without hybrid layers"
    weights = layer_parameters(model, "mamba").tensor_sharded
    state = spec.mamba_heads * spec.mamba_head_dim * spec.ssm_state
    return 2.0 * tokens * weights + 6.0 * tokens * state


def linear_attention_flop(model: ModelSpec, tokens: float) -> float:
    """Forward of a gated delta net: maps, convolution, and eight FLOP a token for each element of the state.

    Keys with keys, values with keys, the state's decay and its product with queries, as Megatron-LM counts
    them (core 0.19, training/training.py, `num_floating_point_operations`).
    """
    linear = model.linear_attention
    assert linear is not None, "a layer of linear attention in a model without any"
    maps = model.hidden_size * (linear.input_width + linear.value_width) + linear.conv_width * linear.conv
    state = linear.value_width * linear.key_head_dim
    return 2.0 * tokens * maps + 8.0 * tokens * state


def layer_flop(model: ModelSpec, kind: LayerKind, seq_length: float) -> float:
    """Forward of one layer over one sequence."""
    if kind == "mamba":
        return mamba_flop(model, seq_length)
    total = 0.0
    if kind in WITH_ATTENTION:
        total += attention_maps_flop(model, seq_length) + attention_scores_flop(model, seq_length)
    elif kind in WITH_LINEAR_ATTENTION:
        total += linear_attention_flop(model, seq_length)
    if kind in WITH_ONE_MLP:
        total += feed_forward_flop(model, model.ffn_hidden_size, seq_length)
    elif kind in WITH_EXPERTS:
        total += experts_flop(model, seq_length)
    return total


def head_flop(model: ModelSpec, tokens: float) -> float:
    """Forward of the vocabulary head, without padding."""
    return matmul_flop(tokens, model.vocab_size, model.hidden_size)


def mtp_flop(model: ModelSpec, seq_length: float) -> float:
    """Forward of all multi-token-prediction layers: a layer, the map of two states to one, and a head."""
    merge = matmul_flop(seq_length, model.hidden_size, 2 * model.hidden_size)
    layers = sum(layer_flop(model, kind, seq_length) for kind in model.prediction_kinds)
    return model.mtp_num_layers * (layers + merge + head_flop(model, seq_length))


def model_flop_per_step(problem: Problem) -> float:
    """FLOP of one optimizer step, forward and backward, nothing recomputed."""
    model, workload = problem.model, problem.workload
    kinds = model.kind_of_layer
    seq = float(workload.seq_length)
    forward = sum(kinds.count(kind) * layer_flop(model, kind, seq) for kind in model.layer_kinds)
    forward += head_flop(model, seq) + mtp_flop(model, seq)
    return (1 + BACKWARD_OVER_FORWARD) * forward * workload.global_batch_size
