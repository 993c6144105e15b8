"""Memory of one chip by piece: what the backward pass needs (`states.py` holds parameters and their states).

Activations are counted tensor by tensor for Megatron-LM core with Transformer Engine: what each module
saves for its backward. For the stack of 2022 (plain GPT, dropout, scores in memory) the count is the
published one, s b h (34 + 5 a s / h) / t (Korthikanti et al. 2022, arXiv 2205.05198, equations 2 and 4).
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost.checkpointing import kept_bytes, policy_bytes, policy_of
from planner.cost.elementwise import Values, maximum, where
from planner.cost.kernels.linear_attention import linear_bytes, norm_out_bytes
from planner.cost.kernels.mamba import mamba_bytes
from planner.cost.kernels.operators import HALF, attention_dims, column_maps, repeats_groups
from planner.cost.kernels.softmax import kept_of_a_score, passing_bytes
from planner.cost.memory.attention_buffers import context_exchange_bytes, gathered_heads_bytes
from planner.cost.memory.routers import router_bytes
from planner.cost.recomputation import modules_of
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
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


class LayerActivations(NamedTuple):
    """Bytes that a layer keeps from forward to backward, arrays [choice]."""

    whole: Values
    """Nothing recomputed."""
    selective: Values
    """The stack's selective modules recomputed."""
    full: Values
    """The layer's input alone."""
    working: Values
    """Largest passing buffers of its backward."""


INPUT_BYTES = {"fp8": 1.0, "fp8_block": 1.03125, "mxfp8": 1.03125, "nvfp4": 0.5625}
"""Bytes of a product's input kept for its weight gradient, scales included, where products run in fewer
bits (Transformer Engine keeps the quantised tensor alone): 4 bytes for 128 values, or 1 for 32 or 16."""


def layer_activations(
    model: ModelSpec,
    kind: LayerKind,
    stack: SoftwareStack,
    sizes: Sizes,
    precision: Precision = "bf16",
) -> LayerActivations:
    """Activations of one layer for one micro-batch."""
    s = sizes
    kept_input = INPUT_BYTES.get(precision, HALF)
    values = s.norm_tokens * model.hidden_size
    modules = modules_of(model, kind, stack.selective_modules)
    # A module that is checkpointed whole keeps its input in 16 bits.
    input_again = values * (HALF - kept_input)
    whole, saved = _norm_bytes(model, kind, stack, s, kept_input), s.zeros
    if "layernorm" in modules:
        wider = 4.0 - HALF if stack.norms_read_fp32 else 0.0
        saved = saved + _norm_outputs(model, kind) * values * (kept_input + wider)
    widest, kept = 2 * s.tokens * model.hidden_size * HALF, s.zeros
    if kind == "mamba":
        mixer, width = mamba_bytes(model, s)
        whole, widest = whole + mixer, widest + width
    elif kind in WITH_LINEAR_ATTENTION:
        mixer, width = linear_bytes(model, s, kept_input)
        whole, widest = whole + mixer, widest + width
        if "gdn_norm_out" in modules:
            saved = saved + norm_out_bytes(model, s, kept_input)
    elif kind in WITH_ATTENTION:
        attention, core = _attention_bytes(model, stack, s)
        widest = widest + gathered_heads_bytes(model, s)
        if kept_input < HALF or model.output_gate:
            # The output is kept in 16 bits for attention and once more as input of the output map.
            attention = (
                attention
                + kept_input * s.tokens * model.num_attention_heads / s.tp * (attention_dims(model)[1])
            )
        whole = whole + attention + core
        if "core_attn" in modules:
            saved = saved + core
        if "mla_up_proj" in modules:
            saved = saved + _up_projected_bytes(model, s)
    if kind in WITH_ONE_MLP:
        kept, width = _mlp_bytes(model, model.ffn_hidden_size, s, kept_input)
        if model.gated_mlp and (stack.plain_modules or stack.keeps_activated_gate):
            kept = kept + s.tokens * model.ffn_hidden_size / s.tp * HALF
        whole, widest = whole + kept, widest + width
        if "mlp" in modules:
            saved = saved + kept - input_again
    elif kind in WITH_EXPERTS:
        kept, width = _moe_bytes(model, stack, s, kept_input)
        whole, widest = whole + kept, widest + width
        if "moe" in modules:
            saved = saved + kept - input_again
        if "moe_act" in modules:
            saved = saved + _expert_inner(model, s) * kept_input
        if "shared_experts" in modules and model.moe is not None:
            shared = _mlp_bytes(model, model.moe.shared_ffn_hidden_size, s, kept_input)[0]
            saved = saved + shared - input_again
    if "every_second_product" in modules:
        saved = whole - values * HALF - kept_bytes(model, kind, s)
    if policy := policy_of(modules):
        saved = whole - values * HALF - policy_bytes(model, policy, s)
    if kind in WITH_ATTENTION:
        widest = maximum(widest, context_exchange_bytes(model, stack, s))
        widest = maximum(widest, passing_bytes(model, stack, s, kept))
    return LayerActivations(whole, whole - saved, values * HALF, widest)


