"""Replicas as pipelines of their own: which stage of which replica lies where, at which degrees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.replica_sync import ReplicaPlace
from planner.cost.prices import Degrees, Prices
from planner.cost.profiles import refuse_unmeasured
from planner.cost.stage import StageContent
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.simulate.step import stage_contents


@dataclass(frozen=True)
class Placed:
    """One replica of one stage."""

    content: StageContent
    """What it holds, on its own class."""
    choice: int
    """Row of the prices with its tensor-parallel degree."""
    place: ReplicaPlace
    """Where it lies."""


Pipelines = tuple[tuple[Placed, ...], ...]
"""[replica][stage]"""


def degrees_of_replicas(plan: Plan) -> Degrees:
    """The degrees of a plan, one row for each tensor-parallel degree of a replica."""
    degrees = _tensor_degrees(plan)
    rows = len(degrees)

    def same(value: int) -> NDArray[np.int64]:
        return np.full(rows, value, dtype=np.int64)

    tp = np.array(degrees, dtype=np.int64)
    return Degrees(
        tensor_parallel=tp,
        context_parallel=same(plan.context_parallel),
        expert_parallel=same(plan.expert_parallel),
        expert_tensor_parallel=np.minimum(plan.expert_tensor_parallel, tp),
        data_parallel=same(plan.data_parallel),
        microbatch_size=same(plan.microbatch_size),
        sequence_parallel=(tp > 1) & plan.sequence_parallel,
        dp_mode=plan.dp_mode,
    )


def _tensor_degrees(plan: Plan) -> list[int]:
    return list(dict.fromkeys(d for stage in plan.stages for d in stage.tensor_parallel_degrees))


def pipelines_of(problem: Problem, plan: Plan, prices: Prices) -> Pipelines:
    """Every replica as a pipeline of placed stages.

    Raises
    ------
    InstanceError
        Where a replica names an unknown class, or one whose layer profile lacks its point.
    """
    row_of = {tp: row for row, tp in enumerate(_tensor_degrees(plan))}
    hosts_of = hosts_of_replicas(problem, plan)
    pipelines = []
    for r in range(plan.data_parallel):
        single = plan.model_copy(update={"stages": _stages_of_replica(plan, r)})
        contents = stage_contents(problem, single, prices)
        placed = []
        for s, (stage, content) in enumerate(zip(single.stages, contents, strict=True)):
            refuse_unmeasured(
                problem,
                content.node_class,
                stage.tensor_parallel,
                plan.microbatch_size,
                plan.context_parallel,
                f"plan: stages[{s}].replicas[{r}]",
            )
            place = ReplicaPlace(
                node_class=content.node_class,
                hosts=hosts_of[s][r],
                num_chips=stage.tensor_parallel * plan.context_parallel,
                tensor_parallel=stage.tensor_parallel,
            )
            placed.append(Placed(content, row_of[stage.tensor_parallel], place))
        pipelines.append(tuple(placed))
    return tuple(pipelines)


def hosts_of_replicas(problem: Problem, plan: Plan) -> list[list[tuple[str, ...]]]:
    """Hosts of every replica of every stage, [stage][replica].

    Replicas fill the hosts of their stage one after the other, from the chips that earlier stages left.
    """
    chips_of = {c.name: c.chips_per_node for c in problem.cluster.classes}
    left: dict[str, int] = {}
    found = []
    for stage in plan.stages:
        waiting = list(stage.hosts)
        own = []
        for r, tensor_parallel in enumerate(stage.tensor_parallel_degrees):
            listed = stage.replicas[r] if stage.replicas else None
            hosts = list(listed.hosts) if listed else waiting
            per_node = chips_of[listed.node_class if listed else stage.node_class]
            needed, here = tensor_parallel * plan.context_parallel, []
            while needed and hosts:
                free = left.setdefault(hosts[0], per_node)
                taken = min(free, needed)
                needed, left[hosts[0]] = needed - taken, free - taken
                if taken:
                    here.append(hosts[0])
                if left[hosts[0]] == 0:
                    hosts.pop(0)
            own.append(tuple(here) or (listed.hosts if listed else stage.hosts))
        found.append(own)
    return found


def _stages_of_replica(plan: Plan, r: int) -> tuple[Stage, ...]:
    """The stages of one replica, each on its own class and hosts."""
    found = []
    for stage in plan.stages:
        if stage.replicas is None:
            found.append(stage)
            continue
        replica = stage.replicas[r]
        found.append(
            stage.model_copy(
                update={
                    "node_class": replica.node_class,
                    "chip": replica.chip,
                    "hosts": replica.hosts,
                    "tensor_parallel": replica.tensor_parallel,
                    "replicas": None,
                }
            )
        )
    return tuple(found)
