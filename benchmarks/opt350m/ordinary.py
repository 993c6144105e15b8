"""Hetplan's ordinary plan of the same cluster, under its own referee, and what the judge says of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.opt350m.judge import JudgedPlan, Score, Stage, score
from benchmarks.opt350m.profile import CHIPS, Kind
from planner import load_problem, plan
from planner.data.plan import Plan


@dataclass(frozen=True)
class Ordinary:
    """A plan that our referee chose, judged by both."""

    plan: JudgedPlan
    step_s: float
    """By our referee [s]."""
    gap: float
    judged: Score
    seconds: float


IN_THE_JUDGES_WORDS = {"pin": {"vp": 1, "cp": 1}, "forbid": ("recompute=full", "recompute=selective")}
"""What the judge has no formula for, and a plan that it scores cannot have."""


def problem_name(chips: tuple[int, int]) -> str:
    """The shipped problem of a cluster."""
    return f"opt-350m-a100-v100-{sum(chips)}"


def ordinary(chips: tuple[int, int], time_limit_s: float | None = 60.0) -> Ordinary | None:
    """Plan a cluster with Hetplan in the judge's words; None where no plan was found in time."""
    problem = load_problem(problem_name(chips))
    wishes = {"time_limit_s": time_limit_s, **IN_THE_JUDGES_WORDS}
    options = type(problem.options).model_validate({**problem.options.model_dump(), **wishes})
    start_s = time.perf_counter()
    result = plan(problem, options)
    seconds = time.perf_counter() - start_s
    if result.plan is None or result.evaluation is None or result.gap is None:
        return None
    judged_plan = as_judged(result.plan)
    judged = score(judged_plan, dict(zip(CHIPS, chips, strict=True)))
    return Ordinary(judged_plan, result.evaluation.step_s, result.gap, judged, seconds)


def as_judged(ours: Plan) -> JudgedPlan:
    """A plan in the judge's words: the embedding counts as a layer of the first stage, the head of the last.

    The judge knows neither virtual stages, nor context parallelism, nor recomputation.
    """
    assert ours.virtual_stages == ours.context_parallel == 1
    assert all(stage.recompute == "none" for stage in ours.stages)
    last = len(ours.stages) - 1
    stages = []
    for s, stage in enumerate(ours.stages):
        layers = stage.num_layers + (s == 0) + (s == last)
        chips = [replica.chip for replica in stage.replicas or ()] or [stage.chip] * stage.data_parallel
        kinds = zip(chips, stage.tensor_parallel_degrees, strict=True)
        stages.append(Stage(layers, tuple(Kind(chip, degree) for chip, degree in kinds)))
    return JudgedPlan(ours.microbatch_size, tuple(stages))
