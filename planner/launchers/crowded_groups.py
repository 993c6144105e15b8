"""Memory of FlagScale's many pipeline groups, which a plan's own memory counts one of."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.communicators import TWO_RANKS
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.rules.flagscale_groups import GroupCounts, group_counts

MANY_GROUPS = 10_000
"""Pipeline groups of a job from which making them is told: each rank takes part in all, one after another, at
a millisecond or more each (guess)."""


def further_gib(problem: Problem, plan: Plan, counts: GroupCounts | None = None) -> tuple[float, ...]:
    """[stage] memory of the communicators beyond those that the plan counts, at most [GiB].

    One group of the pipeline is counted, and one pair for a common embedding. A rank's groups are taken to
    have communicators of their own, as large as any (`communicator_gib`): nothing is known to share them.
    """
    counts = counts or group_counts(plan)
    one = problem.stack.communicator_gib
    of_pipeline = one * (1.0 if plan.pipeline_parallel > 2 else TWO_RANKS)
    found = [(groups - 1) * of_pipeline for groups in counts.pipelines]
    if problem.model.copies_embedding and plan.pipeline_parallel > 1:
        for stage, pairs in zip((0, -1), counts.embedding_pairs, strict=True):
            found[stage] += (pairs - 1) * one * TWO_RANKS
    return tuple(found)


def crowded_groups(
    problem: Problem, plan: Plan, evaluation: Evaluation | None, *, tight_only: bool = False
) -> tuple[str, ...]:
    """Sentences on the stage that communicators of many groups fill most, and on a long start.

    Empty where FlagScale makes as many groups as a plan of equal stages has; with `tight_only` also where
    there is room for them.
    """
    counts = group_counts(plan)
    further = further_gib(problem, plan, counts)
    found = []
    if any(further):
        told, fits = _fullest(plan, counts.pipelines, further, evaluation)
        found += [] if fits and tight_only else [told]
    if counts.all_pipelines > MANY_GROUPS:
        found.append(
            f"FlagScale makes {counts.all_pipelines:,} pipeline groups of this job, one for every way "
            "through the stages, which takes minutes at the start; fewer changes of degrees make fewer"
        )
    return tuple(found)


def _fullest(
    plan: Plan, groups: Sequence[int], further: Sequence[float], evaluation: Evaluation | None
) -> tuple[str, bool]:
    """A sentence on the stage that further communicators bring nearest to its limit, and whether they fit."""

    def room(stage: int) -> float:
        if evaluation is None:
            return -further[stage]
        seen = evaluation.stages[stage]
        return seen.limit_gib - seen.peak_memory_gib - further[stage]

    s = min(range(plan.pipeline_parallel), key=room)
    head = (
        f"stage {s} ({plan.stages[s].chip}): FlagScale puts each rank into up to {groups[s]:,} pipeline "
        f"groups, whose communicators may take {further[s]:.1f} GiB beyond the memory of the plan"
    )
    if evaluation is None:
        return head, True
    seen = evaluation.stages[s]
    of_limit = f"{seen.peak_memory_gib:.1f} of {seen.limit_gib:.1f} GiB"
    if room(s) >= 0:
        return f"{head} ({of_limit}), which has room for them", True
    return (
        f"{head} ({of_limit}) and do not fit: a larger --memory-reserve, fewer changes of degrees between "
        "stages, or target megatron-lm leave room for them"
    ), False
