"""Where the stages lie: hosts that exist, no chip used twice, stages packed in rank order.

Source of all rules: megatron-core 0.19.2 (Apache-2.0), megatron/core/parallel_state.py,
`RankGenerator`: with the default order of axes stage k is the block of ranks [k S, (k + 1) S), and
torchrun deals ranks host by host. Consecutive stages on one class are therefore packed one after
the other; a host holds ranks without a break, so it belongs to one run of such stages.
"""

from __future__ import annotations

from functools import lru_cache

from planner.data.cluster import Cluster
from planner.data.plan import Plan
from planner.data.problem import Problem


def stage_chips(plan: Plan, s: int) -> int:
    """Chips of one stage."""
    stage = plan.stages[s]
    return stage.tensor_parallel * plan.context_parallel * stage.data_parallel


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
        if stage.node_class not in chip_of:
            found.append(
                f"stage {s}: node class {stage.node_class!r} is not in the cluster; "
                f"it has {', '.join(chip_of)}"
            )
        elif stage.chip != chip_of[stage.node_class]:
            found.append(
                f"stage {s}: chip {stage.chip} is not that of class {stage.node_class}; "
                f"write {chip_of[stage.node_class]}"
            )
    return tuple(found)


def hosts_exist(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Every host of a stage is in the stage's node class, and named once."""
    class_of = _class_of_host(problem.cluster)
    found = []
    for s, stage in enumerate(plan.stages):
        for host in dict.fromkeys(stage.hosts):
            if host not in class_of:
                found.append(f"stage {s}: host {host} is not in the cluster; see `hosts` of its classes")
            elif class_of[host] != stage.node_class:
                found.append(
                    f"stage {s}: host {host} is in class {class_of[host]}, not {stage.node_class}; "
                    f"name a host of {stage.node_class}"
                )
        if len(set(stage.hosts)) != len(stage.hosts):
            found.append(f"stage {s}: lists a host twice; name each once")
    return tuple(found)


@lru_cache(maxsize=16)
def _class_of_host(cluster: Cluster) -> dict[str, str]:
    return {
        host: node_class.name for i, node_class in enumerate(cluster.classes) for host in cluster.hosts_of(i)
    }


def class_has_chips(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """No class lends more chips than it has."""
    used: dict[str, int] = {}
    for s, stage in enumerate(plan.stages):
        used[stage.node_class] = used.get(stage.node_class, 0) + stage_chips(plan, s)
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
            f"hosts of {per_host} chips, packed behind the stages before it"
        ]
    return [
        f"stage {s}: lies on {', '.join(expected)} when stages are packed in order, but lists "
        f"{', '.join(hosts)}; no chip may be used twice or left out between stages"
    ]
