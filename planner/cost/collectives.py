"""Time of one collective by operation, size, ranks and where the ranks are.

Inside a node: measured latencies (NCCL) by ranks and bytes. Across nodes: a ring enters and leaves every
node once and carries all but a rank's own share, a tree what the other nodes need; the slower of the
node's links and of the adapters that the group may use sets the rate, and the other overlaps with it but
for a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from planner.cost import tables
from planner.cost.elementwise import Values, ceil, exists, log2, maximum, minimum, where
from planner.cost.grid import LogGrid
from planner.cost.oversubscription import rate_left
from planner.cost.placement import Spread
from planner.cost.relatives import Relative
from planner.cost.trees import tree_s
from planner.data.cluster import ETHERNET_MTU_BYTES, Transport

WIRE_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Times that (n - 1) / n of the full buffer crosses a rank's link (nccl-tests, doc/PERFORMANCE.md)."""

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

LAUNCH_S = 10e-6
"""Launch and synchronisation of one NCCL kernel across nodes [s]: what small in-node calls take (tables)."""

SMALLEST_BYTES = 4096.0
"""Smallest buffer measured: its latency is that of the steps alone."""

PHASE_OVERLAP = 0.9
"""Share of the faster phase (inside, between nodes) that runs behind the slower one."""

SUMS_IN_SWITCH = ("h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")
"""Tables of chips whose switch sums: a node's ranks send their sum once, so that all-reduces cross nodes as
if a node were a rank (NCCL's NVLSTree). Every ring passes on all but a rank's own share of a buffer, through
each node's adapters too (nccl-tests, doc/PERFORMANCE.md: bus bandwidth counts ranks, and reaches the
adapters' rate on any number of nodes)."""

SCALE_BYTES_PER_S = 8 * 48.5e9
"""Rate of a node for which the shares by nodes and size hold [bytes/s]: eight adapters of 400 Gbit/s, the
usual ones of the tool that publishes them (aliyun/SimAI, calbusbw.h; it names no test bed). What falls short
of the rate is latency, the same on any adapter, so that slower ones reach as much with smaller buffers.
NCCL's own latencies of a ring (src/graph/tuning.cc: 8.4 us, then 1.9 times 3.4 us a step inside a node and
9.6 us between nodes) give 0.28, 0.41, 0.58 for 16, 32, 64 MiB on two of them, the table 0.32, 0.47, 0.50."""

RING_STEP_S = (1.9e-6, 4.0e-6)
"""Latency of a step of a ring inside a node and between nodes [s] (NVIDIA nccl, src/graph/tuning.cc, hwLat
of Ring with LL128 over NVLink and network)."""

P2P_EFFICIENCY = 0.8
"""Share of the link rate that a single send reaches; constant published by AMD Primus (p2p_bw_eff)."""


BRIDGED = ("rtx_pro_6000_server",)
"""Tables of nodes whose chips reach each other over PCIe bridges alone, which pairs that work at once
share: an all-reduce of 16 MiB reaches 35 GB/s among two of eight chips, 25 among four."""

MESHED = ("v100",)
"""Tables of nodes whose links join pairs of chips, so that they hold what small groups leave unused: among
two, four and eight V100s an all-reduce of 1 GiB reaches 23, 86 and 133 GB/s."""

FITS = {"b300_sxm": "b200_sxm", "gb200": "b200_sxm", "gb300": "b200_sxm"}
"""Tables that share the other source's line: chips with the same links. Of two measurements the slower
counts: the grids are best latencies of replayed calls, the lines those of calls one by one, as training makes
them (17 us against 110 us for a gather of 1 MiB among 8)."""


@dataclass(frozen=True)
class Network:
    """What a chip of a class can reach others through."""

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

    @cached_property
    def chip_bytes_per_s(self) -> float:
        """A chip's share of the node's adapters, as its transport leaves it [bytes/s]."""
        return transport_rate(self.node_bytes_per_s, self.transport, self.mtu_bytes) / self.chips_per_node

    @cached_property
    def is_mesh(self) -> bool:
        """Whether links join the chips of a node in pairs, without a switch, unlike those of the table."""
        return self.peer_bytes_per_s < self.link_bytes_per_s and self.relative.collective_table not in MESHED

    def unused_links(self, ranks: Values) -> Values:
        """Rate of a chip's links over that of those among a group: those to other chips of the node idle."""
        if not self.is_mesh:
            return 1.0
        return maximum(self.link_bytes_per_s / (self.peer_bytes_per_s * maximum(ranks - 1, 1.0)), 1.0)

    @cached_property
    def step_latency_s(self) -> float:
        """Latency of one message between nodes [s]."""
        return self.latency_s + TRANSPORT_LATENCY_S[self.transport]


@dataclass(frozen=True)
class _Measured:
    """What was measured of an operation inside a node."""

    grid: LogGrid
    most_ranks: int
    scale: float
    """Latency over the grid's."""
    fit: tables.CollectiveFit | None
    """The other source's line; None where there is none."""

    def latency_s(self, ranks: Values, size_bytes: Values) -> Values:
        """Latency among so many ranks [s]."""
        return self.scale * self.grid.latency_s(ranks, size_bytes)


@lru_cache(maxsize=256)
def _measured(table: str, op: str) -> _Measured:
    """What a table holds of one operation."""
    own = tables.collective_table_exists(table, op)
    # Where only all-reduce was measured: it is a reduce-scatter and a gather.
    grid, most = tables.collective_grid(table, op if own else "all_reduce")
    fit = tables.collective_fit(FITS.get(table, table), op)
    return _Measured(grid, most, 1.0 if own else 0.5, fit)


