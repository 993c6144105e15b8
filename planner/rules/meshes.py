"""What stages of different tensor or data parallelism must keep to, whatever runs them."""

from __future__ import annotations

from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.rules import experts, narrow, sequence


def microbatch_size_of(plan: Plan, stage: Stage) -> int:
    """Sequences of a micro-batch on a stage: as many over all its replicas as over the first stage's."""
    return plan.stages[0].data_parallel * plan.microbatch_size // stage.data_parallel


def first_stage_leads(plan: Plan) -> tuple[str, ...]:
    """The plan's own degrees are those of its first stage, from which all others are derived."""
    first = plan.stages[0]
    return tuple(
        f"{name} {own}: stage 0 has {its}; FlagScale counts from the first mesh, so write {its}"
        for name, own, its in (
            ("tensor_parallel", plan.tensor_parallel, first.tensor_parallel),
            ("data_parallel", plan.data_parallel, first.data_parallel),
        )
        if own != its
    )


def replicas_share_the_sequences(plan: Plan) -> tuple[str, ...]:
    """The sequences that run at a time split evenly over the replicas of every stage."""
    together = plan.stages[0].data_parallel * plan.microbatch_size
    return tuple(
        f"stage {s}: data_parallel {stage.data_parallel} does not divide the {together} sequences that the "
        f"{plan.stages[0].data_parallel} replicas of stage 0 run at a time; take a divisor"
        for s, stage in enumerate(plan.stages)
        if together % stage.data_parallel
    )


def tensor_groups_stay_on_hosts(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """No tensor-parallel group of a run of stages on one class is cut by the edge of a host.

    With equal degrees that divide the node none ever is; behind a smaller stage one may begin anywhere.
    """
    chips_of = {node_class.name: node_class.chips_per_node for node_class in problem.cluster.classes}
    found, start, before = [], 0, ""
    for s, stage in enumerate(plan.stages):
        start = start if stage.node_class == before else 0
        if start % stage.tensor_parallel and stage.node_class in chips_of:
            inside = start % chips_of[stage.node_class]
            found.append(
                f"stage {s}: begins {inside} chips into a host, whose edge cuts groups of tensor_parallel "
                f"{stage.tensor_parallel}; put it before the smaller stages"
            )
        start += plan.context_parallel * stage.tensor_parallel * stage.data_parallel
        before = stage.node_class
    return tuple(found)


def stage_degrees(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Rules on experts and tokens that each stage meets with its own degrees."""
    found = []
    own = (plan.tensor_parallel, plan.data_parallel)
    for s, stage in enumerate(plan.stages):
        if (stage.tensor_parallel, stage.data_parallel) == own:
            continue
        tp, cp, dp = stage.tensor_parallel, plan.context_parallel, stage.data_parallel
        messages = [
            _sequence_splits(problem, plan, stage),
            sequence.fp8_tokens_fill_rows(
                problem.workload,
                tp,
                cp,
                max(microbatch_size_of(plan, stage), 1),
                plan.sequence_parallel and tp > 1,
            ),
        ]
        if problem.model.moe is not None:
            etp, ep = min(plan.expert_tensor_parallel, tp), plan.expert_parallel
            messages += [
                sequence.experts_have_sequence_parallel(problem.model, tp, plan.sequence_parallel),
                narrow.expert_widths_fill_blocks(problem.model, problem.workload.precision, etp),
                experts.expert_ranks_divide_stage(tp, cp, dp, etp, ep),
                experts.expert_replicas_match(tp, cp, dp, etp, ep, plan.rank_order),
            ]
        found += [f"stage {s}: {message}" for message in messages if message is not None]
    return tuple(found)


def _sequence_splits(problem: Problem, plan: Plan, stage: Stage) -> str | None:
    if not plan.sequence_parallel or stage.tensor_parallel == 1:
        return None
    return sequence.sequence_splits(problem.workload, stage.tensor_parallel, plan.context_parallel)


def mesh_violations(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Sentences on every rule that stages of different shape break; empty where all are alike."""
    if not plan.degrees_differ or plan.mixes_chips:
        return ()
    return (
        *first_stage_leads(plan),
        *replicas_share_the_sequences(plan),
        *tensor_groups_stay_on_hosts(problem, plan),
        *stage_degrees(problem, plan),
    )
