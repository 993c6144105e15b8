"""The network as arguments of Megatron-LM's `pretrain_gpt.py`, and what it cannot express.

Flags and their meaning: megatron-core 0.19.2, `megatron/training/arguments.py` and
`megatron/core/transformer/transformer_config.py`. What does not change time or memory stands
in `model_constants`; initialisation is the user's.
"""

from __future__ import annotations

from planner.data.attention_spec import MlaSpec
from planner.data.model_spec import WITH_EXPERTS, ModelSpec
from planner.data.scores import balances_by_bias, expert_scores
from planner.launchers.megatron.arguments import Argument, Arguments, option, switch
from planner.launchers.megatron.layer_lists import list_expression
from planner.launchers.megatron.linear_attention import linear_arguments, linear_attention_troubles
from planner.launchers.megatron.rotary_positions import stretched_by, trouble_with_positions
from planner.rules.versions import NEWEST, VERSIONS

VOCAB_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times the tensor-parallel degree."""

_SILU = ("silu", "swiglu")
_CLAMPED = ("swiglu-clamped",)
_GELU = ("gelu", "gelu-tanh")

CLAMP, LINEAR_OFFSET = "7.0", "1.0"
"""Clamp of gpt-oss' gated unit, and what is added (openai/gpt-oss, `gpt_oss/torch/model.py`, `swiglu`)."""


CONVOLUTION = 4
"""Width of the convolution in Megatron's Mamba-2 layers (core 0.19.2, `MambaMixer`); no argument sets it."""


def inexpressible(
    model: ModelSpec,
    *,
    builds_hybrids: bool = False,
    builds_plain_hybrids: bool = False,
    builds_linear: bool = True,
) -> tuple[str, ...]:
    """Features of the network that no argument of Megatron-LM states, each in a sentence.

    Parameters
    ----------
    builds_hybrids
        Whether the launcher may start another script than `pretrain_gpt.py` for Mamba layers.
    builds_plain_hybrids
        Whether it builds Mamba layers in models without predictions and latent experts.
    builds_linear
        Whether the launcher states layers of linear attention.
    """
    wrong = []
    if model.hybrid is not None:
        if not (builds_hybrids or builds_plain_hybrids):
            wrong.append(f"{model.id} has Mamba layers, which pretrain_gpt.py does not build")
        elif not builds_hybrids and model.mtp_num_layers:
            wrong.append(f"{model.id} predicts beside Mamba layers, which megatron-lm alone builds")
        if model.hybrid.pattern.startswith("-"):
            wrong.append(
                f"{model.id} begins with a feed-forward layer; Megatron-LM takes its pattern for a flag"
            )
        if model.norms_per_layer != 1:
            wrong.append(
                f"{model.id} has {model.norms_per_layer} norms in a block; each block of Megatron-LM's "
                "hybrids has 1 (norms_per_layer: 1)"
            )
        if model.hybrid.conv != CONVOLUTION:
            wrong.append(f"{model.id} convolves {model.hybrid.conv} tokens; Megatron-LM's Mamba layers, 4")
    elif model.norms_per_layer != 2:
        wrong.append(
            f"{model.id} has {model.norms_per_layer} norms in a block; Megatron-LM's GPT block has 2"
        )
    wrong += linear_attention_troubles(model)
    if not builds_linear and model.linear_attention is not None:
        wrong.append(
            f"{model.id} has linear attention, which FlagScale's heterogeneous mode was not seen to run"
        )
    if not builds_hybrids and (model.repeated_prediction or model.routed_width != model.hidden_size):
        wrong.append(f"{model.id} has latent experts or repeated predictions, which megatron-lm alone builds")
    if model.gated_mlp and model.activation not in _SILU + _CLAMPED:
        wrong.append(f"{model.id}: Megatron-LM has no argument for a gated {model.activation} block")
    if not model.gated_mlp and model.activation not in (*_GELU, "squared-relu"):
        wrong.append(f"{model.id}: Megatron-LM has no argument for the activation {model.activation}")
    if balances_by_bias(model) and expert_scores(model) == "softmax":
        wrong.append(f"{model.id} balances its experts by a bias on a softmax; Megatron-LM's needs a sigmoid")
    if (trouble := _trouble_with_biases(model)) is not None:
        wrong.append(f"{model.id} {trouble}; Megatron-LM has biases on qkv, everywhere or nowhere")
    wrong += trouble_with_positions(model)
    if model.mtp_num_layers and position_kind(model, NEWEST) in ("learned_absolute", "yarn"):
        wrong.append(
            f"{model.id}: Megatron-LM's multi-token prediction needs rotary positions, not stretched by YaRN "
            "outside latent attention, or none"
        )
    return tuple(wrong)


