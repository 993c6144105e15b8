"""Where the stages lie: hosts that exist, no chip used twice, stages packed in rank order.

Source of all rules: megatron-core 0.19.2 (Apache-2.0), megatron/core/parallel_state.py,
`RankGenerator`: with the default order of axes stage k is the block of ranks [k S, (k + 1) S), and
torchrun deals ranks host by host. Consecutive stages on one class are therefore packed one after
the other; a host holds ranks without a break, so it belongs to one run of such stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from planner.data.cluster import Cluster
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem


def stage_chips(plan: Plan, s: int) -> int:
    """Chips of one stage."""
    return plan.context_parallel * sum(plan.stages[s].tensor_parallel_degrees)


def world_is_whole(num_chips: int, tp: int, pp: int, cp: int) -> str | None:
    """The chips make whole replicas: world % (tp pp cp) == 0.

    Source: megatron/core/parallel_state.py:822.
    """
    if num_chips % (tp * pp * cp) == 0:
        return None
    return (
        f"{num_chips} chips: no multiple of tensor_parallel {tp} x pipeline stages {pp} x "
        f"context_parallel {cp} = {tp * pp * cp}; use {num_chips // (tp * pp * cp) * tp * pp * cp} of them"
    )


def classes_exist(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Every stage names a node class of the cluster, and that class's chip."""
    chip_of = {node_class.name: node_class.chip for node_class in problem.cluster.classes}
    found = []
    for s, stage in enumerate(plan.stages):
        for name, chip, _ in stage.places:
            if name not in chip_of:
                found.append(
                    f"stage {s}: node class {name!r} is not in the cluster; it has {', '.join(chip_of)}"
                )
            elif chip != chip_of[name]:
                found.append(f"stage {s}: chip {chip} is not that of class {name}; write {chip_of[name]}")
    return tuple(dict.fromkeys(found))


