"""A model from the `config.json` that Hugging Face's transformers keeps beside the weights.

Only families whose layers a `ModelSpec` describes exactly are read; any other is refused by name. Fields and
their defaults are those of transformers 5 (Apache-2.0), `models/*/configuration_*.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.data.explain import validated
from planner.data.hf import hybrid as hf_hybrid
from planner.data.hf import linear as hf_linear
from planner.data.hf import routed as hf_routed
from planner.data.hf.common import arcee, common, gpt2, gpt_neox, nemotron, seed_oss, starcoder2
from planner.data.hf.constants import constants, refuse_what_is_not_described
from planner.data.hf.parts import WHY_NOT, text_part
from planner.data.model_spec import ModelSpec
from planner.errors import InstanceError

Config = dict[str, Any]


def is_hf_config(values: object) -> bool:
    """Whether the values of a JSON file are such a configuration."""
    return isinstance(values, dict) and "model_type" in values and "schema" not in values


def model_from_hf_config(config: Config, path: Path) -> ModelSpec:
    """The model that a configuration describes, named after the folder that it lies in.

    Raises
    ------
    InstanceError
        Where the family is none that we describe, or a field is missing.
    """
    where = str(path)
    named = str(config.get("_name_or_path") or path.resolve().parent.name)
    name = re.sub(r"[^a-z0-9.\-]+", "-", named.rpartition("/")[2].lower())
    config, left_out = text_part(config, where)
    family = str(config["model_type"])
    if family not in _FAMILIES:
        raise InstanceError(
            f"model_type {family[:60]!r} cannot be read{_why(family)}; a model file of your own can describe "
            "others, or what comes closest (`hetplan schema model`)",
            where,
        )
    # What is left out is the family's default; null is none, as transformers takes it.
    config = {**_DEFAULTS.get(family, {}), **config}
    config = {name: value for name, value in config.items() if value is not None}
    _check_types(config, where)
    refuse_what_is_not_described(config, where)
    try:
        fields = {**_FAMILIES[family](config), "constants": constants(config, where)}
    except KeyError as error:
        raise InstanceError(f"{error.args[0]} is missing, which model_type {family!r} needs", where) from None
    given = {"id": name.strip("-.") or family.replace("_", "-"), "family": family, "source": where}
    return validated(ModelSpec, {**given, **fields, "left_out": left_out}, where)


def _why(family: str) -> str:
    """Why a family is not read, or which ones are."""
    return f": {WHY_NOT[family]}" if family in WHY_NOT else f"; known are {', '.join(sorted(_FAMILIES))}"


_SIZES = {
    "hidden_size", "moe_intermediate_size", "n_embd", "n_head", "num_attention_heads", "num_hidden_layers",
    "qk_nope_head_dim",
    "qk_rope_head_dim", "kv_lora_rank", "v_head_dim", *hf_hybrid.SIZES, *hf_linear.SIZES,
}  # fmt: skip
"""Fields that we reckon with before the model is checked as a whole."""
_COUNTS = {
    "decoder_sparse_step", "first_k_dense_replace", "head_dim", "max_position_embeddings",
    "max_window_layers", "n_inner", "no_rope_layer_interval",
    "num_key_value_heads", "num_mtp_layers", "num_nextn_predict_layers",
    "q_lora_rank", "shared_expert_intermediate_size", "sliding_window", "mtp_num_hidden_layers",
    *hf_routed.COUNTS,
}  # fmt: skip
"""The same of numbers that may be 0, as some families write for none."""
_FLAGS = {
    "attention_bias", "mlp_bias", "norm_topk_prob", "qkv_bias", "rope_interleave", "tie_word_embeddings",
    "use_bias", "use_qk_norm", "use_qkv_bias", "use_sliding_window",
}  # fmt: skip
"""Fields that are true or false; text would count as true whatever it says."""
_LISTS = {"layer_types", "mlp_layer_types", "mlp_only_layers"}
_MOST = 10**9
"""More than any size of a model; beyond it a number is a slip."""


def _check_types(config: Config, where: str) -> None:
    """Refuse a value of another type than its field has."""
    for field, value in config.items():
        least = 1 if field in _SIZES else 0
        if field in _SIZES | _COUNTS and (type(value) is not int or value < least):
            told = f"must be a whole number {'above 0' if least else 'from 0 on'}"
        elif field in _SIZES | _COUNTS and value > _MOST:
            told = f"must be at most {_MOST:,}"
        elif field in _FLAGS and not isinstance(value, bool):
            told = "must be true or false"
        elif field in _LISTS and not isinstance(value, list):
            told = "must be a list"
        else:
            continue
        raise InstanceError(f"{field}: {told}, got {str(value)[:60]!r}", where)


_DEFAULTS: dict[str, Config] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "qwen2_moe": {"num_key_value_heads": 16, "shared_expert_intermediate_size": 5632},
    "qwen3_moe": {"num_key_value_heads": 4},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    "starcoder2": {"num_key_value_heads": 2},
    "smollm3": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "ernie4_5": {"num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True},
    "nemotron_h": hf_hybrid.DEFAULTS,
    **hf_linear.DEFAULTS,
    **hf_routed.DEFAULTS,
}
"""Sizes that a family has where none is said, if they are not what `common` takes."""


def _qwen2(config: Config) -> Config:
    return {**common(config), "linear_bias": "qkv"}


def _qwen3(config: Config) -> Config:
    return {**common(config), "qk_norm": True}


def _mixtral(config: Config) -> Config:
    moe = {
        "num_experts": config["num_local_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn_hidden_size": config["intermediate_size"],
    }
    return {**common(config), **_window(config), "moe": moe}


def _windowed(config: Config) -> Config:
    return {**common(config), **_window(config)}


def _window(config: Config) -> Config:
    """A window of all layers, where it is shorter than the longest sequence."""
    window = config.get("sliding_window")
    return {"sliding_window": window} if window and window < config["max_position_embeddings"] else {}


def _qwen_experts(config: Config) -> Config:
    moe = {
        "num_experts": config["num_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn_hidden_size": config["moe_intermediate_size"],
        "shared_ffn_hidden_size": config.get("shared_expert_intermediate_size") or 0,
        "shared_expert_gate": bool(config.get("shared_expert_intermediate_size")),
        "first_dense_layers": len(config.get("mlp_only_layers") or ()),
        "layer_freq": config.get("decoder_sparse_step", 1),
    }
    base = _qwen2(config) if config["model_type"] == "qwen2_moe" else _qwen3(config)
    return {**base, "moe": moe}


def _qwen_linear(config: Config) -> Config:
    base = _qwen_experts(config) if "num_experts" in config else _qwen3(config)
    return {**base, **hf_linear.linear_layers(config)}


def _gpt_oss(config: Config) -> Config:
    moe = {
        "num_experts": config["num_local_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn_hidden_size": config["intermediate_size"],
        "router_bias": True,
        "expert_bias": True,
    }
    return {
        **common(config),
        "activation": "swiglu-clamped",
        "linear_bias": "attention",
        "attention_sinks": True,
        "sliding_window": config["sliding_window"],
        "global_layer_every": 2,
        "moe": moe,
    }


def _starcoder2(config: Config) -> Config:
    return {**starcoder2(config), **_window(config)}


def _nemotron_h(config: Config) -> Config:
    # Its file need not count its layers, nor say how wide feed-forward layers would be that it has not.
    return {
        **common({"num_hidden_layers": 1, "intermediate_size": 0, **config}),
        **hf_hybrid.nemotron_h(config),
    }


_FAMILIES: dict[str, Callable[[Config], Config]] = {
    "llama": common,
    "mistral": _windowed,
    "phi3": _windowed,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_experts,
    "qwen3_moe": _qwen_experts,
    "arcee": arcee,
    "smollm3": common,
    "ernie4_5": common,
    "gpt_oss": _gpt_oss,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "seed_oss": seed_oss,
    "starcoder2": _starcoder2,
    "nemotron": nemotron,
    "nemotron_h": _nemotron_h,
    **hf_routed.FAMILIES,
    **dict.fromkeys(sorted(hf_linear.FAMILIES), _qwen_linear),
}
"""Fields of the model, by the `model_type` of the configuration."""
