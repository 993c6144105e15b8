"""Plans whose stages list their replicas: data-parallel ranks on different chips.

Each replica is a pipeline of its own, with the times of its own classes and its own links between
stages; all run the same micro-batches. The gradient reduction of a stage begins when its last replica
has finished, and runs at the rate of the slowest link between neighbouring replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.communication.hops import hops_inside_host
from planner.cost.communication.replica_sync import (
    ReplicaPlace,
    replica_exchange_s,
    replica_gather_s,
    replica_reduce_s,
    tied_embedding_s,
)
from planner.cost.communication.synchronisation import bucket_parameters
from planner.cost.parameters import (
    ParameterCounts,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.cost.prices import PARTS, Floats, Prices
from planner.cost.stage import (
    chunk_times,
    exposed_gather_s,
    exposed_reduce_s,
    optimizer_s,
    shown_s,
)
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.simulate.replicas import Pipelines, Placed
from planner.simulate.step import (
    StepTimes,
    class_of_stage,
    run_pipeline,
    schedulable_group,
    schedulable_microbatches,
)


@dataclass(frozen=True)
class ReplicaTimes:
    """Times of one replica's pipeline [s]."""

    forward_s: Floats
    """[stage, chunk] one micro-batch, with the sends that block."""
    backward_s: Floats
    """[stage, chunk]"""
    parts_s: Floats
    """[stage, part] forward and backward of one micro-batch, sends left out."""
    hops_s: Floats
    """[stage] hop to the next stage."""
    delays_s: Floats
    """[stage] hop as the schedule sees it: zero where sends block."""
    stage_ends_s: Floats
    """[stage] end of the last backward."""
    makespan_without_sends_s: float


def replica_times(
    problem: Problem, plan: Plan, prices: Prices, pipelines: Pipelines
) -> tuple[ReplicaTimes, ...]:
    """Times of every replica; equal pipelines are simulated once."""
    known: dict[tuple[object, ...], ReplicaTimes] = {}
    found = []
    inside_of_uniform = _uniform_hops_inside(problem, plan)
    for pipeline in pipelines:
        inside = tuple(_is_inside(pipeline, s, inside_of_uniform[s]) for s in range(len(pipeline)))
        key = (*((p.content.node_class, p.choice) for p in pipeline), inside)
        if key not in known:
            known[key] = _times(problem, plan, prices, pipeline, inside)
        found.append(known[key])
    return tuple(found)


def _uniform_hops_inside(problem: Problem, plan: Plan) -> tuple[bool, ...]:
    """Whether each hop between two stages without replicas stays in a host."""
    inside = hops_inside_host(
        class_of_stage(problem, plan),
        plan.stage_size,
        [node_class.chips_per_node for node_class in problem.cluster.classes],
    )
    listed = [stage.replicas is not None for stage in plan.stages]
    return tuple(
        inside[s] and not listed[s] and not listed[(s + 1) % len(listed)] for s in range(len(listed))
    )


def _is_inside(pipeline: Sequence[Placed], s: int, uniform_inside: bool) -> bool:
    """Whether the hop s -> s + 1 of a replica stays in a host."""
    here, after = pipeline[s].place.hosts, pipeline[(s + 1) % len(pipeline)].place.hosts
    return uniform_inside or (len(here) == len(after) == 1 and here == after)


def _times(
    problem: Problem, plan: Plan, prices: Prices, pipeline: Sequence[Placed], inside: Sequence[bool]
) -> ReplicaTimes:
    parts = [chunk_times(prices, placed.choice, placed.content) for placed in pipeline]
    forward_parts = np.array([forward for forward, _ in parts])
    backward_parts = np.array([backward for _, backward in parts])
    forward, backward = forward_parts.sum(axis=2), backward_parts.sum(axis=2)
    hops = np.zeros(len(pipeline))
    for s, placed in enumerate(pipeline):
        if len(pipeline) == 1:
            break
        here, after = placed.content.node_class, pipeline[(s + 1) % len(pipeline)].content.node_class
        through = prices.send_inside_s[placed.choice, here]
        hops[s] = through if inside[s] else prices.send_s[placed.choice, here, after]
    seen, ends, without = run_pipeline(
        problem, forward, backward, hops, schedulable_microbatches(plan), schedulable_group(plan)
    )
    return ReplicaTimes(
        forward_s=seen[0],
        backward_s=seen[1],
        parts_s=(forward_parts + backward_parts).sum(axis=1),
        hops_s=hops,
        delays_s=seen[2],
        stage_ends_s=ends,
        makespan_without_sends_s=float(without.max()),
    )


