"""What a Hugging Face configuration says beside the sizes: numbers for launch files, and what is refused.

A field that changes the network and that no `ModelSpec` holds is refused, so that no other network is planned
in its place. Names and defaults are those of transformers 5 (Apache-2.0), `models/*/configuration_*.py` and
`modeling_rope_utils.py`; before version 5, `rope_theta` and `rope_scaling` stood apart.
"""

from __future__ import annotations

from typing import Any

from planner.data import hf_linear
from planner.data.hf_hybrid import LETTER_OF_TYPE, unknown_layers
from planner.data.hf_routed import leading_dense
from planner.errors import InstanceError

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

_BASES = {"mixtral": 1_000_000, "gpt_oss": 150_000, "solar_open": 1_000_000, "bailing_moe_v2": 600_000}
"""Rotary bases of families whose default is not 10,000."""
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
}
"""What norms add to the variance, of families whose default is not 1e-6."""
_GROUPS = {"deepseek_v3": (8, 4), "kimi_k2": (8, 4), "bailing_moe_v2": (8, 4)}
"""Groups of experts and how many a token visits, by default."""


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Llama 3.1 and 3.2 publish, the only ones that launchers know."""


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
            raise _not_described(field, config[field], f"{told} of model_type {family!r}", where)
    if config.get("mlp_bias") and not (family == "llama" and config.get("attention_bias")):
        told = "False, or True beside attention_bias of model_type 'llama'"
        raise _not_described("mlp_bias", config["mlp_bias"], told, where)
    dense = config.get("mlp_only_layers") or []
    if dense and (dense != list(range(len(dense))) or config.get("decoder_sparse_step", 1) != 1):
        raise _not_described("mlp_only_layers", dense, "leading layers with decoder_sparse_step 1", where)
    if family == "nemotron_h" and (strange := unknown_layers(config)) is not None:
        raise _not_described(*strange, f"layers of {', '.join(LETTER_OF_TYPE)}", where)
    if "mlp_layer_types" in config and leading_dense(config) is None:
        raise _not_described("mlp_layer_types", "of this order", "leading dense layers, then sparse", where)
    window, whole = config.get("sliding_window"), config.get("max_window_layers", 62)
    if family == "dots1" and window and whole < config.get("num_hidden_layers", 0):
        raise _not_described("max_window_layers", whole, "as many as num_hidden_layers", where)
    kinds = config.get("layer_types")
    if kinds is not None and family in hf_linear.FAMILIES:
        if strange_kinds := sorted({str(kind) for kind in kinds} - {*hf_linear.KNOWN}):
            raise _not_described("layer_types", strange_kinds[0], " and ".join(hf_linear.KNOWN), where)
    elif kinds is not None and len(set(kinds)) > 1 and family not in ("gpt_oss", "nemotron_h"):
        raise _not_described("layer_types", sorted(set(kinds)), "layers of one kind", where)
    if kinds is not None and family == "gpt_oss":
        alternating = [("sliding_attention", "full_attention")[i % 2] for i in range(len(kinds))]
        if kinds != alternating:
            raise _not_described(
                "layer_types", "of another order", "sliding and full attention in turn", where
            )


def _not_described(field: str, value: object, known: str, where: str) -> InstanceError:
    return InstanceError(
        f"{field} {value!r} cannot be described, only {known}; a model file of your own can say what comes "
        "closest (`hetplan schema model`)",
        where,
    )


def constants(config: Config, where: str) -> Config:
    """Fields of `ModelConstants`: epsilon of norms, rotary positions, weights of experts."""
    family = str(config["model_type"])
    fields: Config = {"norm_epsilon": _epsilon(config, family)}
    if family in {*hf_linear.FAMILIES, "nemotron"}:
        fields["zero_centered_norms"] = True
    if family not in ("gpt2", "nemotron_h"):  # which have no rotary positions
        fields |= _positions(config, family, where)
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


_YARN = {
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "original_max_position_embeddings": "original_length",
    "truncate": "whole_dimensions",
}
"""Numbers of YaRN that are read, and what we call them."""

_POSITIONS = {
    "gpt_oss": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
}
"""How positions are stretched where a configuration does not say, by family; in others they are not."""


def _positions(config: Config, family: str, where: str) -> Config:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or _POSITIONS.get(family, {})
    if not isinstance(rope, dict):
        raise InstanceError(f"rope_scaling: must be a mapping, got {rope!r}", where)
    base = _said_once(config, ("rope_theta", "rotary_emb_base"), rope, where)
    share = _said_once(config, ("partial_rotary_factor", "rotary_pct"), rope, where)
    base = _BASES.get(family, 10_000) if base is None else base
    defaults = {"glm4_moe": 0.5, "gpt_neox": 0.25, "nemotron": 0.5, **dict.fromkeys(hf_linear.FAMILIES, 0.25)}
    fields: Config = {
        "rotary_base": int(base) if isinstance(base, float) and base.is_integer() else base,
        "rotary_fraction": defaults.get(family) if share is None else share,
    }
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    if kind == "llama3":
        for name, value in _LLAMA3.items():
            if rope.get(name, value) != value:
                raise _not_described(name, rope[name], f"{value:g} of rope_type 'llama3'", where)
    if kind == "yarn" and rope.get("mscale_all_dim") and not rope.get("mscale"):
        # It scales attention alone then, and the rotation by YaRN's usual factor: Megatron has one for both.
        raise _not_described("mscale_all_dim", rope["mscale_all_dim"], "beside mscale", where)
    if kind == "yarn" and rope.get("attention_factor") is not None:
        raise _not_described("attention_factor", rope["attention_factor"], "the one that follows", where)
    if kind != "default":
        fields["rotary_scaling"] = {
            "kind": {"su": "longrope"}.get(kind, kind),
            "factor": rope.get("factor", 1.0),
            **{ours: rope[name] for name, ours in _YARN.items() if rope.get(name) is not None},
        }
    if kind == "yarn" and "qk_rope_head_dim" not in config:  # DeepSeek's own code has a length of its own
        fields["rotary_scaling"] |= _first_length(config, rope)
    return fields


def _said_once(config: Config, names: tuple[str, str], rope: Config, where: str) -> Any:
    """A number that may stand in the configuration, under an old name too, or among its rotary positions.

    Releases of transformers before and since 5 take one or the other, so that both must be the same.
    """
    told = [(name, config[name]) for name in names if name in config]
    if rope.get(names[0]) is not None:
        told.append((f"{names[0]} of its positions", rope[names[0]]))
    if any(value != told[0][1] for _, value in told):
        both = ", ".join(f"{name} {value!r}" for name, value in told)
        raise InstanceError(f"{names[0]} is said twice: {both}; make them alike", where)
    return told[0][1] if told else None


def _first_length(config: Config, rope: Config) -> Config:
    """Length of the first training, and the factor that follows where none is said.

    As transformers 5 standardizes them: a field of the configuration itself goes first, the longest sequence
    stands in where none is said (`modeling_rope_utils.py`).
    """
    longest = config["max_position_embeddings"]
    told = config.get("original_max_position_embeddings", rope.get("original_max_position_embeddings"))
    length = longest if told is None else told
    implied = longest / length if isinstance(length, int) and length > 0 else 1.0
    factor = rope.get("factor")
    return {"original_length": length, "factor": implied if factor is None else factor}


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
