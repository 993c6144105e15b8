"""What a chip reaches others through: links inside a node, adapters and transports between nodes."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.elementwise import Values, maximum
from planner.cost.kernels.relatives import Relative
from planner.cost.lazy import lazy
from planner.data.cluster import ETHERNET_MTU_BYTES, Transport

TCP_HEADER_BYTES = 52
"""What IP (20) and TCP with its time stamps (32) take of a packet (RFC 791; RFC 7323)."""

FRAME_BYTES = 38
"""What a packet takes on the wire beside itself: preamble, gap, header and check (IEEE 802.3)."""

TCP_NODE_BYTES_PER_S = 5e9
"""Most that a node moves over TCP [bytes/s]: NCCL's socket transport tops out at some 40 Gbit/s, as the
processors copy every byte (guess from published 100 GbE figures)."""

STAGED_EFFICIENCY = 0.5
"""Share of the adapters' rate left where every byte is copied to host memory and out of it again (guess)."""


def transport_rate(node_bytes_per_s: float, transport: Transport, mtu_bytes: int) -> float:
    """What a node's adapters move over a transport in packets of a size, one way [bytes/s]."""
    if transport == "tcp":
        data = (mtu_bytes - TCP_HEADER_BYTES) / (mtu_bytes + FRAME_BYTES)
        return min(data * node_bytes_per_s, TCP_NODE_BYTES_PER_S)
    return node_bytes_per_s * (STAGED_EFFICIENCY if transport == "host_staged" else 1.0)


TRANSPORT_LATENCY_S = {"rdma": 0.0, "host_staged": 15e-6, "tcp": 30e-6}
"""Added to each step between nodes [s]; guesses from published ping-pong times."""

MESHED = ("v100",)
"""Tables of nodes whose links join pairs of chips, so that they hold what small groups leave unused: among
two, four and eight V100s an all-reduce of 1 GiB reaches 23, 86 and 133 GB/s."""


@dataclass(frozen=True, eq=False)
class Network:
    """What a chip of a class can reach others through; the same where it is the same object."""

    relative: Relative
    domain_chips: float
    """Chips that fast links join: those of a node, or of a larger switched fabric."""
    chips_per_node: float
    node_bytes_per_s: float
    """All adapters of a node, one way [bytes/s]."""
    latency_s: float
    transport: Transport
    link_bytes_per_s: float
    """One chip's link inside the node, one way [bytes/s]."""
    peer_bytes_per_s: float
    """What of it reaches a single other chip; less than all where links join pairs [bytes/s]."""

    mtu_bytes: int = ETHERNET_MTU_BYTES
    """Largest packet between nodes."""
    shares_bridges: bool = True
    """Whether pairs that work at once share bridges, where chips reach each other over PCIe alone."""
    reduces_along_trees: bool = True
    """Whether all-reduces between nodes may go along trees, where those are faster than a ring."""
    tree_channels_bytes_per_s: tuple[float, float] = (float("inf"), float("inf"))
    """What all channels of its trees move, between two nodes and among more [bytes/s]."""
    nodes_per_switch: float = float("inf")
    """Nodes that reach each other at full rate."""
    oversubscription: float = 1.0
    """Rate into such a group of nodes over the rate out of it."""

    @lazy
    def chip_bytes_per_s(self) -> float:
        """A chip's share of the node's adapters, as its transport leaves it [bytes/s]."""
        return transport_rate(self.node_bytes_per_s, self.transport, self.mtu_bytes) / self.chips_per_node

    @lazy
    def is_mesh(self) -> bool:
        """Whether links join the chips of a node in pairs, without a switch, unlike those of the table."""
        return self.peer_bytes_per_s < self.link_bytes_per_s and self.relative.collective_table not in MESHED

    def unused_links(self, ranks: Values) -> Values:
        """Rate of a chip's links over that of those among a group: those to other chips of the node idle."""
        if not self.is_mesh:
            return 1.0
        return maximum(self.link_bytes_per_s / (self.peer_bytes_per_s * maximum(ranks - 1, 1.0)), 1.0)

    @lazy
    def step_latency_s(self) -> float:
        """Latency of one message between nodes [s]."""
        return self.latency_s + TRANSPORT_LATENCY_S[self.transport]
