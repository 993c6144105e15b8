"""The referee: what a plan costs, and what is wrong with it.

Prices of the pieces (`planner.cost`), the schedule run event by event (`pipeline.py`), memory with
the micro-batches in flight counted along the order of work, the rules of the launcher. Shares
nothing with the optimiser but data, cost and rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.communication.mesh_groups import further_communicator_bytes
from planner.cost.kernels.flop import model_flop_per_step
from planner.cost.memory.stage import OUTSIDE, kept_bytes, memory_bytes
from planner.cost.prices import Degrees, Prices
from planner.cost.profiles import refuse_unmeasured
from planner.cost.remembered import remembered_price
from planner.cost.stage import StageContent, in_flight_1f1b
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation, StageEvaluation, TimelineEvent
from planner.rules.megatron import violations
from planner.rules.meshes import microbatch_size_of
from planner.rules.predictions import has_prediction_stage
from planner.simulate.meshes import degrees_of_stages, shapes_of
from planner.simulate.mixed import mixed_step_times
from planner.simulate.pipeline import simulate
from planner.simulate.pipelines import exchange_s, joined_timelines, share_of, tail_s
from planner.simulate.predictions import prices_with_prediction_stage
from planner.simulate.replicas import degrees_of_replicas, pipelines_of
from planner.simulate.schedules import peak_in_flight
from planner.simulate.step import (
    StepTimes,
    class_of_stage,
    schedulable_group,
    schedulable_microbatches,
    stage_contents,
    step_times,
)
from planner.tolerances import MEMORY_TOL_BYTES
from planner.units import GIB, format_gib


def evaluate(problem: Problem, plan: Plan, *, timeline: bool = False) -> Evaluation:
    """Step time, memory and violations of a plan.

    A plan that breaks rules is evaluated all the same where that means anything, and says which.

    Raises
    ------
    InstanceError
        Where a stage names a node class that the cluster does not have, or one whose layer profile lacks
        the stage's degree or micro-batch, so that nothing can be priced.
    """
    problem = _as_planned(problem, plan)
    if plan.pipelines is not None:
        return _evaluate_pipelines(problem, plan, timeline=timeline)
    if plan.mixes_chips:
        return _evaluate_mixed(problem, plan, timeline=timeline)
    for s, node_class in enumerate(class_of_stage(problem, plan)):
        refuse_unmeasured(
            problem,
            node_class,
            plan.stages[s].tensor_parallel,
            max(microbatch_size_of(plan, plan.stages[s]), 1),
            plan.context_parallel,
            f"plan: stages[{s}]",
        )
    if plan.degrees_differ:
        degrees, choices = degrees_of_stages(plan)
        return evaluate_stages(problem, plan, remembered_price(problem, degrees), choices, timeline=timeline)
    prices = remembered_price(problem, degrees_of(plan))
    if has_prediction_stage(problem.model, plan):
        prices, choices = prices_with_prediction_stage(problem, plan, degrees_of(plan), prices)
        return evaluate_stages(problem, plan, prices, choices, timeline=timeline)
    return evaluate_with_prices(problem, plan, prices, timeline=timeline)


def _as_planned(problem: Problem, plan: Plan) -> Problem:
    """The problem with the software as the plan sets it."""
    if plan.recompute_modules is None:
        return problem
    stack = problem.stack.model_copy(update={"selective_modules": plan.recompute_modules})
    return problem.model_copy(update={"stack": stack})


def degrees_of(plan: Plan) -> Degrees:
    """The degrees of a plan as the one row that `price` takes."""
    return Degrees.single(
        tensor_parallel=plan.tensor_parallel,
        context_parallel=plan.context_parallel,
        expert_parallel=plan.expert_parallel,
        expert_tensor_parallel=plan.expert_tensor_parallel,
        data_parallel=plan.data_parallel,
        microbatch_size=plan.microbatch_size,
        sequence_parallel=plan.sequence_parallel,
        dp_mode=plan.dp_mode,
    )


def evaluate_with_prices(
    problem: Problem, plan: Plan, prices: Prices, choice: int = 0, *, timeline: bool = False
) -> Evaluation:
    """The same with prices at hand; `choice` is the row of the plan's degrees in them.

    A plan whose stages differ in degrees or list their replicas is priced anew, as it may need several rows.
    """
    own_prices = plan.mixes_chips or plan.degrees_differ or plan.pipelines is not None
    if own_prices or has_prediction_stage(problem.model, plan):
        return evaluate(problem, plan, timeline=timeline)
    return evaluate_stages(problem, plan, prices, [choice] * len(plan.stages), timeline=timeline)


def evaluate_stages(
    problem: Problem, plan: Plan, prices: Prices, choices: Sequence[int], *, timeline: bool = False
) -> Evaluation:
    """The same with the row of every stage's degrees in `prices`."""
    contents = stage_contents(problem, plan, prices)
    shapes = shapes_of(plan, choices, [content.node_class for content in contents])
    times = step_times(problem, plan, prices, shapes, contents)
    in_flight = [_in_flight_of(plan, prices, choices[s], content, s) for s, content in enumerate(contents)]
    memory = [
        memory_bytes(prices, choices[s], content, in_flight[s], len(contents))
        for s, content in enumerate(contents)
    ]
    for terms, further in zip(memory, further_communicator_bytes(problem, plan.stage_degrees), strict=True):
        terms["context"] += further
    limits = [problem.memory_limit_bytes(content.node_class) for content in contents]
    events = _timeline(times, schedulable_group(plan)) if timeline else None
    peak_flop_per_s = sum(
        shape.num_chips
        * (problem.chip_of(shape.node_class).peak_flop_per_s(problem.workload.precision) or 0.0)
        for shape in shapes
    )
    return Evaluation(
        step_s=times.step_s,
        breakdown_s=times.breakdown_s,
        tokens_per_s=problem.workload.tokens_per_step / times.step_s,
        mfu=model_flop_per_step(problem) / (times.step_s * peak_flop_per_s) if peak_flop_per_s else 0.0,
        error_band=prices.error_band,
        stages=tuple(
            _stage_evaluation(times, s, in_flight[s], memory[s], limits[s]) for s in range(len(contents))
        ),
        violations=violations(problem, plan) + _memory_violations(plan, memory, limits),
        assumptions=prices.assumptions,
        timeline=events,
    )


