"""The network in Megatron-Bridge: a named recipe where there is one, else the fields of a model provider.

Names of recipes and fields are those of the wheels megatron-bridge 0.6.2 and megatron-core 0.19.2;
tests hold every name written here against a list read from them.
"""

from __future__ import annotations

from planner.data.load import load_model, names
from planner.data.model_spec import WITH_EXPERTS, ModelSpec
from planner.data.scores import balances_by_bias
from planner.data.stack import SoftwareStack
from planner.launchers.bridge.hybrid import PLAIN_SOFTMAX, hybrid_fields
from planner.launchers.megatron.layer_lists import layer_list
from planner.launchers.megatron.linear_attention import linear_fields
from planner.launchers.megatron.model import VOCAB_MULTIPLE, position_kind
from planner.launchers.megatron.rotary_positions import has_rotary_positions, stretching_fields
from planner.launchers.model_constants import (
    norm_epsilon,
    rotary_base,
    rotated_layers,
    rotated_share,
    routing_arguments,
)
from planner.rules.versions import NEWEST

RECIPES: dict[str, tuple[str, str]] = {
    model: (f"megatron.bridge.recipes.{family}", f"{name}_pretrain_config")
    for model, family, name in (
        ("llama2-7b", "llama", "llama2_7b"),
        ("llama3-8b", "llama", "llama3_8b"),
        ("llama3-70b", "llama", "llama3_70b"),
        ("llama3.1-405b", "llama", "llama31_405b"),
        ("qwen2.5-7b", "qwen", "qwen25_7b"),
        ("qwen2.5-32b", "qwen", "qwen25_32b"),
        ("qwen2.5-72b", "qwen", "qwen25_72b"),
        ("qwen3-8b", "qwen", "qwen3_8b"),
        ("qwen3-32b", "qwen", "qwen3_32b"),
        ("qwen3-30b-a3b", "qwen", "qwen3_30b_a3b"),
        ("qwen3-235b-a22b", "qwen", "qwen3_235b_a22b"),
        ("deepseek-v2-lite", "deepseek", "deepseek_v2_lite"),
        ("deepseek-v3", "deepseek", "deepseek_v3"),
        ("kimi-k2", "kimi", "kimi_k2"),
        ("glm-4.5", "glm", "glm45_355b"),
        ("glm-4.5-air", "glm", "glm45_air_106b"),
        ("gpt-oss-20b", "gpt_oss", "gpt_oss_20b"),
        ("gpt-oss-120b", "gpt_oss", "gpt_oss_120b"),
    )
}
"""Module and function of the pre-training recipe of a shipped model, by our name of the model."""

BARE_RECIPE = ("megatron.bridge.recipes.gpt", "vanilla_gpt_pretrain_config")
"""A recipe without any choice of its own, on which a model without a recipe is put."""

Fields = dict[str, str]
"""Field of the model provider -> its value as Python text."""

_NOT_OF_THE_NETWORK = {
    "family", "attention_note", "max_position_embeddings", "published_params", "verified", "source", "note",
    "moe",
}  # fmt: skip
"""Fields of a model file that no recipe of a network with rotary positions depends on, and what is compared
field by field."""
_OVERRIDDEN = {"capacity_factor", "pad_to_capacity"}
"""Fields of experts that overrides state whatever a recipe has."""

LAYER_SPEC = "partial(get_gpt_decoder_block_spec, use_transformer_engine=True)"
"""Layers as Megatron-LM builds them: each of its own kind, with latent attention where the model has it."""

LINEAR_LAYER_SPEC = "get_transformer_block_with_experimental_attention_variant_spec"
"""The same with linear attention in some layers."""

MODULE_OF = {
    LAYER_SPEC: "megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec",
    LINEAR_LAYER_SPEC: "megatron.core.models.gpt.experimental_attention_variant_module_specs import "
    f"(\n    {LINEAR_LAYER_SPEC},\n)",
}
"""Where layers come from, as a recipe imports them."""


def recipe_of(model: ModelSpec) -> tuple[str, str] | None:
    """Module and function of the recipe that trains this very network; None where there is none.

    A model of one's own may bear the name of a shipped one: only the same network is trained by its recipe.
    """
    if model.id not in RECIPES or model.id not in names("models"):
        return None
    return RECIPES[model.id] if _network(model) == _network(load_model(model.id)) else None


