"""What older versions of Megatron-LM ask beyond the rules of core 0.19.

The rules of all other modules hold from 0.15 on: layouts by string with virtual stages (whose group size
is checked by `schedules.py` of every version alike) and recomputation per node. Sources: the wheels
megatron-core 0.15.3, 0.16.1, 0.17.1, 0.18.2 and 0.19.2 (Apache-2.0).
"""

from __future__ import annotations

from planner.data.plan import Plan
from planner.data.problem import Problem

VERSIONS = ("0.15", "0.16", "0.17", "0.18", "0.19")
"""Versions of Megatron core that plans are written for, oldest first."""

NEWEST = VERSIONS[-1]
"""The version that is meant where none is named."""


def version_violations(problem: Problem, plan: Plan, version: str) -> tuple[str, ...]:
    """Sentences on what this version refuses though newer ones accept it; empty where there is nothing."""
    found = []
    if VERSIONS.index(version) < VERSIONS.index("0.16"):
        found.append(kv_heads_are_not_copied(problem, plan, version))
        found.append(predictions_stay_with_the_loss(plan, version))
        found.append(router_pads_for_eight_bits_alone(problem, version))
        found.append(shared_experts_have_no_gate(problem, version))
    if version != NEWEST:
        found.append(sharding_is_new(plan, version))
    found.append(hidden_exchanges_predict_over_stages(problem, plan, version))
    found.append(softplus_is_new(problem, version))
    found.append(hybrids_end_stages(problem, version))
    found.append(hybrids_recompute(problem, plan, version))
    found.append(latent_experts_and_repeated_predictions(problem, version))
    found += linear_attention_is_new(problem, plan, version)
    return tuple(message for message in found if message is not None)


def fitting_version(problem: Problem, plan: Plan) -> str:
    """The newest version that accepts a plan for Megatron-LM; the newest of all where none does."""
    return next((v for v in reversed(VERSIONS) if not version_violations(problem, plan, v)), NEWEST)


def newest_buildable(problem: Problem) -> tuple[str, str] | None:
    """The newest version of core that builds a network, and why no newer one; None where the newest does."""
    model = problem.model
    if model.linear_attention is None or not model.mtp_num_layers:
        return None
    return "0.18", (
        f"Megatron core {NEWEST} builds no predictions (mtp_num_layers {model.mtp_num_layers}) beside the "
        f"linear attention of {model.id}"
    )


def predictions_stay_with_the_loss(plan: Plan, version: str) -> str | None:
    """Multi-token-prediction layers may leave the stage of the loss from core 0.16 on.

    Source: megatron-core 0.15.3, megatron/core/transformer/pipeline_parallel_layer_layout.py,
    `validate_layer_layout`; 0.16.1 has dropped the assertion.
    """
    if plan.prediction_stage is None:
        return None
    return (
        f"prediction_stage {plan.prediction_stage}: Megatron core {version} keeps predictions on the "
        "stage of the loss; leave it out, or take version 0.16 or newer"
    )


def router_pads_for_eight_bits_alone(problem: Problem, version: str) -> str | None:
    """The router fills up experts' tokens for products in 4 bits from core 0.16 on.

    Source: megatron-core 0.15.3, megatron/core/transformer/transformer_config.py:1326; 0.16.1, line 1613.
    """
    moe, narrow = problem.model.moe, problem.workload.precision == "nvfp4"
    if not narrow or moe is None or moe.capacity_factor is not None or problem.stack.pads_narrow_experts:
        return None
    return (
        f"stack {problem.stack.id}, pads_narrow_experts false: Megatron core {version} does not pad in "
        "the router for nvfp4; take version 0.16 or newer"
    )


def hidden_exchanges_predict_over_stages(problem: Problem, plan: Plan, version: str) -> str | None:
    """Exchanges of experts behind computation take several stages beside predictions in core 0.16 and 0.17.

    Source: megatron-core 0.16.1, megatron/core/transformer/transformer_config.py:1892; 0.17.1, line 2137.
    Neither 0.15.3 nor 0.18.2 asserts it.
    """
    hidden = problem.model.moe is not None and problem.stack.ep_overlap and plan.expert_parallel > 1
    if version not in ("0.16", "0.17") or not hidden or not problem.model.mtp_num_layers:
        return None
    if plan.pipeline_parallel > 1:
        return None
    return (
        f"ep_overlap of the software beside the prediction layer of {problem.model.id}: Megatron core "
        f"{version} takes several stages for it; take version 0.18 or newer, or software without ep_overlap"
    )


def shared_experts_have_no_gate(problem: Problem, version: str) -> str | None:
    """Shared experts are weighed by a gate of their own from core 0.16 on.

    Source: megatron-core 0.16.1, megatron/core/transformer/transformer_config.py (`moe_shared_expert_gate`);
    0.15.3 has no such argument.
    """
    model = problem.model
    if model.moe is None or not model.moe.shared_expert_gate:
        return None
    return (
        f"model {model.id}: Megatron core {version} has no gate of shared experts; take version 0.16 or newer"
    )


def sharding_is_new(plan: Plan, version: str) -> str | None:
    """Megatron-FSDP took the number formats of its gradients as arguments in core 0.19.

    Source: megatron-core 0.19.2, megatron/training/arguments.py:3520.
    """
    if plan.dp_mode in ("ddp", "distopt"):
        return None
    return f"dp_mode {plan.dp_mode}: written for Megatron core {NEWEST} only, not {version}"


