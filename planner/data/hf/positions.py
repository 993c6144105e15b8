"""How a Hugging Face configuration says that queries and keys are turned by their positions.

Names and defaults are those of transformers 5 (Apache-2.0), `models/*/configuration_*.py` and
`modeling_rope_utils.py`; before version 5, `rope_theta` and `rope_scaling` stood apart.
"""

from __future__ import annotations

from typing import Any

from planner.data.hf import linear as hf_linear
from planner.data.hf.parts import not_described
from planner.errors import InstanceError

Config = dict[str, Any]

_BASES = {
    "mixtral": 1_000_000, "gpt_oss": 150_000, "solar_open": 1_000_000, "bailing_moe_v2": 600_000,
    "smollm3": 2_000_000, "ernie4_5": 500_000,
}  # fmt: skip
"""Rotary bases of families whose default is not 10,000."""

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Llama 3.1 and 3.2 publish, the only ones that launchers know."""

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


def positions(config: Config, family: str, where: str) -> Config:
    """Fields of `ModelConstants` that say how queries and keys are turned.

    Raises
    ------
    InstanceError
        Where a number is none that is described, or is said twice.
    """
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
                raise not_described(name, rope[name], f"{value:g} of rope_type 'llama3'", where)
    if kind == "yarn" and rope.get("mscale_all_dim") and not rope.get("mscale"):
        # It scales attention alone then, and the rotation by YaRN's usual factor: Megatron has one for both.
        raise not_described("mscale_all_dim", rope["mscale_all_dim"], "beside mscale", where)
    if kind == "yarn" and rope.get("attention_factor") is not None:
        raise not_described("attention_factor", rope["attention_factor"], "the one that follows", where)
    if kind != "default":
        fields["rotary_scaling"] = {
            "kind": {"su": "longrope"}.get(kind, kind),
            "factor": rope.get("factor", 1.0),
            **{ours: rope[name] for name, ours in _YARN.items() if rope.get(name) is not None},
        }
    if family == "ernie4_5":
        fields["rotates_neighbours"] = True
    if family == "smollm3":
        fields["unrotated_every"] = _unrotated(config, where)
    if kind == "yarn" and "qk_rope_head_dim" not in config:  # DeepSeek's own code has a length of its own
        fields["rotary_scaling"] |= _first_length(config, rope)
    return fields


def _unrotated(config: Config, where: str) -> int | None:
    """Every how many layers one has no positions; a list has 1 for a layer with them."""
    told, layers = config.get("no_rope_layers"), range(1, config["num_hidden_layers"] + 1)
    every = config.get("no_rope_layer_interval", 4)
    if told is not None:
        if not isinstance(told, list) or len(told) < len(layers) or not {0, 1}.issuperset(told):
            raise InstanceError("no_rope_layers: must be a list of 0 and 1, one a layer", where)
        told = told[: len(layers)]
        if 0 not in told:
            return None
        every = told.index(0) + 1
    if every < 2 or (told is not None and told != [int(layer % every != 0) for layer in layers]):
        raise not_described("no_rope_layers", "of this order", "every so many layers, not all of them", where)
    return int(every) if every <= len(layers) else None


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
