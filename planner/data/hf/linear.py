"""Layers of linear attention from a Hugging Face `config.json`: Qwen3-Next and the text part of Qwen3.5.

Fields and defaults are those of transformers 5 (Apache-2.0), `models/qwen3_next/configuration_qwen3_next.py`,
`models/qwen3_5_moe/configuration_qwen3_5_moe.py` and `models/qwen3_5/configuration_qwen3_5.py`.
"""

from __future__ import annotations

from typing import Any

from planner.data.attention_spec import FULL, LINEAR

Config = dict[str, Any]

FAMILIES = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""Families whose layers are of linear and of gated full attention, and whose norms are centred at zero."""

_HEADS: Config = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}
DEFAULTS: dict[str, Config] = {
    "qwen3_next": {**_HEADS, "shared_expert_intermediate_size": 512},
    "qwen3_5_moe_text": {**_HEADS, "shared_expert_intermediate_size": 512, "intermediate_size": 0},
    "qwen3_5_text": {**_HEADS, "num_key_value_heads": 4},
}
"""Sizes that a family has where none is said."""

SIZES = tuple(name for name in _HEADS if name.startswith(("linear", "full")))
"""Those of its own that must be whole numbers above 0."""

_LETTERS = {"linear_attention": LINEAR, "full_attention": FULL}

KNOWN = tuple(_LETTERS)
"""Types of layers."""


def linear_layers(config: Config) -> Config:
    """Fields of the model that say which layers are linear, and of what shape."""
    every = config["full_attention_interval"]
    kinds = config.get("layer_types") or [
        KNOWN[(i + 1) % every == 0] for i in range(config["num_hidden_layers"])
    ]
    pattern = "".join(_LETTERS[kind] for kind in kinds)
    linear = {
        "pattern": pattern,
        "key_heads": config["linear_num_key_heads"],
        "value_heads": config["linear_num_value_heads"],
        "key_head_dim": config["linear_key_head_dim"],
        "value_head_dim": config["linear_value_head_dim"],
        "conv": config["linear_conv_kernel_dim"],
    }
    return {
        "output_gate": True,
        "linear_attention": linear if LINEAR in pattern else None,
        "mtp_num_layers": config.get("mtp_num_hidden_layers", 0),
    }