def _network(model: ModelSpec) -> tuple[dict[str, object], dict[str, object]]:
    experts = model.moe.model_dump(exclude=_OVERRIDDEN) if model.moe is not None else {}
    return model.model_dump(exclude=_NOT_OF_THE_NETWORK), experts


def shape_fields(model: ModelSpec) -> Fields:
    """The sizes of the network that a recipe must agree with."""
    fields: dict[str, object] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "share_embeddings_and_output_weights": model.tied_embeddings,
    }
    if model.ffn_hidden_size:
        fields["ffn_hidden_size"] = model.ffn_hidden_size
    if model.mla is None:
        fields["num_query_groups"] = model.num_query_groups
        if model.head_dim * model.num_attention_heads != model.hidden_size:  # else recipes leave it open
            fields["kv_channels"] = model.head_dim
    else:
        fields |= {
            "q_lora_rank": model.mla.q_lora_rank,
            "kv_lora_rank": model.mla.kv_lora_rank,
            "qk_head_dim": model.mla.qk_nope_head_dim,
            "qk_pos_emb_head_dim": model.mla.qk_rope_head_dim,
            "v_head_dim": model.mla.v_head_dim,
        }
    if model.moe is not None:
        fields |= {
            "num_moe_experts": model.moe.num_experts,
            "moe_router_topk": model.moe.top_k,
            "moe_ffn_hidden_size": model.moe.ffn_hidden_size,
        }
        if model.moe.shared_ffn_hidden_size:
            fields["moe_shared_expert_intermediate_size"] = model.moe.shared_ffn_hidden_size
        if len(model.layer_kinds) > 1 and model.hybrid is None:
            fields["moe_layer_freq"] = _layers_with_experts(model)
    if model.mtp_num_layers:
        fields["mtp_num_layers"] = model.mtp_num_layers
    return {name: repr(value) for name, value in fields.items()}


def kernels(model: ModelSpec, stack: SoftwareStack) -> dict[str, object]:
    """How the network runs, as Megatron-LM has it unless told otherwise and as the plan is priced.

    Recipes and providers of 0.6.2 have it otherwise for some networks, which keeps more in memory: a gated
    unit of its own kernels (Qwen) keeps the activation beside what the fused one recomputes from; what a
    stage has sent on is kept until its backward, and gradients are made before they are added (latent
    attention); CUDA graphs (Qwen3-30B-A3B) hold buffers of their own for every micro-batch in flight.
    """
    if model.gated_mlp and model.activation != "swiglu-clamped":
        activation = True
    else:
        everywhere = model.linear_bias == "all" or (model.moe is not None and model.moe.expert_bias)
        activation = model.activation != "squared-relu" and everywhere
    fields: dict[str, object] = {
        "bias_activation_fusion": activation,
        "bias_dropout_fusion": True,
        "gradient_accumulation_fusion": stack.gradient_accumulation_fusion,
        "deallocate_pipeline_outputs": True,
    }
    if model.mla is not None and has_rotary_positions(model):
        fields["apply_rope_fusion"] = stack.fused_latent_rotary
    elif position_kind(model, NEWEST) == "rope":
        fields["apply_rope_fusion"] = True
    if stack.host_layer_floor_ms > 0 and not stack.captured_modules:
        fields["cuda_graph_impl"] = "none"
    return fields


def provider_fields(model: ModelSpec, grouped_gemm: bool) -> Fields:
    """All fields of the provider of a model without a recipe."""
    ffn = model.ffn_hidden_size or (model.moe.ffn_hidden_size if model.moe is not None else 0)
    fields = {
        **shape_fields(model),
        "ffn_hidden_size": repr(ffn),
        "kv_channels": repr(model.head_dim),
        "vocab_size": repr(model.vocab_size),
        "should_pad_vocab": "True",
        "make_vocab_size_divisible_by": repr(VOCAB_MULTIPLE),
        "attention_dropout": "0.0",
        "hidden_dropout": "0.0",
        "bias_dropout_fusion": "True",
        "persist_layer_norm": "True",
        "normalization": repr("RMSNorm" if model.normalization == "rms" else "LayerNorm"),
        "position_embedding_type": repr(position_kind(model, NEWEST)),
        **_biases(model),
        **_activation(model),
        **_attention(model),
    }
    if model.mtp_num_layers:
        fields["mtp_enabled"] = "True"
    if model.hybrid is not None:
        fields |= hybrid_fields(model.hybrid)
    elif model.linear_attention is not None:
        fields |= linear_fields(model) | {"transformer_layer_spec": LINEAR_LAYER_SPEC}
    elif model.mla is not None or model.moe is not None:
        # The provider's own layers are all alike: each with experts, none with latent attention.
        fields["transformer_layer_spec"] = LAYER_SPEC
    return fields | _constants(model) | _experts(model, grouped_gemm)


