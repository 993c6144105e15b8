"""Families whose experts are named as DeepSeek names them, from a Hugging Face `config.json`.

Shared experts, leading dense layers, scores balanced by a bias. Fields and defaults are those of
transformers 5 (Apache-2.0), `models/*/configuration_*.py`, and for Ling and Ring of
`configuration_bailing_moe_v2.py` beside their weights, which megatron-bridge 0.6.2 (Apache-2.0) carries too.
"""

from __future__ import annotations

from typing import Any

from planner.data.hf.common import common

Config = dict[str, Any]

_APART: Config = {"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3}
DEFAULTS: dict[str, Config] = {
    "deepseek_v2": {**_APART, "n_shared_experts": 2, "first_k_dense_replace": 0},
    "deepseek_v3": _APART,
    "glm4_moe": {"num_key_value_heads": 8, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "glm4_moe_lite": {
        "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "v_head_dim": 256, "n_shared_experts": 1, "n_routed_experts": 64, "moe_intermediate_size": 1536,
        "num_experts_per_tok": 4, "first_k_dense_replace": 1,
    },
    "youtu": {
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "tie_word_embeddings": True,
    },
    "dots1": {"num_key_value_heads": 32, "first_k_dense_replace": 0},
    "solar_open": {
        "num_key_value_heads": 8, "head_dim": 128, "n_shared_experts": 1, "n_routed_experts": 128,
        "moe_intermediate_size": 1280, "num_experts_per_tok": 8,
    },
    "bailing_moe_v2": {
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 256, "num_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "first_k_dense_replace": 1,
        "use_qk_norm": True,
    },
}  # fmt: skip
"""Sizes that a family has where none is said."""

COUNTS = {"n_group", "n_routed_experts", "n_shared_experts", "num_shared_experts", "topk_group"}
"""Numbers of their own, which may be 0 where a family has none."""


def _routed(config: Config) -> Config:
    """Experts as DeepSeek names them: shared ones, and leading dense layers."""
    width = config["moe_intermediate_size"]
    return {
        "num_experts": config["n_routed_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": width * (config.get("n_shared_experts") or 0),
        "first_dense_layers": leading_dense(config),
        "router_bias": config["model_type"] != "deepseek_v2",
    }


def _predicted(config: Config) -> int:
    """Layers that predict tokens further ahead, by their name before and since transformers 5."""
    return config.get("num_nextn_predict_layers") or config.get("num_mtp_layers") or 0


def _latent(config: Config) -> Config:
    plain, rotary = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    mla = {
        "q_lora_rank": config.get("q_lora_rank"),
        "kv_lora_rank": config["kv_lora_rank"],
        "qk_nope_head_dim": plain,
        "qk_rope_head_dim": rotary,
        "v_head_dim": config["v_head_dim"],
    }
    return {
        **common(config),
        "num_query_groups": config["num_attention_heads"],
        "head_dim": plain + rotary,
        "mla": mla,
    }


def deepseek(config: Config) -> Config:
    """Latent attention and experts."""
    return {**_latent(config), "moe": _routed(config), "mtp_num_layers": _predicted(config)}


def glm(config: Config) -> Config:
    """Grouped keys and values, biases on both and queries, and experts."""
    return {
        **common(config),
        "linear_bias": "qkv" if config.get("attention_bias") else "none",
        "qk_norm": bool(config.get("use_qk_norm")),
        "moe": _routed(config),
        "mtp_num_layers": _predicted(config),
    }


def dots(config: Config) -> Config:
    """The same with norms of queries and keys."""
    return {**common(config), "qk_norm": True, "moe": _routed(config)}


def solar(config: Config) -> Config:
    """The same with experts in every layer."""
    return {**glm({**config, "intermediate_size": 0, "first_k_dense_replace": 0}), "qk_norm": False}


def youtu(config: Config) -> Config:
    """Latent attention in a dense network."""
    return _latent(config)


def bailing(config: Config) -> Config:
    """Ling and Ring 2.0: grouped keys and values, experts in groups, under names of its own."""
    named = {"n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"]}
    return {
        **common(config),
        "linear_bias": "qkv" if config.get("use_qkv_bias") else "none",
        "qk_norm": bool(config["use_qk_norm"]),
        "moe": _routed({**config, **named}),
        "mtp_num_layers": _predicted(config),
    }


FAMILIES = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "kimi_k2": deepseek,
    "glm4_moe": glm,
    "glm4_moe_lite": deepseek,
    "youtu": youtu,
    "dots1": dots,
    "solar_open": solar,
    "bailing_moe_v2": bailing,
}
"""Fields of the model, by the `model_type` of the configuration."""


def leading_dense(config: Config) -> int | None:
    """How many layers stand before the first with experts; None where others are dense too."""
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        leading: int = config.get("first_k_dense_replace", 0)
        return leading
    dense = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    in_order = all(kind == "dense" for kind in kinds[:dense]) and all(k == "sparse" for k in kinds[dense:])
    whole = len(kinds) == config.get("num_hidden_layers", len(kinds))
    return dense if in_order and whole else None
