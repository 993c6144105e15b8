"""Do the nodes of a launch directory fit together?

Megatron-LM assumes that all ranks were given the same arguments and never compares them. Some may
differ between pipeline stages, because nothing that crosses a stage depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from .refusal import Refused
from .script import NodeStart, arguments_of_ranks, start_as_node

MAY_DIFFER_BETWEEN_STAGES = frozenset(
    {
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--recompute-modules",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--ddp-bucket-size",
        "--attention-backend",
        "--cpu-offloading-num-layers",
    }
)


@dataclass(frozen=True)
class Launch:
    """What all nodes start, and the arguments of every rank."""

    nodes: tuple[NodeStart, ...]
    arguments: tuple[tuple[str, ...], ...]

    @property
    def world_size(self) -> int:
        """Ranks that the nodes start together."""
        return len(self.arguments)


def start_all(script: str, num_nodes: int, settings: Mapping[str, str], *, few: bool = False) -> Launch:
    """Run the script as every node, or as few: the ends of each run of alike lines of hosts.txt."""
    if few:
        return _start_few(script, num_nodes, settings)
    nodes = tuple(start_as_node(script, node, settings) for node in range(num_nodes))
    arguments: list[tuple[str, ...]] = []
    for start in nodes:
        arguments += arguments_of_ranks(start, len(arguments))
    return Launch(nodes, tuple(arguments))


def _start_few(script: str, num_nodes: int, settings: Mapping[str, str]) -> Launch:
    """The launch, where nodes between two that start the same are taken to start it as well.

    Raises
    ------
    Refused
        Where hosts.txt has another number of lines, or the ends of a run differ.
    """
    lines = [line.split()[1:] for line in (Path(script).parent / "hosts.txt").read_text().splitlines()]
    if len(lines) != num_nodes:
        raise Refused(f"hosts.txt has {len(lines)} lines for {num_nodes} nodes")
    nodes: list[NodeStart] = []
    arguments: list[tuple[str, ...]] = []
    for _, run in groupby(enumerate(lines), key=lambda item: item[1]):
        members = [node for node, _ in run]
        first, last = (start_as_node(script, node, settings) for node in (members[0], members[-1]))
        alike = [_at(first, node) for node in members]
        if _in_common(last) != _in_common(alike[-1]):
            raise Refused(f"nodes {members[0]} and {members[-1]} have the same line but start differently")
        for start in alike:
            nodes.append(start)
            arguments += arguments_of_ranks(start, len(arguments))
    return Launch(tuple(nodes), tuple(arguments))


def _in_common(start: NodeStart) -> tuple[dict[str, str], tuple[str, ...]]:
    """What two nodes of a run start alike: all but where each keeps its logs."""
    launcher = {name: value for name, value in start.launcher.items() if name != "log-dir"}
    return launcher, tuple(start.arguments)


def _at(start: NodeStart, node: int) -> NodeStart:
    """The same start with another node rank."""
    return replace(start, launcher={**start.launcher, "node-rank": str(node)})


def flags_of(arguments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values of every flag; of a flag given twice the last, as Megatron's parser reads it."""
    flags: dict[str, tuple[str, ...]] = {}
    flag = ""
    for word in arguments:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            flags[flag] = (value,) if equals else ()
        elif flag:
            flags[flag] += (word,)
    return flags


def disagreements(launch: Launch, stage_of_rank: Sequence[int]) -> list[str]:
    """What would go wrong between the nodes, each in a sentence."""
    return [
        *_launcher_trouble(launch),
        *_count_trouble(launch, len(stage_of_rank)),
        *_argument_trouble(launch, stage_of_rank),
    ]


def _launcher_trouble(launch: Launch) -> list[str]:
    wrong = []
    first = launch.nodes[0]
    for node, start in enumerate(launch.nodes):
        options = start.launcher
        if options.get("node-rank", "0") != str(node):
            wrong.append(f"node {node} starts torchrun with --node-rank {options.get('node-rank')}")
        if options.get("nnodes") != str(len(launch.nodes)):
            wrong.append(f"node {node} expects {options.get('nnodes')} nodes of {len(launch.nodes)}")
        if any(name.startswith("rdzv") for name in options):
            wrong.append(f"node {node} uses a dynamic rendezvous, which does not keep node ranks")
        for name in ("master-addr", "master-port"):
            if options.get(name) != first.launcher.get(name):
                wrong.append(f"node {node} looks for another {name} than node 0")
        name = "CUDA_DEVICE_MAX_CONNECTIONS"
        if start.environment.get(name) != first.environment.get(name):
            wrong.append(f"node {node} has another {name} than node 0")
    return wrong


def _count_trouble(launch: Launch, world_size: int) -> list[str]:
    if launch.world_size == world_size:
        return []
    return [f"the nodes start {launch.world_size} ranks, the degrees make {world_size}"]


def _argument_trouble(launch: Launch, stage_of_rank: Sequence[int]) -> list[str]:
    wrong = []
    base = flags_of(launch.arguments[0])
    of_stage: dict[int, dict[str, tuple[str, ...]]] = {}
    for rank, stage in enumerate(stage_of_rank[: launch.world_size]):
        flags = flags_of(launch.arguments[rank])
        differ = {flag for flag in flags.keys() | base.keys() if flags.get(flag) != base.get(flag)}
        wrong += [
            f"rank {rank}: {flag} differs from rank 0, which Megatron-LM does not bear"
            for flag in sorted(differ - MAY_DIFFER_BETWEEN_STAGES)
        ]
        if of_stage.setdefault(stage, flags) != flags:
            wrong.append(f"rank {rank} has other arguments than an earlier rank of stage {stage}")
    return wrong
