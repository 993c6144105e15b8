"""Bytes that the memory-bound operators of a layer move.

Each kernel reads its inputs and writes its outputs once; what a stack does not fuse passes through
memory once more. Kernels follow the modules of Megatron-LM core 0.19 (Apache-2.0): fusions/,
transformer/moe/moe_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.checkpointing import policy_of
from planner.cost.elementwise import Values, where
from planner.cost.kernels.attention_traffic import attention_traffic, query_key_value_widths, split_traffic
from planner.cost.kernels.gated_units import activation_bytes
from planner.cost.kernels.linear_attention import linear_traffic, norm_out_bytes
from planner.cost.kernels.mamba import mamba_traffic
from planner.cost.kernels.norms import FP32_NORM_BYTES, norm_bytes
from planner.cost.kernels.operators import HALF, attention_dims, column_maps, exchanged_groups
from planner.cost.kernels.softmax import is_fused
from planner.cost.kernels.sorting import sorting_bytes
from planner.cost.recomputation import modules_of
from planner.cost.sizes import Sizes
from planner.data.model_spec import (
    TRANSFORMER_LAYERS,
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)
from planner.data.stack import SoftwareStack


@dataclass(frozen=True)
class Traffic:
    """Bytes that memory-bound operators move in one pass over a micro-batch."""

    forward_bytes: Values
    backward_bytes: Values

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.forward_bytes + other.forward_bytes, self.backward_bytes + other.backward_bytes)


def score_traffic(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Traffic:
    """Softmax and dropout over score matrices in memory.

    The fused scale-mask-softmax reads and writes each 16-bit score once (backward: reads two, writes one);
    without it the scores are cast to fp32 (6 bytes moved), scaled (8), masked (9), normalised (8) and cast
    back (6), and the backward goes the same way with one read more; in 16 bits they are masked in place (5,
    backward in a copy: 9) and normalised (4, backward 6). Dropout reads and writes a score and a mask of one
    byte (Korthikanti et al. 2022, section 4.1; megatron/model/fused_softmax.py of Megatron-LM). A softmax
    that applies it writes the dropped score beside its own, and both ways read a mask that was drawn before
    (fused_tril_scale_softmax_mask_scale of OneFlow).
    """
    s = sizes
    scores = s.microbatch_size * model.num_attention_heads / s.tp * s.seq_length * s.seq_length / s.cp
    plain = (37.0, 41.0)
    if not stack.softmax_in_fp32:
        plain = (2 * HALF + 1.0 + 2 * HALF, 4 * HALF + 1.0 + 3 * HALF)
    fused = is_fused(model, stack, s)
    forward, backward = (where(fused, x, y) for x, y in zip((2 * HALF, 3 * HALF), plain, strict=True))
    drops, dropped = (HALF + 2.0, 1.0) if stack.softmax_drops else (2 * HALF + 1.0, 2 * HALF + 1.0)
    if not stack.has_dropout(model):
        drops = dropped = 0.0
    return Traffic(scores * (forward + drops), scores * (backward + dropped))


def layer_traffic(
    model: ModelSpec, kind: LayerKind, stack: SoftwareStack, sizes: Sizes, narrow: bool = False
) -> Traffic:
    """Norms, residuals, positions and activation of one layer, and the sorting of tokens to experts.

    Parameters
    ----------
    narrow
        Whether products read fewer than 16 bits.
    """
    s = sizes
    out = _norm_and_residual_traffic(model, kind, stack, s)
    if kind == "mamba":
        return out + Traffic(*mamba_traffic(model, s))
    if kind in WITH_LINEAR_ATTENTION:
        out = out + Traffic(*linear_traffic(model, s))
    if kind in WITH_ATTENTION:
        out = out + Traffic(*attention_traffic(model, stack, s))
        if not (stack.flash_attention or stack.fused_pointwise):
            out = out + Traffic(*split_traffic(model, s))
    if not stack.biases_in_products:
        out = out + _bias_traffic(model, kind, s)
    if kind in WITH_ONE_MLP:
        out = out + _activation_traffic(model, stack, s.tokens * model.ffn_hidden_size / s.tp)
    elif kind in WITH_EXPERTS:
        out = out + _moe_traffic(model, stack, s, narrow)
    if stack.joined_maps != "all":
        out = out + Traffic(s.zeros, s.tokens * model.hidden_size * _summed_input_bytes(model, kind, stack))
    return out


def _summed_input_bytes(model: ModelSpec, kind: LayerKind, stack: SoftwareStack) -> float:
    """Bytes for each value of an input of which several maps make a gradient each: all are read and their sum
    written by one kernel, or two by two as autograd adds them."""
    maps = [3] if kind in WITH_ATTENTION and stack.joined_maps == "none" and model.mla is None else []
    maps += [2] if kind in WITH_ONE_MLP and model.gated_mlp else []
    return sum(HALF * (n + 1 if stack.fused_pointwise else 3 * (n - 1)) for n in maps)


def _norm_and_residual_traffic(model: ModelSpec, kind: LayerKind, stack: SoftwareStack, s: Sizes) -> Traffic:
    """Norms, and residual sums, which move three values.

    Dropout beside the residual sum stores its mask; as a kernel of its own it reads and writes each way.
    """
    values = s.norm_tokens * model.hidden_size
    blocks = 2 if kind in TRANSFORMER_LAYERS else 1
    norms = model.norms_per_layer if blocks == 2 else 1
    mask = 1.0 if stack.has_dropout(model) else 0.0
    unfused = 0.0 if stack.fused_pointwise else 2 * HALF
    forward, backward = (
        norms * moved + blocks * (3 * HALF + mask + unfused * mask) for moved in norm_bytes(model, stack)
    )
    copied: Values = 0.0
    if stack.column_input_copies:
        copied = where(s.copies_inputs, column_maps(model, kind) * 2 * HALF * values, 0.0)
    return Traffic(values * forward + copied, values * backward)


def ring_traffic(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, ring: Values) -> Traffic:
    """What joins the blocks of attention around a ring of context-parallel ranks.

    Keys and values are joined in a buffer (8 bytes a value of keys, say). The first block's output is scaled
    (4 bytes a value of queries), that of every other added, on half of the rows where it came from a later
    rank (6 and 3, as many of one as of the other over all ranks). Backward the gradients of queries go the
    same way; those of keys and values are joined for each block (8) and added to what has come (12, on half
    of the rows 6); transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py.

    Parameters
    ----------
    ring
        Ranks of the ring; with one there are no blocks to join.
    """
    s = sizes
    query_dim, value_dim = attention_dims(model)
    heads = model.num_attention_heads / s.tp
    groups = exchanged_groups(model, stack, s)
    queries = s.tokens * heads * value_dim
    keys = s.tokens * groups * (query_dim + value_dim) / 2
    forward = 8.0 * keys + (4.0 + 4.5 * (ring - 1)) * queries
    backward = (4.0 + 4.5 * (ring - 1)) * queries + (8.0 * ring + 9.0 * (ring - 1)) * keys
    some = ring > 1
    return Traffic(where(some, forward, 0.0), where(some, backward, 0.0))


def _bias_traffic(model: ModelSpec, kind: LayerKind, s: Sizes) -> Traffic:
    """Biases of linear maps where no kernel takes them along: read and written, their gradients summed.

    That of a dense block's first map stands with its activation.
    """
    sharded = whole = s.zeros
    if kind in WITH_ATTENTION and model.linear_bias != "none" and model.mla is None:
        sharded = query_key_value_widths(model, s)[1]
        whole = whole + (model.hidden_size if model.linear_bias in ("all", "attention") else 0.0)
    if kind in WITH_ONE_MLP and model.linear_bias == "all":
        whole = whole + model.hidden_size
    values = s.tokens * sharded + s.norm_tokens * whole
    return Traffic(values * 2 * HALF, values * HALF)


def _activation_traffic(model: ModelSpec, stack: SoftwareStack, values: Values) -> Traffic:
    forward, backward = activation_bytes(model.gated_mlp, stack.fused_pointwise)
    return Traffic(values * forward, values * backward)


ROUTER_BYTES_PER_SCORE = 40.0
"""Softmax, top-k, scatter and auxiliary loss over fp32 scores: ten passes of four bytes; a guess that gives
the 0.1 to 0.2 ms measured on one H100 for 4,096 to 8,192 tokens and 256 experts, launches apart."""


def _moe_traffic(model: ModelSpec, stack: SoftwareStack, s: Sizes, narrow: bool) -> Traffic:
    """Router scores, sorting of tokens, the activation over routed rows, and shared experts."""
    moe = model.moe
    assert moe is not None
    scores = s.norm_tokens * moe.num_experts * ROUTER_BYTES_PER_SCORE
    out = _routed_traffic(model, stack, s, narrow) + Traffic(scores, scores)
    if moe.shared_ffn_hidden_size:
        own = s.norm_tokens * model.hidden_size
        out = out + _activation_traffic(model, stack, s.tokens * moe.shared_ffn_hidden_size / s.tp)
        out = out + Traffic(own * 3 * HALF, own * 3 * HALF)
    return out


def _routed_traffic(model: ModelSpec, stack: SoftwareStack, s: Sizes, narrow: bool) -> Traffic:
    assert model.moe is not None
    moved = sorting_bytes(model, stack, s, narrow)
    rows = s.expert_rows(model.moe.top_k) * model.moe.ffn_hidden_size / s.etp
    return _activation_traffic(model, stack, rows) + Traffic(moved, moved)


def routed_bytes(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, narrow: bool = False) -> Values:
    """What memory-bound operators move in a forward between the router and the end of the routed experts."""
    return _routed_traffic(model, stack, sizes, narrow).forward_bytes


def selective_traffic(
    model: ModelSpec, kind: LayerKind, stack: SoftwareStack, s: Sizes, narrow: bool = False
) -> Values:
    """Bytes that the memory-bound operators of selective recomputation move again."""
    modules, moved = modules_of(model, kind, stack.selective_modules), s.zeros
    moe = model.moe
    if "every_second_product" in modules:
        return layer_traffic(model, kind, stack, s, narrow).forward_bytes
    policy = policy_of(modules)
    if "layernorm" in modules or policy:
        norm = FP32_NORM_BYTES[0] if stack.norms_read_fp32 else 2 * HALF
        moved = moved + s.norm_tokens * model.hidden_size * 2 * norm
    if "mla_up_proj" in modules:  # with what turns and joins their output (multi_latent_attention.py)
        moved = moved + attention_traffic(model, stack, s)[0]
    if "gdn_norm_out" in modules:
        moved = moved + 3 * norm_out_bytes(model, s, HALF)
    if "moe" in modules:
        moved = moved + _moe_traffic(model, stack, s, narrow).forward_bytes
    if "moe_act" in modules and moe is not None:
        rows = s.expert_rows(moe.top_k) * moe.ffn_hidden_size / s.etp
        moved = moved + _activation_traffic(model, stack, rows).forward_bytes
    if "shared_experts" in modules and moe is not None:
        inner = s.tokens * moe.shared_ffn_hidden_size / s.tp
        moved = moved + _activation_traffic(model, stack, inner).forward_bytes
    if "mlp" in modules or policy:
        inner = s.tokens * model.ffn_hidden_size / s.tp
        moved = moved + _activation_traffic(model, stack, inner).forward_bytes
    return moved