def _constants(model: ModelSpec) -> Fields:
    """What costs neither time nor memory; the fields are named otherwise than Megatron-LM's flags."""
    fields = {"layernorm_epsilon": repr(norm_epsilon(model))}
    if model.constants.zero_centered_norms:
        fields["layernorm_zero_centered_gamma"] = "True"
    if has_rotary_positions(model):
        fields["rotary_base"] = repr(rotary_base(model))
        fields |= stretching_fields(model, NEWEST)
    for argument in (*rotated_share(model), *rotated_layers(model), *routing_arguments(model)):
        name = argument.flag.removeprefix("--").replace("-", "_")
        fields[name] = _as_python(argument.values[0]) if argument.values else "True"
    return fields


def _as_python(word: str) -> str:
    """A word of a command line as Python text: a number as it stands, a list written out, else a string."""
    if word.startswith("("):
        return repr(layer_list(word))
    try:
        float(word)
    except ValueError:
        return repr(word)
    return word


def _biases(model: ModelSpec) -> Fields:
    everywhere = model.linear_bias == "all" or (model.moe is not None and model.moe.expert_bias)
    fields = {"add_bias_linear": repr(everywhere)}
    if model.linear_bias == "qkv" and not everywhere:
        fields["add_qkv_bias"] = "True"
    return fields


def _activation(model: ModelSpec) -> Fields:
    fields = {"gated_linear_unit": repr(model.gated_mlp)}
    if model.activation == "swiglu-clamped":
        # As --quick-geglu of Megatron-LM, with the clamp and offset of gpt-oss.
        return fields | {
            "activation_func": "quick_gelu",
            "activation_func_clamp_value": "7.0",
            "glu_linear_offset": "1.0",
        }
    if model.gated_mlp:
        return fields | {"activation_func": "torch.nn.functional.silu"}
    if model.activation == "squared-relu":
        return fields | {"activation_func": "squared_relu"}
    return fields | {"activation_func": "torch.nn.functional.gelu"}


def _attention(model: ModelSpec) -> Fields:
    fields: Fields = {"attention_output_gate": "True"} if model.output_gate else {}
    if model.qk_norm or model.mla is not None:
        fields["qk_layernorm"] = "True"
    if model.mla is not None:
        fields |= {"multi_latent_attention": "True", **PLAIN_SOFTMAX}
    if model.attention_sinks:
        fields["softmax_type"] = repr("learnable")
    if model.sliding_window is not None:
        fields["window_size"] = repr((model.sliding_window - 1, 0))
        if model.global_layer_every > 1:
            fields["window_attn_skip_freq"] = repr(model.global_layer_every)
    return fields


def _experts(model: ModelSpec, grouped_gemm: bool) -> Fields:
    moe = model.moe
    if moe is None:
        return {}
    of_layers = {} if model.hybrid is not None else {"moe_layer_freq": repr(_layers_with_experts(model))}
    fields = {
        **of_layers,
        "moe_token_dispatcher_type": repr("alltoall"),
        "moe_router_dtype": repr("fp32"),
        "moe_permute_fusion": "True",
        "moe_grouped_gemm": repr(grouped_gemm),
    }
    if moe.shared_expert_gate:
        fields["moe_shared_expert_gate"] = "True"
    if balances_by_bias(model):
        fields |= {
            "moe_router_enable_expert_bias": "True",
            "moe_router_load_balancing_type": repr("seq_aux_loss"),
            "moe_aux_loss_coeff": "1e-4",
        }
    else:
        fields |= {"moe_router_load_balancing_type": repr("aux_loss"), "moe_aux_loss_coeff": "1e-2"}
    return fields


def _layers_with_experts(model: ModelSpec) -> list[int]:
    """1 for a layer with experts, 0 for a dense one, in model order."""
    return [int(kind in WITH_EXPERTS) for kind in model.kind_of_layer]
