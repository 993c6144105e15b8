"""Which ranks run on which host: the plan's stages and hosts laid out in Megatron's rank order.

Megatron numbers ranks by degrees alone (fastest axis first), and torchrun hands the ranks out host
by host. A plan lands where it was meant to only if the hosts are listed in the order in which the
ranks ask for them, each with as many processes as its stages need. This file computes that list; it
does not judge the plan (the rules do), except where no such list exists.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.errors import PlanRefusedError


@dataclass(frozen=True)
class HostPlace:
    """One host: its place in the rank order and what runs on it."""

    name: str
    """Host name."""
    chip: str
    """Id of the chip in it."""
    num_chips: int
    """Chips that the host has."""
    first_rank: int
    """Global rank of its first process."""
    num_processes: int
    """Processes that it starts, one a chip used."""
    stages: tuple[int, ...]
    """Stages that run on it, in order."""


def hosts_text(places: tuple[HostPlace, ...]) -> str:
    """The hosts in rank order, one a line: name, chip, stages."""
    return "".join(f"{p.name} {p.chip} {','.join(map(str, p.stages))}\n" for p in places)


def stage_of_rank(plan: Plan, rank: int) -> int:
    """Pipeline stage of a global rank, by Megatron's order of axes."""
    if plan.degrees_differ:
        return bisect_right(_ends_of_stages(plan), rank)
    if plan.rank_order == "tp-cp-ep-dp-pp":
        return rank // plan.stage_size
    return rank // (plan.tensor_parallel * plan.context_parallel) % plan.pipeline_parallel


def _ends_of_stages(plan: Plan) -> list[int]:
    """One past the last rank of every stage, where stages are contiguous."""
    return list(
        accumulate(
            plan.context_parallel * stage.tensor_parallel * stage.data_parallel for stage in plan.stages
        )
    )


def _rank_groups(plan: Plan, chips_of_smallest_host: int) -> Iterator[tuple[int, int, int]]:
    """Stage, first rank and size of every block of ranks that stays on one host."""
    first, ends = 0, _ends_of_stages(plan) if plan.degrees_differ else []
    while first < plan.world_size:
        stage = bisect_right(ends, first) if ends else stage_of_rank(plan, first)
        size = plan.stages[stage].tensor_parallel
        size = size if size <= chips_of_smallest_host else 1
        yield stage, first, size
        first += size


def place_hosts(problem: Problem, plan: Plan) -> tuple[HostPlace, ...]:
    """The hosts in rank order, with the processes and stages of each.

    Ranks are dealt in whole tensor-parallel groups where the hosts can hold one, so that no group
    is cut by the edge of a host; chips that are left over on a host stay idle. Where a stage lists its
    replicas each has its own hosts, and a host with chips to spare holds no rank of the next.

    Raises
    ------
    PlanRefusedError
        Where a stage names too few chips, a host comes up twice in the rank order, or a named
        host gets no rank.
    """
    chip_of_host, chips_of_host = _chips_of_hosts(problem, plan)
    left = dict(chips_of_host)
    waiting = {
        (s, replica): list(hosts)
        for s, stage in enumerate(plan.stages)
        for replica, hosts in _hosts_of_replicas(stage).items()
    }
    ranks_of_host: dict[str, list[int]] = {}
    previous = ""
    for stage, first, group in _rank_groups(plan, min(chips_of_host.values())):
        listed = plan.stages[stage].replicas is not None
        hosts = waiting[stage, replica_of_rank(plan, first) if listed else None]
        while hosts and left[hosts[0]] < group:
            hosts.pop(0)
        if not hosts:
            ranks = plan.context_parallel * sum(plan.stages[stage].tensor_parallel_degrees)
            raise PlanRefusedError(
                f"stage {stage}: its hosts {', '.join(plan.stages[stage].hosts)} hold too few chips for "
                f"{ranks} ranks in groups of {group}; name more hosts"
            )
        host = hosts[0]
        if host != previous and host in ranks_of_host:
            raise PlanRefusedError(
                f"host {host} would hold ranks {ranks_of_host[host][-1]} and {first} but not those between, "
                "and torchrun numbers the ranks of a host without a break; order the hosts by rank"
            )
        ranks_of_host.setdefault(host, []).extend(range(first, first + group))
        left[host] -= group
        previous = host
    for host in chips_of_host:
        if host not in ranks_of_host:
            raise PlanRefusedError(f"host {host} is named by a stage but gets no rank; leave it out")
    return tuple(
        HostPlace(
            name=host,
            chip=chip_of_host[host],
            num_chips=chips_of_host[host],
            first_rank=ranks[0],
            num_processes=len(ranks),
            stages=tuple(dict.fromkeys(stage_of_rank(plan, rank) for rank in ranks)),
        )
        for host, ranks in ranks_of_host.items()
    )


def replica_of_rank(plan: Plan, rank: int) -> int:
    """Data-parallel index of a global rank, by Megatron's order of axes."""
    group = rank // (plan.tensor_parallel * plan.context_parallel)
    if plan.rank_order == "tp-cp-ep-dp-pp":
        return group % plan.data_parallel
    return group // plan.pipeline_parallel


def _hosts_of_replicas(stage: Stage) -> dict[int | None, tuple[str, ...]]:
    """Hosts by replica; one entry for all of them where the stage does not list its replicas."""
    if stage.replicas is None:
        return {None: stage.hosts}
    return {r: replica.hosts for r, replica in enumerate(stage.replicas)}


def _chips_of_hosts(problem: Problem, plan: Plan) -> tuple[dict[str, str], dict[str, int]]:
    """Chip id and number of chips of every host that the plan names."""
    kind: dict[str, str] = {}
    count: dict[str, int] = {}
    for stage in plan.stages:
        for name, _, hosts in stage.places:
            node_class = problem.cluster.classes[problem.cluster.class_index(name)]
            for host in hosts:
                kind[host] = node_class.chip
                count[host] = node_class.chips_per_node
    if not count:
        raise PlanRefusedError("the plan names no hosts; it cannot be placed")
    return kind, count
