"""Configurations of families of 2025 and 2026: read as transformers builds them, or refused with why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.cost.parameters import total_parameters
from planner.data.hf.config import model_from_hf_config
from planner.data.hf.parts import WHY_NOT
from planner.data.model_constants import ModelConstants, RotaryScaling
from planner.data.model_spec import ModelSpec
from planner.errors import InstanceError
from planner.launchers.megatron.model import inexpressible
from planner.launchers.model_constants import expert_scores, left_out
from planner.rules.versions import NEWEST

Config = dict[str, Any]

_COMMON: Config = {"hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
CONFIGS: dict[str, tuple[Config, int]] = {
    "dots1": (
        {
            "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32,
            "n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "norm_topk_prob": True,
            "first_k_dense_replace": 1, "max_position_embeddings": 32768, "rope_theta": 10_000_000,
            "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "sliding_window": None,
            "vocab_size": 152064,
        },
        142_774_373_888 + 61 * 128,
    ),
    "glm4_moe_lite": (
        {
            "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
            "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20,
            "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
            "v_head_dim": 256, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4,
            "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.8,
            "num_nextn_predict_layers": 1, "max_position_embeddings": 202752, "rope_theta": 1_000_000,
            "vocab_size": 154880,
        },
        29_943_390_976 + 46 * 64,
    ),
    "arcee": (
        {
            "hidden_act": "relu2", "head_dim": 128, "hidden_size": 2560, "intermediate_size": 18432,
            "num_hidden_layers": 36, "num_attention_heads": 20, "num_key_value_heads": 4,
            "max_position_embeddings": 65536, "rope_theta": 10000.0, "vocab_size": 128004,
        },
        4_619_184_640,
    ),
    "solar_open": (
        {
            "hidden_size": 4096, "head_dim": 128, "intermediate_size": 10240, "moe_intermediate_size": 1280,
            "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 8,
            "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "max_position_embeddings": 131072, "rope_theta": 1_000_000, "vocab_size": 196608,
        },
        102_651_793_408 + 48 * 128,
    ),
    "youtu": (
        {
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 1536, "kv_lora_rank": 512,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "max_position_embeddings": 131072, "rope_theta": 1_600_000, "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
        1_961_560_064,
    ),
    "smollm3": (
        {
            "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
            "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 65536,
            "rope_theta": 5_000_000.0, "vocab_size": 128256, "tie_word_embeddings": True,
            "no_rope_layers": [1, 1, 1, 0] * 9,
        },
        3_075_098_624,
    ),
    "ernie4_5": (
        {
            "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
            "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 131072,
            "rope_theta": 500_000.0, "vocab_size": 103424, "tie_word_embeddings": True, "use_bias": False,
        },
        360_748_032,
    ),
    # Four layers and 32 experts of Ling-mini-2.0.
    "bailing_moe_v2": (
        {
            "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 4,
            "num_attention_heads": 16, "num_key_value_heads": 4, "num_experts": 32,
            "max_position_embeddings": 32768, "vocab_size": 157184,
        },
        1_028_869_120 + 3 * 32,
    ),
}  # fmt: skip
"""By family: a configuration, and the parameters that its code makes of it on the meta device (transformers
5.12.1; megatron-bridge 0.6.2 for Ling), with the biases that balance experts, which are buffers there."""


def read(config: Config) -> ModelSpec:
    """The model of a configuration in a folder called `some-model`."""
    return model_from_hf_config(config, Path("some-model") / "config.json")


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_has_as_many_parameters_as_its_own_code_makes(family: str) -> None:
    config, parameters = CONFIGS[family]
    assert total_parameters(read({"model_type": family, **_COMMON, **config})) == parameters


def test_experts_of_the_new_families_are_scored_by_a_sigmoid_in_the_groups_of_their_files() -> None:
    models = {
        family: read({"model_type": family, **_COMMON, **CONFIGS[family][0]})
        for family in ("dots1", "glm4_moe_lite", "solar_open", "bailing_moe_v2")
    }
    assert {expert_scores(model) for model in models.values()} == {"sigmoid"}
    ling = models["bailing_moe_v2"].constants
    assert (ling.expert_groups, ling.groups_visited, ling.rotary_base) == (8, 4, 600_000)
    assert models["dots1"].constants.routed_scale == 2.5
    assert models["solar_open"].moe is not None
    assert models["solar_open"].moe.first_dense_layers == 0


def test_which_layers_have_positions_and_which_values_they_turn_is_read() -> None:
    """SmolLM3 and ERNIE 4.5 were refused, as no model file described them."""
    smol = {"model_type": "smollm3", **_COMMON, **CONFIGS["smollm3"][0]}
    assert read(smol).constants.unrotated_every == 4
    by_interval = {**smol, "no_rope_layers": None, "no_rope_layer_interval": 6}
    assert read(by_interval).constants.unrotated_every == 6
    assert read({**smol, "no_rope_layers": [1] * 36}).constants.unrotated_every is None
    assert read({"model_type": "ernie4_5", **CONFIGS["ernie4_5"][0]}).constants.rotates_neighbours
    for layers in ([1, 0, 0] * 12, [0] * 36, [1, 0], "all", [1, 1, 1, 2] * 9):
        with pytest.raises(InstanceError, match="no_rope_layers"):
            read({**smol, "no_rope_layers": layers})
    predicting = read(smol).model_copy(update={"mtp_num_layers": 1})
    assert "layers without rotary positions" in inexpressible(predicting)[0]
    stretched = RotaryScaling(kind="llama3", factor=8.0)
    turned = ModelConstants(rotates_neighbours=True, rotary_scaling=stretched)
    assert "neighbouring values" in inexpressible(read(smol).model_copy(update={"constants": turned}))[0]


def test_another_epsilon_of_inner_norms_is_told() -> None:
    """GLM-4.7-Flash adds 1e-5, but 1e-6 to what it compresses; Megatron-LM adds one number everywhere."""
    flash = read({"model_type": "glm4_moe_lite", **_COMMON, **CONFIGS["glm4_moe_lite"][0]})
    assert flash.constants.latent_norm_epsilon == 1e-6
    assert (
        "keys and values add 1e-05, as all others do; those of some-model add 1e-06"
        in left_out(flash, NEWEST)[0]
    )
    plain = {"model_type": "glm4_moe_lite", **_COMMON, **CONFIGS["glm4_moe_lite"][0], "rms_norm_eps": 1e-6}
    assert left_out(read(plain), NEWEST) == ()


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("dots1", "norm_topk_prob", False),  # also its default
        ("dots1", "norm_topk_prob", None),
        ("dots1", "sliding_window", 4096),  # of the layers behind max_window_layers
        ("glm4_moe_lite", "rope_interleave", False),
        ("glm4_moe_lite", "mlp_layer_types", ["sparse", "dense"] + 45 * ["sparse"]),
        ("glm4_moe_lite", "mlp_layer_types", ["dense"] + 45 * ["sparse"]),  # a layer too few
        ("glm4_moe_lite", "num_hidden_layers", None),
        ("glm4_moe_lite", "num_hidden_layers", "47"),
        ("bailing_moe_v2", "use_bias", True),
        ("bailing_moe_v2", "score_function", "softmax"),
    ],
)
def test_what_makes_another_network_of_a_new_family_is_named(family: str, field: str, value: object) -> None:
    config = {"model_type": family, **_COMMON, **CONFIGS[family][0], "max_window_layers": 40, field: value}
    with pytest.raises(InstanceError, match="max_window_layers" if field == "sliding_window" else field):
        read(config)


@pytest.mark.parametrize("family", sorted(WHY_NOT))
def test_a_family_that_megatron_lm_does_not_build_is_refused_with_the_reason(family: str) -> None:
    with pytest.raises(InstanceError) as refused:
        read({"model_type": family, **_COMMON})
    assert f"model_type {family!r} cannot be read: {WHY_NOT[family]}" in str(refused.value)


TEXT: Config = {
    "model_type": "qwen3_5_text", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
    "max_position_embeddings": 262144, "tie_word_embeddings": True,
}  # fmt: skip


def test_the_text_part_of_a_multimodal_configuration_is_read_and_the_rest_told() -> None:
    whole: Config = {"model_type": "qwen3_5", "text_config": TEXT, "vision_config": {"depth": 27}}
    model = read(whole)
    assert model.model_copy(update={"left_out": ()}) == read(TEXT)
    assert model.left_out == ("vision",)
    assert "vision part" in left_out(model, NEWEST)[0]
    assert left_out(read(TEXT), NEWEST) == ()
    # Old files leave the family of the part to its name; what stands beside it says whether the head is tied.
    untold = {
        name: value for name, value in TEXT.items() if name not in ("model_type", "tie_word_embeddings")
    }
    assert read({**whole, "text_config": untold, "tie_word_embeddings": True}).tied_embeddings
    with pytest.raises(InstanceError, match=r"text_config.tie_word_embeddings is True"):
        read({**whole, "tie_word_embeddings": False})
    with pytest.raises(InstanceError, match="text_config: must be a mapping"):
        read({**whole, "text_config": []})
    with pytest.raises(InstanceError, match="model_type 'qwen3_vl_text' cannot be read"):
        read({**whole, "text_config": {**TEXT, "model_type": "qwen3_vl_text"}})
