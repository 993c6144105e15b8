"""What keeps each stage from holding another layer, told by giving it one and asking the referee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.data.explanation import Binding, StageReason
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.simulate.evaluate import evaluate


def stage_reasons(problem: Problem, plan: Plan, evaluation: Evaluation) -> tuple[StageReason, ...]:
    """Why each stage of a plan holds no more layers."""
    return tuple(_reason(problem, plan, evaluation, s) for s in range(len(plan.stages)))


def critical_stage(evaluation: Evaluation) -> int:
    """The stage with the most work in a step; the first of equals."""
    busy = [stage.busy_s for stage in evaluation.stages]
    return busy.index(max(busy))


def _reason(problem: Problem, plan: Plan, evaluation: Evaluation, s: int) -> StageReason:
    seen, group = evaluation.stages[s], pipeline_of(plan, s)
    pace = max(group, key=lambda i: evaluation.stages[i].busy_s)
    slowest_s = evaluation.stages[pace].busy_s
    slack_s, headroom_gib = slowest_s - seen.busy_s, seen.limit_gib - seen.peak_memory_gib

    def reason(binds: Binding, words: str) -> StageReason:
        return StageReason(stage=s, binds=binds, slack_s=slack_s, headroom_gib=headroom_gib, words=words)

    if s == pace:
        own = "the others" if plan.pipelines is None else "its pipeline"
        return reason("pace", f"has the most work and sets the pace of {own}")
    fuller = with_layer_moved(plan, group, pace, s)
    if fuller is None:
        where = "a single layer" if plan.virtual_stages == 1 else "a single layer in each chunk"
        return reason("layers", f"the slowest stage has {where}, none of which can be moved here")
    plain_s = None
    for changed in _with_recomputations(fuller, s):
        judged = evaluate(problem, changed)
        then_s = judged.stages[s].busy_s
        plain_s = then_s if plain_s is None else plain_s
        if judged.stages[s].peak_memory_gib > judged.stages[s].limit_gib:
            continue
        if then_s < slowest_s:
            # It fits and is still not the slowest; what the step loses lies elsewhere.
            slower = judged.step_s / evaluation.step_s - 1
            return reason("layers", f"another layer fits, but makes the step {100 * slower:.1f}% longer")
        if plain_s < slowest_s:
            return reason("memory", "another layer fits only with recomputation that makes it the slowest")
        longer = then_s / slowest_s - 1
        return reason("layers", f"another whole layer would make it the slowest, by {100 * longer:.1f}%")
    return reason("memory", "another layer does not fit, even with every layer recomputed")


def pipeline_of(plan: Plan, s: int) -> range:
    """The stages of the pipeline that a stage belongs to."""
    first = 0
    for pipeline in plan.pipelines or ():
        if s < first + pipeline.num_stages:
            return range(first, first + pipeline.num_stages)
        first += pipeline.num_stages
    return range(len(plan.stages))


def with_layer_moved(plan: Plan, group: range, source: int, target: int) -> Plan | None:
    """The plan with a layer of one stage of a pipeline on another: from its largest chunk to the smallest.

    None where every chunk of the source holds a single layer.
    """
    counts = [[last - first + 1 for first, last in plan.stages[s].chunks] for s in group]
    giving, taking = counts[source - group.start], counts[target - group.start]
    largest = giving.index(max(giving))
    if giving[largest] < 2:
        return None
    giving[largest] -= 1
    taking[taking.index(min(taking))] += 1
    stages = list(plan.stages)
    for s, changed in zip(group, dealt(stages[group.start : group.stop], counts), strict=True):
        stages[s] = changed
    return plan.model_copy(update={"stages": tuple(stages)})


def dealt(stages: Sequence[Stage], counts: Sequence[Sequence[int]]) -> list[Stage]:
    """The stages of one pipeline with so many layers in each chunk, [stage][chunk], in order of the model.

    The model runs through the first chunks of all stages, then through the second ones. Layers recomputed
    are at most those held.
    """
    first, ranges = 0, [[(0, 0)] * len(chunks) for chunks in counts]
    for chunk in range(len(counts[0])):
        for index, of_stage in enumerate(counts):
            ranges[index][chunk] = (first, first + of_stage[chunk] - 1)
            first += of_stage[chunk]
    found = []
    for stage, held, own in zip(stages, ranges, counts, strict=True):
        recomputed = min(stage.recompute_layers, max(own))
        layers = held[0] if len(held) == 1 else tuple(held)
        found.append(stage.model_copy(update={"layers": layers, "recompute_layers": recomputed}))
    return found


def _with_recomputations(plan: Plan, s: int) -> Iterator[Plan]:
    """The plan with more and more recomputation on a stage, the cheapest first."""
    stage = plan.stages[s]

    def having(**changes: object) -> Plan:
        stages: list[Stage] = list(plan.stages)
        stages[s] = stage.model_copy(update=changes)
        return plan.model_copy(update={"stages": tuple(stages)})

    yield having(recompute="none", recompute_layers=0)
    yield having(recompute="selective", recompute_layers=0)
    for count in range(1, max(last - first + 1 for first, last in stage.chunks) + 1):
        yield having(recompute="full", recompute_layers=count)