def _norm_outputs(model: ModelSpec, kind: LayerKind) -> int:
    """Norms of a layer whose output a product keeps."""
    return 2 if kind in TRANSFORMER_LAYERS else 1


def _up_projected_bytes(model: ModelSpec, s: Sizes) -> Values:
    """Queries, keys and values of latent attention, which its up-projections make from the low ranks."""
    assert model.mla is not None
    query_dim, value_dim = attention_dims(model)
    widths = 2 * query_dim + value_dim + model.mla.qk_nope_head_dim
    return s.tokens * HALF * model.num_attention_heads / s.tp * widths


def _expert_inner(model: ModelSpec, s: Sizes) -> Values:
    """Values of the experts' activation."""
    assert model.moe is not None
    return s.expert_rows(model.moe.top_k) * model.moe.ffn_hidden_size / s.etp


def _norm_bytes(
    model: ModelSpec, kind: LayerKind, stack: SoftwareStack, s: Sizes, kept_input: float
) -> Values:
    """Input and output of each norm, and the dropout mask after each block."""
    blocks = 2 if kind in TRANSFORMER_LAYERS else 1
    norms = model.norms_per_layer if blocks == 2 else 1
    mask = blocks if stack.has_dropout(model) else 0
    values = s.norm_tokens * model.hidden_size
    # A plain norm keeps its input in fp32 and the normalised values in 16 bits beside its output.
    inputs = 4.0 if stack.norms_read_fp32 else HALF
    if stack.plain_modules and model.normalization == "rms":
        inputs = 4.0 + HALF
    kept = values * (norms * (inputs + kept_input) + mask)
    if not stack.column_input_copies:
        return kept
    # Each map has a copy of its own, so that the output of the norm before it goes.
    more = max(column_maps(model, kind) - blocks, 0) * values * kept_input
    return kept + where(s.copies_inputs, more, 0.0)


