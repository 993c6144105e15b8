"""Hybrids of Mamba-2, attention, feed-forward and expert layers from a Hugging Face `config.json`.

Fields and defaults are those of transformers 5 (Apache-2.0), `models/nemotron_h/configuration_nemotron_h.py`;
files from before version 5 name the layers by a pattern of letters.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

DEFAULTS: Config = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_shared_experts": 1,
}
"""Sizes that the family has where none is said."""

SIZES = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
"""Those of its own that must be whole numbers above 0."""

LETTER_OF_TYPE = {
    "linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "moe": "E", "mlp": "-",
}  # fmt: skip
"""Letters of a pattern by the names of layers, those of transformers 5 and of its first releases."""


LAYERS, PREDICTED = ("layers_block_type", "layer_types"), ("mtp_layers_block_type",)
"""Fields that list the types of the layers, and of those of a prediction."""


def nemotron_h(config: Config) -> Config:
    """Fields of the model beside those that all families share.

    Raises
    ------
    KeyError
        Where a field is missing.
    """
    pattern = _pattern(config, "hybrid_override_pattern", LAYERS)
    if pattern is None:
        raise KeyError("layers_block_type")
    predictions = config.get("num_nextn_predict_layers", 0)
    own = _pattern(config, "mtp_hybrid_override_pattern", PREDICTED)
    return {
        "num_layers": len(pattern),
        "ffn_hidden_size": config["intermediate_size"] if "-" in pattern else 0,
        "position_embedding": "none",
        "gated_mlp": False,
        "activation": "squared-relu",
        "norms_per_layer": 1,
        "linear_bias": "none",
        "moe": _experts(config) if "E" in pattern else None,
        "mtp_num_layers": predictions,
        "hybrid": {
            "pattern": pattern,
            "mamba_heads": config["mamba_num_heads"],
            "mamba_head_dim": config["mamba_head_dim"],
            "ssm_state": config["ssm_state_size"],
            "groups": config["n_groups"],
            "conv": config["conv_kernel"],
            "prediction_pattern": (own or "*E") if predictions else None,
        },
    }


def _experts(config: Config) -> Config:
    shared = config["moe_shared_expert_intermediate_size"] if config["n_shared_experts"] else 0
    return {
        "num_experts": config["n_routed_experts"],
        "top_k": config["num_experts_per_tok"],
        "ffn_hidden_size": config["moe_intermediate_size"],
        "shared_ffn_hidden_size": shared,
        "latent_size": config.get("moe_latent_size"),
        "router_bias": True,
    }


def _pattern(config: Config, letters: str, names: tuple[str, ...]) -> str | None:
    """Layers by the names of their types, or by a pattern of letters; None where neither is said."""
    for name in names:
        if name in config:
            return "".join(LETTER_OF_TYPE[kind] for kind in config[name])
    found: str | None = config.get(letters)
    return found


def unknown_layers(config: Config) -> tuple[str, object] | None:
    """A field that lists layers, and what in it is no type of a layer; None where all are known."""
    for name in (*LAYERS, *PREDICTED):
        kinds = config.get(name, [])
        if not isinstance(kinds, list):
            return name, kinds
        for kind in kinds:
            if kind not in LETTER_OF_TYPE:
                return name, kind
    return None
