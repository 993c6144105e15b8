"""Time of one step of a plan: prices of its stages, the schedule, what comes before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from planner.cost.communication.hops import block_on_sends
from planner.cost.communication.resharding import StageShape, mesh_hops_s
from planner.cost.prices import PARTS, Floats, Prices
from planner.cost.stage import (
    StageContent,
    chunk_times,
    exposed_gather_s,
    exposed_reduce_s,
    optimizer_s,
    slowed_s,
)
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.rules.pipeline import interleaving_is_legal
from planner.simulate.deferred import deferred_stage_ends_s
from planner.simulate.pipeline import stage_ends_s


def stage_contents(problem: Problem, plan: Plan, prices: Prices) -> tuple[StageContent, ...]:
    """What each stage of a plan holds; layers that the model does not have are left to the rules."""
    kinds = [prices.kinds.index(kind) for kind in problem.model.kind_of_layer]
    last = len(plan.stages) - 1
    return tuple(
        StageContent(
            node_class=node_class,
            chunks=tuple(tuple(kinds[max(first, 0) : end + 1]) for first, end in stage.chunks),
            has_embedding=s == 0,
            has_head=s in (last, plan.prediction_stage),
            recompute=stage.recompute,
            recompute_layers=stage.recompute_layers,
            recompute_piece=stage.recompute_piece,
        )
        for s, (stage, node_class) in enumerate(zip(plan.stages, class_of_stage(problem, plan), strict=True))
    )


def class_of_stage(problem: Problem, plan: Plan) -> list[int]:
    """Node class of every stage; raises InstanceError where the cluster has no such class."""
    index_of = {node_class.name: i for i, node_class in enumerate(problem.cluster.classes)}
    for s, stage in enumerate(plan.stages):
        if stage.node_class not in index_of:
            raise InstanceError(
                f"no node class of the cluster is named {stage.node_class!r}; it has {', '.join(index_of)}",
                f"plan: stages[{s}].node_class",
            )
    return [index_of[stage.node_class] for stage in plan.stages]


@dataclass(frozen=True)
class StepTimes:
    """Times of one step, by stage and in all [s]."""

    forward_s: Floats
    """[stage, chunk] one micro-batch, with the sends that block."""
    backward_s: Floats
    """[stage, chunk]"""
    hops_s: Floats
    """[stage] hop to the next stage."""
    delays_s: Floats
    """[stage] hop as the schedule sees it: zero where sends block."""
    num_microbatches: int
    makespan_s: float
    step_s: float
    breakdown_s: dict[str, float]
    tail_s: float = 0.0
    """What follows when all stages have reduced their gradients."""


def step_times(
    problem: Problem,
    plan: Plan,
    prices: Prices,
    shapes: Sequence[StageShape],
    contents: tuple[StageContent, ...],
) -> StepTimes:
    """Step time and its parts; `shapes` says of every stage which row of the prices it has.

    step = max_j (end_j + exposed reduction_j) + tied embeddings + max_j (fixed_j + optimizer_j +
    exposed gathering_j): stages end at different times, and all meet for the norm of the gradients.
    """
    choices = [shape.choice for shape in shapes]
    parts = [chunk_times(prices, c, content) for c, content in zip(choices, contents, strict=True)]
    forward_parts = np.array([forward for forward, _ in parts])
    backward_parts = np.array([backward for _, backward in parts])
    forward, backward = forward_parts.sum(axis=2), backward_parts.sum(axis=2)
    num_microbatches = schedulable_microbatches(plan)
    hops = mesh_hops_s(problem, prices, shapes)
    seen, ends, ends_without_sends = run_pipeline(
        problem, forward, backward, hops, num_microbatches, schedulable_group(plan)
    )
    tied = tied_s(prices, shapes, embedding_holders(problem, plan))
    without_sends_s = float(ends_without_sends.max())
    step_s, tail_s, breakdown = _add_up(
        prices, choices, contents, forward, backward, num_microbatches, ends, without_sends_s, tied
    )
    busiest = int(np.argmax((forward + backward).sum(axis=1)))
    by_part = num_microbatches * (forward_parts + backward_parts)[busiest].sum(axis=0)
    for part, seconds in zip(PARTS, by_part.tolist(), strict=True):
        # With sharded parameters the data-parallel group works in every micro-batch and once a step.
        breakdown[part] = breakdown.get(part, 0.0) + seconds
    breakdown = {part: breakdown[part] for part in dict.fromkeys((*PARTS, *breakdown))}
    shown_hops = hops if plan.virtual_stages > 1 else np.append(hops[:-1], 0.0)
    makespan_s = float(ends.max())
    return StepTimes(*seen[:2], shown_hops, seen[2], num_microbatches, makespan_s, step_s, breakdown, tail_s)


def run_pipeline(
    problem: Problem,
    forward_s: Floats,
    backward_s: Floats,
    hops_s: Floats,
    num_microbatches: int,
    group_size: int | None = None,
) -> tuple[tuple[Floats, Floats, Floats], Floats, Floats]:
    """Forward, backward and hops as the schedule sees them; [stage] ends, with sends and without [s].

    Parameters
    ----------
    forward_s, backward_s
        [stage, chunk] one micro-batch, sends left out [s].
    hops_s
        [stage] one activation from the stage to the next [s].
    """
    stack = problem.stack
    overlaps = stack.overlaps_sends(forward_s.shape[1])
    seen = block_on_sends(forward_s, backward_s, hops_s, p2p_overlap=overlaps)
    nothing = np.zeros_like(hops_s)
    # Two candidates run side by side: as it is, and with sends that take no time.
    if stack.p2p_after_gradient and not overlaps and forward_s.shape[1] == 1:
        forward, backward = forward_s[:, 0], backward_s[:, 0]
        ends, without = deferred_stage_ends_s(
            np.stack([forward, forward]),
            np.stack([backward, backward]),
            np.stack([hops_s, nothing]),
            num_microbatches,
        )
    else:
        ends, without = stage_ends_s(
            np.stack([seen[0], forward_s]),
            np.stack([seen[1], backward_s]),
            np.stack([seen[2], nothing]),
            num_microbatches,
            group_size,
        )
    return seen, ends, without


def schedulable_microbatches(plan: Plan) -> int:
    """Micro-batches that the schedule can run: with virtual stages groups of p at least.

    Other counts break a rule, and the interleaved order then waits for itself; such a plan gets the
    time of the next count that works.
    """
    if plan.virtual_stages == 1:
        return plan.num_microbatches
    p, count = plan.pipeline_parallel, plan.num_microbatches
    group = schedulable_group(plan) or p
    return next(m for m in range(count, count + group + p) if interleaving_is_legal(p, m, group))


def schedulable_group(plan: Plan) -> int | None:
    """Micro-batches of a group of interleaving; None is as many as stages, also where a rule is broken.

    Broken by fewer than there are stages, or more than there are micro-batches.
    """
    group = plan.microbatch_group_size
    fits = group is not None and plan.pipeline_parallel <= group <= plan.num_microbatches
    return group if fits else None


def embedding_holders(problem: Problem, plan: Plan) -> list[int]:
    """The stages that hold a copy of the embedding.

    The first; that of predictions, or else the last; and the last where the head is tied.
    """
    last, predictions = len(plan.stages) - 1, plan.prediction_stage
    holders = {0, last if predictions is None else predictions}
    return sorted(holders | {last} if problem.model.tied_embeddings else holders)


def tied_s(prices: Prices, shapes: Sequence[StageShape], holders: Sequence[int]) -> float:
    """What the holders of an embedding take to share its gradients, by the slowest link among them [s]."""
    pairs = combinations([shapes[s] for s in holders], 2)
    of_pairs = (
        float(prices.tied_sync_s[shape.choice, a.node_class, b.node_class])
        for a, b in pairs
        for shape in (a, b)
    )
    return max(of_pairs, default=0.0)


def _add_up(
    prices: Prices,
    choices: Sequence[int],
    contents: tuple[StageContent, ...],
    forward: Floats,
    backward: Floats,
    num_microbatches: int,
    ends: Floats,
    makespan_without_sends_s: float,
    tied: float,
) -> tuple[float, float, dict[str, float]]:
    """Step time, what of it follows the reductions, and its parts but the work of the busiest stage [s]."""
    stages = list(zip(choices, contents, strict=True))
    synced = max(
        ends[s] + exposed_reduce_s(prices, c, content, float(backward[s].sum()))
        for s, (c, content) in enumerate(stages)
    )
    optimizer = [
        float(prices.step_fixed_s[c, content.node_class]) + optimizer_s(prices, c, content)
        for c, content in stages
    ]
    tail = max(
        optimizer[s] + exposed_gather_s(prices, c, content, float(forward[s].sum()))
        for s, (c, content) in enumerate(stages)
    )
    makespan = float(ends.max())
    busy = num_microbatches * float((forward + backward).sum(axis=1).max())
    last = int(np.argmax(optimizer))
    slowed = slowed_s(prices, *stages[last])
    breakdown = {
        "pp": makespan - makespan_without_sends_s,
        "dp": (float(synced) - makespan) + tied + (tail - optimizer[last]) + slowed,
        "bubble": makespan_without_sends_s - busy,
        "optimizer": optimizer[last] - slowed,
    }
    # Differences of sums can fall below zero by rounding alone.
    parts = {name: max(0.0, part) for name, part in breakdown.items()}
    return float(synced) + tied + tail, tied + tail, parts
