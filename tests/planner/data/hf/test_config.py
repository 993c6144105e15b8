"""Models from the configurations that publishers keep beside their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import main
from planner.commands.screen import ExitCode
from planner.cost.parameters import total_parameters
from planner.data.load import load_model
from planner.errors import InstanceError
from planner.launchers.model_constants import left_out
from planner.launchers.read.same_model import differences
from planner.rules.versions import NEWEST

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 8, "tie_word_embeddings": False}
NANO: dict[str, Any] = LLAMA | {
    "model_type": "nemotron_h",
    "num_hidden_layers": 52,
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "mamba_num_heads": 64,
    "vocab_size": 131072,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "mlp_hidden_act": "relu2",
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "rope_theta": 10000,
}
NEXT: dict[str, Any] = EXPERTS | {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "rope_theta": 10000000,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama3-8b": LLAMA,
    "qwen2.5-7b": LLAMA
    | {
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    },
    "mixtral-8x7b": LLAMA
    | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
    "qwen3-30b-a3b": LLAMA
    | EXPERTS
    | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
    },
    "deepseek-v3": LLAMA
    | EXPERTS
    | {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
    },
    "gpt-oss-20b": LLAMA
    | {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "head_dim": 64,
        "vocab_size": 201088,
        "attention_bias": True,
        "sliding_window": 128,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
    },
    "glm-4.5-air": LLAMA
    | EXPERTS
    | {
        "model_type": "glm4_moe",
        "num_hidden_layers": 46,
        "intermediate_size": 10944,
        "num_attention_heads": 96,
        "head_dim": 128,
        "vocab_size": 151552,
        "attention_bias": True,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
    },
    "nemotron-nano-9b-v2": LLAMA
    | {
        "model_type": "nemotron_h",
        "num_hidden_layers": 56,
        "hidden_size": 4480,
        "intermediate_size": 15680,
        "num_attention_heads": 40,
        "head_dim": 128,
        "mamba_head_dim": 80,
        "vocab_size": 131072,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "mlp_hidden_act": "relu2",
    },
    "nemotron-3-nano-30b-a3b": NANO,
    "nemotron-3-super-120b-a12b": NANO
    | {
        "layers_block_type": [
            {"M": "linear_attention", "E": "moe", "*": "full_attention"}[letter]
            for letter in "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
            "EMEMEMEM*EMEMEMEME"
        ],
        "hidden_size": 4096,
        "mamba_num_heads": 128,
        "n_routed_experts": 512,
        "num_experts_per_tok": 22,
        "moe_intermediate_size": 2688,
        "moe_shared_expert_intermediate_size": 5376,
        "moe_latent_size": 1024,
        "num_nextn_predict_layers": 1,
    },
    "qwen3-next-80b-a3b": NEXT,
    "nemotron-4-340b": LLAMA
    | {
        "model_type": "nemotron",
        "num_hidden_layers": 96,
        "hidden_size": 18432,
        "intermediate_size": 73728,
        "num_attention_heads": 96,
        "vocab_size": 256000,
        "max_position_embeddings": 4096,
        "hidden_act": "relu2",
        "norm_eps": 1e-5,
    },
    "gpt2-xl": {
        "model_type": "gpt2",
        "n_layer": 48,
        "n_embd": 1600,
        "n_head": 25,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
}


def written(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_the_model_that_is_shipped(name: str, tmp_path: Path) -> None:
    read, shipped = load_model(written(tmp_path / "Some_Model", CONFIGS[name])), load_model(name)
    # A checkpoint has its layer of predictions once; training runs it twice.
    once = {"mtp_num_layers": 1, "repeated_prediction": False} if shipped.repeated_prediction else {}
    assert differences(read, shipped.model_copy(update=once)) == ()
    assert total_parameters(read) == total_parameters(shipped)
    assert read.id == "some-model"


def test_unknown_families_and_missing_fields_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InstanceError, match="model_type 'bert' cannot be read; known are arcee, bailing_moe_v2, deepseek_v2"
    ):
        load_model(written(tmp_path, {"model_type": "bert"}))
    short = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    with pytest.raises(InstanceError, match="hidden_size is missing"):
        load_model(written(tmp_path, short))
    for value in ("big", 0, [1], 1.5):
        with pytest.raises(InstanceError, match="num_attention_heads: must be a whole number above 0, got"):
            load_model(written(tmp_path, {**LLAMA, "num_attention_heads": value}))
    with pytest.raises(InstanceError, match="hidden_size is missing"):
        load_model(written(tmp_path, {**LLAMA, "hidden_size": None}))


OTHER_NETWORKS: dict[str, dict[str, Any]] = {
    "hidden_act 'gelu'": LLAMA | {"hidden_act": "gelu"},
    "use_sliding_window True": CONFIGS["qwen2.5-7b"] | {"use_sliding_window": True},
    "mlp_only_layers .0, 2.": CONFIGS["qwen3-30b-a3b"] | {"mlp_only_layers": [0, 2]},
    "use_parallel_residual True": LLAMA | {"model_type": "gpt_neox"},
    "activation_function 'relu'": CONFIGS["gpt2-xl"] | {"activation_function": "relu"},
    "moe_layer_freq 2": CONFIGS["deepseek-v3"] | {"moe_layer_freq": 2},
    "scoring_func 'softmax'": CONFIGS["deepseek-v3"] | {"scoring_func": "softmax"},
    "layer_types .* sliding and full attention in turn": CONFIGS["gpt-oss-20b"]
    | {"layer_types": ["full_attention"] * 24},
    "mlp_bias True": LLAMA | {"mlp_bias": True},
    "attention_bias True": CONFIGS["deepseek-v3"] | {"attention_bias": True},
    "attention_bias False": LLAMA
    | {"model_type": "gpt_neox", "use_parallel_residual": False, "attention_bias": False},
    "qkv_bias False": CONFIGS["qwen3-30b-a3b"] | {"model_type": "qwen2_moe", "qkv_bias": False},
    "shared_expert_intermediate_size 512": CONFIGS["qwen3-30b-a3b"]
    | {"shared_expert_intermediate_size": 512},
    "scale_attn_weights False": CONFIGS["gpt2-xl"] | {"scale_attn_weights": False},
    "tie_word_embeddings: must be true or false, got 'false'": LLAMA | {"tie_word_embeddings": "false"},
    "attention_bias: must be true or false, got 'no'": LLAMA | {"attention_bias": "no"},
    "n_group: must be a whole number from 0 on": CONFIGS["deepseek-v3"] | {"n_group": "8"},
    "sliding_window: must be at most 1,000,000,000": CONFIGS["gpt-oss-20b"] | {"sliding_window": 10**20},
    "mlp_only_layers: must be a list": CONFIGS["qwen3-30b-a3b"] | {"mlp_only_layers": 1},
    "num_layers": LLAMA | {"num_hidden_layers": 10**9},
    "mlp_hidden_act 'silu'": NANO | {"mlp_hidden_act": "silu"},
    "use_bias True": NANO | {"use_bias": True},
    "layers_block_type 'rwkv' cannot be described": NANO | {"layers_block_type": ["moe", "rwkv"]},
    "layers_block_type 'moe' cannot be described": NANO | {"layers_block_type": "moe"},
    "hybrid.pattern": NANO | {"hybrid_override_pattern": "MEM*G"},
    "mamba_num_heads: must be a whole number above 0": NANO | {"mamba_num_heads": 0},
    "attention_out_bias True": LLAMA | {"model_type": "seed_oss", "attention_out_bias": True},
    "use_bias False": LLAMA | {"model_type": "starcoder2", "hidden_act": "gelu", "use_bias": False},
    "hidden_act 'silu'": LLAMA | {"model_type": "nemotron", "hidden_act": "silu"},
    "layer_types 'sliding_attention'": NEXT | {"layer_types": ["sliding_attention"] * 48},
    "attn_output_gate False": NEXT | {"attn_output_gate": False},
    "linear_num_key_heads: must be a whole number above 0": NEXT | {"linear_num_key_heads": 0},
    "multiple of key_heads 24": NEXT | {"linear_num_key_heads": 24},
    "rotary_scaling.kind": LLAMA | {"rope_scaling": {"rope_type": "ntk", "factor": 2.0}},
}
"""What is complained of, and a configuration that another network than the family's usual one has."""


