"""Every decision of a plan as Hydra-style overrides on a recipe of Megatron-Bridge 0.6.

Whatever a recipe may have decided about the layout of a run is overridden, as a left-over setting would
contradict the plan or change it.
"""

from __future__ import annotations

from planner.cost.parameters import padded_vocab
from planner.data.chip import Precision
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.launchers.bridge import model as bridge_model
from planner.launchers.megatron import plan_arguments as args
from planner.launchers.megatron.dispatching import router_pads, sends_once
from planner.launchers.megatron.hybrid import hybrid_pattern
from planner.launchers.megatron.pipeline_layout import pipeline_layout
from planner.launchers.stated_software import loss_is_fused_by_te

MIXED_PRECISION: dict[Precision, str] = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_block": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Megatron-Bridge's name of each number format (0.6.2, training/mixed_precision.py)."""

CURRENT_SCALING = "bf16_with_fp8_current_scaling_mixed"
"""That of 8 bits with a scale that follows from each tensor's own values."""

Overrides = dict[str, str]
"""Field -> value, as Hydra reads it."""


def overrides(problem: Problem, plan: Plan) -> Overrides:
    """Every decision of the plan, and null for what a recipe may have decided in its place."""
    interleaved = plan.virtual_stages > 1
    fields: dict[str, object] = {
        "model.tensor_model_parallel_size": plan.tensor_parallel,
        "model.pipeline_model_parallel_size": plan.pipeline_parallel,
        "model.virtual_pipeline_model_parallel_size": plan.virtual_stages if interleaved else None,
        "model.microbatch_group_size_per_vp_stage": plan.microbatch_group_size,
        "model.context_parallel_size": plan.context_parallel,
        "model.expert_model_parallel_size": plan.expert_parallel,
        "model.expert_tensor_parallel_size": plan.expert_tensor_parallel
        if problem.model.moe is not None
        else None,
        "model.sequence_parallel": plan.sequence_parallel,
        **_layers_of_stages(problem.model, plan),
        "model.num_layers_in_first_pipeline_stage": None,
        "model.num_layers_in_last_pipeline_stage": None,
        "model.account_for_embedding_in_pipeline_split": False,
        "model.account_for_loss_in_pipeline_split": False,
        "model.tp_comm_overlap": args.overlaps_tensor_parallel(problem, plan),
        # Megatron-LM switches both by itself where chunks interleave; here they are fields.
        "model.overlap_p2p_comm": interleaved,
        "model.batch_p2p_comm": not interleaved,
        "model.cp_comm_type": problem.stack.cp_exchange if plan.context_parallel > 1 else None,
        "model.hierarchical_context_parallel_sizes": args.hierarchical_sizes(problem, plan),
        **_recompute(problem, plan),
        **_experts(problem, plan),
        "model.cpu_offloading": False,
        "model.fine_grained_activation_offloading": False,
        "model.seq_length": problem.workload.seq_length,
        "model.cross_entropy_loss_fusion": problem.stack.fused_cross_entropy,
        "model.cross_entropy_fusion_impl": "te" if loss_is_fused_by_te(problem.stack) else "native",
        "dataset.seq_length": problem.workload.seq_length,
        # Causal attention needs none; one takes seq_length^2 bytes a sample.
        "dataset.create_attention_mask": False,
        "train.micro_batch_size": plan.microbatch_size,
        "train.global_batch_size": problem.workload.global_batch_size,
        "train.train_iters": problem.workload.train_iters,
        # Over all of training: some recipes end the decay after the 100 steps that they are measured for.
        "scheduler.lr_decay_iters": None,
        "tokenizer.vocab_size": problem.model.vocab_size,
        # A size of its own is never padded by Megatron-Bridge, and other recipes take the tokenizer's.
        "tokenizer.use_tokenizer_vocab_size": False,
        "model.vocab_size": padded_vocab(problem.model.vocab_size, plan.tensor_parallel),
        **{
            f"model.{field}": value
            for field, value in bridge_model.kernels(problem.model, problem.stack).items()
        },
        **_optimizer(problem, plan),
        "dist.use_tp_pp_dp_mapping": plan.rank_order == "tp-cp-ep-pp-dp",
        "mixed_precision": _mixed_precision(problem),
        "comm_overlap": None,
    }
    return {key: _hydra(value) for key, value in fields.items()}


def _layers_of_stages(model: ModelSpec, plan: Plan) -> dict[str, object]:
    """The one field that says which layers a virtual stage holds."""
    layout = "model.pipeline_model_parallel_layout"
    if model.hybrid is not None:
        return {layout: None, "model.hybrid_layer_pattern": f'"{hybrid_pattern(model, plan)}"'}
    return {layout: f'"{pipeline_layout(plan, model.mtp_num_layers)}"'}