def builds(target: str) -> dict[str, bool]:
    """What a launcher builds, as `inexpressible` takes it."""
    return {
        "builds_hybrids": target == "megatron-lm",
        "builds_plain_hybrids": target == "megatron-bridge",
        "builds_linear": target != "flagscale",
    }


def _trouble_with_biases(model: ModelSpec) -> str | None:
    """Which maps have biases, where Megatron-LM's one switch gives them to others; None where it does not.

    With it (`add_bias_linear`) attention, dense blocks, experts and router have them, and shared experts,
    latent attention and Mamba layers cannot be built or have other ones (core 0.19.2, `router.py` and
    `shared_experts.py` in `transformer/moe`, `transformer/multi_latent_attention.py`).
    """
    moe, kind = model.moe, model.linear_bias
    if model.mla is not None and kind != "none":
        return f"has biases ({kind}) in latent attention"
    if model.hybrid is not None and kind != "none":
        return f"has biases ({kind}) beside Mamba layers"
    if moe is None:
        return "has biases in attention only" if kind == "attention" else None
    if not moe.expert_bias:
        return f"has biases ({kind}) but none in its experts" if kind in ("all", "attention") else None
    if kind != "all" and (kind != "attention" or bool({"dense", "linear"} & {*model.layer_kinds})):
        return f"has biases in its experts but not in all other maps (linear_bias {kind})"
    if not moe.router_bias:
        return "has biases in its experts but not in the router"
    return "has biases in its experts beside shared ones" if moe.shared_ffn_hidden_size else None


def model_arguments(model: ModelSpec, seq_length: int, version: str = NEWEST) -> Arguments:
    """Arguments that state the network's shape, the same on every node, for a version of core."""
    return (
        *_sizes(model, seq_length),
        *_attention(model),
        *_feed_forward(model),
        *_norms_and_biases(model),
        *_positions_and_vocabulary(model, version),
    )


def mock_vocabulary(model: ModelSpec, version: str) -> int:
    """Entries that `NullTokenizer`, which stands in for a tokenizer, is told to have.

    Up to core 0.17 it adds one for the end of a document, which would make the model's rows more by a whole
    multiple where they are one already (megatron-core 0.17.1 and 0.18.2,
    core/tokenizers/text/libraries/null_tokenizer.py).
    """
    adds_one = VERSIONS.index(version) < VERSIONS.index("0.18")
    return model.vocab_size - adds_one


def position_kind(model: ModelSpec, version: str) -> str:
    """Value of `--position-embedding-type`; latent attention states YaRN in a way of its own."""
    if model.mla is None and stretched_by(model, version) == "yarn":
        return "yarn"
    return {"rope": "rope", "learned": "learned_absolute", "none": "none"}[model.position_embedding]


def moe_arguments(model: ModelSpec, grouped_gemm: bool) -> Arguments:
    """Arguments that state the experts; empty for a dense model.

    Parameters
    ----------
    grouped_gemm
        Whether the experts run as one grouped matrix product, which needs compute capability 8.0.
    """
    moe = model.moe
    if moe is None:
        return ()
    arguments = [
        option("--num-experts", moe.num_experts),
        option("--moe-router-topk", moe.top_k),
        option("--moe-ffn-hidden-size", moe.ffn_hidden_size),
        option("--moe-router-dtype", "fp32"),
    ]
    if model.hybrid is None:  # whose own pattern says where its experts are
        arguments.append(option("--moe-layer-freq", layer_pattern(model)))
    if moe.shared_ffn_hidden_size:
        arguments.append(option("--moe-shared-expert-intermediate-size", moe.shared_ffn_hidden_size))
    if moe.latent_size is not None:
        arguments.append(option("--moe-latent-size", moe.latent_size))
    if moe.shared_expert_gate:
        arguments.append(switch("--moe-shared-expert-gate"))
    if grouped_gemm:
        arguments.append(switch("--moe-grouped-gemm"))
    if moe.capacity_factor is not None:
        arguments.append(option("--moe-expert-capacity-factor", moe.capacity_factor))
    if moe.pad_to_capacity:
        arguments.append(switch("--moe-pad-expert-input-to-capacity"))
    if balances_by_bias(model):
        arguments.append(switch("--moe-router-enable-expert-bias"))
    return tuple(arguments)


