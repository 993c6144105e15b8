"""Where two tables of configuration differ, and which of that changes nothing that a plan decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .built import Built

YOURS = frozenset(
    {
        "model.calculate_per_token_loss",
        "model.embedding_init_method",
        "model.embedding_init_method_std",
        "model.inference_sampling_seed",
        "model.init_method",
        "model.init_method_std",
        "model.moe_aux_loss_coeff",
        "model.moe_router_bias_update_rate",
        "model.moe_router_load_balancing_type",
        "model.mtp_loss_scaling_factor",
        "model.output_layer_init_method",
        "model.use_te_rng_tracker",
        "ddp.average_in_collective",
        "optimizer.barrier_with_L1_time",
        "optimizer.lr",
        "optimizer.min_lr",
        "scheduler.end_weight_decay",
        "scheduler.lr_warmup_steps",
        "scheduler.start_weight_decay",
    }
)
"""Choices of training that a recipe makes and a launch script takes from its user: rates, seeds, starting
weights, the weight of balancing losses."""


def _is_latent(built: Built) -> bool:
    return bool(built["model.multi_latent_attention"])


def _has_no_flex(built: Built) -> bool:
    return built["model.moe_token_dispatcher_type"] != "flex"


UNUSED: dict[str, Callable[[Built], bool]] = {
    "model.cp_comm_type": lambda built: built["model.context_parallel_size"] == 1,
    "model.fp8_recipe": lambda built: built["model.fp8"] is None,
    "optimizer.fp8_recipe": lambda built: built["model.fp8"] is None,
    "model.fp4_recipe": lambda built: built["model.fp4"] is None,
    "model.fp8_amax_history_len": lambda built: built["model.fp8_recipe"] != "delayed",
    "model.fp8_amax_compute_algo": lambda built: built["model.fp8_recipe"] != "delayed",
    "model.num_layers_at_start_in_bf16": lambda built: not built["model.first_last_layers_bf16"],
    "model.num_layers_at_end_in_bf16": lambda built: not built["model.first_last_layers_bf16"],
    "model.rope_scaling_factor": lambda built: not built["model.rope_scaling"],
    "model.rotary_base": lambda built: built["model.position_embedding_type"] == "learned_absolute",
    "model.kv_channels": _is_latent,
    # Megatron-LM takes no argument for these beside latent attention, and its launch directory says so.
    "model.beta_fast": _is_latent,
    "model.beta_slow": _is_latent,
    "model.original_max_position_embeddings": _is_latent,
    "model.moe_router_pre_softmax": lambda built: built["model.moe_router_score_function"] == "sigmoid",
    "model.moe_router_dtype": lambda built: built["model.num_moe_experts"] is None,
    "model.moe_enable_deepep": _has_no_flex,
    "model.moe_flex_dispatcher_backend": _has_no_flex,
    "model.moe_flex_dispatcher_num_sms": _has_no_flex,
    "model.moe_hybridep_num_sms": _has_no_flex,
    "model.moe_deepep_num_sms": _has_no_flex,
    # Norms are Transformer Engine's, which has no such choice.
    "model.persist_layer_norm": lambda built: built["model.transformer_impl"] == "transformer_engine",
    "ddp.data_parallel_sharding_strategy": lambda built: not built["ddp.use_megatron_fsdp"],
    "optimizer.optimizer_offload_fraction": lambda built: not built["optimizer.optimizer_cpu_offload"],
    **{
        f"optimizer.muon_{name}": lambda built: built["optimizer.optimizer"] == "adam"
        for name in ("momentum", "nesterov")
    },
}
"""When a field is read by nobody, by what else is built."""

ALIKE: dict[str, tuple[Any, ...]] = {
    "model.use_cpu_initialization": (None, False),
    "model.offload_modules": (None, []),
    "model.moe_router_topk_scaling_factor": (None, 1.0),
    # All experts are one group, of which each token visits all.
    "model.moe_router_num_groups": (None, 1),
    "model.moe_router_group_topk": (None, 1),
}
"""Values that mean the same."""


def differences(script: Built, bridge: Built) -> list[str]:
    """Fields of Megatron-LM's table that Megatron-Bridge's has otherwise, each in a sentence."""
    wrong = []
    for name, value in script.items():
        if name not in bridge:
            wrong.append(f"{name} is {value} in Megatron-LM, and no field of Megatron-Bridge")
        elif not _same(name, _meaning(name, script), _meaning(name, bridge), (script, bridge)):
            wrong.append(f"{name} is {value} in Megatron-LM, {bridge[name]} in Megatron-Bridge")
    return wrong


def _same(name: str, ours: Any, theirs: Any, both: tuple[Built, Built]) -> bool:
    if ours == theirs or name in YOURS:
        return True
    if name in ALIKE and ours in ALIKE[name] and theirs in ALIKE[name]:
        return True
    return name in UNUSED and all(UNUSED[name](built) for built in both)


def _meaning(name: str, built: Built) -> Any:
    """What a value says beside its neighbours."""
    value = built[name]
    if name == "model.moe_enable_deepep":
        return value or built["model.moe_flex_dispatcher_backend"] == "deepep"
    if name == "model.add_qkv_bias":
        return value or built["model.add_bias_linear"]
    if name == "model.moe_layer_freq" and isinstance(value, int):
        return [1 if layer % value == 0 else 0 for layer in range(built["model.num_layers"])]
    if name.endswith("tensor_parallel_num_weight_shards") and value is None:
        expert = name.removeprefix("model.").startswith("expert")
        return built["model.expert_tensor_parallel_size" if expert else "model.tensor_model_parallel_size"]
    return value