def _attention_bytes(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> tuple[Values, Values]:
    """What attention keeps, without and with the core that selective recomputation drops.

    Fused: queries, keys, values, the output, and one fp32 statistic a row and head. In memory: the
    softmax (2 bytes a score; without a fused kernel also its fp32 form, 4) and
    with dropout its mask (1) and its output (2). Rotary positions make new
    queries and keys, while the values are a view that keeps the map's whole output alive, unless they have a
    map of their own; a gate is copied out of it; with latent attention they keep the up-projection's
    (SplitAlongDim in attention.py, multi_latent_attention.py). With fewer key-value heads than
    tensor-parallel ranks the view is of all ranks' outputs, gathered to be cut.
    """
    heads = model.num_attention_heads / s.tp
    query_dim, value_dim = attention_dims(model)
    if model.mla is not None:
        groups = heads
        mla = model.mla
        low_rank = s.norm_tokens * HALF * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
        low_rank = low_rank + s.norm_tokens * HALF * 2 * (mla.q_lora_rank or 0)
        kept_alive = s.tokens * HALF * heads * mla.qk_nope_head_dim
    else:
        groups = maximum(model.num_query_groups / s.tp, 1.0)
        low_rank = s.zeros
        rotated = 1.0 if model.position_embedding == "rope" and not stack.column_input_copies else 0.0
        gate = s.tokens * HALF * heads * query_dim if model.output_gate else 0.0
        kept_alive = rotated * s.tokens * HALF * (heads + groups) * query_dim + rotated * gate
        gathered = gathered_heads_bytes(model, s)
        own = s.tokens * HALF * (heads + 2 * groups) * query_dim + gate
        kept_alive = where(gathered > 0, maximum(gathered - own, 0.0) + kept_alive, kept_alive) + gate
    qkv = s.tokens * HALF * (heads * query_dim + groups * (query_dim + value_dim))
    if repeats_groups(model, stack):
        qkv = qkv + s.tokens * HALF * (heads - groups) * (query_dim + value_dim)
    qkv = qkv + kept_alive + HALF * rotary_values(model, stack, s)
    output = s.tokens * HALF * heads * value_dim
    if stack.flash_attention:
        return low_rank + qkv + output, s.tokens * heads * 4.0
    scores = s.microbatch_size * heads * s.seq_length * s.seq_length / s.cp
    return low_rank + qkv + output, scores * kept_of_a_score(model, stack, s)


def rotary_values(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> Values:
    """Sines and cosines an attention layer has for itself, one of each a position and value of a head."""
    if not stack.rotary_tables_in_layers or model.position_embedding != "rope":
        return 0.0
    return 2 * s.seq_length * model.head_dim


def _mlp_bytes(model: ModelSpec, width: int, s: Sizes, kept_input: float) -> tuple[Values, Values]:
    """Output of the first map and of the activation; in the backward both exist as gradients.

    What the second map kept is gone when the gradients pass through the activation.
    """
    inner = s.tokens * width / s.tp
    inputs = (2 if model.gated_mlp else 1) * HALF
    return inner * (inputs + kept_input), inner * (inputs + HALF - kept_input)


def _moe_bytes(model: ModelSpec, stack: SoftwareStack, s: Sizes, kept_input: float) -> tuple[Values, Values]:
    """Routed rows: input of the experts, both maps' outputs; router scores; shared experts.

    Without fused sorting the experts' results are weighted afterwards: they and their weighted copies are
    kept (layers of six models measured on one H100 keep exactly that). Else the weight enters with the
    activation.
    """
    moe = model.moe
    assert moe is not None
    rows = s.expert_rows(moe.top_k)
    inner = rows * moe.ffn_hidden_size / s.etp
    inputs = (2 if model.gated_mlp else 1) * HALF
    router = s.norm_tokens * moe.num_experts * router_bytes(model, stack) + rows * 3 * 4.0
    kept = rows * model.routed_width * kept_input + inner * (inputs + kept_input) + router
    if not stack.moe_permute_fusion:
        kept = kept + 2 * rows * model.routed_width * HALF
    if moe.latent_size is not None:  # what is mapped back
        kept = kept + s.norm_tokens * moe.latent_size * kept_input
    if moe.shared_ffn_hidden_size:
        kept = kept + _mlp_bytes(model, moe.shared_ffn_hidden_size, s, kept_input)[0]
    return kept, inner * (inputs + HALF) + 2 * rows * model.routed_width * HALF


def embedding_activation_bytes(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Values:
    """Token numbers of eight bytes, and the dropout mask."""
    mask = sizes.norm_tokens * model.hidden_size if stack.has_dropout(model) else 0.0
    return sizes.tokens * 8.0 + mask


def head_activation_bytes(
    model: ModelSpec,
    stack: SoftwareStack,
    vocab: Values,
    sizes: Sizes,
    prediction: Values | None = None,
) -> Values:
    """Input and output of the final norm, logits of former micro-batches, and all that predictions keep.

    Each of its layers normalises hidden state and embedding, joins and maps them, is a layer, and has a final
    norm of its own (core/transformer/multi_token_prediction.py). It is kept whole: Megatron-LM recomputes it
    with the uniform method alone.

    Parameters
    ----------
    prediction
        Bytes that the layers of one prediction keep; None without any.
    """
    values = sizes.norm_tokens * model.hidden_size * HALF
    former = (stack.output_buffers - 1) * sizes.tokens * vocab / sizes.tp * HALF
    if prediction is None:
        return 2 * values + former
    joined = 2 * sizes.tokens * model.hidden_size * HALF  # gathered for the column-parallel map
    return 2 * values + former + model.mtp_num_layers * (prediction + 2 * values + joined + 2 * values)


def logits_peak_bytes(model: ModelSpec, stack: SoftwareStack, vocab: Values, sizes: Sizes) -> Values:
    """Logits and their gradients in the loss, of the model's head and of every further prediction.

    Fused: 16-bit logits, whose place the gradient takes. Not fused: 16-bit logits, their fp32 copy, which
    becomes softmax and gradient, and the gradient cast to 16 bits; or what the stack says. Of further
    predictions the softmax (fused: the logits) waits for its backward. Ranks that gather all logits keep
    their own beside them. Ranks that split the sequence gather the head's input into a buffer that stays,
    and make its whole gradient from that of the 16-bit logits, which takes more than the share of it that is
    gone by then (`LinearWithGradAccumulationAndAsyncCommunication` in core/tensor_parallel/layers.py).
    """
    logits = sizes.tokens * vocab / sizes.tp
    waits = HALF if stack.fused_cross_entropy else 4.0
    peak: Values = 2 * HALF if stack.fused_cross_entropy else HALF + 4.0 + 4.0
    if stack.loss_bytes_per_logit is not None:
        peak = stack.loss_bytes_per_logit
    if stack.whole_loss_bytes_per_logit is not None:
        peak = where(sizes.tp > 1, peak, stack.whole_loss_bytes_per_logit)
    in_loss = logits * (peak + model.mtp_num_layers * waits)
    if stack.gathers_logits:
        in_loss = where(sizes.tp > 1, in_loss * sizes.tp + HALF * logits, in_loss)
    behind = logits * (HALF + model.mtp_num_layers * waits)
    behind = behind + HALF * model.hidden_size * (sizes.tokens - sizes.norm_tokens)
    gathered = where(sizes.splits_sequence, HALF * model.hidden_size * sizes.tokens, 0.0)
    in_loss = maximum(in_loss, behind) + gathered
    if stack.gradient_accumulation_fusion:
        return in_loss
    # The head's gradient is made beside that of the logits.
    return maximum(in_loss, HALF * (logits + vocab / sizes.tp * model.hidden_size))
