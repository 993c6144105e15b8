"""What Megatron-LM's settings should be for a plan, worked out without the code that writes launch files."""

from __future__ import annotations

from typing import Any

from planner.data.model_spec import WITH_EXPERTS, ModelSpec
from planner.data.plan import Plan
from planner.data.problem import Problem

_ACTIVATION = {
    "silu": "silu",
    "swiglu": "silu",
    "swiglu-clamped": "quick_gelu",
    "gelu": "gelu",
    "gelu-tanh": "gelu",
    "squared-relu": "squared_relu",
}


def expected_settings(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Values of `TransformerConfig`, and of the parser where it has none, by name; the same on all ranks."""
    return {
        **_network(problem.model),
        **(_latent(problem.model) if problem.model.mla is not None else {}),
        **(_experts(problem.model) if problem.model.moe is not None else {}),
        **_parallel(problem, plan),
    }


def _network(model: ModelSpec) -> dict[str, Any]:
    constants, everywhere = model.constants, model.linear_bias in ("all",)
    if model.moe is not None and model.moe.expert_bias:
        everywhere = True
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "layernorm_epsilon": constants.norm_epsilon or 1e-5,
        "layernorm_zero_centered_gamma": constants.zero_centered_norms,
        "normalization": {"rms": "RMSNorm", "layer": "LayerNorm"}[model.normalization],
        "add_bias_linear": everywhere,
        "add_qkv_bias": everywhere or model.linear_bias == "qkv",
        "activation_func": _ACTIVATION[model.activation],
        "gated_linear_unit": model.gated_mlp,
        "qk_layernorm": model.qk_norm or model.mla is not None,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "window_size": None if model.sliding_window is None else [model.sliding_window - 1, 0],
        "softmax_type": "learnable" if model.attention_sinks else "vanilla",
        "mtp_num_layers": model.mtp_num_layers or None,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        **(_positions(model) if model.position_embedding == "rope" else {}),
        **(
            {"num_query_groups": model.num_query_groups, "kv_channels": model.head_dim}
            if model.mla is None
            else {}
        ),
        **({"ffn_hidden_size": model.ffn_hidden_size} if model.ffn_hidden_size else {}),
    }


def _positions(model: ModelSpec) -> dict[str, Any]:
    constants = model.constants
    return {
        "rotary_base": constants.rotary_base or 10000,
        "rotary_interleaved": constants.rotates_neighbours,
        "no_rope_freq": None
        if constants.unrotated_every is None
        else [int((i + 1) % constants.unrotated_every == 0) for i in range(model.num_layers)],
        "rotary_percent": 1.0 if constants.rotary_fraction is None else constants.rotary_fraction,
    }


def _latent(model: ModelSpec) -> dict[str, Any]:
    mla = model.mla
    assert mla is not None
    return {
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_head_dim": mla.qk_nope_head_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }


def _experts(model: ModelSpec) -> dict[str, Any]:
    moe, constants = model.moe, model.constants
    assert moe is not None
    balanced = moe.router_bias and not moe.expert_bias
    scores = constants.expert_scores or ("sigmoid" if balanced else "softmax")
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size or None,
        "moe_shared_expert_gate": moe.shared_expert_gate,
        "moe_router_enable_expert_bias": balanced,
        "moe_router_score_function": scores,
        "moe_router_pre_softmax": scores == "softmax" and (constants.softmax_over_all or moe.top_k == 1),
        "moe_router_num_groups": constants.expert_groups if (constants.expert_groups or 1) > 1 else None,
        "moe_router_group_topk": constants.groups_visited if (constants.expert_groups or 1) > 1 else None,
        "moe_expert_capacity_factor": moe.capacity_factor,
        "moe_pad_expert_input_to_capacity": moe.pad_to_capacity,
        **(
            {"moe_layer_freq": [int(kind in WITH_EXPERTS) for kind in model.kind_of_layer]}
            if model.hybrid is None
            else {}
        ),
    }


def _parallel(problem: Problem, plan: Plan) -> dict[str, Any]:
    precision = problem.workload.precision
    sharded = plan.dp_mode != "ddp"
    return {
        "tensor_model_parallel_size": plan.tensor_parallel,
        "pipeline_model_parallel_size": plan.pipeline_parallel,
        "context_parallel_size": plan.context_parallel,
        "sequence_parallel": plan.sequence_parallel,
        "virtual_pipeline_model_parallel_size": plan.virtual_stages if plan.virtual_stages > 1 else None,
        "micro_batch_size": plan.microbatch_size,
        "seq_length": problem.workload.seq_length,
        "use_distributed_optimizer": sharded,
        "params_dtype": "torch.float16" if precision == "fp16" else "torch.bfloat16",
        "padded_vocab_size": _padded(problem.model.vocab_size, plan.tensor_parallel),
        **(
            {
                "expert_model_parallel_size": plan.expert_parallel,
                "expert_tensor_parallel_size": plan.expert_tensor_parallel,
            }
            if problem.model.moe is not None
            else {}
        ),
        **(
            {"microbatch_group_size_per_vp_stage": plan.microbatch_group_size or plan.pipeline_parallel}
            if plan.virtual_stages > 1
            else {}
        ),
    }


def _padded(vocabulary: int, tp: int) -> int:
    return -(-vocabulary // (128 * tp)) * 128 * tp


def expected_recomputation(plan: Plan) -> list[list[Any]]:
    """Granularity, method and number of layers of every stage."""
    found: list[list[Any]] = []
    for stage in plan.stages:
        if stage.recompute == "full" and stage.recompute_piece > 1:
            found.append(["full", "uniform", stage.recompute_piece])
        elif stage.recompute == "full":
            found.append(["full", "block", stage.recompute_layers])
        else:
            found.append(["selective" if stage.recompute == "selective" else None, None, None])
    return found
