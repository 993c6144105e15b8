"""The stages of a run: which layers, hosts and recomputation each pipeline rank of a script has."""

from __future__ import annotations

from itertools import accumulate

from planner.data.plan import LayerRange, Recompute, Replica, Stage
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.launchers.read.flags import Flags
from planner.launchers.read.layout import layer_counts


def read_stages(
    problem: Problem,
    flags: Flags,
    lines: dict[tuple[str, ...], Flags],
    ranks: list[tuple[str, ...]],
    host_of_rank: list[str],
    shape: dict[str, int],
    order: str,
    where: str,
) -> tuple[Stage, ...]:
    """The stages with their layers, hosts and recomputation.

    Parameters
    ----------
    lines
        Flags of every command line that some rank has, by its words.
    host_of_rank
        Host of every rank.
    shape
        Degrees, by the plan's names of them.
    order
        Axes of the ranks, fastest first.

    Raises
    ------
    InstanceError
        Where the layers cannot be read back, or ranks of a stage do not agree.
    """
    counts = layer_counts(flags)
    p, v = len(counts), len(counts[0])
    ends = list(accumulate(counts[s][chunk] for chunk in range(v) for s in range(p)))
    group = shape["tensor_parallel"] * shape["context_parallel"]
    stages = []
    for s in range(p):
        own = [
            r
            for r in range(len(ranks))
            if (r // (group * shape["data_parallel"]) if order.endswith("pp") else r // group % p) == s
        ]
        if len({ranks[r] for r in own}) > 1:
            raise InstanceError(f"ranks of stage {s} have different arguments", where)
        chunks = tuple((ends[u * p + s] - counts[s][u], ends[u * p + s] - 1) for u in range(v))
        recompute = recomputation(lines[ranks[own[0]]], counts[s])
        places = [[host_of_rank[r] for r in own[i : i + group]] for i in range(0, len(own), group)]
        stages.append(stage_on(problem, chunks, places, shape, recompute))
    return tuple(stages)


def stage_on(
    problem: Problem,
    chunks: tuple[LayerRange, ...],
    places: list[list[str]],
    shape: dict[str, int],
    recompute: tuple[Recompute, int, int],
) -> Stage:
    """A stage on the hosts of its replicas, listed one by one where they lie on several classes."""
    class_of = {
        host: node_class
        for i, node_class in enumerate(problem.cluster.classes)
        for host in problem.cluster.hosts_of(i)
    }
    first = class_of[places[0][0]]
    replicas = tuple(
        Replica(
            node_class=class_of[hosts[0]].name,
            chip=class_of[hosts[0]].chip,
            hosts=tuple(dict.fromkeys(hosts)),
            tensor_parallel=shape["tensor_parallel"],
        )
        for hosts in places
    )
    mixed = len({replica.node_class for replica in replicas}) > 1
    return Stage(
        layers=chunks if len(chunks) > 1 else chunks[0],
        chip=first.chip,
        node_class=first.name,
        hosts=tuple(dict.fromkeys(host for hosts in places for host in hosts)),
        tensor_parallel=shape["tensor_parallel"],
        data_parallel=shape["data_parallel"],
        recompute=recompute[0],
        recompute_layers=recompute[1],
        recompute_piece=recompute[2],
        replicas=replicas if mixed else None,
    )


def is_selective(flags: Flags) -> bool:
    """Whether a command line asks for selective recomputation."""
    return "--recompute-activations" in flags or flags.text("--recompute-granularity", "") == "selective"


def recomputation(flags: Flags, counts: list[int]) -> tuple[Recompute, int, int]:
    """Kind, layers and layers of a piece of what a stage recomputes; with `uniform` all of its layers."""
    kind, longest = flags.text("--recompute-granularity", "none"), max(counts)
    if is_selective(flags):
        return "selective", 0, 1
    number = flags.number("--recompute-num-layers", 1, least=0) if kind != "none" else 0
    by_block = flags.text("--recompute-method", "") == "block"
    if kind == "none" or not longest or (by_block and not number):
        return "none", 0, 1
    if by_block:
        return "full", min(number, longest), 1
    return "full", longest, max(1, min(number, longest))
