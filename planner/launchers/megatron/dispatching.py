"""How tokens reach experts, as arguments of Megatron-LM 0.19."""

from __future__ import annotations

from planner.cost.memory.activations import INPUT_BYTES
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.launchers.megatron.arguments import Arguments, option, switch


def dispatch_arguments(problem: Problem, plan: Plan) -> Arguments:
    """How tokens reach experts, as it is priced: one copy to an expert, or one to a rank or node (DeepEP)."""
    if problem.model.moe is None:
        return ()
    stack = problem.stack
    arguments = [option("--moe-token-dispatcher-type", "flex" if sends_once(problem, plan) else "alltoall")]
    if sends_once(problem, plan):
        is_deepep = stack.dispatcher_library == "deepep"
        backend = option("--moe-flex-dispatcher-backend", stack.dispatcher_library)
        arguments.append(switch("--moe-enable-deepep") if is_deepep else backend)
    if stack.moe_permute_fusion:
        arguments.append(switch("--moe-permute-fusion"))
    if stack.moe_router_fusion:
        arguments.append(switch("--moe-router-fusion"))
    if router_pads(problem, plan):
        arguments.append(switch("--moe-router-padding-for-fp8"))
    if stack.ep_overlap and plan.expert_parallel > 1:
        arguments.append(switch("--overlap-moe-expert-parallel-comm"))
    return tuple(arguments)


def router_pads(problem: Problem, plan: Plan) -> bool:
    """Whether the router fills up each expert's tokens for narrow products, as nothing behind it is to do so.

    With a capacity that is the number of tokens already. The switch is one for all number formats: newer
    versions call it `--moe-router-padding-for-quantization` as well (transformer_config.py of megatron-core
    0.15.3 and 0.16.1).
    """
    moe, stack = problem.model.moe, problem.stack
    narrow = problem.workload.precision in INPUT_BYTES
    own = sends_once(problem, plan) and stack.dispatcher_library == "hybridep"
    return (
        narrow and moe is not None and moe.capacity_factor is None and not (stack.pads_narrow_experts or own)
    )


def sends_once(problem: Problem, plan: Plan) -> bool:
    """Whether the dispatcher sends a token once to each rank or node; it needs several ranks to send to."""
    ranks = plan.expert_parallel * plan.expert_tensor_parallel
    return problem.stack.moe_dispatcher == "deduplicating" and ranks > 1
