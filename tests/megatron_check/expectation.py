"""What Megatron-LM should make of a plan, worked out from the plan alone. Runs in our environment."""

from __future__ import annotations

from typing import Any

from planner.cost.parameters import (
    ParameterCounts,
    embedding_copies,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.data.model_spec import WITH_EXPERTS
from planner.data.plan import Plan
from planner.data.problem import Problem

from .settings import expected_recomputation, expected_settings


def expectation(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Layers, rank coordinates, micro-batches and parameters, in the form that the check compares with."""
    return {
        "layers_per_stage": [[last - first + 1 for first, last in stage.chunks] for stage in plan.stages],
        "layers": [[list(range(first, last + 1)) for first, last in stage.chunks] for stage in plan.stages],
        "rank_coords": {str(rank): coordinates(plan, rank) for rank in range(plan.world_size)},
        "num_microbatches": plan.num_microbatches,
        "settings": expected_settings(problem, plan),
        "recomputation": expected_recomputation(plan),
        "params_per_stage": [stage_parameters(problem, plan, s) for s in range(plan.pipeline_parallel)],
    }


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """Place of a rank on the axes of the plan's rank order."""
    sizes = {
        "tp": plan.tensor_parallel,
        "cp": plan.context_parallel,
        "dp": plan.data_parallel,
        "pp": plan.pipeline_parallel,
    }
    place = {}
    for axis in plan.rank_order.split("-"):
        if axis in sizes:
            rank, place[axis] = divmod(rank, sizes[axis])
    return place


def stage_parameters(problem: Problem, plan: Plan, stage: int) -> int:
    """Parameters that one rank of a stage holds."""
    model, tp = problem.model, plan.tensor_parallel
    vocab = padded_vocab(model.vocab_size, tp)
    is_first, is_last = stage == 0, stage == plan.pipeline_parallel - 1
    counts = ParameterCounts()
    for first, last in plan.stages[stage].chunks:
        for kind in model.kind_of_layer[first : last + 1]:
            counts += layer_parameters(model, kind)
    if is_first:
        counts += embedding_parameters(model, vocab)
    apart = plan.prediction_stage
    if is_last:
        counts += head_parameters(model, vocab)
        # The last stage has a copy of the embedding for a tied head, and one for multi-token prediction.
        if not is_first:
            own = model if apart is None else model.model_copy(update={"mtp_num_layers": 0})
            counts += embedding_copies(own, vocab)
    if stage == (plan.pipeline_parallel - 1 if apart is None else apart):
        counts += mtp_parameters(model)
    # Megatron then keeps the final norm with the last of the model's layers, but in hybrids with the loss.
    if model.mtp_num_layers and model.hybrid is None:
        holder = next(
            s
            for s, own in enumerate(plan.stages)
            if any(first <= last == model.num_layers - 1 for first, last in own.chunks)
        )
        norm = head_parameters(model).replicated
        counts += ParameterCounts(replicated=norm * ((stage == holder) - is_last))
    if stage == apart:
        counts += embedding_parameters(model, vocab)
    per_rank = counts.per_rank(tp, plan.expert_parallel, plan.expert_tensor_parallel)
    return round(per_rank) - _balancing_biases(problem, plan, stage)


def _balancing_biases(problem: Problem, plan: Plan, stage: int) -> int:
    """Router biases that only balance load: Megatron keeps them as buffers, not as parameters."""
    model = problem.model
    if model.moe is None or not model.moe.router_bias or model.moe.expert_bias:
        return 0
    kinds = [
        kind for first, last in plan.stages[stage].chunks for kind in model.kind_of_layer[first : last + 1]
    ]
    if stage == (plan.pipeline_parallel - 1 if plan.prediction_stage is None else plan.prediction_stage):
        kinds += model.prediction_kinds * model.own_predictions
    return sum(kind in WITH_EXPERTS for kind in kinds) * model.moe.num_experts
