"""Bytes that memory-bound operators move between the products of attention and its core, each way.

Kernels follow Megatron-LM core 0.19 (Apache-2.0), transformer/attention.py and multi_latent_attention.py, and
Transformer Engine 2.9.
"""

from __future__ import annotations

from planner.cost.elementwise import Values, maximum, where
from planner.cost.kernels.norms import head_norm_bytes
from planner.cost.kernels.operators import HALF, attention_dims, repeats_groups
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack

Moved = tuple[Values, Values]
"""Bytes moved in a forward and in a backward."""

PLAIN_ROTARY_BYTES = 20.0
"""Bytes that rotary positions by plain operators move for each value, each way: to fp32 6, product 8, back 6
(apply_rotary_emb of torchtitan/models/llama/model.py); or in 16 bits one half negated 2, halves joined 4, two
products 8, their sum 6 (rotate_half in modeling_llama.py of transformers, as PaddleNLP has it)."""

LATENT_ROTARY_BYTES = 28.0
"""Bytes that rotary positions of latent attention by plain operators move for each value, each way: even and
odd values joined 4, product 4, negated and joined halves 6, product 4, sum 6, joined with nothing 4
(_apply_rotary_pos_emb_bshd of Megatron-LM's models/common/embeddings/rope_utils.py)."""


def attention_traffic(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> Moved:
    """Rotary positions read and write queries and keys once each way, norms of heads as any norm does.

    Where grouped keys and values are repeated, they are also written once for every head.
    """
    if model.mla is not None:
        return _latent_traffic(model, stack, s)
    groups = maximum(model.num_query_groups / s.tp, 1.0)
    query_dim, _ = attention_dims(model)
    heads = model.num_attention_heads / s.tp
    values = s.tokens * (heads + groups) * query_dim
    plain = stack.plain_modules or not stack.fused_pointwise
    turned = PLAIN_ROTARY_BYTES if plain else 2 * HALF
    forward = backward = turned if model.position_embedding == "rope" else 0.0
    if model.qk_norm:
        norm = head_norm_bytes(model, stack)
        forward, backward = forward + norm[0], backward + norm[1]
    copied, joined = _copied_heads(model, stack, s)
    copied, joined = copied + values * forward, joined + values * backward
    if repeats_groups(model, stack):
        repeated = s.tokens * (heads + groups) * query_dim * 2 * HALF
        repeated = where(heads > groups, repeated, 0.0)
        copied, joined = copied + repeated, joined + repeated
    # A gate is copied into order and weighs the result: read with it, and written.
    gate = s.tokens * heads * model.head_dim * 5 * HALF if model.output_gate else 0.0
    return copied + gate, joined + gate


def copies_heads(model: ModelSpec, stack: SoftwareStack) -> bool:
    """Whether queries and values are copied out of the output of Megatron-LM's joined map for attention.

    Attention takes all three as they lie there, but not once positions have made other queries and keys or
    where groups part them (get_qkv_layout in Transformer Engine's dot_product_attention/utils.py).
    """
    apart = model.position_embedding == "rope" or model.num_query_groups < model.num_attention_heads
    return apart and model.mla is None and stack.megatron_groups and stack.flash_attention


def _copied_heads(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> Moved:
    """Values are read and written, queries too where a rank has several groups of them; the backward joins
    the gradients of all three (get_query_key_value_tensors of Megatron-LM's transformer/attention.py)."""
    if not copies_heads(model, stack):
        return s.zeros, s.zeros
    queries, joined = query_key_value_widths(model, s)
    keys = (joined - queries) / 2
    parted = (model.num_query_groups > s.tp) & (queries > keys)
    copied = keys + where(parted, queries, 0.0)
    return s.tokens * 2 * HALF * copied, s.tokens * 2 * HALF * joined


def _latent_traffic(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> Moved:
    """Positions of latent attention and norms of both latent vectors (multi_latent_attention.py).

    One kernel turns the queries' share of each head in place, another reads the joined output of keys and
    values and writes both apart (fusions/fused_mla_yarn_rope_apply.py). By plain operators queries and keys
    are joined from their shares, and values copied; the backward joins the gradients of both maps' outputs.
    """
    mla = model.mla
    assert mla is not None
    nope, turned, value = mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim
    heads = s.tokens * model.num_attention_heads / s.tp
    latent = s.norm_tokens * ((mla.q_lora_rank or 0) + mla.kv_lora_rank)
    if stack.fused_latent_rotary:
        forward = backward = HALF * (2 * turned + (nope + value) + (nope + turned + value))
    else:
        forward = 2 * HALF * (2 * (nope + turned) + value) + LATENT_ROTARY_BYTES * turned
        backward = 2 * HALF * (2 * nope + turned + value) + LATENT_ROTARY_BYTES * turned
    return heads * forward + latent * 2 * HALF, heads * backward + latent * 3 * HALF


def query_key_value_widths(model: ModelSpec, s: Sizes) -> tuple[Values, Values]:
    """Values of a token's queries, and of its queries, keys and values, on one tensor-parallel rank."""
    queries = model.num_attention_heads * model.head_dim / s.tp
    groups = maximum(model.num_query_groups / s.tp, 1.0) * model.head_dim
    return queries, queries + 2 * groups


def split_traffic(model: ModelSpec, s: Sizes) -> Moved:
    """Copies around attention over score matrices in memory.

    The result is put back in the order of tokens (read, written). In the backward the gradients of queries,
    keys and values are joined, and those of queries and keys multiplied by the scale of the scores, a pass
    each (CoreAttention of Megatron-LM's transformer.py: baddbmm with alpha, permute and contiguous).
    """
    queries, joined = query_key_value_widths(model, s)
    keys = (joined - queries) / 2
    return s.tokens * 2 * HALF * queries, s.tokens * 2 * HALF * (joined + queries + keys)
