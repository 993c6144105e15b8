"""The nearest plan that a target can run, where it cannot run the plan in hand.

Repairs what the target lacks, each in all sensible ways, and leaves the choice to whoever scores the
results: stages that recompute alike, degrees that are the same everywhere, no virtual stages, no
context parallelism, key-value heads that are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from planner.data.plan import LayerRange, Plan, Stage
from planner.data.problem import Problem, TargetName
from planner.data.result import Evaluation
from planner.errors import PlanRefusedError
from planner.launchers.megatron.plan_arguments import refusals
from planner.launchers.placement import place_hosts
from planner.rules.megatron import violations
from planner.rules.target import TARGETS, Target
from planner.rules.versions import NEWEST, version_violations

Repair = Callable[[Problem, Plan, Target], Iterable[Plan]]


def nearest_plan(
    problem: Problem, plan: Plan, target: TargetName, version: str | None = None
) -> tuple[Plan, Evaluation] | None:
    """The fastest plan of a target next to one that it cannot run, and what the referee says of it.

    None where no repair gives a plan that is legal and fits.
    """
    from planner.simulate.evaluate import evaluate

    best: tuple[Plan, Evaluation] | None = None
    for candidate in near_plans(problem, plan, target, version or NEWEST):
        evaluation = evaluate(problem, candidate)
        if not evaluation.violations and (best is None or evaluation.step_s < best[1].step_s):
            best = candidate, evaluation
    return best


def near_plans(problem: Problem, plan: Plan, target: TargetName, version: str = NEWEST) -> tuple[Plan, ...]:
    """Legal plans of a target near a plan that it cannot run, none twice; memory is not looked at."""
    found = [plan.model_copy(update={"target": target})]
    for repair in (_stack_chunks, _join_replicas, _even_degrees, _split_kv_heads, _drop_context, _recompute):
        found = [repaired for candidate in found for repaired in repair(problem, candidate, TARGETS[target])]
    found = [candidate for candidate in found if not version_violations(problem, candidate, version)]
    unique = {repr(candidate): candidate for candidate in found}
    return tuple(candidate for candidate in unique.values() if is_legal(problem, candidate))


def is_legal(problem: Problem, plan: Plan) -> bool:
    """Whether a plan breaks no rule, its arguments can be stated, and its ranks can be placed."""
    if violations(problem, plan):
        return False
    if not TARGETS[plan.target].has_launcher:
        return True
    if refusals(problem, plan):
        return False
    try:
        place_hosts(problem, plan)
    except PlanRefusedError:
        return False
    return True


def _stack_chunks(problem: Problem, plan: Plan, target: Target) -> Iterator[Plan]:
    """Virtual stages of a rank become one, with as many layers."""
    if target.virtual_stages or plan.virtual_stages == 1:
        yield plan
        return
    stages, first = [], 0
    for stage in plan.stages:
        layers: LayerRange = (first, first + stage.num_layers - 1)
        count = min(stage.recompute_layers * plan.virtual_stages, stage.num_layers)
        stages.append(stage.model_copy(update={"layers": layers, "recompute_layers": count}))
        first += stage.num_layers
    yield _with_stages(plan, stages, virtual_stages=1, microbatch_group_size=None)


def _join_replicas(problem: Problem, plan: Plan, target: Target) -> Iterator[Plan]:
    """Replicas of a stage get the stage's tensor parallelism where the target has one for all."""
    if target.mixed_stages and (target.tensor_parallel_per_replica or not plan.mixes_chips):
        yield plan
        return
    if not plan.mixes_chips:
        yield plan
        return
    if not target.mixed_stages:
        return
    stages = [
        stage
        if stage.replicas is None
        else stage.model_copy(
            update={
                "replicas": tuple(
                    replica.model_copy(update={"tensor_parallel": stage.tensor_parallel})
                    for replica in stage.replicas
                )
            }
        )
        for stage in plan.stages
    ]
    yield _with_stages(plan, stages)