def softplus_is_new(problem: Problem, version: str) -> str | None:
    """The root of a softplus scores experts from core 0.18 on.

    Source: megatron-core 0.18.2, megatron/core/transformer/transformer_config.py:724; 0.17.1, line 698.
    """
    if problem.model.constants.expert_scores != "sqrtsoftplus" or VERSIONS.index(version) >= VERSIONS.index(
        "0.18"
    ):
        return None
    return (
        f"model {problem.model.id}: Megatron core {version} does not score experts by sqrtsoftplus; take "
        "version 0.18 or newer"
    )


def hybrids_end_stages(problem: Problem, version: str) -> str | None:
    """Patterns of Mamba, attention and feed-forward layers end stages where they like from core 0.17 on.

    Source: megatron-core 0.17.1, megatron/core/ssm/mamba_hybrid_layer_allocation.py; 0.16.1 cuts evenly.
    """
    if problem.model.hybrid is None or VERSIONS.index(version) >= VERSIONS.index("0.17"):
        return None
    return (
        f"model {problem.model.id}: Megatron core {version} cannot say which of its layers a stage holds; "
        "take version 0.17 or newer"
    )


def latent_experts_and_repeated_predictions(problem: Problem, version: str) -> str | None:
    """Experts on a narrower copy of the tokens, and one layer for all predictions, from core 0.17 on.

    Source: megatron-core 0.17.1, megatron/core/transformer/transformer_config.py (`moe_latent_size`,
    `mtp_use_repeated_layer`); older ones were not looked at.
    """
    model = problem.model
    latent = model.moe is not None and model.moe.latent_size is not None
    if not (latent or model.repeated_prediction) or VERSIONS.index(version) >= VERSIONS.index("0.17"):
        return None
    return (
        f"model {model.id}: latent experts, and one layer for all predictions, are of Megatron core 0.17 and "
        "newer; take one of these versions"
    )


def linear_attention_is_new(problem: Problem, plan: Plan, version: str) -> tuple[str, ...]:
    """Linear attention and gates of attention from core 0.17 on; beside predictions up to 0.18; over
    context-parallel ranks, and with the norm of its result recomputed, from 0.19 on.

    Source: megatron-core 0.17.1, megatron/core/transformer/transformer_config.py:1108 (no context
    parallelism); 0.16.1 has the layers, but its wheel no arguments; 0.18.2,
    megatron/core/transformer/transformer_layer.py hands its layers a `cp_comm_type` that
    megatron/core/ssm/gated_delta_net.py does not take; 0.19.2,
    megatron/core/models/gpt/gpt_layer_specs.py:572 (refuses predictions beside it, which 0.18.2 makes of full
    attention), transformer_config.py:1777 (`gdn_norm_out`).
    """
    model, index = problem.model, VERSIONS.index(version)
    wrong, linear = list[str](), model.linear_attention is not None
    if (linear or model.output_gate) and index < VERSIONS.index("0.17"):
        what = "linear attention" if linear else "gates of attention"
        wrong.append(f"model {model.id}: {what} is written for Megatron core 0.17 and newer, not {version}")
    if linear and plan.context_parallel > 1 and index < VERSIONS.index("0.19"):
        wrong.append(
            f"context_parallel {plan.context_parallel}: the linear attention of {model.id} needs Megatron "
            f"core 0.19 or newer for it, not {version}; use 1"
        )
    if linear and model.mtp_num_layers and index >= VERSIONS.index("0.19"):
        wrong.append(
            f"model {model.id}: Megatron core {version} builds no predictions (mtp_num_layers "
            f"{model.mtp_num_layers}) beside linear attention; take version 0.17 or 0.18, or leave them out"
        )
    modules = plan.recompute_modules or problem.stack.selective_modules
    selective = any(stage.recompute == "selective" for stage in plan.stages)
    if linear and selective and "gdn_norm_out" in modules and index < VERSIONS.index("0.19"):
        wrong.append(
            f"recompute_modules gdn_norm_out: of Megatron core 0.19, not {version}; leave the module out"
        )
    return tuple(wrong)


def hybrids_recompute(problem: Problem, plan: Plan, version: str) -> str | None:
    """Whole layers of hybrid models are recomputed from core 0.18 on; before, the argument does nothing.

    Source: megatron-core 0.18.2, megatron/core/models/hybrid/hybrid_block.py:308; 0.17.1,
    megatron/core/ssm/mamba_block.py, does not ask for it.
    """
    full = any(stage.recompute == "full" and stage.recompute_layers for stage in plan.stages)
    if problem.model.hybrid is None or not full or VERSIONS.index(version) >= VERSIONS.index("0.18"):
        return None
    return (
        f'recompute "full": Megatron core {version} does not recompute the layers of {problem.model.id}; '
        "take version 0.18 or newer, or plan with --forbid recompute=full"
    )


def kv_heads_are_not_copied(problem: Problem, plan: Plan, version: str) -> str | None:
    """Key-value heads split over the ranks without being copied: kv_heads % tp == 0.

    Source: megatron-core 0.15.3, megatron/core/transformer/transformer_config.py:758; from 0.16 on (0.16.1,
    line 940) a multiple of the heads serves too.
    """
    heads, tp = problem.model.num_query_groups, plan.tensor_parallel
    if problem.model.mla is not None or heads % tp == 0:
        return None
    return (
        f"tensor_parallel {tp}: Megatron core {version} does not copy the {heads} key-value heads of "
        f"{problem.model.id}; use at most {heads}, or version 0.16 or newer"
    )
