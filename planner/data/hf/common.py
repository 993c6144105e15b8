"""Sizes that nearly all families of Hugging Face configurations state alike, and families near to them.

Fields and defaults are those of transformers 5 (Apache-2.0), `models/*/configuration_*.py`.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def common(config: Config) -> Config:
    """What nearly all families have: RMS norms, gated SiLU, rotary positions, grouped keys and values."""
    heads = config["num_attention_heads"]
    biases = (bool(config.get("attention_bias")), bool(config.get("mlp_bias")))
    return {
        "num_layers": config["num_hidden_layers"],
        "hidden_size": config["hidden_size"],
        "ffn_hidden_size": config["intermediate_size"],
        "num_attention_heads": heads,
        "num_query_groups": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config["max_position_embeddings"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "gated_mlp": True,
        "activation": "silu",
        "normalization": "rms",
        "linear_bias": "all" if biases == (True, True) else "attention" if biases[0] else "none",
    }


def seed_oss(config: Config) -> Config:
    """Llama with biases on queries, keys and values."""
    return {**common(config), "linear_bias": "qkv" if config["attention_bias"] else "none"}


def _plain(config: Config) -> Config:
    """GELU, layer norms and biases everywhere."""
    return {"gated_mlp": False, "activation": "gelu", "normalization": "layer", "linear_bias": "all"}


def gpt2(config: Config) -> Config:
    """Learned positions."""
    hidden, heads = config["n_embd"], config["n_head"]
    return {
        **_plain(config),
        "num_layers": config["n_layer"],
        "hidden_size": hidden,
        "ffn_hidden_size": config.get("n_inner") or 4 * hidden,
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "head_dim": hidden // heads,
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config["n_positions"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
        "position_embedding": "learned",
    }


def gpt_neox(config: Config) -> Config:
    """Rotary positions."""
    return {**common(config), **_plain(config)}


def starcoder2(config: Config) -> Config:
    """The same with grouped keys and values, and a tied head."""
    return {**common({"tie_word_embeddings": True, **config}), **_plain(config)}


def nemotron(config: Config) -> Config:
    """Layer norms centred at zero, squared ReLU and no biases."""
    plain = {**_plain(config), "activation": "squared-relu", "linear_bias": "none"}
    return {**common(config), **plain}


def arcee(config: Config) -> Config:
    """Llama with squared ReLU in place of the gate."""
    return {**common(config), "gated_mlp": False, "activation": "squared-relu"}