@pytest.mark.parametrize("complaint", OTHER_NETWORKS)
def test_what_makes_another_network_is_refused(complaint: str, tmp_path: Path) -> None:
    """All of these were once read as the family's usual network, and planned and exported as such."""
    with pytest.raises(InstanceError, match=complaint):
        load_model(written(tmp_path, OTHER_NETWORKS[complaint]))


def test_windows_leading_dense_layers_and_gates_are_read(tmp_path: Path) -> None:
    mistral = load_model(written(tmp_path / "a", LLAMA | {"model_type": "mistral", "sliding_window": 4096}))
    assert (mistral.sliding_window, mistral.global_layer_every) == (4096, 1)
    wide = LLAMA | {"model_type": "mistral", "sliding_window": 8192}
    assert load_model(written(tmp_path / "b", wide)).sliding_window is None
    experts = CONFIGS["qwen3-30b-a3b"] | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}
    gated = load_model(written(tmp_path / "c", experts | {"mlp_only_layers": [0, 1]}))
    assert gated.moe is not None and gated.moe.shared_expert_gate
    assert gated.kind_of_layer[:3] == ("dense", "dense", "moe")
    assert gated.constants.softmax_over_all


def test_sizes_that_are_left_out_are_the_family_s_own(tmp_path: Path) -> None:
    """They were once those of other families: heads of 80, no window, no shared expert, no leading layers."""
    left_out = {"head_dim", "num_key_value_heads", "q_lora_rank", "n_shared_experts", "first_k_dense_replace"}
    for name in ("deepseek-v3", "glm-4.5-air", "gpt-oss-20b"):
        kept_out = left_out - {"head_dim"} if name.startswith("glm") else left_out
        short = {key: value for key, value in CONFIGS[name].items() if key not in kept_out}
        assert differences(load_model(written(tmp_path / name, short)), load_model(name)) == ()
    qwen = LLAMA | {"model_type": "qwen3", "hidden_size": 5120, "num_attention_heads": 64}
    assert load_model(written(tmp_path / "q", qwen)).head_dim == 128
    mistral = LLAMA | {"model_type": "mistral", "max_position_embeddings": 32768}
    assert load_model(written(tmp_path / "m", mistral)).sliding_window == 4096
    assert load_model(written(tmp_path / "n", mistral | {"sliding_window": None})).sliding_window is None