def _mixed_precision(problem: Problem) -> str:
    precision = problem.workload.precision
    if precision == "fp8" and problem.stack.current_scaling:
        return CURRENT_SCALING
    return MIXED_PRECISION[precision]


def _recompute(problem: Problem, plan: Plan) -> dict[str, object]:
    """One setting for all stages: where they differ in number, the others recompute all their layers."""
    stage = max(plan.stages, key=lambda one: one.recompute_layers)
    granularity = None if stage.recompute == "none" else stage.recompute
    uniform = stage.recompute_piece > 1
    layers = stage.recompute_piece if uniform else stage.recompute_layers
    modules = f"[{','.join(args.recompute_modules(problem, plan))}]"
    return {
        "model.recompute_granularity": granularity,
        "model.recompute_method": ("uniform" if uniform else "block") if granularity == "full" else None,
        "model.recompute_num_layers": layers if granularity == "full" else None,
        "model.recompute_modules": modules if granularity == "selective" else None,
    }


def _experts(problem: Problem, plan: Plan) -> dict[str, object]:
    """How tokens reach experts, as it is priced and as Megatron-LM's export has it."""
    if problem.model.moe is None:
        return {}
    library = problem.stack.dispatcher_library
    return {
        "model.moe_token_dispatcher_type": "flex" if sends_once(problem, plan) else "alltoall",
        **({"model.moe_flex_dispatcher_backend": library} if sends_once(problem, plan) else {}),
        # Priced one after the other; recipes that overlap them do so whatever the dispatcher can.
        "model.moe_shared_expert_overlap": False,
        "model.moe_permute_fusion": problem.stack.moe_permute_fusion,
        "model.moe_router_fusion": problem.stack.moe_router_fusion,
        "model.moe_router_dtype": "fp32",
        # Of recipes that were tuned for other chips; the older two names would set the first.
        "model.moe_flex_dispatcher_num_sms": None,
        "model.moe_deepep_num_sms": None,
        "model.moe_hybridep_num_sms": None,
        # Two names of one switch, of which recipes set either: the older one may only turn it on.
        "model.moe_router_padding_for_quantization": router_pads(problem, plan),
        "model.moe_router_padding_for_fp8": False,
        "model.overlap_moe_expert_parallel_comm": problem.stack.ep_overlap and plan.expert_parallel > 1,
        "model.moe_grouped_gemm": args.grouped_gemm_runs(problem, plan),
        "model.moe_expert_capacity_factor": problem.model.moe.capacity_factor,
        "model.moe_pad_expert_input_to_capacity": problem.model.moe.pad_to_capacity,
    }


def _optimizer(problem: Problem, plan: Plan) -> dict[str, object]:
    sharded = plan.dp_mode != "ddp"
    strategy = args.SHARDING_STRATEGY.get(plan.dp_mode)
    gathers_behind = sharded and problem.stack.dp_overlap
    bucket, shard = problem.stack.bucket_parameters, problem.stack.optimizer_shard_size
    ranks = plan.data_parallel * plan.context_parallel
    instances = ranks // shard if sharded and shard is not None and shard < ranks else 1
    # Beside fp16 what overflows is a sign to the loss scaler, at which recipes' checks would end the run.
    checks = ("ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss")
    return {
        **({name: False for name in checks} if problem.workload.precision == "fp16" else {}),
        "ddp.use_megatron_fsdp": strategy is not None,
        "dist.use_megatron_fsdp": strategy is not None,
        "ddp.data_parallel_sharding_strategy": strategy or "no_shard",
        "checkpoint.ckpt_format": args.checkpoint_format(plan),
        "ddp.use_distributed_optimizer": sharded,
        "ddp.overlap_grad_reduce": problem.stack.dp_overlap,
        "ddp.overlap_param_gather": gathers_behind,
        # All stages of a pipeline at once, as Megatron-LM switches by itself where chunks interleave.
        "ddp.align_param_gather": plan.virtual_stages > 1,
        "ddp.grad_reduce_in_fp32": problem.stack.gradient_bytes == 4,
        **({"ddp.bucket_size": round(bucket)} if bucket is not None and problem.stack.dp_overlap else {}),
        **({"ddp.num_distributed_optimizer_instances": instances} if instances > 1 else {}),
        "optimizer.use_distributed_optimizer": sharded,
        "optimizer.overlap_param_gather": gathers_behind,
        # Plans count Adam's two states; the recipe of Kimi K2 has Muon, and betas for it.
        "optimizer.optimizer": "adam",
        "optimizer.adam_beta1": 0.9,
        "optimizer.adam_beta2": 0.95,
        # Either would change memory behind the plan's back.
        "optimizer.use_precision_aware_optimizer": False,
        "optimizer.optimizer_cpu_offload": False,
    }


def _hydra(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
