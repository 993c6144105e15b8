"""What a Hugging Face configuration says beside the sizes: numbers for launch files, and what is refused.

A field that changes the network and that no `ModelSpec` holds is refused, so that no other network is planned
in its place. Names and defaults are those of transformers 5 (Apache-2.0), `models/*/configuration_*.py` and
`modeling_rope_utils.py`.
"""

from __future__ import annotations

from typing import Any

from planner.data.hf import linear as hf_linear
from planner.data.hf.hybrid import LETTER_OF_TYPE, unknown_layers
from planner.data.hf.parts import not_described
from planner.data.hf.positions import positions
from planner.data.hf.routed import leading_dense

Config = dict[str, Any]

_ACTIVATIONS = {
    "gpt2": ("activation_function", ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")),
    "gpt_neox": ("hidden_act", ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")),
    "starcoder2": ("hidden_act", ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast")),
    "nemotron": ("hidden_act", ("relu2",)),
    "nemotron_h": ("mlp_hidden_act", ("relu2",)),
    "arcee": ("hidden_act", ("relu2",)),
}
"""Field of the activation and the ones that we describe, by family; others have a gated SiLU."""

_NO_BIAS: dict[str, tuple[object, ...]] = {"attention_bias": (False,)}
_LATENT = {**_NO_BIAS, "rope_interleave": (True,)}
_SIGMOID: dict[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,), "scoring_func": ("sigmoid",), "norm_topk_prob": (True,),
}  # fmt: skip
_DEEPSEEK = {**_LATENT, **_SIGMOID}
_FIXED: dict[str, dict[str, tuple[object, ...]]] = {
    "gpt2": {
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    "gpt_neox": {"use_parallel_residual": (False,), "attention_bias": (True,)},
    "mistral": _NO_BIAS,
    "mixtral": _NO_BIAS,
    "phi3": _NO_BIAS,
    "nemotron": _NO_BIAS,
    "seed_oss": {"attention_out_bias": (False,)},
    "smollm3": {**_NO_BIAS, "use_sliding_window": (False,)},
    "ernie4_5": {"use_bias": (False,)},
    "starcoder2": {"use_bias": (True,)},
    "qwen2": {"use_sliding_window": (False,)},
    "qwen3": {"use_sliding_window": (False,)},
    "qwen2_moe": {"use_sliding_window": (False,), "qkv_bias": (True,)},
    "qwen3_moe": {"use_sliding_window": (False,), "shared_expert_intermediate_size": (0,)},
    "deepseek_v2": {**_DEEPSEEK, "scoring_func": ("softmax",), "norm_topk_prob": (False,)},
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "glm4_moe": {"norm_topk_prob": (True,)},
    "glm4_moe_lite": _DEEPSEEK,
    "solar_open": {"norm_topk_prob": (True,)},
    "dots1": {**_NO_BIAS, **_SIGMOID, "scoring_func": ("sigmoid", "noaux_tc")},
    "bailing_moe_v2": {
        **_SIGMOID,
        "use_bias": (False,),
        "score_function": ("sigmoid",),
        "moe_router_enable_expert_bias": (True,),
        "embedding_dropout": (0, 0.0),
        "output_dropout": (0, 0.0),
    },
    "youtu": _LATENT,
    "nemotron_h": {
        **_NO_BIAS,
        "use_bias": (False,),
        "use_conv_bias": (True,),
        "mamba_hidden_act": ("silu", "swish"),
        "norm_topk_prob": (True,),
    },
    **{family: {**_NO_BIAS, "attn_output_gate": (True,)} for family in hf_linear.FAMILIES},
    "gpt_oss": {"swiglu_limit": (7.0,), "swiglu_alpha": (1.702,), "attention_bias": (True,)},
}
"""Values that fields must have where they are given, by family."""

_NOT_DESCRIBED_BY_DEFAULT: dict[str, Config] = {
    "gpt_neox": {"use_parallel_residual": True},
    "dots1": {"norm_topk_prob": False},
}
"""Fields whose default is one that we cannot describe."""

_EPSILONS = {
    "mixtral": 1e-5,
    "phi3": 1e-5,
    "arcee": 1e-5,
    "glm4_moe": 1e-5,
    "glm4_moe_lite": 1e-5,
    "solar_open": 1e-5,
    "gpt_oss": 1e-5,
    "gpt2": 1e-5,
    "gpt_neox": 1e-5,
    "nemotron": 1e-5,
    "nemotron_h": 1e-5,
    "starcoder2": 1e-5,
    "ernie4_5": 1e-5,
}
"""What norms add to the variance, of families whose default is not 1e-6."""
_LATENT_EPSILON = 1e-6
"""What norms inside latent attention add, whatever the others do."""
_GROUPS = {"deepseek_v3": (8, 4), "kimi_k2": (8, 4), "bailing_moe_v2": (8, 4)}
"""Groups of experts and how many a token visits, by default."""


def refuse_what_is_not_described(config: Config, where: str) -> None:
    """Stop at a field that makes another network than a `ModelSpec` of the family says.

    Raises
    ------
    InstanceError
        Names field, value and what is described.
    """
    family = str(config["model_type"])
    name, known = _ACTIVATIONS.get(family, ("hidden_act", ("silu", "swish")))
    fixed: dict[str, tuple[object, ...]] = {name: known, **_FIXED.get(family, {})}
    config = {**_NOT_DESCRIBED_BY_DEFAULT.get(family, {}), **config}
    for field, values in fixed.items():
        if field in config and config[field] not in values:
            told = " or ".join(repr(value) for value in values)
            raise not_described(field, config[field], f"{told} of model_type {family!r}", where)
    if config.get("mlp_bias") and not (family == "llama" and config.get("attention_bias")):
        told = "False, or True beside attention_bias of model_type 'llama'"
        raise not_described("mlp_bias", config["mlp_bias"], told, where)
    dense = config.get("mlp_only_layers") or []
    if dense and (dense != list(range(len(dense))) or config.get("decoder_sparse_step", 1) != 1):
        raise not_described("mlp_only_layers", dense, "leading layers with decoder_sparse_step 1", where)
    if family == "nemotron_h" and (strange := unknown_layers(config)) is not None:
        raise not_described(*strange, f"layers of {', '.join(LETTER_OF_TYPE)}", where)
    if "mlp_layer_types" in config and leading_dense(config) is None:
        raise not_described("mlp_layer_types", "of this order", "leading dense layers, then sparse", where)
    window, whole = config.get("sliding_window"), config.get("max_window_layers", 62)
    if family == "dots1" and window and whole < config.get("num_hidden_layers", 0):
        raise not_described("max_window_layers", whole, "as many as num_hidden_layers", where)
    kinds = config.get("layer_types")
    if kinds is not None and family in hf_linear.FAMILIES:
        if strange_kinds := sorted({str(kind) for kind in kinds} - {*hf_linear.KNOWN}):
            raise not_described("layer_types", strange_kinds[0], " and ".join(hf_linear.KNOWN), where)
    elif kinds is not None and len(set(kinds)) > 1 and family not in ("gpt_oss", "nemotron_h"):
        raise not_described("layer_types", sorted(set(kinds)), "layers of one kind", where)
    if kinds is not None and family == "gpt_oss":
        alternating = [("sliding_attention", "full_attention")[i % 2] for i in range(len(kinds))]
        if kinds != alternating:
            raise not_described(
                "layer_types", "of another order", "sliding and full attention in turn", where
            )


def constants(config: Config, where: str) -> Config:
    """Fields of `ModelConstants`: epsilon of norms, rotary positions, weights of experts."""
    family = str(config["model_type"])
    fields: Config = {"norm_epsilon": _epsilon(config, family)}
    if "kv_lora_rank" in config and fields["norm_epsilon"] != _LATENT_EPSILON:
        fields["latent_norm_epsilon"] = _LATENT_EPSILON
    if family in {*hf_linear.FAMILIES, "nemotron"}:
        fields["zero_centered_norms"] = True
    if family not in ("gpt2", "nemotron_h"):  # which have no rotary positions
        fields |= positions(config, family, where)
    if "num_experts_per_tok" in config:
        fields |= _routing(config, family)
    return fields


_EPSILON_FIELD = {
    "gpt2": "layer_norm_epsilon",
    "gpt_neox": "layer_norm_eps",
    "nemotron": "norm_eps",
    "nemotron_h": "layer_norm_epsilon",
    "starcoder2": "norm_epsilon",
}
"""The field that a family's norms read, where it is not `rms_norm_eps`; files may state several."""


def _epsilon(config: Config, family: str) -> object:
    names = (
        _EPSILON_FIELD.get(family, "rms_norm_eps"),
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
    )
    return next((config[name] for name in names if name in config), _EPSILONS.get(family, 1e-6))


def _routing(config: Config, family: str) -> Config:
    groups, visited = _GROUPS.get(family, (None, None))
    groups, visited = config.get("n_group", groups), config.get("topk_group", visited)
    by_default = {"deepseek_v2": 1.0, "deepseek_v3": 2.5, "glm4_moe_lite": 1.8}
    fields: Config = {
        "routed_scale": config.get("routed_scaling_factor", by_default.get(family)),
        # Mixtral's and gpt-oss' weights always sum to 1, those of the others where norm_topk_prob says so.
        "softmax_over_all": (
            family in ("qwen2_moe", "qwen3_moe", "deepseek_v2") and not config.get("norm_topk_prob", False)
        )
        or (family == "qwen3_next" and not config.get("norm_topk_prob", True)),
    }
    method = config.get("topk_method", "greedy" if family == "deepseek_v2" else "noaux_tc")
    if groups is not None and visited is not None and groups > 1 and method != "greedy":
        # DeepSeek-V2 weighs a group by its best expert, the others by the sum of its best two.
        best = 1 if family == "deepseek_v2" else 2
        fields |= {"expert_groups": groups, "groups_visited": visited, "group_experts": best}
    return fields
