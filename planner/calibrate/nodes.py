"""The cluster of a measured run: node classes from its groups, adapters from its words or its chip."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner.calibrate.patterns import SkipRun, compiled, occurs, table
from planner.calibrate.runs import Run, RunGroup
from planner.cost.kernels.relatives import link_of_pair
from planner.data.chip import Chip
from planner.data.cluster import ETHERNET_MTU_BYTES, Cluster, Link, NodeClass, Transport
from planner.data.load import load_chip, load_cluster
from planner.data.shorthand import RDMA_LATENCY_US, TCP_LATENCY_US, usual_nodes
from planner.errors import InstanceError
from planner.units import BITS_PER_BYTE


@dataclass(frozen=True)
class StatedNetwork:
    """What a run's words say of its network."""

    nics: int
    """Adapters of a node, or of a chip."""
    per_chip: bool
    """Whether they are counted by chip."""
    gbit_per_s: float
    """Rate of one adapter, one way [Gbit/s]."""
    transport: Transport | None
    """How data travels, where the words decide it."""
    intra_gbit_per_s: float | None
    """Rate that messages between two chips of a node reach, where known [Gbit/s]."""
    between_classes: bool
    """Whether the rate is that of links between different chips."""
    cluster: str | None = None
    """Shipped cluster on which the run took place, whose measured rates serve."""


def cluster_of(run: Run) -> tuple[Cluster, dict[str, Chip], tuple[str, ...]]:
    """Cluster of a run, the chips in it, and what was assumed of its network.

    Raises
    ------
    SkipRun
        Where a chip is unknown.
    """
    return _cluster(run.cluster.groups, _stated_network(run.text, run.source), _mtu_bytes(run.source))


@lru_cache(maxsize=4096)
def _stated_network(text: str, source: str) -> StatedNetwork | None:
    """Network as the first rule that applies reads it from a run's words."""
    for rule in table("network_patterns")["networks"]:
        match = compiled(rule["pattern"]).search(text)
        if match is None or not occurs(rule.get("run_source"), source):
            continue
        if "cluster" in rule:
            return StatedNetwork(0, False, 0.0, None, None, False, cluster=rule["cluster"])
        per_chip = "nics_per_chip" in rule
        if "gbyte_per_s" in rule:
            rate = _number(rule["gbyte_per_s"], match) * BITS_PER_BYTE
        else:
            rate = _number(rule["gbit_per_s"], match)
        return StatedNetwork(
            nics=int(_number(rule["nics_per_chip" if per_chip else "nics_per_node"], match)),
            per_chip=per_chip,
            gbit_per_s=rate,
            transport=rule.get("transport"),
            intra_gbit_per_s=rule.get("intra_gbit_per_s"),
            between_classes=rule.get("between_classes", False),
        )
    return None


@lru_cache(maxsize=256)
def _mtu_bytes(source: str) -> int:
    """Largest packet between the nodes of a suite's runs [bytes]."""
    rules = table("network_patterns")["mtu"]
    stated = (int(rule["mtu_bytes"]) for rule in rules if occurs(rule["run_source"], source))
    return next(stated, ETHERNET_MTU_BYTES)


def _number(value: Any, match: re.Match[str]) -> float:
    """A number of a rule: as it stands, or `$1`, the text of that group."""
    return float(match[int(value[1:])] if isinstance(value, str) else value)


@lru_cache(maxsize=4096)
def _cluster(
    groups: tuple[RunGroup, ...], network: StatedNetwork | None, mtu_bytes: int
) -> tuple[Cluster, dict[str, Chip], tuple[str, ...]]:
    classes: list[NodeClass] = []
    chips: dict[str, Chip] = {}
    assumptions: list[str] = []
    for group in groups:
        try:
            chip = load_chip(group.chip)
        except InstanceError:
            raise SkipRun(f"chip unknown: {group.chip}") from None
        chips[chip.id] = chip
        classes.append(_node_class(group, chip, len(classes), network, assumptions))
    cluster = Cluster(
        id="measured run",
        classes=tuple(classes),
        links=_links(classes, network),
        mtu_bytes=mtu_bytes,
        basis="stated",
        source="measured run",
    )
    return cluster, chips, tuple(assumptions)


