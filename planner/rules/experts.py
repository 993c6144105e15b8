"""What expert parallelism asks of the model and of the other degrees.

Each rule returns None where it holds, else a sentence with the thing, the value and the way out.
Line numbers are those of megatron-core 0.19.2 (Apache-2.0).
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.data.problem import Problem


def experts_exist(model: ModelSpec, ep: int) -> str | None:
    """Expert parallelism needs experts.

    Source: megatron/core/transformer/transformer_config.py:1468.
    """
    if ep == 1 or model.moe is not None:
        return None
    return f"expert_parallel {ep}: {model.id} has no experts; set it to 1"


def experts_split(model: ModelSpec, ep: int) -> str | None:
    """Every expert-parallel rank holds as many experts: experts % ep == 0.

    Source: megatron/core/transformer/moe/moe_layer.py:185.
    """
    if model.moe is None or model.moe.num_experts % ep == 0:
        return None
    return f"expert_parallel {ep}: {model.moe.num_experts} experts do not split evenly; take a divisor"


def expert_width_splits(model: ModelSpec, etp: int) -> str | None:
    """An expert splits by columns over its own tensor-parallel ranks: width % etp == 0.

    Source: megatron/core/tensor_parallel/layers.py:965 and :1328.
    """
    if model.moe is None or model.moe.ffn_hidden_size % etp == 0:
        return None
    return (
        f"expert_tensor_parallel {etp}: expert width {model.moe.ffn_hidden_size} does not split evenly; "
        "take a divisor"
    )


def biased_experts_stay_whole(model: ModelSpec, etp: int) -> str | None:
    """Experts with biases do not split: each of their ranks would add the bias of the second product.

    Source: megatron/core/transformer/transformer_config.py:2279.
    """
    if etp == 1 or model.moe is None or not model.moe.expert_bias:
        return None
    return f"expert_tensor_parallel {etp}: experts with biases need expert_tensor_parallel 1; set it to 1"


def expert_ranks_divide_stage(tp: int, cp: int, dp: int, etp: int, ep: int) -> str | None:
    """The experts' grid covers the ranks of a stage: (tp cp dp) % (etp ep) == 0.

    With every stage alike this is world % (etp ep pp) == 0.
    Source: megatron/core/parallel_state.py:881.
    """
    if (tp * cp * dp) % (etp * ep) == 0:
        return None
    return (
        f"expert_parallel {ep}: x expert_tensor_parallel {etp} = {ep * etp} does not divide the "
        f"{tp * cp * dp} ranks of a stage (tensor {tp} x context {cp} x data {dp}); lower one of them"
        + (", such as expert_tensor_parallel to 1" if etp > 1 and (tp * cp * dp) % ep == 0 else "")
    )


def expert_replicas_match(tp: int, cp: int, dp: int, etp: int, ep: int, rank_order: str) -> str | None:
    """Unless stages come last in the rank order, experts have as many replicas as the rest.

    Source: megatron/core/parallel_state.py:898.
    """
    if rank_order.endswith("pp") or tp * cp * dp == dp * etp * ep:
        return None
    return (
        f"rank_order {rank_order}: experts have {tp * cp * dp // (etp * ep)} replicas, the rest {dp}; "
        "use tp-cp-ep-dp-pp"
    )


def exchange_cannot_hide(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Why the exchange of tokens does not run behind computation, where the software says that it does.

    A schedule of its own hides it, beside another micro-batch's computation; it needs virtual stages in a
    pipeline, and keeps what full recomputation would not. No rule on every plan: it is of the software.
    Source: megatron/core/transformer/transformer_config.py:2669.
    """
    if problem.model.moe is None or not problem.stack.ep_overlap or plan.expert_parallel == 1:
        return ()
    modules = plan.recompute_modules or problem.stack.selective_modules
    kinds = {stage.recompute for stage in plan.stages}
    reasons = []
    if plan.pipeline_parallel > 1 and plan.virtual_stages == 1:
        reasons.append(f"a pipeline of {plan.pipeline_parallel} stages needs virtual stages")
    if "full" in kinds:
        reasons.append("no stage may recompute in full")
    if "selective" in kinds and "moe" in modules:
        reasons.append("recompute_modules must not name moe")
    if problem.model.mtp_num_layers > 1:
        reasons.append(f"at most one prediction layer, not {problem.model.mtp_num_layers}")
    if not reasons:
        return ()
    return (
        f"ep_overlap of the software (exchange of tokens behind computation): {'; '.join(reasons)}; change "
        "that, or take software without ep_overlap",
    )
