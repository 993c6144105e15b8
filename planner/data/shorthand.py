"""Clusters in one line: `6x8 h100-sxm-80gb, 10x8 a100-sxm-80gb` = nodes x chips per node, chip.

What such nodes usually have (adapters, links inside the node) is filled in from the chip and listed
in the cluster's assumptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations

from planner.data.chip import Chip
from planner.data.cluster import Cluster, Link, NodeClass, Transport
from planner.errors import InstanceError

_PART = re.compile(r"^([0-9]{1,9})\s*[xX×*]\s*([0-9]{1,9})\s+(\S+)$")
_EXAMPLE = "write nodes x chips per node, then the chip: '6x8 h100-sxm-80gb, 10x8 a100-sxm-80gb'"

RDMA_LATENCY_US = 5.0
"""Latency between two nodes over an RDMA network [us]; a guess in the middle of published 3 to 10."""
TCP_LATENCY_US = 30.0
"""Latency between two nodes over TCP [us]; a guess in the middle of published 20 to 50."""
RDMA_FROM_GBIT_PER_S = 100.0
"""Adapters slower than this are taken to be plain Ethernet without RDMA [Gbit/s]; a guess."""
UNKNOWN_NIC_GBIT_PER_S = 100.0
"""Adapter taken where nothing is known of a chip's usual nodes [Gbit/s]; a guess."""
MAX_NODES = 200_000
"""More nodes than any machine has; a larger count is a slip of the hand."""
MAX_CHIPS_PER_NODE = 1_024
"""More chips than any node has."""


def looks_like_short_form(text: str) -> bool:
    """Whether a string is meant as nodes in short form rather than as a name or a file."""
    return bool(re.match(r"^\s*[-+]?[0-9]+(\s*[xX×*]|\s+\S)", text)) or "," in text


def cluster_from_short_form(text: str, find_chip: Callable[[str], Chip], where: str = "cluster") -> Cluster:
    """Build a cluster from `6x8 h100-sxm-80gb, 10x8 a100-sxm-80gb`.

    Parameters
    ----------
    find_chip
        Chip of an id or alias; raises InstanceError for an unknown one.

    Raises
    ------
    InstanceError
        Where a part has another form, a count is zero or absurd, or a chip is unknown.
    """
    classes: list[NodeClass] = []
    chips: list[Chip] = []
    assumptions: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        num_nodes, chips_per_node, chip_name = _parse_part(part, where)
        chip = find_chip(chip_name)
        taken = sum(c.chip == chip.id for c in classes)
        name = f"{chip.id}-{taken + 1}" if taken else chip.id
        node_class, notes = usual_nodes(name, chip, num_nodes, chips_per_node)
        classes.append(node_class)
        chips.append(chip)
        assumptions += notes
    links, link_notes = _links(classes, chips)
    return Cluster(
        id=", ".join(f"{c.num_nodes}x{c.chips_per_node} {c.chip}" for c in classes),
        classes=tuple(classes),
        links=tuple(links),
        basis="chosen",
        source="short form; adapters and links as such nodes usually have them",
        assumptions=tuple(assumptions + link_notes),
    )


def _parse_part(part: str, where: str) -> tuple[int, int, str]:
    match = _PART.match(part)
    if match is None:
        raise InstanceError(f"cannot read {part[:60]!r}; {_EXAMPLE}", where)
    num_nodes, chips_per_node = int(match[1]), int(match[2])
    for count, limit, what in (
        (num_nodes, MAX_NODES, "nodes"),
        (chips_per_node, MAX_CHIPS_PER_NODE, "chips per node"),
    ):
        if not 1 <= count <= limit:
            raise InstanceError(f"{part[:60]!r}: {what} must be 1 to {limit}, got {count}", where)
    return num_nodes, chips_per_node, match[3]


def usual_nodes(
    name: str, chip: Chip, num_nodes: int, chips_per_node: int
) -> tuple[NodeClass, tuple[str, ...]]:
    """Nodes of a chip with the adapters such nodes usually have, and what was assumed of them.

    A node with fewer or more chips than usual has adapters in proportion, at least one.
    """
    if chip.nics_per_node and chip.nic_gbit_per_s:
        nics = max(1, round(chip.nics_per_node * chips_per_node / chip.chips_per_node))
        rate, basis = chip.nic_gbit_per_s, "usual for the chip"
    else:
        nics, rate, basis = 1, UNKNOWN_NIC_GBIT_PER_S, "a guess, nothing is known"
    transport: Transport = "rdma" if rate >= RDMA_FROM_GBIT_PER_S else "tcp"
    node_class = NodeClass(
        name=name,
        chip=chip.id,
        num_nodes=num_nodes,
        chips_per_node=chips_per_node,
        nics_per_node=nics,
        nic_gbit_per_s=rate,
        latency_us=RDMA_LATENCY_US if transport == "rdma" else TCP_LATENCY_US,
        transport=transport,
    )
    inside = f"{chip.intra_node_bandwidth_gb_per_s:g} GB/s a chip inside the node"
    kind = f" ({chip.intra_node_kind})" if chip.intra_node_kind else ""
    notes = (
        f"{name}: {nics} x {rate:g} Gbit/s adapters a node, {transport}, "
        f"{node_class.latency_us:g} us ({basis})",
        f"{name}: {inside}{kind}",
    )
    return node_class, notes


def _links(classes: list[NodeClass], chips: list[Chip]) -> tuple[list[Link], list[str]]:
    """Links between classes: none stated within a platform, through the host between two platforms."""
    links: list[Link] = []
    notes: list[str] = []
    for a, b in combinations(range(len(classes)), 2):
        first, second = classes[a], classes[b]
        slower = min(first, second, key=lambda c: c.node_bandwidth_bytes_per_s)
        rate = slower.nics_per_node * slower.nic_gbit_per_s
        if chips[a].backend != chips[b].backend:
            notes.append(
                f"{first.name} to {second.name}: {rate:g} Gbit/s a node, the slower side's adapters, "
                "staged through the host (two platforms)"
            )
            links.append(
                Link(
                    between=(first.name, second.name),
                    gbit_per_s=rate,
                    latency_us=TCP_LATENCY_US,
                    transport="host_staged",
                    note="two platforms share no device-direct path; a guess",
                )
            )
    return links, notes
