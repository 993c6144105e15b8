"""The best plans that differ in kind from a given one: each found by forbidding what the plan decided.

A next-best plan that moves one layer says little. So each coarse decision of the plan (a degree, the number
of stages, the micro-batch size, a kind of recomputation, the order of the classes, what only its launcher
can run) is ruled out by itself, and the rest is searched again. Its bound proves what the decision is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from planner.data.changes import with_cluster
from planner.data.explanation import Alternative
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError
from planner.report.words import differences

DEGREES = {
    "tp": ("tensor_parallel", "another tensor-parallel degree than {}"),
    "cp": ("context_parallel", "another context-parallel degree than {}"),
    "ep": ("expert_parallel", "another expert-parallel degree than {}"),
    "pp": ("pipeline_parallel", "another number of stages than {}"),
    "mbs": ("microbatch_size", "another micro-batch size than {}"),
    "vp": ("virtual_stages", "another number of virtual stages than {}"),
}
"""Decisions that can be forbidden by value: field of the plan, and the question in words."""
WIDER_TARGETS = ("flagscale", "unrestricted")
"""Launchers that run more than stock Megatron-LM does."""

Solve = Callable[[Problem], Result]


def other_problems(problem: Problem, plan: Plan) -> Iterator[tuple[str, Problem]]:
    """The problem with each decision of the plan ruled out that the user has not fixed, and what that is."""
    options = problem.options

    def forbidding(wish: str) -> Problem:
        forbidden = options.model_copy(update={"forbid": (*options.forbid, wish)})
        return problem.model_copy(update={"options": forbidden})

    for name, (field, words) in DEGREES.items():
        value = getattr(plan, field)
        if name in options.pin or _is_no_choice(problem, name, value):
            continue
        yield words.format(value), forbidding(f"{name}={value}")
    kinds = dict.fromkeys(stage.recompute for stage in plan.stages)
    yield from (
        (f"no {kind} recomputation", forbidding(f"recompute={kind}")) for kind in kinds if kind != "none"
    )
    if any(len({place[0] for place in stage.places}) > 1 for stage in plan.stages):
        yield "no stage on several classes", forbidding("stages=mixed")
    if any(last < first for stage in plan.stages for first, last in stage.chunks):
        yield "a layer on every (virtual) stage", forbidding("stages=empty")
    if plan.prediction_stage is not None:
        yield "predictions beside the loss", forbidding("stages=predictions")
    yield from _other_orders(problem, plan)
    if problem.target in WIDER_TARGETS:
        yield "the same degrees on every stage", problem.model_copy(update={"target": "megatron-lm"})


def _is_no_choice(problem: Problem, name: str, value: int) -> bool:
    """Whether a problem leaves only one value, so that no other need be asked for."""
    if name == "ep":
        return problem.model.moe is None
    if name == "vp":
        return value == 1
    half = problem.workload.seq_length // 2
    whole = problem.target in WIDER_TARGETS or half < problem.options.least_context_tokens
    return name == "cp" and value == 1 and whole


def _other_orders(problem: Problem, plan: Plan) -> Iterator[tuple[str, Problem]]:
    """The classes of the plan along the pipeline as listed, or the other way round, whichever it is not."""
    order = [name for name, _ in groupby(stage.node_class for stage in plan.stages)]
    if len(order) < 2 or problem.options.keep_class_order:
        return
    listed = [c for c in problem.cluster.classes if c.name in order]
    others = [c for c in problem.cluster.classes if c.name not in order]
    options = problem.options.model_copy(update={"keep_class_order": True})
    for classes in (listed, listed[::-1]):
        names = [c.name for c in classes]
        if names != order:
            cluster = problem.cluster.model_copy(update={"classes": (*classes, *others)})
            kept = with_cluster(problem, cluster).model_copy(update={"options": options})
            yield f"stages in the order {', '.join(names)}", kept


def alternative(
    words: str, problem: Problem, plan: Plan, best_s: float, bound_s: float, solve: Solve
) -> Alternative:
    """The best plan of a problem in which a decision of `plan` is ruled out, against the step of that one.

    `bound_s` is what no plan undercuts where nothing is ruled out [s]; 0 where that is not known.
    """
    try:
        result = solve(problem)
    except InstanceError as refusal:
        return Alternative(kind=words, step_s=None, slower=None, slower_at_least=None, words=str(refusal))
    bound_s = max(bound_s, result.bound_s or 0.0)
    least = bound_s / best_s - 1 if bound_s else None
    if result.plan is None or result.evaluation is None:
        none = "there is none" if result.termination == "infeasible" else "none was found in the time"
        return Alternative(kind=words, step_s=None, slower=None, slower_at_least=least, words=none)
    step_s = result.evaluation.step_s
    return Alternative(
        kind=words,
        step_s=step_s,
        slower=step_s / best_s - 1,
        slower_at_least=least,
        words="nothing: that one is such a plan" if step_s == best_s else differences(plan, result.plan),
    )