def inside_s(network: Network, op: str, size_bytes: Values, ranks: Values) -> Values:
    """Time of a collective among the ranks of one node [s]; zero for one rank.

    Parameters
    ----------
    size_bytes
        The full buffer: what each rank holds after a gather, or before a reduction or an exchange.
    """
    several = ranks > 1
    if not exists(several):
        return 0.0 * size_bytes
    if network.is_mesh and op == "all_reduce":
        # The measured all-reduce is summed by the switch.
        return inside_s(network, "reduce_scatter", size_bytes, ranks) + inside_s(
            network, "all_gather", size_bytes, ranks
        )
    relative = network.relative
    of = _measured(relative.collective_table, op)
    n = maximum(ranks, 2.0)
    bridged = relative.collective_table in BRIDGED
    # With lanes of its own each chip of a larger group reaches what those of a pair do.
    most_ranks = of.most_ranks if network.shares_bridges or not bridged else 2
    measured = minimum(n, float(most_ranks))
    size = maximum(size_bytes, 1.0)
    latency, floor = of.latency_s(measured, size), of.latency_s(measured, SMALLEST_BYTES)
    if bridged and network.shares_bridges:
        # All groups of the node work at once and share its bridges: the rate is that of one group of all.
        everyone = maximum(measured, min(network.chips_per_node, float(of.most_ranks)))
        shared, shared_floor = of.latency_s(everyone, size), of.latency_s(everyone, SMALLEST_BYTES)
        share = ((measured - 1) / measured) / ((everyone - 1) / everyone)
        latency = maximum(latency, floor + (shared - shared_floor) * share)
    over, link_scale = (n - 1) / n, relative.link_scale * network.unused_links(n)
    wire = over / ((measured - 1) / measured)
    # Beyond the largest group measured the wire grows by its share, the latency by the steps.
    latency = floor * (n / measured) + (latency - floor) * link_scale * wire
    if of.fit is not None:
        steps = WIRE_PASSES[op] * (measured - 1)  # larger groups take trees for small buffers
        sent = WIRE_PASSES[op] * over * size_bytes
        line = of.fit.fixed_s + steps * of.fit.step_s + sent / of.fit.bytes_per_s * link_scale
        latency = maximum(latency, line)
    return where(several & (size_bytes > 0), maximum(latency, 0.0), 0.0)


def collective_s(
    network: Network,
    op: str,
    size_bytes: Values,
    spread: Spread,
    sharing: Values,
    efficiency: float | None = None,
) -> Values:
    """Time of a collective of a group over nodes [s].

    Parameters
    ----------
    size_bytes
        The full buffer on a rank [bytes].
    sharing
        Groups that use the adapters of a node (or of a rack's fabric) at the same time.
    efficiency
        Share of the adapters' rate that the library reaches, where it is not NCCL's by nodes and size.
    """
    inside = inside_s(network, op, size_bytes, minimum(spread.inside, spread.ranks))
    several, across = spread.ranks > 1, spread.nodes > 1
    if not exists(across & several):
        return where(several, inside, 0.0)
    below = network.nodes_per_switch * network.chips_per_node / network.domain_chips
    left = rate_left(op, spread, below, network.oversubscription)
    rate = left * network.chip_bytes_per_s * network.domain_chips / sharing
    rate = minimum(rate, spread.inside * network.link_bytes_per_s)
    nodes, passes = maximum(spread.nodes, 2.0), WIRE_PASSES[op]
    if op == "all_to_all":
        # Each rank sends the share of the other nodes' ranks; a node's ranks send at once.
        outside = (nodes - 1) / nodes * size_bytes * spread.inside
        table = "alltoall"
    else:
        outside = passes * (nodes - 1) / nodes * size_bytes
        if op != "all_reduce" or network.relative.collective_table not in SUMS_IN_SWITCH:
            ranks = maximum(spread.ranks, 2.0)
            outside = passes * (ranks - 1) / ranks * size_bytes
        table = "allreduce_nic"
    scaled_bytes = maximum(size_bytes * (SCALE_BYTES_PER_S / rate), 1.0)
    reached: Values = _reached(table, nodes, scaled_bytes) if efficiency is None else efficiency
    levels = ceil(log2(nodes))
    between = outside / (rate * reached) + LAUNCH_S + passes * levels * network.step_latency_s
    if efficiency is None and op == "all_reduce" and network.reduces_along_trees:
        ring_rate = rate * _reached(table, 2.0, scaled_bytes)
        tree = tree_s(size_bytes, nodes, levels, ring_rate, network.tree_channels_bytes_per_s)
        between = minimum(between, tree + LAUNCH_S)
    hierarchical = maximum(inside, between) + (1 - PHASE_OVERLAP) * minimum(inside, between)
    return where(several, where(across, hierarchical, inside), 0.0)


def _reached(table: str, nodes: Values, size_bytes: Values) -> Values:
    """Share of the adapters' rate that NCCL reaches between so many nodes."""
    return minimum(maximum(tables.scale_grid(table).latency_s(nodes, size_bytes), 0.01), 1.0)


def ring_latency_s(spread: Spread) -> Values:
    """Time of a buffer too small to matter once around a ring [s]."""
    inside, between = RING_STEP_S
    return (spread.ranks - spread.nodes) * inside + where(spread.nodes > 1, spread.nodes * between, 0.0)


def send_s(size_bytes: Values, rate_bytes_per_s: Values, latency_s: float) -> Values:
    """Time of a point-to-point transfer [s]."""
    return latency_s + size_bytes / (P2P_EFFICIENCY * rate_bytes_per_s)
