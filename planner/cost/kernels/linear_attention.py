"""Linear attention (gated delta nets): what its kernels take, move and keep beside its maps.

Megatron-LM (core 0.19, ssm/gated_delta_net) runs the kernels of flash-linear-attention 0.5 (fla, MIT): a
causal convolution (modules/convolution.py), the norm of queries and keys (modules/l2norm.py) and the gated
delta rule over chunks of 64 tokens (ops/gated_delta_rule/chunk.py with wy_fast.py, chunk_delta_h.py and
chunk_o.py of ops/common). Sizes below are of one rank; context-parallel ranks exchange sequences for heads,
so that tokens times heads are the same on each of any number of them.

With C tokens of a chunk and heads of k and v values the rule multiplies and adds for each token and head, in
the forward: keys with keys C k, the inverse of that triangle C^2 / 3, with values and keys C (v + k), states
k v three times, queries with keys C k, with values C v. In the backward all of it but the last two again, and
5 k v + C (9 k + 4 v) + 2 C^2 for the gradients.
"""

from __future__ import annotations

from planner.cost.communication.collectives import collective_s
from planner.cost.communication.links import Network
from planner.cost.communication.placement import spread_group
from planner.cost.elementwise import Values, exists, maximum, where
from planner.cost.kernels import tables
from planner.cost.kernels.operators import HALF
from planner.cost.kernels.relatives import Relative
from planner.cost.sizes import Sizes
from planner.data.attention_spec import LinearAttentionSpec
from planner.data.model_spec import WITH_LINEAR_ATTENTION, LayerKind, ModelSpec

CHUNK = 64.0
"""Tokens of a chunk (chunk_gated_delta_rule of fla)."""

RULE_FLOP_PER_S = (2.0e14, 1.48e14)
"""Rate of the rule's kernels where memory does not hold them up, forward and backward [FLOP/s]: 0.91 and 3.55
ns for each token and head of 128 values on one GB200; one H200, whose products are half as fast, takes 1.12
and 3.7 (QwenLM/FlashQLA, commits 6e5d2ea and 5f6aa53, benchmark/benchmark_results_*.txt: fla 0.5.1, 2,048 to
32,768 tokens, 4 to 64 heads; with the serial part below the mean error is 6 to 11%)."""

RULE_PRODUCTS = "h200_sxm"
"""Table of the chip whose products are the slowest that reach it; slower ones keep proportion (guess)."""

CHUNK_S = (1.5e-6, 3.9e-6)
"""One chunk after the other passes its state on, forward and backward [s]: the mean of both chips (1.4 and
1.7, 3.5 and 4.4 us). That other chips take as long is a guess."""

HEADS_AT_ONCE = 32.0
"""Sequences times heads whose states pass on beside one another in that time."""


def rule_flop(linear: LinearAttentionSpec) -> tuple[float, float]:
    """FLOP for each token and head of the rule, forward and backward."""
    k, v, c = linear.key_head_dim, linear.value_head_dim, CHUNK
    forward = 3 * k * v + c * (3 * k + 2 * v) + c * c / 3
    backward = 8 * k * v + c * (10 * k + 5 * v) + 2 * c * c
    return 2 * forward, 2 * backward


def rule_bytes(linear: LinearAttentionSpec) -> tuple[float, float]:
    """Bytes that its kernels read and write for each token and head, forward and backward.

    Each kernel reads its operands and writes its result once, in 16 bits; the triangle is in fp32 before it
    is inverted. A state of k v values stands for every chunk.
    """
    k, v, state = linear.key_head_dim, linear.value_head_dim, linear.key_head_dim * linear.value_head_dim
    forward = 7 * k + 6 * v + 6 * CHUNK + 2 * state / CHUNK
    backward = 21 * k + 15 * v + 2 * CHUNK + 4 * state / CHUNK
    return HALF * forward, HALF * backward


