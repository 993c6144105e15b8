"""All rules on a plan, run together: what its launcher would refuse, and what the cluster lacks.

Megatron-LM's are those of core 0.19; `planner.rules.versions` has what older ones ask in addition.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.rules import batch, chips, experts, flagscale, hosts, meshes, narrow, pipeline, sequence, tensor
from planner.rules.predictions import prediction_stage_refusals
from planner.rules.target import target_violations


def violations(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Sentences on every rule that a plan breaks, each with the way out; empty for a legal plan.

    Memory is no rule of the launcher and is left to the referee.
    """
    if plan.pipelines is not None:
        return _pipelines_violations(problem, plan)
    return tuple(
        dict.fromkeys(
            [
                *target_violations(plan),
                *(flagscale.plan_violations(problem, plan) if plan.target == "flagscale" else ()),
                *meshes.mesh_violations(problem, plan),
                *_degree_violations(problem, plan),
                *_batch_violations(problem, plan),
                *_pipeline_violations(problem, plan),
                *_chip_violations(problem, plan),
                *_host_violations(problem, plan),
            ]
        )
    )


def _pipelines_violations(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The same for a plan of several pipelines: each with its own degrees, all on the same hosts."""
    found = [*target_violations(plan)]
    for i, own in enumerate(plan.pipeline_plans):
        messages = [
            *_degree_violations(problem, own),
            *meshes.stage_degrees(problem, own),
            *_pipeline_violations(problem, own),
        ]
        found += [f"pipeline {i}: {message}" for message in messages]
    sequences = sum(
        own.data_parallel * own.microbatch_size * own.num_microbatches for own in plan.pipeline_plans
    )
    if sequences != problem.workload.global_batch_size:
        found.append(
            f"pipelines: run {sequences} sequences a step, global_batch_size is "
            f"{problem.workload.global_batch_size}; correct their micro-batches"
        )
    found += [
        *_chip_violations(problem, plan),
        *hosts.classes_exist(problem, plan),
        *hosts.hosts_exist(problem, plan),
        *hosts.class_has_chips(problem, plan),
        *hosts.stages_are_packed(problem, plan),
        *meshes.tensor_groups_stay_on_hosts(problem, plan),
    ]
    return tuple(dict.fromkeys(found))


def _present(*messages: str | None) -> Iterator[str]:
    return (message for message in messages if message is not None)


def _degree_violations(problem: Problem, plan: Plan) -> Iterator[str]:
    """Degrees against the model's widths and the sequence."""
    model, workload = problem.model, problem.workload
    tp, cp, dp = plan.tensor_parallel, plan.context_parallel, plan.data_parallel
    etp, ep = plan.expert_tensor_parallel, plan.expert_parallel
    degrees = dict.fromkeys([tp, *(d for s in plan.stages for d in s.tensor_parallel_degrees)])
    for degree in degrees:
        yield from tensor.tensor_parallel_refusals(model, degree)
        yield from _present(narrow.tensor_widths_fill_blocks(model, workload.precision, degree))
    yield from _present(
        sequence.sequence_parallel_has_ranks(max(degrees), plan.sequence_parallel),
        sequence.experts_have_sequence_parallel(model, tp, plan.sequence_parallel),
        sequence.sequence_splits(workload, tp, cp) if plan.sequence_parallel else None,
        sequence.context_splits(workload, cp),
        sequence.mamba_layers_keep_sequences(model, cp),
        sequence.linear_heads_split_twice(model, tp, cp),
        sequence.attention_runs_in_parts(model, problem.stack, tp, cp, problem.least_fast_domain_chips),
        sequence.exchanged_heads_split(model, problem.stack, tp, cp, problem.least_fast_domain_chips),
        sequence.fp8_tokens_fill_rows(workload, tp, cp, plan.microbatch_size, plan.sequence_parallel),
        experts.experts_exist(model, ep),
        experts.experts_split(model, ep),
        experts.expert_width_splits(model, etp),
        experts.biased_experts_stay_whole(model, etp),
        narrow.expert_widths_fill_blocks(model, workload.precision, etp),
    )
    if model.moe is not None:
        yield from _present(
            experts.expert_ranks_divide_stage(tp, cp, dp, etp, ep),
            experts.expert_replicas_match(tp, cp, dp, etp, ep, plan.rank_order),
        )


def _batch_violations(problem: Problem, plan: Plan) -> Iterator[str]:
    """Batch over micro-batches and replicas."""
    arguments = problem.workload, plan.microbatch_size, plan.data_parallel
    return _present(
        batch.batch_divides(*arguments), batch.microbatch_count_agrees(*arguments, plan.num_microbatches)
    )


def _pipeline_violations(problem: Problem, plan: Plan) -> Iterator[str]:
    """Layers, schedule, recomputation."""
    yield from pipeline.stages_hold_layers(plan)
    yield from prediction_stage_refusals(problem.model, plan)
    yield from pipeline.layers_come_once_in_order(problem.model, plan)
    yield from pipeline.virtual_stages_need_stages(plan)
    yield from pipeline.interleaving_has_whole_groups(plan)
    yield from pipeline.recomputed_layers_exist(plan)
    yield from pipeline.recomputed_pieces_cover_stages(plan)
    yield from _present(
        pipeline.predictions_are_recomputed_alone(problem.model, plan),
        pipeline.predictions_follow_a_layer(problem.model, plan),
    )


def _chip_violations(problem: Problem, plan: Plan) -> Iterator[str]:
    """Number format, attention and node of every class that the plan uses."""
    degrees_on: dict[str, list[int]] = {}
    for stage in plan.stages:
        if stage.replicas is None:
            degrees_on.setdefault(stage.node_class, []).append(stage.tensor_parallel)
        for replica in stage.replicas or ():
            degrees_on.setdefault(replica.node_class, []).append(replica.tensor_parallel)
    for i, node_class in enumerate(problem.cluster.classes):
        degrees = degrees_on.get(node_class.name, [])
        if degrees:
            yield from _present(
                chips.precision_runs(problem.chip_of(i), problem.workload.precision),
                sequence.class_attends_in_parts(problem, i, plan.context_parallel),
            )
        for tp in dict.fromkeys(degrees):
            yield from _present(
                chips.tensor_group_stays_in_node(tp, node_class.chips_per_node, node_class.name)
            )


def _host_violations(problem: Problem, plan: Plan) -> Iterator[str]:
    """Classes, hosts and the packing of stages on them."""
    if not plan.degrees_differ:
        yield from _present(
            hosts.world_is_whole(
                plan.world_size, plan.tensor_parallel, plan.pipeline_parallel, plan.context_parallel
            )
        )
    yield from hosts.classes_exist(problem, plan)
    yield from hosts.hosts_exist(problem, plan)
    yield from hosts.class_has_chips(problem, plan)
    yield from hosts.groups_share_a_transport(problem, plan)
    yield from hosts.stages_are_packed(problem, plan)
