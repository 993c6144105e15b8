"""The cluster of a measured run: node classes from its groups, adapters from its words or its chip."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from planner.calibrate.patterns import SkipRun, compiled, table
from planner.calibrate.runs import Run, RunGroup
from planner.data.chip import Chip
from planner.data.cluster import Cluster, Link, NodeClass, Transport
from planner.data.load import load_chip
from planner.data.shorthand import RDMA_LATENCY_US, TCP_LATENCY_US, usual_nodes
from planner.errors import InstanceError
from planner.units import BITS_PER_BYTE

NVLINK_DOMAIN_CHIPS = 72
"""Chips of one NVLink domain of a GB200 or GB300 NVL72 rack (NVIDIA data sheet)."""


def cluster_of(run: Run) -> tuple[Cluster, dict[str, Chip], tuple[str, ...]]:
    """Cluster of a run, the chips in it, and what was assumed of its network.

    Raises
    ------
    SkipRun
        Where a chip is unknown.
    """
    return _cluster(run.cluster.groups, _network(run.text))


@lru_cache(maxsize=4096)
def _network(text: str) -> tuple[int, float, bool, Transport | None] | None:
    """Adapters, Gbit/s of one, whether counted by chip, and transport, as the run's words say."""
    for rule in table("network_patterns")["networks"]:
        match = compiled(rule["pattern"]).search(text)
        if match is None:
            continue

        def number(value: Any, match: Any = match) -> float:
            return float(match[int(value[1:])] if isinstance(value, str) else value)

        per_chip = "nics_per_chip" in rule
        nics = int(number(rule["nics_per_chip" if per_chip else "nics_per_node"]))
        if "gbyte_per_s" in rule:
            rate = number(rule["gbyte_per_s"]) * BITS_PER_BYTE
        else:
            rate = number(rule["gbit_per_s"])
        return nics, rate, per_chip, rule.get("transport")
    return None


@lru_cache(maxsize=4096)
def _cluster(
    groups: tuple[RunGroup, ...], network: tuple[int, float, bool, Transport | None] | None
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
        basis="stated",
        source="measured run",
    )
    return cluster, chips, tuple(assumptions)


def _node_class(
    group: RunGroup,
    chip: Chip,
    index: int,
    network: tuple[int, float, bool, Transport | None] | None,
    assumptions: list[str],
) -> NodeClass:
    chips_per_node = min(group.num_chips, _domain(group, chip, assumptions))
    num_nodes = -(-group.num_chips // chips_per_node)
    usual, notes = usual_nodes(f"{chip.id}-{index}" if index else chip.id, chip, num_nodes, chips_per_node)
    values: dict[str, Any] = {}
    if group.inter_node_gbit_per_s is not None:
        values.update(nics_per_node=1, nic_gbit_per_s=group.inter_node_gbit_per_s)
    elif network is not None:
        nics, rate, per_chip, _ = network
        values.update(nics_per_node=nics * chips_per_node if per_chip else nics, nic_gbit_per_s=rate)
    elif num_nodes > 1:
        assumptions.append(notes[0])
    if group.intra_node_gbit_per_s is not None:
        values["intra_node_bandwidth_gb_per_s"] = group.intra_node_gbit_per_s / BITS_PER_BYTE
    if values:
        node_rate = values.get("nics_per_node", 0) * values.get("nic_gbit_per_s", 0.0)
        transport = network[3] if network is not None else None
        if transport is None:
            slow = 0 < node_rate <= table("network_patterns")["tcp_up_to_gbit_per_s"]
            transport = "tcp" if slow else "rdma"
        values["transport"] = transport
        values["latency_us"] = TCP_LATENCY_US if transport == "tcp" else RDMA_LATENCY_US
    return usual.model_copy(update=values)


def _domain(group: RunGroup, chip: Chip, assumptions: list[str]) -> int:
    """Chips that reach each other at the rate of the node: the NVLink domain where it spans hosts.

    Of the 72 chips of an NVL72 rack a job takes as many whole hosts as divide its chips evenly.
    """
    chips_per_node = group.chips_per_node or chip.chips_per_node
    if "NVL72" not in chip.intra_node_kind or group.num_chips <= chips_per_node:
        return chips_per_node
    sizes = range(NVLINK_DOMAIN_CHIPS, chips_per_node - 1, -1)
    for size in sizes:
        if size % chips_per_node == 0 and group.num_chips % size == 0:
            assumptions.append(f"{size} chips in one NVLink domain")
            return size
    return chips_per_node


def _links(
    classes: list[NodeClass], network: tuple[int, float, bool, Transport | None] | None
) -> tuple[Link, ...]:
    """Links between classes where the run's words give their rate (`cross-type links`)."""
    if network is None or network[3] != "tcp" or len(classes) == 1:
        return ()
    rate = network[0] * network[1]
    return tuple(
        Link(
            between=(a.name, b.name),
            gbit_per_s=rate,
            latency_us=TCP_LATENCY_US,
            transport="tcp",
            note="stated",
        )
        for i, a in enumerate(classes)
        for b in classes[i + 1 :]
    )