def _evaluate_pipelines(problem: Problem, plan: Plan, *, timeline: bool) -> Evaluation:
    """The same for several pipelines: the slowest, what they exchange, and the longest tail.

    step = max_g (step_g - tail_g) + exchange + max_g tail_g: all meet when their own replicas have reduced
    their gradients, sum them, and update the weights on their own.
    """
    own = [evaluate(share_of(problem, part), part, timeline=timeline) for part in plan.pipeline_plans]
    tails = [tail_s(problem, part) for part in plan.pipeline_plans]
    before = [evaluation.step_s - tail for evaluation, tail in zip(own, tails, strict=True)]
    slowest = int(np.argmax(before))
    step_s = before[slowest] + exchange_s(problem, plan.pipeline_plans) + max(tails)
    breakdown = dict(own[slowest].breakdown_s)
    breakdown["dp"] += step_s - own[slowest].step_s
    stages = tuple(stage for evaluation in own for stage in evaluation.stages)
    memory = [{term: size * GIB for term, size in stage.memory_gib.items()} for stage in stages]
    limits = [stage.limit_gib * GIB for stage in stages]
    precision = problem.workload.precision
    classes = class_of_stage(problem, plan)
    peak_flop_per_s = sum(
        plan.context_parallel
        * sum(stage.tensor_parallel_degrees)
        * (problem.chip_of(c).peak_flop_per_s(precision) or 0.0)
        for stage, c in zip(plan.stages, classes, strict=True)
    )
    return Evaluation(
        step_s=step_s,
        breakdown_s=breakdown,
        tokens_per_s=problem.workload.tokens_per_step / step_s,
        mfu=model_flop_per_step(problem) / (step_s * peak_flop_per_s) if peak_flop_per_s else 0.0,
        error_band=max(evaluation.error_band for evaluation in own),
        stages=stages,
        violations=violations(problem, plan) + _memory_violations(plan, memory, limits),
        assumptions=tuple(dict.fromkeys(note for evaluation in own for note in evaluation.assumptions)),
        timeline=joined_timelines(own, plan.pipeline_plans) if timeline else None,
    )