def _node_class(
    group: RunGroup, chip: Chip, index: int, network: StatedNetwork | None, assumptions: list[str]
) -> NodeClass:
    """Nodes of a group: the group's own rates, else the run's words, else what the chip usually has."""
    chips_per_node = min(group.num_chips, group.chips_per_node or chip.chips_per_node)
    num_nodes = -(-group.num_chips // chips_per_node)
    usual, notes = usual_nodes(f"{chip.id}-{index}" if index else chip.id, chip, num_nodes, chips_per_node)
    stated: dict[str, Any] = {}
    if network is not None and network.cluster is not None:
        return usual.model_copy(update=_measured_rates(network.cluster, chip.id))
    if group.inter_node_gbit_per_s is not None:
        stated.update(nics_per_node=1, nic_gbit_per_s=group.inter_node_gbit_per_s)
    elif network is not None:
        nics = network.nics * chips_per_node if network.per_chip else network.nics
        stated.update(nics_per_node=nics, nic_gbit_per_s=network.gbit_per_s)
    elif num_nodes > 1:
        assumptions.append(notes[0])
    if stated:
        transport = _transport(stated["nics_per_node"] * stated["nic_gbit_per_s"], network)
        latency_us = TCP_LATENCY_US if transport == "tcp" else RDMA_LATENCY_US
        stated.update(transport=transport, latency_us=latency_us)
    inside = group.intra_node_gbit_per_s or (network.intra_gbit_per_s if network is not None else None)
    if inside is not None:
        stated["intra_node_bandwidth_gb_per_s"] = link_of_pair(chip, inside / BITS_PER_BYTE)
    return usual.model_copy(update=stated)


MEASURED_FIELDS = (
    "nics_per_node",
    "nic_gbit_per_s",
    "rate_basis",
    "latency_us",
    "transport",
    "intra_node_bandwidth_gb_per_s",
    "memory_gib",
)
"""Fields of a node that a shipped cluster knows better than a run's words."""


def _measured_rates(cluster: str, chip: str) -> dict[str, Any]:
    """Rates of the nodes with a chip in a shipped cluster."""
    for node_class in load_cluster(cluster).classes:
        if node_class.chip == chip:
            return {name: getattr(node_class, name) for name in MEASURED_FIELDS}
    raise SkipRun(f"chip unknown: {chip} in cluster {cluster}")


def _measured_links(cluster: str, classes: list[NodeClass]) -> tuple[Link, ...]:
    """Links of a shipped cluster between the chips of a run."""
    shipped = load_cluster(cluster)
    chip_of = {node_class.name: node_class.chip for node_class in shipped.classes}
    name_of = {node_class.chip: node_class.name for node_class in classes}
    return tuple(
        link.model_copy(update={"between": tuple(name_of[chip_of[name]] for name in link.between)})
        for link in shipped.links
        if all(chip_of[name] in name_of for name in link.between)
    )


def _transport(node_gbit_per_s: float, network: StatedNetwork | None) -> Transport:
    """Transport as stated; else nodes with a slow network have no RDMA."""
    if network is not None and network.transport is not None:
        return network.transport
    return "tcp" if node_gbit_per_s <= table("network_patterns")["tcp_up_to_gbit_per_s"] else "rdma"


def _links(classes: list[NodeClass], network: StatedNetwork | None) -> tuple[Link, ...]:
    """Links between classes where the run's words give their rate (`cross-type links`)."""
    if network is not None and network.cluster is not None:
        return _measured_links(network.cluster, classes)
    if network is None or not network.between_classes:
        return ()
    return tuple(
        Link(
            between=(a.name, b.name),
            gbit_per_s=network.nics * network.gbit_per_s,
            latency_us=TCP_LATENCY_US,
            transport="tcp",
            note="stated",
        )
        for i, a in enumerate(classes)
        for b in classes[i + 1 :]
    )