def mixer_s(relative: Relative, model: ModelSpec, kind: LayerKind, s: Sizes) -> tuple[Values, Values]:
    """Forward and backward of the delta rule of a layer [s]; nothing in layers without."""
    linear = model.linear_attention
    if linear is None or kind not in WITH_LINEAR_ATTENTION:
        return s.zeros, s.zeros
    products = tables.usual_flop_per_s(relative.measured.table, "bf16") / relative.compute_scale
    slower = max(tables.usual_flop_per_s(RULE_PRODUCTS, "bf16") / products, 1.0)
    heads = s.tokens * linear.value_heads / s.tp
    at_once = maximum(s.microbatch_size * linear.value_heads / (s.tp * s.cp) / HEADS_AT_ONCE, 1.0)
    passed = s.seq_length / CHUNK * at_once
    forward, backward = (
        heads * max(flop * slower / rate, moved / relative.memory_bytes_per_s) + chunk_s * passed
        for flop, rate, moved, chunk_s in zip(
            rule_flop(linear), RULE_FLOP_PER_S, rule_bytes(linear), CHUNK_S, strict=True
        )
    )
    return forward, backward


def linear_traffic(model: ModelSpec, s: Sizes) -> tuple[Values, Values]:
    """Bytes that the operators around the rule move, forward and backward.

    Values of a token: W the convolution reads (copied into order before), K of queries, R of the queries that
    are repeated for every head, V. The forward copies and convolves (4 W), copies, normalises and repeats
    queries and keys (10 K + 2 R), copies values and gates (4 V), normalises, weighs and turns the result
    (7 V); the backward convolves once more (6 W), joins the gradients of all (2 W + 2 V), and undoes the rest
    (8 K + 2 R, 10 V). Context-parallel ranks put what they exchange into the order of heads, then of tokens.
    """
    linear = model.linear_attention
    assert linear is not None
    conv, keys, values = (width / s.tp for width in (linear.conv_width, linear.key_width, linear.value_width))
    repeated = linear.value_heads * linear.key_head_dim / s.tp
    forward = 4 * conv + 10 * keys + 2 * repeated + 11 * values
    backward = 8 * conv + 8 * keys + 2 * repeated + 12 * values
    ordered = where(s.cp > 1, 4 * linear.input_width / s.tp + 4 * values, 0.0)
    return s.tokens * HALF * (forward + ordered), s.tokens * HALF * (backward + ordered)


def linear_bytes(model: ModelSpec, s: Sizes, kept_input: float) -> tuple[Values, Values]:
    """What a gated delta net keeps for its backward, and the largest buffers of that [bytes].

    Kept: what is convolved, normalised queries and keys and both repeated for every head, values, gates, the
    inverted triangle of a chunk, the rule's result, its norm and the input of the output map; for each head
    five numbers in fp32 of its decay and strength. In passing the backward has w, u and the states of all
    chunks again with their gradients, and those of queries, keys and values (chunk_gated_delta_rule_bwd).
    """
    linear = model.linear_attention
    assert linear is not None
    heads, values = linear.value_heads / s.tp, linear.value_width / s.tp
    repeated = heads * linear.key_head_dim
    kept = linear.conv_width / s.tp + 2 * linear.key_width / s.tp + 2 * repeated + 4 * values + heads * CHUNK
    states = heads * linear.key_head_dim * linear.value_head_dim / CHUNK
    passing = 5 * repeated + 6 * values + 2 * states
    return (
        s.tokens * (HALF * kept + kept_input * values + 5 * 4.0 * heads),
        s.tokens * HALF * passing,
    )


def norm_out_bytes(model: ModelSpec, s: Sizes, kept_input: float) -> Values:
    """What recomputing the norm of its result does not keep: the norm and the input of the output map."""
    assert model.linear_attention is not None
    return s.tokens * model.linear_attention.value_width / s.tp * (HALF + kept_input)


def exchanged_heads_s(network: Network, model: ModelSpec, kind: LayerKind, s: Sizes) -> Values:
    """Forward, and backward, of a layer's exchange of sequences for heads, and back, nothing hidden [s]."""
    linear = model.linear_attention
    if linear is None or kind not in WITH_LINEAR_ATTENTION or not exists(s.cp > 1):
        return s.zeros
    spread = spread_group(s.cp, s.tp, network.domain_chips)
    there, back = (
        collective_s(network, "all_to_all", s.tokens * width / s.tp * HALF, spread, s.tp)
        for width in (linear.input_width, linear.value_width)
    )
    return where(s.cp > 1, there + back, 0.0)