def test_seed_oss_and_starcoder2_have_their_published_parameters(tmp_path: Path) -> None:
    seed = LLAMA | {"num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 27648}
    seed |= {"model_type": "seed_oss", "num_attention_heads": 80, "vocab_size": 155136}
    read = load_model(written(tmp_path / "a", seed))
    assert (read.linear_bias, read.head_dim) == ("qkv", 128)
    assert total_parameters(read) == 36_151_104_512
    sizes = {"num_hidden_layers": 30, "hidden_size": 3072, "intermediate_size": 12288, "vocab_size": 49152}
    config = {
        "model_type": "starcoder2",
        "num_attention_heads": 24,
        "max_position_embeddings": 16384,
        **sizes,
    }
    star = load_model(written(tmp_path / "b", config | {"sliding_window": 4096, "norm_epsilon": 1e-5}))
    # Biases on every map, layer norms, 24 heads of queries and 2 of keys and values, and one vocabulary.
    attention = 2 * (3072 * 3072 + 3072) + 2 * (3072 * 256 + 256)
    block = attention + 2 * 3072 * 12288 + 12288 + 3072 + 4 * 3072
    assert total_parameters(star) == 30 * block + 49152 * 3072 + 2 * 3072
    assert (star.sliding_window, star.tied_embeddings, star.normalization) == (4096, True, "layer")


def test_linear_layers_are_told_by_their_distance_or_one_by_one(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention"] * 2
    listed = load_model(written(tmp_path / "a", NEXT | {"num_hidden_layers": 4, "layer_types": kinds}))
    assert listed.linear_attention is not None and listed.linear_attention.pattern == "L*L*"
    assert load_model(written(tmp_path / "b", NEXT)).constants == load_model("qwen3-next-80b-a3b").constants
    whole = load_model(written(tmp_path / "c", NEXT | {"full_attention_interval": 1}))
    assert (whole.linear_attention, whole.output_gate) == (None, True)
    assert load_model(written(tmp_path / "d", NEXT | {"norm_topk_prob": False})).constants.softmax_over_all


def test_the_text_part_of_qwen35_is_read(tmp_path: Path) -> None:
    """27B and 35B-A3B: with their predictions and without what sees, as their names say."""
    shape = {"vocab_size": 248320, "max_position_embeddings": 262144, "tie_word_embeddings": False}
    dense = {"num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 17408}
    heads = {"num_attention_heads": 24, "num_key_value_heads": 4, "linear_num_value_heads": 48}
    predicted = {"mtp_num_hidden_layers": 1, "attn_output_gate": True}
    config = {"model_type": "qwen3_5_text", **shape, **dense, **heads, **predicted}
    large = load_model(written(tmp_path / "a", config))
    mixer = 5120 * (2 * 2048 + 2 * 6144 + 96) + 10_240 * 4 + 96 + 128 + 6144 * 5120
    attention = 5120 * 256 * (2 * 24 + 2 * 4) + 6144 * 5120 + 512
    layers = 64 * (3 * 5120 * 17408 + 2 * 5120) + 48 * mixer + 16 * attention
    assert total_parameters(large) == layers + 2 * 248320 * 5120 + 5120 == 26_895_998_464
    assert (large.mtp_num_layers, large.prediction_kinds) == (1, ("dense",))
    experts = {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    config = {"model_type": "qwen3_5_moe_text", **shape, "num_hidden_layers": 40, "hidden_size": 2048}
    small = load_model(written(tmp_path / "b", config | experts | {"num_attention_heads": 16}))
    assert total_parameters(small) == 34_660_610_688
    assert small.moe is not None and small.moe.shared_expert_gate
    assert not small.constants.softmax_over_all and small.constants.zero_centered_norms


def test_numbers_for_launch_files_are_read(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    before = LLAMA | {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "rope_scaling": scaling}
    now = LLAMA | {"rms_norm_eps": 1e-5, "rope_parameters": {**scaling, "rope_theta": 500000.0}}
    for folder, config in (("a", before), ("b", now)):
        found = load_model(written(tmp_path / folder, config)).constants
        assert (found.rotary_base, found.norm_epsilon) == (500_000, 1e-5)
        assert found.rotary_scaling is not None and found.rotary_scaling.kind == "llama3"
    for name in ("deepseek-v3", "glm-4.5-air", "mixtral-8x7b", "gpt2-xl"):
        extra = {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}}
        theta = {"glm-4.5-air": {"rope_theta": 1_000_000}, "deepseek-v3": extra}.get(name, {})
        read = load_model(written(tmp_path / name, CONFIGS[name] | theta)).constants
        told = load_model(name).constants
        scale = {"routed_scale": read.routed_scale or told.routed_scale}
        assert read == told.model_copy(update=scale), name


def test_a_rotary_base_that_is_said_twice_is_said_alike(tmp_path: Path) -> None:
    """The one of transformers before 5 won silently, where newer code takes the other."""
    said = {"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000}}
    assert load_model(written(tmp_path / "a", LLAMA | said)).constants.rotary_base == 500_000
    other = said | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}}
    with pytest.raises(InstanceError, match=r"rope_theta is said twice: .* make them alike"):
        load_model(written(tmp_path / "b", LLAMA | other))


def test_the_epsilon_is_that_of_the_field_which_the_family_reads(tmp_path: Path) -> None:
    """Files may state several: norms of Nemotron once got the number of `rms_norm_eps`, which it has not."""
    nemotron = LLAMA | {"model_type": "nemotron", "hidden_act": "relu2", "head_dim": 128}
    both = nemotron | {"rms_norm_eps": 1e-6, "norm_eps": 1e-3}
    assert load_model(written(tmp_path / "a", both)).constants.norm_epsilon == 1e-3
    assert (
        load_model(
            written(tmp_path / "b", LLAMA | both | {"model_type": "llama", "hidden_act": "silu"})
        ).constants.norm_epsilon
        == 1e-6
    )


def test_how_positions_are_stretched_is_read_whole(tmp_path: Path) -> None:
    """The length of the first training and `truncate` were once not read."""
    told = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "truncate": False}
    found = load_model(written(tmp_path / "a", LLAMA | {"rope_scaling": told})).constants.rotary_scaling
    assert found is not None and (found.original_length, found.whole_dimensions) == (32768, False)
    with pytest.raises(InstanceError, match=r"attention_factor 1\.2 cannot be described"):
        load_model(written(tmp_path / "b", LLAMA | {"rope_scaling": told | {"attention_factor": 1.2}}))
    with pytest.raises(InstanceError, match=r"mscale_all_dim 1\.0 cannot be described, only beside mscale"):
        load_model(written(tmp_path / "f", LLAMA | {"rope_scaling": told | {"mscale_all_dim": 1.0}}))
    # Where it is not said, transformers takes the longest sequence; 4,096 was taken, Megatron's own.
    bare = {"rope_scaling": {"rope_type": "yarn", "factor": None}, "max_position_embeddings": 32768}
    whole = load_model(written(tmp_path / "d", LLAMA | bare | {"original_max_position_embeddings": 8192}))
    assert whole.constants.rotary_scaling is not None
    assert (whole.constants.rotary_scaling.original_length, whole.constants.rotary_scaling.factor) == (
        8192,
        4,
    )
    bare["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0}
    longest = load_model(written(tmp_path / "e", LLAMA | bare)).constants.rotary_scaling
    assert longest is not None and (longest.original_length, longest.factor) == (32768, 4)
    gpt_oss = load_model(written(tmp_path / "c", CONFIGS["gpt-oss-20b"])).constants
    assert gpt_oss == load_model("gpt-oss-20b").constants


def test_groups_that_a_family_weighs_otherwise_than_megatron_are_told(tmp_path: Path) -> None:
    """DeepSeek-V2 takes a group's best expert, Megatron-LM its best 6 // 3, as DeepSeek-V3 does."""
    groups = {"n_group": 8, "topk_group": 3, "num_experts_per_tok": 6}
    older = {"model_type": "deepseek_v2", "scoring_func": "softmax", "norm_topk_prob": False}
    limited = {"topk_method": "group_limited_greedy"}
    third = load_model(written(tmp_path / "v3", CONFIGS["deepseek-v3"] | groups))
    second = load_model(written(tmp_path / "v2", CONFIGS["deepseek-v3"] | groups | older | limited))
    assert (third.constants.group_experts, second.constants.group_experts) == (2, 1)
    assert not any("groups of experts" in note for note in left_out(third, NEWEST))
    assert any("their best 2, Megatron's own rule" in note for note in left_out(second, NEWEST))


ARGUMENTS = (
    "--num-layers 30 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 8192 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --position-embedding-type rope --tensor-model-parallel-size 4"
)


def test_a_script_that_trains_another_model_or_contradicts_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # THUDM/slime#1240: layers, widths or tied embeddings differed, and the wrong model trained in silence.
    config, arguments = written(tmp_path, LLAMA | {"rope_theta": 500000.0}), tmp_path / "args.txt"
    arguments.write_text(ARGUMENTS)
    asked = [
        "predict",
        "--from-args",
        str(arguments),
        "--cluster",
        "1x8 h200-sxm-141gb",
        "--model",
        str(config),
    ]
    assert main(asked) == ExitCode.WRONG_INPUT
    said = " ".join(capsys.readouterr().err.split())
    assert "num_layers 30, not 32; tied_embeddings True, not False" in said
    arguments.write_text(ARGUMENTS.replace("30", "32", 1) + " --untie-embeddings-and-output-weights")
    # Of rotary base and epsilon nothing was said, and Megatron's own were trained with.
    assert main(asked) == ExitCode.WRONG_INPUT
    assert "norm_epsilon 1e-05, not 1e-06; rotary_base 10000, not 500000" in capsys.readouterr().err
    arguments.write_text(arguments.read_text() + " --norm-epsilon 1e-6 --rotary-base 500000")
    assert main(asked) == ExitCode.PLAN
    arguments.write_text(arguments.read_text() + " --overlap-param-gather")
    assert main(asked) == ExitCode.INFEASIBLE
    assert "without --use-distributed-optimizer" in " ".join(capsys.readouterr().out.split())