def mixed_step_times(problem: Problem, plan: Plan, prices: Prices, pipelines: Pipelines) -> StepTimes:
    """Step of a plan that mixes chips, with the times of the slowest replica of each stage.

    step = max_j (last end_j + exposed reduction_j) + tied embeddings + max_j (optimizer_j + gathering_j).
    """
    replicas = replica_times(problem, plan, prices, pipelines)
    num_microbatches, num_stages = schedulable_microbatches(plan), len(plan.stages)
    ends = np.max([replica.stage_ends_s for replica in replicas], axis=0)
    syncs = [
        _stage_sync(problem, plan, prices, [p[s] for p in pipelines], replicas, s) for s in range(num_stages)
    ]
    synced = max(float(ends[s]) + syncs[s][0] for s in range(num_stages))
    tied = 0.0
    if num_stages > 1 and problem.model.copies_embedding:
        tied = tied_embedding_s(problem, [(p[0].place, p[-1].place) for p in pipelines])
    optimizer = [
        max(
            float(prices.step_fixed_s[p[s].choice, p[s].content.node_class])
            + optimizer_s(prices, p[s].choice, p[s].content)
            for p in pipelines
        )
        for s in range(num_stages)
    ]
    tail = max(optimizer[s] + syncs[s][1] for s in range(num_stages))
    slowest = max(replicas, key=lambda replica: float(replica.stage_ends_s.max()))
    makespan = float(ends.max())
    busiest = slowest.parts_s[int(np.argmax(slowest.parts_s.sum(axis=1)))]
    breakdown = {
        "pp": max(0.0, makespan - slowest.makespan_without_sends_s),
        "dp": max(0.0, (synced - makespan) + tied + (tail - max(optimizer))),
        "bubble": max(0.0, slowest.makespan_without_sends_s - num_microbatches * float(busiest.sum())),
        "optimizer": max(optimizer),
    }
    for part, seconds in zip(PARTS, (num_microbatches * busiest).tolist(), strict=True):
        breakdown[part] = breakdown.get(part, 0.0) + seconds
    work = [
        np.argmax([float((r.forward_s + r.backward_s)[s].sum()) for r in replicas]) for s in range(num_stages)
    ]
    hops = np.max([replica.hops_s for replica in replicas], axis=0)
    return StepTimes(
        forward_s=np.array([replicas[int(r)].forward_s[s] for s, r in enumerate(work)]),
        backward_s=np.array([replicas[int(r)].backward_s[s] for s, r in enumerate(work)]),
        hops_s=hops if plan.virtual_stages > 1 else np.append(hops[:-1], 0.0),
        delays_s=slowest.delays_s,
        num_microbatches=num_microbatches,
        makespan_s=makespan,
        step_s=synced + tied + tail,
        breakdown_s=breakdown,
    )