def layer_pattern(model: ModelSpec) -> str:
    """Megatron's `--moe-layer-freq`: a Python list expression, 1 for a layer with experts."""
    return list_expression([int(kind in WITH_EXPERTS) for kind in model.kind_of_layer])


def _sizes(model: ModelSpec, seq_length: int) -> Arguments:
    moe_only = model.moe.ffn_hidden_size if model.moe is not None else 0
    positions = model.max_position_embeddings
    if model.position_embedding != "learned":
        positions = max(positions, seq_length)
    return (
        option("--num-layers", model.num_layers),
        option("--hidden-size", model.hidden_size),
        option("--ffn-hidden-size", model.ffn_hidden_size or moe_only),
        option("--num-attention-heads", model.num_attention_heads),
        option("--seq-length", seq_length),
        option("--max-position-embeddings", positions),
    )


def _attention(model: ModelSpec) -> Arguments:
    arguments: list[Argument] = list(linear_arguments(model))
    if model.output_gate:
        arguments.append(switch("--attention-output-gate"))
    if model.mla is not None:
        arguments += _latent_attention(model.mla)
    elif model.num_query_groups != model.num_attention_heads:
        arguments += [
            switch("--group-query-attention"),
            option("--num-query-groups", model.num_query_groups),
        ]
    if model.head_dim * model.num_attention_heads != model.hidden_size:
        arguments.append(option("--kv-channels", model.head_dim))
    # Latent attention normalises its compressed query and key-value; the same flag asks for it.
    if model.qk_norm or model.mla is not None:
        arguments.append(switch("--qk-layernorm"))
    if model.attention_sinks:
        arguments.append(option("--softmax-type", "learnable"))
    if model.sliding_window is not None:
        # Transformer Engine counts the tokens to the left of the query, the query itself apart.
        arguments.append(option("--window-size", f"{model.sliding_window - 1},0"))
        if model.global_layer_every > 1:
            arguments.append(option("--window-attn-skip-freq", model.global_layer_every))
    # Megatron drops 10% of attention and hidden states unless told otherwise, and keeps the masks.
    arguments += [option("--attention-dropout", "0.0"), option("--hidden-dropout", "0.0")]
    return tuple(arguments)


def _latent_attention(mla: MlaSpec) -> list[Argument]:
    arguments = [switch("--multi-latent-attention")]
    if mla.q_lora_rank is not None:
        arguments.append(option("--q-lora-rank", mla.q_lora_rank))
    return [
        *arguments,
        option("--kv-lora-rank", mla.kv_lora_rank),
        option("--qk-head-dim", mla.qk_nope_head_dim),
        option("--qk-pos-emb-head-dim", mla.qk_rope_head_dim),
        option("--v-head-dim", mla.v_head_dim),
    ]


def _feed_forward(model: ModelSpec) -> Arguments:
    if model.activation in _CLAMPED:
        return (
            switch("--quick-geglu"),
            option("--activation-func-clamp-value", CLAMP),
            option("--glu-linear-offset", LINEAR_OFFSET),
        )
    if model.gated_mlp:
        return (switch("--swiglu"),)
    if model.activation == "squared-relu":
        # The fused bias kernel knows gelu and gated silu only.
        return (switch("--squared-relu"), switch("--no-bias-gelu-fusion"))
    return () if model.linear_bias == "all" else (switch("--no-bias-gelu-fusion"),)


def _norms_and_biases(model: ModelSpec) -> Arguments:
    arguments = [option("--normalization", "RMSNorm" if model.normalization == "rms" else "LayerNorm")]
    if model.constants.zero_centered_norms:
        arguments.append(switch("--apply-layernorm-1p"))
    everywhere = model.linear_bias == "all" or (model.moe is not None and model.moe.expert_bias)
    if not everywhere:
        arguments.append(switch("--disable-bias-linear"))
        if model.linear_bias == "qkv":
            arguments.append(switch("--add-qkv-bias"))
    return tuple(arguments)


def _positions_and_vocabulary(model: ModelSpec, version: str) -> Arguments:
    arguments = [option("--position-embedding-type", position_kind(model, version))]
    if not model.tied_embeddings:
        arguments.append(switch("--untie-embeddings-and-output-weights"))
    arguments.append(option("--make-vocab-size-divisible-by", VOCAB_MULTIPLE))
    if model.mtp_num_layers:
        arguments.append(option("--mtp-num-layers", model.mtp_num_layers))
    if model.repeated_prediction:
        arguments.append(switch("--mtp-use-repeated-layer"))
    return tuple(arguments)
