"""The plan's decisions as arguments of Megatron-LM 0.19: degrees, layout, batch, precision, recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from planner.cost.kernels.operators import HALF
from planner.cost.recomputation import missing_modules
from planner.data.chip import Precision
from planner.data.expert_kernels import experts_run_apart, runs_grouped_products
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.stack import SelectiveModule
from planner.launchers.megatron.arguments import Argument, Arguments, option, switch
from planner.launchers.megatron.hybrid import PATTERN, hybrid_pattern
from planner.launchers.megatron.linear_attention import linear_refusals
from planner.launchers.megatron.model import builds, inexpressible
from planner.launchers.megatron.narrow_weights import narrow_arguments, narrow_refusals
from planner.launchers.megatron.pipeline_layout import pipeline_layout
from planner.launchers.stated_software import software_refusals
from planner.rules.experts import exchange_cannot_hide
from planner.rules.sequence import ranks_that_exchange_heads

_FP8_RECIPE: dict[Precision, str] = {"fp8": "delayed", "fp8_block": "blockwise", "mxfp8": "mxfp8"}
"""Megatron-LM's name of each 8-bit scaling; its own default is `delayed`."""

_HISTORY = (option("--fp8-amax-history-len", 1024), option("--fp8-amax-compute-algo", "max"))

GROUP_SIZE = "--microbatch-group-size-per-virtual-pipeline-stage"
"""Micro-batches that pass a virtual stage before the next takes its turn."""

FP32_GRADIENTS = "--accumulate-allreduce-grads-in-fp32"
"""Sums gradients in fp32; beside bf16 they are unless told otherwise."""

SHARDING_STRATEGY = {
    "zero2": "optim_grads",
    "fsdp": "optim_grads_params",
}
"""Megatron-FSDP's name of what each mode shards (core 0.19, distributed_data_parallel_config.py)."""