def _stage_sync(
    problem: Problem,
    plan: Plan,
    prices: Prices,
    placed: Sequence[Placed],
    replicas: Sequence[ReplicaTimes],
    s: int,
) -> tuple[float, float]:
    """Exposed reduction of gradients and gathering of parameters of a stage [s]."""
    backward_s = min(float(replica.backward_s[s].sum()) for replica in replicas)
    forward_s = min(float(replica.forward_s[s].sum()) for replica in replicas)
    first = placed[0]
    if len({(p.content.node_class, p.choice) for p in placed}) == 1:
        return (
            exposed_reduce_s(prices, first.choice, first.content, backward_s),
            exposed_gather_s(prices, first.choice, first.content, forward_s),
        )
    places = [p.place for p in placed]
    shards = [stage_parameters(problem, plan, prices, p) for p in placed]
    reduce_s = replica_reduce_s(problem, places, shards, plan.dp_mode)
    gather_s = replica_gather_s(problem, places, shards, plan.dp_mode)
    hidden = prices.hidden_fraction
    each_s = _more_exchange_s(problem, plan, places, shards, [r.parts_s[s] for r in replicas], hidden)
    # Nothing hides the last bucket of gradients and the first of parameters.
    bucket = float(bucket_parameters(problem.stack, float(len(placed) * plan.context_parallel)))
    tail = min(1.0, bucket / max(shards)) if problem.stack.dp_overlap else 0.0
    # Nor the embedding, of which the optimizer's price has what it takes within the class.
    share = _shown_share(problem, plan, prices, first, max(shards))
    priced_s = max(shown_s(prices, p.choice, p.content) for p in placed)
    exposed_s = max(0.0, (1 - share) * reduce_s - hidden * backward_s) + tail * reduce_s
    exposed_s += max(0.0, share * (reduce_s + gather_s) - priced_s)
    if s > 0 and prices.later_stages_have_one_bucket and len(first.content.chunks) == 1:
        exposed_s = max(exposed_s, reduce_s)
    return (
        exposed_s + schedulable_microbatches(plan) * each_s,
        max(0.0, (1 - share) * gather_s - hidden * forward_s) + tail * gather_s,
    )


def _shown_share(problem: Problem, plan: Plan, prices: Prices, placed: Placed, parameters: float) -> float:
    """Share of a stage's parameters on a chip whose synchronisation nothing hides."""
    content = placed.content
    if shown_s(prices, placed.choice, content) == 0.0:
        return 0.0
    without_head = replace(content, has_head=False)
    with_head = shown_s(prices, placed.choice, content) > shown_s(prices, placed.choice, without_head)
    alone = replace(content, chunks=((),), has_head=with_head)
    return stage_parameters(problem, plan, prices, replace(placed, content=alone)) / parameters


def _more_exchange_s(
    problem: Problem,
    plan: Plan,
    places: Sequence[ReplicaPlace],
    shards: Sequence[float],
    parts_s: Sequence[Floats],
    hidden: float,
) -> float:
    """What a micro-batch of sharded parameters exposes over the replicas' own links beyond its price [s].

    A stage is priced as if its replicas were all of its own class; over a slower link between classes the
    same exchange takes longer, behind the same computation. That it comes after the pipeline and not within
    is a simplification, which adds up to the same where all stages share the link.
    """
    gather, scatter = replica_exchange_s(problem, places, shards, plan.dp_mode)
    if gather + scatter == 0.0:
        return 0.0
    compute, dp = PARTS.index("compute"), PARTS.index("dp")
    quickest = min(parts_s, key=lambda parts: float(parts[compute]))
    exposed = max(0.0, 2 * gather + scatter - hidden * float(quickest[compute]))
    return max(0.0, exposed - float(quickest[dp]))


def stage_parameters(problem: Problem, plan: Plan, prices: Prices, placed: Placed) -> float:
    """Parameters of a stage on one chip, before replicas share any of them."""
    model, content, tp = problem.model, placed.content, placed.place.tensor_parallel
    vocab, counts = padded_vocab(model.vocab_size, tp), ParameterCounts()
    for kind, count in content.count_of_kind.items():
        counts += layer_parameters(model, model.layer_kinds[kind]).times(count)
    if content.has_embedding:
        counts += embedding_parameters(model, vocab)
    if content.has_head:
        counts += head_parameters(model, vocab) + mtp_parameters(model)
        if model.tied_embeddings and not content.has_embedding:
            counts += ParameterCounts(tensor_sharded=vocab * model.hidden_size)
    return counts.per_rank(tp, plan.expert_parallel, min(plan.expert_tensor_parallel, tp))