def _even_degrees(problem: Problem, plan: Plan, target: Target) -> Iterator[Plan]:
    """All stages get the degrees of one of them, each in turn, on the chips that they have."""
    if target.data_parallel_per_stage or not plan.degrees_differ:
        yield plan
        return
    chips = [stage.tensor_parallel * stage.data_parallel for stage in plan.stages]
    for tp in dict.fromkeys(stage.tensor_parallel for stage in plan.stages):
        if len(set(chips)) == 1 and chips[0] % tp == 0:
            yield from _with_degrees(problem, plan, tp, chips[0] // tp)


def _split_kv_heads(problem: Problem, plan: Plan, target: Target) -> Iterator[Plan]:
    """The plan itself, and the same with fewer ranks a layer where key-value heads would be copied."""
    yield plan
    heads = problem.model.num_query_groups
    if plan.tensor_parallel > heads and not plan.degrees_differ and not plan.mixes_chips:
        chips = plan.tensor_parallel * plan.data_parallel
        yield from _with_degrees(problem, plan, heads, chips // heads)


def _drop_context(problem: Problem, plan: Plan, target: Target) -> Iterator[Plan]:
    """Ranks that split the sequence become replicas, or split the layers further."""
    if target.context_parallel or plan.context_parallel == 1:
        yield plan
        return
    cp = plan.context_parallel
    whole = plan.model_copy(update={"context_parallel": 1})
    yield from _with_degrees(problem, whole, plan.tensor_parallel, plan.data_parallel * cp)
    yield from _with_degrees(problem, whole, plan.tensor_parallel * cp, plan.data_parallel)


def _recompute(problem: Problem, plan: Plan, target: Target) -> Iterator[Plan]:
    """Stages that recompute alike, or without the selective kind beside others."""
    kinds = {(stage.recompute, stage.recompute_layers) for stage in plan.stages}
    names = {kind for kind, _ in kinds}
    if target.recompute_per_stage and (target.name != "flagscale" or names == {"selective"}):
        yield plan
        return
    if target.recompute_per_stage:
        if "selective" not in names:
            yield plan
            return
        for full in (False, True):
            yield _with_stages(plan, [_without_selective(stage, full) for stage in plan.stages])
        return
    if len(kinds) == 1:
        yield plan
        return
    yield _with_stages(plan, [_recomputing(stage, "none", 0) for stage in plan.stages])
    yield _with_stages(plan, [_recomputing(stage, "selective", 0) for stage in plan.stages])
    shortest = min(last - first + 1 for stage in plan.stages for first, last in stage.chunks)
    for count in range(1, shortest + 1):
        yield _with_stages(plan, [_recomputing(stage, "full", count) for stage in plan.stages])


def _without_selective(stage: Stage, full: bool) -> Stage:
    if stage.recompute != "selective":
        return stage
    return _recomputing(stage, "full", stage.num_layers) if full else _recomputing(stage, "none", 0)


def _recomputing(stage: Stage, kind: str, layers: int) -> Stage:
    return stage.model_copy(update={"recompute": kind, "recompute_layers": layers, "recompute_piece": 1})


def _with_degrees(problem: Problem, plan: Plan, tp: int, dp: int) -> Iterator[Plan]:
    """The plan with these degrees on all stages, where the batch divides; the micro-batch stays if it can."""
    batch = problem.workload.global_batch_size
    for size in range(plan.microbatch_size, 0, -1):
        if batch % (size * dp) == 0:
            stages = [
                stage.model_copy(update={"tensor_parallel": tp, "data_parallel": dp}) for stage in plan.stages
            ]
            etp = plan.expert_tensor_parallel
            yield _with_stages(
                plan,
                stages,
                tensor_parallel=tp,
                data_parallel=dp,
                microbatch_size=size,
                num_microbatches=batch // (size * dp),
                sequence_parallel=plan.sequence_parallel and tp > 1,
                expert_tensor_parallel=tp if etp == plan.tensor_parallel else etp,
            )
            return


def _with_stages(plan: Plan, stages: Iterable[Stage], **changes: object) -> Plan:
    return plan.model_copy(update={"stages": tuple(stages), **changes})