def refusals(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """What of the problem or plan the arguments cannot state, each in a sentence."""
    wrong = [*inexpressible(problem.model, **builds(plan.target)), *linear_refusals(problem, plan)]
    if problem.model.hybrid is not None and plan.target == "megatron-bridge" and plan.virtual_stages > 1:
        wrong.append(
            f"virtual_stages {plan.virtual_stages}: Megatron-Bridge builds none of Mamba layers; use 1"
        )
    moe = problem.model.moe
    if plan.dp_mode == "zero3":
        # Priced as DeepSpeed runs it; Megatron-FSDP keeps embedding and head gathered, in more memory.
        wrong.append('dp_mode zero3: Megatron-LM shards parameters as dp_mode "fsdp" is priced; use that')
    sharded_by_bridge = plan.target == "megatron-bridge" and plan.dp_mode in SHARDING_STRATEGY
    if sharded_by_bridge and plan.rank_order == "tp-cp-ep-pp-dp":
        # megatron-bridge 0.6.2, training/config.py:1116
        refused = f"rank order {plan.rank_order} with dp_mode {plan.dp_mode}"
        wrong.append(f"{refused}: Megatron-Bridge refuses it; use tp-cp-ep-dp-pp")
    if moe is None and plan.expert_parallel > 1:
        wrong.append(f"expert_parallel {plan.expert_parallel} without experts in {problem.model.id}; use 1")
    if moe is None and plan.rank_order == "tp-cp-ep-pp-dp" and plan.context_parallel > 1:
        # Without experts Megatron still forms their groups, of tp ranks, and wants as many replicas.
        wrong.append(
            f"rank order {plan.rank_order} with context_parallel {plan.context_parallel} needs a model "
            "with experts in Megatron-LM; use tp-cp-ep-dp-pp"
        )
    return (
        *wrong,
        *_recompute_refusals(problem, plan),
        *_sharing_refusals(problem, plan),
        *narrow_refusals(problem, plan),
        *exchange_cannot_hide(problem, plan),
        *software_refusals(problem.model_copy(update={"target": plan.target})),
    )


def _recompute_refusals(problem: Problem, plan: Plan) -> list[str]:
    """Modules that Megatron-LM does not recompute here (core 0.19, transformer_config.py:1766)."""
    if all(stage.recompute != "selective" for stage in plan.stages):
        return []
    wrong, modules = [], recompute_modules(problem, plan)
    if not modules:
        wrong.append(f'recompute "selective": {problem.model.id} has none of the modules; name others')
    delayed = problem.workload.precision == "fp8" and not problem.stack.current_scaling
    outputs = [name for name in modules if name in ("moe_act", "layernorm")]
    if delayed and outputs:
        wrong.append(
            f"recompute_modules {', '.join(outputs)}: not with fp8 in delayed scaling; use mxfp8, fp8_block "
            "or other modules"
        )
    if "moe_act" in modules and not grouped_gemm_runs(problem, plan):
        wrong.append("recompute_modules moe_act: needs grouped products, which a chip of the cluster lacks")
    return wrong


def _sharing_refusals(problem: Problem, plan: Plan) -> list[str]:
    """Why the optimizer state cannot be shared among as few ranks as the software says."""
    size = problem.stack.optimizer_shard_size
    ranks = plan.data_parallel * plan.context_parallel
    if plan.dp_mode not in ("distopt", "fsdp") or size is None or size >= ranks:
        return []
    if ranks % size:
        return [
            f"optimizer_shard_size {size} does not divide the {ranks} data x context parallel ranks into "
            "whole groups"
        ]
    groups = ranks // size
    replicas = plan.stage_size // (plan.expert_parallel * plan.expert_tensor_parallel)
    if problem.model.moe is not None and replicas % groups:
        return [
            f"optimizer_shard_size {size} makes {groups} groups, into which the {replicas} replicas of the "
            "experts do not divide; take a larger size or fewer expert parallel ranks"
        ]
    return []


def parallel_arguments(problem: Problem, plan: Plan) -> Arguments:
    """Degrees, rank order and layout; the data-parallel degree follows from the number of ranks."""
    arguments = [
        option("--tensor-model-parallel-size", plan.tensor_parallel),
        option("--pipeline-model-parallel-size", plan.pipeline_parallel),
        option("--context-parallel-size", plan.context_parallel),
        _layers_of_stages(problem.model, plan),
    ]
    if plan.microbatch_group_size is not None:
        arguments.append(option(GROUP_SIZE, plan.microbatch_group_size))
    if problem.model.moe is not None:
        # The expert degree defaults to the tensor degree, which many worlds do not divide by.
        arguments += [
            option("--expert-model-parallel-size", plan.expert_parallel),
            option("--expert-tensor-parallel-size", plan.expert_tensor_parallel),
        ]
    if plan.sequence_parallel:
        arguments.append(switch("--sequence-parallel"))
    if plan.context_parallel > 1:
        arguments.append(option("--cp-comm-type", problem.stack.cp_exchange))
    if (sizes := hierarchical_sizes(problem, plan)) is not None:
        arguments.append(option("--hierarchical-context-parallel-sizes", *sizes))
    if plan.rank_order == "tp-cp-ep-pp-dp":
        arguments.append(switch("--use-tp-pp-dp-mapping"))
    if overlaps_tensor_parallel(problem, plan):
        arguments.append(switch("--tp-comm-overlap"))
    return tuple(arguments)


def _layers_of_stages(model: ModelSpec, plan: Plan) -> Argument:
    """The one argument that says which layers a virtual stage holds."""
    if model.hybrid is not None:
        return option(PATTERN, hybrid_pattern(model, plan))
    return option("--pipeline-model-parallel-layout", pipeline_layout(plan, model.mtp_num_layers))


def overlaps_tensor_parallel(problem: Problem, plan: Plan) -> bool:
    """Whether tensor-parallel communication hides behind the products, which asks for a split sequence."""
    overlapped = problem.stack.tp_userbuffers or problem.stack.tp_overlap_fraction > 0
    return overlapped and plan.tensor_parallel > 1 and plan.sequence_parallel


def hierarchical_sizes(problem: Problem, plan: Plan) -> list[int] | None:
    """Ranks that exchange heads, and rings of them, where context parallelism has both levels."""
    if problem.stack.cp_exchange != "a2a+p2p" or plan.context_parallel == 1:
        return None
    tp, cp = plan.tensor_parallel, plan.context_parallel
    inner = ranks_that_exchange_heads(problem.stack, tp, cp, problem.least_fast_domain_chips)
    return [inner, plan.context_parallel // inner]


def batch_arguments(problem: Problem, plan: Plan) -> Arguments:
    """Micro-batch and global batch; the number of micro-batches follows from the two."""
    return (
        option("--micro-batch-size", plan.microbatch_size),
        option("--global-batch-size", problem.workload.global_batch_size),
    )


def number_format(precision: Precision, *, current_scaling: bool = False) -> Arguments:
    """Number format of the matrix products.

    As NVIDIA trains (megatron-bridge 0.6.2, `training/mixed_precision.py`): MXFP8 has E4M3 for gradients too,
    and delayed scales follow from the largest of 1,024 steps; Megatron-LM's own take the last step alone.
    """
    wide = switch("--fp16" if precision == "fp16" else "--bf16")
    if precision in _FP8_RECIPE:
        recipe = "tensorwise" if precision == "fp8" and current_scaling else _FP8_RECIPE[precision]
        kind = option("--fp8-format", "e4m3" if recipe == "mxfp8" else "hybrid")
        return (wide, kind, option("--fp8-recipe", recipe), *(_HISTORY if recipe == "delayed" else ()))
    if precision == "nvfp4":
        return (wide, option("--fp4-format", "e2m1"), option("--fp4-recipe", "nvfp4"))
    return (wide,)


def precision_arguments(problem: Problem) -> Arguments:
    """Number format of the matrix products, and kernels that the software stack names."""
    stack = problem.stack
    arguments = list(number_format(problem.workload.precision, current_scaling=stack.current_scaling))
    if not stack.flash_attention:
        arguments.append(option("--attention-backend", "unfused"))
    if stack.fused_cross_entropy:
        arguments.append(switch("--cross-entropy-loss-fusion"))
    return tuple(arguments)


def optimizer_arguments(problem: Problem, plan: Plan) -> Arguments:
    """What the data-parallel ranks shard, and whether their communication runs behind computation."""
    sharded = plan.dp_mode != "ddp"
    arguments = [switch("--use-distributed-optimizer")] if sharded else []
    stack = problem.stack
    if plan.dp_mode in SHARDING_STRATEGY:
        arguments += _fsdp_arguments(problem, plan)
    if not stack.gradient_accumulation_fusion:
        arguments.append(switch("--no-gradient-accumulation-fusion"))
    if stack.dp_overlap:
        arguments.append(switch("--overlap-grad-reduce"))
        if sharded:
            arguments.append(switch("--overlap-param-gather"))
        if stack.bucket_parameters is not None:
            arguments.append(option("--ddp-bucket-size", round(stack.bucket_parameters)))
    if plan.dp_mode in ("ddp", "distopt"):
        arguments += gradient_format(problem)
    ranks = plan.data_parallel * plan.context_parallel
    if sharded and stack.optimizer_shard_size is not None and stack.optimizer_shard_size < ranks:
        instances = ranks // stack.optimizer_shard_size
        arguments.append(option("--num-distributed-optimizer-instances", instances))
    return (*arguments, *narrow_arguments(problem, plan))


def gradient_format(problem: Problem) -> list[Argument]:
    """Format in which gradients are summed: unless told otherwise fp32 beside bf16, fp16 beside fp16.

    Source: megatron-core 0.19.2, megatron/training/arguments.py:1172.
    """
    narrow = problem.stack.gradient_bytes == HALF
    if problem.workload.precision == "fp16":
        return [] if narrow else [switch(FP32_GRADIENTS)]
    return [switch("--grad-reduce-in-bf16")] if narrow else []


def _fsdp_arguments(problem: Problem, plan: Plan) -> list[Argument]:
    """Megatron-FSDP, which shards gradients and parameters; its number formats as they are priced."""
    stack = problem.stack
    return [
        switch("--use-megatron-fsdp"),
        option("--data-parallel-sharding-strategy", SHARDING_STRATEGY[plan.dp_mode]),
        option("--megatron-fsdp-main-grads-dtype", "bf16" if stack.gradient_bytes == HALF else "fp32"),
        option(
            "--megatron-fsdp-grad-comm-dtype", "bf16" if stack.scattered_gradient_bytes == HALF else "fp32"
        ),
        option("--ckpt-format", checkpoint_format(plan)),
    ]


def checkpoint_format(plan: Plan) -> str:
    """Format of checkpoints: Megatron-FSDP writes one of its own only."""
    return "fsdp_dtensor" if plan.dp_mode in SHARDING_STRATEGY else "torch_dist"


def recompute_modules(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """What selective recomputation runs again, of the modules that the network has and Megatron-LM names."""
    wanted = plan.recompute_modules or problem.stack.selective_modules
    missing = missing_modules(problem.model, wanted)
    return tuple(name for name in wanted if name not in missing and name in get_args(SelectiveModule))


def recompute_arguments(stage: Stage, modules: Sequence[str]) -> Arguments:
    """What a stage recomputes: the only arguments that differ between stages.

    With `block`, the first `--recompute-num-layers` layers of each virtual stage are recomputed; with
    `uniform` all are, in pieces of so many. Nothing that crosses a stage depends on them, so nodes of
    different stages may differ.
    """
    if stage.recompute == "selective":
        return (
            option("--recompute-granularity", "selective"),
            option("--recompute-modules", *modules),
        )
    if stage.recompute == "full" and stage.recompute_piece > 1:
        return (
            option("--recompute-granularity", "full"),
            option("--recompute-method", "uniform"),
            option("--recompute-num-layers", stage.recompute_piece),
        )
    if stage.recompute == "full" and stage.recompute_layers:
        return (
            option("--recompute-granularity", "full"),
            option("--recompute-method", "block"),
            option("--recompute-num-layers", stage.recompute_layers),
        )
    return ()


def grouped_gemm_runs(problem: Problem, plan: Plan) -> bool:
    """Whether experts run as grouped matrix products, as priced; never on a spared chip that has none."""
    of_plan = (problem.chips[stage.chip] for stage in plan.stages)
    return not experts_run_apart(problem) and all(map(runs_grouped_products, of_plan))
