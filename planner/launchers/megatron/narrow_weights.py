"""Weights that are kept in 8 or 4 bits alone, as the plan counts them where the software says so.

Megatron-LM keeps 16-bit weights beside the narrow ones unless it is told otherwise, which takes more memory
than such a plan has. (megatron-core 0.19.2, `megatron/training/arguments.py`: `--fp8-param-gather` asks for a
distributed optimizer or sharded parameters; megatron-bridge 0.6.2, `training/config.py`: with MXFP8 they are
gathered through the buffer of the gradients.)
"""

from __future__ import annotations

from planner.cost.memory.activations import INPUT_BYTES
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.launchers.megatron.arguments import Arguments, switch

REUSES_GRADIENTS = "--reuse-grad-buf-for-mxfp8-param-ag"


def keeps_narrow(problem: Problem) -> bool:
    """Whether weights are kept in the narrow format of the products, and in no wider one."""
    return problem.stack.narrow_parameters and problem.workload.precision in INPUT_BYTES


def narrow_arguments(problem: Problem, plan: Plan) -> Arguments:
    """Flags of Megatron-LM that say so; empty where 16-bit weights are kept, too."""
    if not keeps_narrow(problem):
        return ()
    precision = problem.workload.precision
    if precision == "nvfp4":
        return (switch("--fp4-param-gather"),)
    if precision == "mxfp8" and plan.dp_mode == "distopt":
        return (switch("--fp8-param-gather"), switch(REUSES_GRADIENTS))
    return (switch("--fp8-param-gather"),)


def narrow_fields(problem: Problem, plan: Plan) -> dict[str, bool]:
    """The same as fields of Megatron-Bridge's mixed precision, which has choices of its own."""
    flags = {argument.flag for argument in narrow_arguments(problem, plan)}
    return {
        "fp8_param_gather": "--fp8-param-gather" in flags,
        "fp4_param_gather": "--fp4-param-gather" in flags,
        "reuse_grad_buf_for_mxfp8_param_ag": REUSES_GRADIENTS in flags,
    }


def narrow_refusals(problem: Problem, plan: Plan) -> list[str]:
    """Why Megatron-LM cannot keep them so."""
    if not keeps_narrow(problem) or plan.dp_mode != "ddp":
        return []
    return [
        f"dp_mode ddp: software {problem.stack.id} keeps weights in {problem.workload.precision} alone "
        "(narrow_parameters), which needs a distributed optimizer; use dp_mode distopt"
    ]
