"""What each launcher can express: a target is a set of constraints on the plan, known before the search.

Sources: Megatron-LM core 0.19 (per-stage layers by the layout string; recomputation per stage by
arguments per node); Megatron-Bridge 0.6 (one set of overrides for all nodes); FlagScale 16a2dd5,
heterogeneous mode (one mesh a stage: tensor and data parallel degrees per stage, context parallel 1,
no virtual stages). `unrestricted` has no launcher; its plans leave as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.data.plan import Plan
from planner.data.problem import TargetName


@dataclass(frozen=True)
class Target:
    """Features that a launcher can express; what is not named it cannot."""

    name: TargetName
    has_launcher: bool = False
    """Whether launch files can be written for it."""
    tensor_parallel_per_stage: bool = False
    """Stages may differ in tensor-parallel degree."""
    data_parallel_per_stage: bool = False
    """Stages may differ in data-parallel degree."""
    recompute_per_stage: bool = False
    """Stages may differ in what they recompute."""
    virtual_stages: bool = False
    """A pipeline rank may hold several virtual stages."""
    empty_ends: bool = False
    """The embedding, and the loss, may have a (virtual) stage to themselves."""
    prediction_stage: bool = False
    """Predictions of further tokens may be on the stage before the one with the loss."""
    context_parallel: bool = False
    """The sequence may be split over ranks."""
    unequal_microbatches: bool = False
    """Replicas may run different numbers of micro-batches."""
    mixed_stages: bool = False
    """The data-parallel ranks of one stage may lie on different chips."""
    tensor_parallel_per_replica: bool = False
    """They may differ in tensor-parallel degree."""


TARGETS: dict[TargetName, Target] = {
    target.name: target
    for target in (
        Target(
            "megatron-lm",
            has_launcher=True,
            recompute_per_stage=True,
            virtual_stages=True,
            empty_ends=True,
            prediction_stage=True,
            context_parallel=True,
            mixed_stages=True,
        ),
        Target(
            "megatron-bridge",
            has_launcher=True,
            virtual_stages=True,
            empty_ends=True,
            context_parallel=True,
            mixed_stages=True,
        ),
        Target(
            "flagscale",
            has_launcher=True,
            tensor_parallel_per_stage=True,
            data_parallel_per_stage=True,
            recompute_per_stage=True,
        ),
        Target(
            "unrestricted",
            tensor_parallel_per_stage=True,
            data_parallel_per_stage=True,
            recompute_per_stage=True,
            virtual_stages=True,
            empty_ends=True,
            context_parallel=True,
            unequal_microbatches=True,
            mixed_stages=True,
            tensor_parallel_per_replica=True,
        ),
    )
}
"""The targets by name."""


def degrees_are_expressible(plan: Plan, target: Target) -> tuple[str, ...]:
    """All stages have the plan's tensor- and data-parallel degree, unless the target lets them differ."""
    may_differ = {
        "tensor_parallel": target.tensor_parallel_per_stage,
        "data_parallel": target.data_parallel_per_stage,
    }
    return tuple(
        f"stage {s}: {degree} {getattr(stage, degree)} differs from the plan's {getattr(plan, degree)}; "
        f"target {target.name} has one for all stages"
        for degree, differs in may_differ.items()
        for s, stage in enumerate(plan.stages)
        if not differs and getattr(stage, degree) != getattr(plan, degree)
    )


def recompute_is_expressible(plan: Plan, target: Target) -> tuple[str, ...]:
    """All stages recompute alike, unless the target lets them differ.

    One number of layers holds for all stages: those with fewer recompute all that they have, which where they
    have none is written as 1 (megatron/core/transformer/transformer_block.py, `_checkpointed_forward`, method
    `block`).
    """
    if target.recompute_per_stage:
        return ()
    most = max(plan.stages, key=lambda stage: stage.recompute_layers)
    return tuple(
        f"stage {s}: recompute {stage.recompute} with recompute_layers {stage.recompute_layers} differs from "
        f"stage {plan.stages.index(most)} ({most.recompute}, {most.recompute_layers}); "
        f"target {target.name} has one setting for all"
        for s, stage in enumerate(plan.stages)
        if (stage.recompute, stage.recompute_piece) != (most.recompute, most.recompute_piece)
        or stage.recompute_layers not in (most.recompute_layers, max(stage.longest_chunk, 1))
    )


def splits_are_expressible(plan: Plan, target: Target) -> tuple[str, ...]:
    """No virtual stages and no context parallelism where the target has none."""
    has = {"virtual_stages": target.virtual_stages, "context_parallel": target.context_parallel}
    return tuple(
        f"{split} {getattr(plan, split)}: target {target.name} has none; set it to 1"
        for split, there in has.items()
        if not there and getattr(plan, split) > 1
    )


def mixed_stages_are_expressible(plan: Plan, target: Target) -> tuple[str, ...]:
    """A stage lies on one chip, unless the target lets its replicas differ."""
    if target.mixed_stages:
        return ()
    return tuple(
        f"stage {s}: lists replicas on {', '.join(dict.fromkeys(chip for _, chip, _ in stage.places))}; "
        f"target {target.name} has one chip a stage"
        for s, stage in enumerate(plan.stages)
        if stage.replicas is not None
    )


def replica_degrees_are_expressible(plan: Plan, target: Target) -> tuple[str, ...]:
    """All replicas have the tensor-parallel degree of their stage, unless the target lets them differ."""
    if target.tensor_parallel_per_replica:
        return ()
    return tuple(
        f"stage {s}: its replicas have tensor_parallel {', '.join(map(str, stage.tensor_parallel_degrees))}; "
        f"target {target.name} has {stage.tensor_parallel} for all of them"
        for s, stage in enumerate(plan.stages)
        if set(stage.tensor_parallel_degrees) != {stage.tensor_parallel}
    )


def pipelines_are_expressible(plan: Plan, target: Target) -> tuple[str, ...]:
    """All replicas are alike and run as many micro-batches, unless the target lets them differ."""
    if target.unequal_microbatches or plan.pipelines is None:
        return ()
    return (
        f"pipelines: lists {len(plan.pipelines)} of different shape or share; target {target.name} has one "
        "for all replicas",
    )


RULES = (
    degrees_are_expressible,
    recompute_is_expressible,
    splits_are_expressible,
    mixed_stages_are_expressible,
    replica_degrees_are_expressible,
    pipelines_are_expressible,
)
"""All rules of a target, in the order in which they are reported."""


def target_violations(plan: Plan) -> tuple[str, ...]:
    """Sentences on everything in the plan that its target cannot express; empty where there is nothing."""
    target = TARGETS[plan.target]
    return tuple(message for rule in RULES for message in rule(plan, target))
