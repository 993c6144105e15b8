"""Parts of a Hugging Face configuration that no model file describes, and families refused for them.

Of a multimodal one the text part (`text_config`) is read, and what is left out is told.
"""

from __future__ import annotations

from typing import Any

from planner.errors import InstanceError

Config = dict[str, Any]

_TEXT_TYPES = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "mistral3": "mistral"}
"""Family of the text part, where it does not say so itself."""

_FOUR_NORMS = "each layer has four norms, and Megatron-LM's have two"
_NORMS_BEHIND = "norms stand behind attention and feed-forward blocks, and Megatron-LM's before them"
_WHOLE_NORMS = "queries and keys are normalised over all heads at once, and Megatron-LM's head by head"
_FACTORS = (
    "embedding_multiplier, attention_multiplier, residual_multiplier and logits_scaling are no arguments of "
    "Megatron-LM"
)
_AFTER_ROTATION = "queries and keys are normalised after their rotation, and Megatron-LM's before it"
_TURNED = "positions turn neighbouring values of a head (interleaved), which no model file describes"
_SOME_ROTATED = "some layers have no positions (no_rope_layers), which no model file describes"
_PARALLEL = "attention and feed-forward block run side by side, and Megatron-LM's one after another"
_SPARSE = "attention chooses its keys by an indexer, which no model file describes"

_OTHER_BLOCKS = "its blocks mix attention with others that no model file describes"

WHY_NOT: dict[str, str] = {
    **dict.fromkeys(("gemma2", "gemma3_text", "gemma3", "gemma4_text", "gemma4", "glm4"), _FOUR_NORMS),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "layers share keys and values, and have own embeddings"),
    "gemma": "embeddings are multiplied by the root of hidden_size, for which Megatron-LM has no argument",
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), _NORMS_BEHIND),
    **dict.fromkeys(("olmoe", "flex_olmo", "minimax_m2"), _WHOLE_NORMS),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared", "granitemoehybrid"), _FACTORS),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), _AFTER_ROTATION),
    **dict.fromkeys(("llama4", "llama4_text"), f"{_SOME_ROTATED}, and the others attend in chunks"),
    "ernie4_5_moe": f"{_TURNED}, and experts are balanced by a bias on a softmax, Megatron-LM's on a sigmoid",
    **dict.fromkeys(("cohere", "cohere2", "phi", "gptj", "falcon"), _PARALLEL),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _SPARSE),
    **dict.fromkeys(("ministral3", "mistral4"), "queries grow with their position (llama_4_scaling_beta)"),
    **dict.fromkeys(("falcon_h1", "lfm2", "lfm2_moe", "jamba", "bamba"), _OTHER_BLOCKS),
}  # fmt: skip
"""Why a family is not read, as its code in transformers 5 shows (`models/*/modeling_*.py`)."""


def not_described(field: str, value: object, known: str, where: str) -> InstanceError:
    """What to raise at a value that makes another network than any that a model file describes."""
    return InstanceError(
        f"{field} {value!r} cannot be described, only {known}; a model file of your own can say what comes "
        "closest (`hetplan schema model`)",
        where,
    )


def text_part(config: Config, where: str) -> tuple[Config, tuple[str, ...]]:
    """The configuration of the text part, and the names of the other parts; the whole where there are none.

    Raises
    ------
    InstanceError
        Where the part is no mapping, or both say otherwise whether the head is tied.
    """
    text = config.get("text_config")
    if text is None:
        return config, ()
    family = str(config["model_type"])
    if not isinstance(text, dict):
        raise InstanceError(f"text_config: must be a mapping, got {str(text)[:60]!r}", where)
    parts = sorted(
        name for name, value in config.items() if name.endswith("_config") and isinstance(value, dict)
    )
    others = tuple(
        name.removesuffix("_config") for name in parts if name not in ("text_config", "quantization_config")
    )
    text = {"model_type": _TEXT_TYPES.get(family, family), **text}
    tied = "tie_word_embeddings"
    if config.get(tied) is not None:
        if text.get(tied, config[tied]) != config[tied]:
            raise InstanceError(
                f"text_config.{tied} is {text[tied]}, {tied} beside it {config[tied]}; make them alike", where
            )
        text[tied] = config[tied]
    return text, others or ("other",)
