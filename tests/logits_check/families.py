"""Small networks of each family that a `config.json` may be of, with whatever the family has of its own."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

_SMALL: Config = {
    "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_ROUTED: Config = {"num_experts_per_tok": 3, "moe_intermediate_size": 48}
_SHARED: Config = {
    **_ROUTED, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5, "norm_topk_prob": True,
}  # fmt: skip
_LATENT: Config = {
    # Of latent attention transformers' inner norms add 1e-6, whatever the others add.
    **_SHARED, "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 48,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "head_dim": 8,
    "n_group": 4, "topk_group": 2,
}  # fmt: skip
_DELTA: Config = {
    "num_hidden_layers": 4, "head_dim": 32, "full_attention_interval": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
_LLAMA3: Config = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_YARN: Config = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def _rope(base: float, **more: Any) -> Config:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **more}}


NETWORKS: dict[str, Config] = {
    "llama": {"model_type": "llama", **_rope(10_000.0)},
    "llama, stretched, tied, wide heads": {
        "model_type": "llama", "head_dim": 32, "tie_word_embeddings": True, **_rope(500_000.0, **_LLAMA3),
    },
    "llama, divided": {"model_type": "llama", **_rope(10_000.0, rope_type="linear", factor=4.0)},
    "llama, yarn": {"model_type": "llama", "head_dim": 32, **_rope(10_000.0, **_YARN)},
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral, window": {"model_type": "mistral", "sliding_window": 24, **_rope(1_000_000.0)},
    "phi3": {"model_type": "phi3", **_rope(10_000.0)},
    "phi3, part rotated": {"model_type": "phi3", **_rope(10_000.0, partial_rotary_factor=0.5)},
    "qwen2": {"model_type": "qwen2", "rms_norm_eps": 1e-6, **_rope(1_000_000.0)},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "rms_norm_eps": 1e-6, **_rope(1_000_000.0)},
    "qwen3, yarn": {"model_type": "qwen3", "head_dim": 32, **_rope(1_000_000.0, **_YARN)},
    "arcee": {"model_type": "arcee", "hidden_act": "relu2", **_rope(10_000.0, **_YARN)},
    "smollm3": {
        "model_type": "smollm3", "no_rope_layers": [1, 0, 1], "num_hidden_layers": 3, **_rope(10_000.0),
    },
    "smollm3, by its interval": {
        "model_type": "smollm3", "no_rope_layer_interval": 3, "tie_word_embeddings": True, **_rope(10_000.0),
    },
    "ernie4_5": {"model_type": "ernie4_5", "head_dim": 32, "use_bias": False, **_rope(10_000.0)},
    "seed_oss": {"model_type": "seed_oss", "head_dim": 16, "attention_out_bias": False},
    "nemotron": {
        "model_type": "nemotron", "hidden_act": "relu2", "norm_eps": 1e-5,
        **_rope(10_000.0, partial_rotary_factor=0.5),
    },
    "starcoder2": {"model_type": "starcoder2", "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh"},
    "gpt_neox": {
        "model_type": "gpt_neox", "use_parallel_residual": False, "hidden_act": "gelu",
        "layer_norm_eps": 1e-5, "num_key_value_heads": 4, **_rope(10_000.0, partial_rotary_factor=0.25),
    },
    "gpt2": {
        "model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 1024,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    "mixtral, window": {
        "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe", **_ROUTED, "num_experts": 8, "shared_expert_intermediate_size": 40,
        "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "qwen2_moe, sums to one, leading dense": {
        "model_type": "qwen2_moe", **_ROUTED, "num_experts": 8, "shared_expert_intermediate_size": 40,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [0],
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", **_ROUTED, "num_experts": 8, "norm_topk_prob": True, "head_dim": 32,
    },
    "qwen3_moe, every second": {
        "model_type": "qwen3_moe", **_ROUTED, "num_experts": 8, "norm_topk_prob": False, "head_dim": 32,
        "decoder_sparse_step": 2,
    },
    "qwen3_next": {
        "model_type": "qwen3_next", **_ROUTED, **_DELTA, "num_experts": 8, "norm_topk_prob": True,
        "shared_expert_intermediate_size": 40, **_rope(10_000_000.0, partial_rotary_factor=0.25),
    },
    "qwen3_5_text": {
        "model_type": "qwen3_5_text", **_DELTA, **_rope(10_000_000.0, partial_rotary_factor=0.25),
    },
    "deepseek_v2": {
        "model_type": "deepseek_v2", **_LATENT, "norm_topk_prob": False, "topk_method": "greedy",
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "q_lora_rank": None,
        "num_experts_per_tok": 2,
    },
    # Its groups of experts are not compared: transformers 5.12.1 stops at them.
    "deepseek_v3": {"model_type": "deepseek_v3", **_LATENT, "num_experts_per_tok": 4},
    "deepseek_v3, yarn": {
        "model_type": "deepseek_v3", **_LATENT, "num_experts_per_tok": 4,
        **_rope(10_000.0, **{**_YARN, "original_max_position_embeddings": 4096}, mscale=1.0,
                mscale_all_dim=1.0, beta_fast=32, beta_slow=1),
    },
    "glm4_moe": {
        "model_type": "glm4_moe", **_SHARED, "attention_bias": True, "use_qk_norm": True, "head_dim": 32,
        "n_group": 1, "topk_group": 1, **_rope(1_000_000.0, partial_rotary_factor=0.5),
    },
    "glm4_moe_lite": {"model_type": "glm4_moe_lite", **_LATENT, "n_group": 1, "topk_group": 1},
    "youtu": {
        "model_type": "youtu", "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "kv_lora_rank": 32,
        "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "tie_word_embeddings": True,
    },
    "dots1": {"model_type": "dots1", **_SHARED, "n_group": 1, "topk_group": 1, "sliding_window": None},
    "solar_open": {
        "model_type": "solar_open", **_SHARED, "head_dim": 32, "n_group": 1, "topk_group": 1,
    },
    "gpt_oss": {
        "model_type": "gpt_oss", "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": 24, "attention_bias": True,
        **_rope(150_000.0, **{**_YARN, "factor": 32.0, "truncate": False}),
    },
}  # fmt: skip


def config_of(name: str) -> Config:
    """The values of the network's `config.json`."""
    return {**_SMALL, **NETWORKS[name]}
