"""What FlagScale's many pipeline groups mean for a start."""

from __future__ import annotations

from planner.cost.communication.mesh_groups import group_counts
from planner.data.plan import Plan

MANY_GROUPS = 10_000
"""Pipeline groups of a job from which making them is told: each rank takes part in all, one after another, at
a millisecond or more each (guess)."""


def crowded_groups(plan: Plan) -> tuple[str, ...]:
    """A sentence where making all groups takes long; empty where stages are equal."""
    counts = group_counts(plan.stage_degrees)
    if counts.all_pipelines <= MANY_GROUPS or max(counts.pipelines) == 1:
        return ()
    return (
        f"FlagScale makes {counts.all_pipelines:,} pipeline groups of this job, one for every way "
        "through the stages, which takes minutes at the start; fewer changes of degrees make fewer",
    )
