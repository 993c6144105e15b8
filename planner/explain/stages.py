"""What keeps each stage from holding another layer, told by giving it one and asking the referee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.data.explanation import StageReason
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.simulate.evaluate import evaluate


def stage_reasons(problem: Problem, plan: Plan, evaluation: Evaluation) -> tuple[StageReason, ...]:
    """Why each stage of a plan holds no more layers."""
    busy = [stage.busy_s for stage in evaluation.stages]
    return tuple(_reason(problem, plan, evaluation, s, max(busy)) for s in range(len(plan.stages)))


def critical_stage(evaluation: Evaluation) -> int:
    """The stage with the most work in a step; the first of equals."""
    busy = [stage.busy_s for stage in evaluation.stages]
    return busy.index(max(busy))


def _reason(problem: Problem, plan: Plan, evaluation: Evaluation, s: int, slowest_s: float) -> StageReason:
    seen = evaluation.stages[s]
    slack_s, headroom_gib = slowest_s - seen.busy_s, seen.limit_gib - seen.peak_memory_gib
    critical = critical_stage(evaluation)

    def reason(binds: str, words: str) -> StageReason:
        return StageReason(stage=s, binds=binds, slack_s=slack_s, headroom_gib=headroom_gib, words=words)

    if s == critical:
        return reason("pace", "has the most work and sets the pace of the others")
    if plan.virtual_stages > 1:
        return reason("unknown", "not asked: with virtual stages layers do not move one at a time")
    layers = [stage.num_layers for stage in plan.stages]
    if layers[critical] < 2:
        return reason("layers", "the slowest stage has a single layer, none of which can be moved here")
    layers[s] += 1
    layers[critical] -= 1
    plain_s = None
    for changed in _with_recomputations(dealt(plan, layers), s):
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


def dealt(plan: Plan, layers: Sequence[int]) -> Plan:
    """The plan with so many layers on each stage, in order; recomputed layers at most these."""
    stages, first = [], 0
    for stage, count in zip(plan.stages, layers, strict=True):
        recomputed = min(stage.recompute_layers, count)
        stages.append(
            stage.model_copy(update={"layers": (first, first + count - 1), "recompute_layers": recomputed})
        )
        first += count
    return plan.model_copy(update={"stages": tuple(stages)})


def _with_recomputations(plan: Plan, s: int) -> Iterator[Plan]:
    """The plan with more and more recomputation on a stage, the cheapest first."""
    stage = plan.stages[s]

    def having(**changes: object) -> Plan:
        stages: list[Stage] = list(plan.stages)
        stages[s] = stage.model_copy(update=changes)
        return plan.model_copy(update={"stages": tuple(stages)})

    yield having(recompute="none", recompute_layers=0)
    yield having(recompute="selective", recompute_layers=0)
    for count in range(1, stage.num_layers + 1):
        yield having(recompute="full", recompute_layers=count)