def hosts_exist(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Every host of a stage is in the stage's node class, and named once."""
    class_of = _class_of_host(problem.cluster)
    found = []
    for s, stage in enumerate(plan.stages):
        for host, name in dict.fromkeys((host, name) for name, _, hosts in stage.places for host in hosts):
            if host not in class_of:
                found.append(f"stage {s}: host {host} is not in the cluster; see `hosts` of its classes")
            elif class_of[host] != name:
                found.append(
                    f"stage {s}: host {host} is in class {class_of[host]}, not {name}; name a host of {name}"
                )
        if len(set(stage.hosts)) != len(stage.hosts):
            found.append(f"stage {s}: lists a host twice; name each once")
    return tuple(found)


@lru_cache(maxsize=16)
def _class_of_host(cluster: Cluster) -> dict[str, str]:
    return {
        host: node_class.name for i, node_class in enumerate(cluster.classes) for host in cluster.hosts_of(i)
    }


def transports_meet(transports: Iterable[str]) -> bool:
    """Whether one group of ranks may reach each other in these ways: over TCP on all nodes or on none."""
    used = set(transports)
    return "tcp" not in used or len(used) == 1


def groups_share_a_transport(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The replicas of a stage, which sum gradients in one group, reach each other in one way.

    Source: NVIDIA/nccl#234: a group with InfiniBand on some nodes only hangs when it is formed.
    """
    transports = {node_class.name: node_class.transport for node_class in problem.cluster.classes}
    found = []
    for s, stage in enumerate(plan.stages):
        used = {name: transports[name] for name, _, _ in stage.places if name in transports}
        if not transports_meet(used.values()):
            of_class = ", ".join(f"{name} by {transport}" for name, transport in used.items())
            found.append(
                f"stage {s}: its replicas reach each other in different ways ({of_class}), and NCCL hangs on "
                "such a group; give each of these classes stages of its own"
            )
    return tuple(found)


def class_has_chips(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """No class lends more chips than it has."""
    used: dict[str, int] = {}
    for s, stage in enumerate(plan.stages):
        if stage.replicas is None:
            used[stage.node_class] = used.get(stage.node_class, 0) + stage_chips(plan, s)
        for replica in stage.replicas or ():
            chips = replica.tensor_parallel * plan.context_parallel
            used[replica.node_class] = used.get(replica.node_class, 0) + chips
    return tuple(
        f"class {node_class.name}: the plan uses {used[node_class.name]} chips, it has "
        f"{node_class.num_chips}; use fewer stages on it or a smaller data_parallel"
        for node_class in problem.cluster.classes
        if used.get(node_class.name, 0) > node_class.num_chips
    )


def stages_are_packed(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The hosts of a run of stages on one class hold its ranks one after the other, each chip once.

    Stage q of a run takes the chips [q S, (q + 1) S) of the run's hosts, counted from the start of
    its first host. Checked for the default rank order, where stages are contiguous.
    """
    if not plan.rank_order.endswith("pp"):
        return ()
    if plan.mixes_chips:
        return _ranks_are_packed(problem, plan)
    chips_of = {node_class.name: node_class.chips_per_node for node_class in problem.cluster.classes}
    found: list[str] = []
    run_of_host: dict[str, int] = {}
    for run, members in enumerate(_runs(plan)):
        per_host = chips_of.get(plan.stages[members[0]].node_class)
        if per_host is None:
            continue
        hosts = tuple(dict.fromkeys(host for s in members for host in plan.stages[s].hosts))
        start = 0
        for s in members:
            end = start + stage_chips(plan, s)
            first, last = start // per_host, (end - 1) // per_host
            found += _misplaced(plan, s, hosts[first : last + 1], last - first + 1, per_host)
            start = end
        for host in hosts:
            if run_of_host.setdefault(host, run) != run:
                found.append(
                    f"host {host}: its chips serve stages that are no neighbours (stage {members[0]} again); "
                    "ranks of a host follow each other, so name another"
                )
    return tuple(found)


def _runs(plan: Plan) -> list[list[int]]:
    """Consecutive stages on one node class."""
    runs: list[list[int]] = []
    for s, stage in enumerate(plan.stages):
        if runs and plan.stages[runs[-1][-1]].node_class == stage.node_class:
            runs[-1].append(s)
        else:
            runs.append([s])
    return runs


def _misplaced(plan: Plan, s: int, expected: tuple[str, ...], num_expected: int, per_host: int) -> list[str]:
    hosts = plan.stages[s].hosts
    if hosts == expected and len(hosts) == num_expected:
        return []
    if len(hosts) != num_expected:
        return [
            f"stage {s}: lists {len(hosts)} hosts; its {stage_chips(plan, s)} chips lie on {num_expected} "
            f"host{'s' if num_expected > 1 else ''} of {per_host} chips, packed behind the stages before it"
        ]
    if len(expected) < num_expected:
        return [
            f"stage {s}: lists {', '.join(hosts)}, whose chips the stages before it take; name hosts of its "
            "own behind theirs"
        ]
    return [
        f"stage {s}: lies on {', '.join(expected)} when stages are packed in order, but lists "
        f"{', '.join(hosts)}; no chip may be used twice or left out between stages"
    ]


def _ranks_are_packed(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """The same where stages list their replicas: no chip used twice, a host's ranks without a break.

    Ranks are dealt to the hosts that their replica lists, each filled before the next.
    """
    per_host = {
        host: node_class.chips_per_node
        for i, node_class in enumerate(problem.cluster.classes)
        for host in problem.cluster.hosts_of(i)
    }
    left = dict(per_host)
    found: list[str] = []
    previous, ended = "", set[str]()
    for s, stage in enumerate(plan.stages):
        groups = [(hosts, plan.context_parallel * tp) for hosts, tp in _replica_places(stage)]
        for hosts, num_chips in groups:
            for host in hosts:
                taken = min(num_chips, left.get(host, 0))
                if taken == 0:
                    continue
                if host in ended:
                    found.append(
                        f"stage {s}: host {host} comes up again after others; ranks of a host follow each "
                        "other, so name another"
                    )
                if previous not in ("", host):
                    ended.add(previous)
                previous = host
                left[host] -= taken
                num_chips -= taken
            if num_chips:
                found.append(
                    f"stage {s}: hosts {', '.join(hosts)} have {num_chips} chips too few for its ranks, as "
                    "no chip may be used twice; name more hosts or a smaller tensor_parallel"
                )
    return tuple(dict.fromkeys(found))


def _replica_places(stage: Stage) -> list[tuple[tuple[str, ...], int]]:
    """Hosts and tensor-parallel degree of each data-parallel rank; ranks on one class share its hosts."""
    if stage.replicas is None:
        return [(stage.hosts, stage.tensor_parallel)] * stage.data_parallel
    return [(replica.hosts, replica.tensor_parallel) for replica in stage.replicas]