def _evaluate_mixed(problem: Problem, plan: Plan, *, timeline: bool) -> Evaluation:
    """The same where stages list their replicas; of each stage the fullest chip, relative to its limit."""
    prices = remembered_price(problem, degrees_of_replicas(plan))
    pipelines = pipelines_of(problem, plan, prices)
    times = mixed_step_times(problem, plan, prices, pipelines)
    in_flight, memory, limits = [], [], []
    for s in range(len(plan.stages)):
        replicas = dict.fromkeys((p[s].choice, p[s].content) for p in pipelines)
        found = []
        for choice, content in replicas:
            counts = _in_flight_of(plan, prices, choice, content, s)
            terms = memory_bytes(prices, choice, content, counts, len(plan.stages))
            found.append((terms, problem.memory_limit_bytes(content.node_class), counts))
        terms, limit, counts = max(found, key=lambda entry: sum(entry[0].values()) / entry[1])
        in_flight.append(counts)
        memory.append(terms)
        limits.append(limit)
    chips = [(p.content.node_class, p.place.num_chips) for pipeline in pipelines for p in pipeline]
    peak_flop_per_s = sum(
        count * (problem.chip_of(c).peak_flop_per_s(problem.workload.precision) or 0.0) for c, count in chips
    )
    return Evaluation(
        step_s=times.step_s,
        breakdown_s=times.breakdown_s,
        tokens_per_s=problem.workload.tokens_per_step / times.step_s,
        mfu=model_flop_per_step(problem) / (times.step_s * peak_flop_per_s) if peak_flop_per_s else 0.0,
        error_band=prices.error_band,
        stages=tuple(
            _stage_evaluation(times, s, in_flight[s], memory[s], limits[s]) for s in range(len(plan.stages))
        ),
        violations=violations(problem, plan) + _memory_violations(plan, memory, limits),
        assumptions=prices.assumptions,
        timeline=_timeline(times, schedulable_group(plan)) if timeline else None,
    )


def _in_flight_of(plan: Plan, prices: Prices, choice: int, content: StageContent, s: int) -> tuple[int, ...]:
    v, m = plan.virtual_stages, schedulable_microbatches(plan)
    if prices.plans_memory and v == 1:
        return (in_flight_1f1b(len(plan.stages), s, m, planned=True),)
    kept = kept_bytes(prices, choice, content) if v > 1 else None
    return peak_in_flight(len(plan.stages), s, m, v, kept, schedulable_group(plan))


def _stage_evaluation(
    times: StepTimes, s: int, in_flight: tuple[int, ...], memory: dict[str, float], limit_bytes: float
) -> StageEvaluation:
    forward_s, backward_s = float(times.forward_s[s].sum()), float(times.backward_s[s].sum())
    busy_s = times.num_microbatches * (forward_s + backward_s)
    return StageEvaluation(
        forward_s=forward_s,
        backward_s=backward_s,
        send_s=float(times.hops_s[s]),
        busy_s=busy_s,
        bubble_s=max(0.0, times.makespan_s - busy_s),
        in_flight=sum(in_flight) / len(in_flight),
        memory_gib={term: size / GIB for term, size in memory.items()},
        peak_memory_gib=sum(memory.values()) / GIB,
        allocated_memory_gib=sum(size for term, size in memory.items() if term not in OUTSIDE) / GIB,
        limit_gib=limit_bytes / GIB,
    )


def _memory_violations(plan: Plan, memory: list[dict[str, float]], limits: list[float]) -> tuple[str, ...]:
    """Stages whose reserved memory exceeds what they may use."""
    found = []
    for s, (stage, terms, limit) in enumerate(zip(plan.stages, memory, limits, strict=True)):
        needed = sum(terms.values())
        if needed > limit + MEMORY_TOL_BYTES:
            needs, may_use = format_gib(needed), f"may use {format_gib(limit)}"
            if needs == format_gib(limit):
                may_use = f"{format_gib(needed - limit)} more than it may use"
            found.append(f"stage {s} (chip {stage.chip}): needs {needs}, {may_use}; try {_way_out(plan, s)}")
    return tuple(found)


def _way_out(plan: Plan, s: int) -> str:
    """What to change on a stage that does not fit: recompute more, else hold less."""
    stage = plan.stages[s]
    longest = max((last - first + 1 for first, last in stage.chunks), default=0)
    if stage.recompute != "full":
        return "recompute=full"
    if stage.recompute_layers < longest:
        return f"recompute_layers up to {longest}"
    if plan.microbatch_size > 1:
        return "a smaller micro-batch"
    return "fewer layers on it or more tensor parallelism"


def _timeline(times: StepTimes, group_size: int | None) -> tuple[TimelineEvent, ...]:
    """Start and end of every piece of work, in order of stage and start."""
    run = simulate(times.forward_s, times.backward_s, times.delays_s, times.num_microbatches, group_size)
    events = [
        TimelineEvent(
            stage=s, chunk=chunk, microbatch=k, work=work, start_s=float(start), end_s=float(end[s, chunk, k])
        )
        for work, begins, end in (
            ("forward", run.forward_start_s, run.forward_end_s),
            ("backward", run.backward_start_s, run.backward_end_s),
        )
        for (s, chunk, k), start in np.ndenumerate(begins)
    ]
    return tuple(sorted(events, key=lambda event: (event.stage, event.start_s)))
