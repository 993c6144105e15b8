"""What the chips of each node class reach others through, from the cluster as given."""

from __future__ import annotations

from planner.cost.communication.links import Network
from planner.cost.communication.trees import channel_rates
from planner.cost.identity import remembered
from planner.cost.kernels.power_limit import slowest_of
from planner.cost.kernels.relatives import relative_of
from planner.data.problem import Problem
from planner.units import GB

NO_ADAPTER_BYTES_PER_S = 0.125e9
"""Rate between nodes without adapters: their management Ethernet of 1 Gbit/s (guess)."""


def network_of(problem: Problem, class_index: int) -> Network:
    """What a chip of a class can reach others through."""
    return networks_of(problem)[class_index]


@remembered
def networks_of(problem: Problem) -> tuple[Network, ...]:
    """The same of every class."""
    return tuple(_network(problem, i) for i in range(len(problem.cluster.classes)))


def _network(problem: Problem, class_index: int) -> Network:
    node_class = problem.cluster.classes[class_index]
    chip = problem.chip_of(class_index)
    link = node_class.intra_node_bandwidth_gb_per_s or chip.intra_node_bandwidth_gb_per_s
    peer = link
    if chip.peer_bandwidth_gb_per_s is not None:
        peer *= min(1.0, chip.peer_bandwidth_gb_per_s / chip.intra_node_bandwidth_gb_per_s)
    rate, latency, transport = problem.cluster.link_between(class_index, class_index)
    relative = relative_of(chip, problem.workload.precision, link)
    return Network(
        relative=slowest_of(relative, chip, node_class.num_pacing_chips),
        domain_chips=float(problem.fast_domain_chips(class_index)),
        chips_per_node=float(node_class.chips_per_node),
        node_bytes_per_s=rate if rate > 0 else NO_ADAPTER_BYTES_PER_S,
        latency_s=latency,
        transport=transport,
        link_bytes_per_s=link * GB,
        peer_bytes_per_s=peer * GB,
        mtu_bytes=problem.cluster.mtu_bytes,
        shares_bridges=not chip.own_lanes,
        reduces_along_trees=problem.stack.reduces_along_trees,
        tree_channels_bytes_per_s=channel_rates(
            chip, node_class.nics_per_node, rate / max(node_class.nics_per_node, 1)
        ),
        nodes_per_switch=float(node_class.nodes_per_switch or "inf"),
        oversubscription=node_class.oversubscription,
    )
