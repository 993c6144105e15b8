"""Time of one collective by operation, size, ranks and where the ranks are.

Inside a node: measured latencies (NCCL) by ranks and bytes. Across nodes: a ring enters and leaves every
node once and carries all but a rank's own share, a tree what the other nodes need; the slower of the
node's links and of the adapters that the group may use sets the rate, and the other overlaps with it but
for a tenth.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.cost.communication.inside_node import WIRE_PASSES, inside_node
from planner.cost.communication.links import Network
from planner.cost.communication.oversubscription import rate_left
from planner.cost.communication.placement import Spread
from planner.cost.communication.trees import tree_s
from planner.cost.elementwise import Values, ceil, exists, log2, maximum, minimum, where
from planner.cost.kernels import tables

REMEMBERED = 1024
"""Groups kept, of a network and an operation."""

LAUNCH_S = 10e-6
"""Launch and synchronisation of one NCCL kernel across nodes [s]: what small in-node calls take (tables)."""

PHASE_OVERLAP = 0.9
"""Share of the faster phase (inside, between nodes) that runs behind the slower one (guess: NCCL sends a
buffer in pieces, of which the first and the last have nothing beside them)."""

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

PEAK_SHARE = 48.5 / 50
"""Peak of an adapter to which those shares refer, over its nominal rate: 48.5 of 50 GB/s (the same tool)."""

LEAST_SHARE = 0.01
"""Share of the adapters' rate that every buffer reaches: the least of the table is 0.011, 16 MiB among 128
nodes. Below that size the table is continued at one time for all; under this share times fall again, as
small buffers take kernels of less latency (guess). Half and twice as much change a measured step by 0.7% at
most, and no suite's error by 0.1%."""

MOST_NODES = {"allreduce_nic": 128.0, "alltoall": 16.0}
"""Nodes up to which those shares are known. A ring takes a step for each of its nodes and an exchange one for
each peer, so that twice as many reach what half of the buffer does: 16, 32, 64 and 128 nodes 0.57, 0.56, 0.56
and 0.55 with 0.25, 0.5, 1 and 2 GiB. So do more than are known."""

RING_STEP_S = (1.9e-6, 4.0e-6)
"""Latency of a step of a ring inside a node and between nodes [s] (NVIDIA nccl, src/graph/tuning.cc, hwLat
of Ring with LL128 over NVLink and network)."""

P2P_EFFICIENCY = 0.8
"""Share of the link rate that a single send reaches; constant published by AMD Primus (p2p_bw_eff)."""


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
    if isinstance(spread.ranks, np.ndarray) or isinstance(sharing, np.ndarray):
        return Collective(network, op, spread, sharing).time_s(size_bytes, efficiency)
    return _of_one(network, op, spread, sharing).time_s(size_bytes, efficiency)


class Collective:
    """A collective of a group over nodes: all of its time that its size does not change."""

    def __init__(self, network: Network, op: str, spread: Spread, sharing: Values) -> None:
        self.inside = inside_node(network, op, spread.inside)
        self.several, self.across = spread.ranks > 1, spread.nodes > 1
        crosses = exists(self.across & self.several)
        self.between = BetweenNodes(network, op, spread, sharing) if crosses else None

    def time_s(self, size_bytes: Values, efficiency: float | None) -> Values:
        """Time with a buffer of a size [s]; with NCCL's efficiency where none is given."""
        inside = self.inside.time_s(size_bytes)
        if self.between is None:
            return where(self.several, inside, 0.0)
        between = self.between.time_s(size_bytes, efficiency)
        hierarchical = maximum(inside, between) + (1 - PHASE_OVERLAP) * minimum(inside, between)
        return where(self.several, where(self.across, hierarchical, inside), 0.0)


class BetweenNodes:
    """A collective of a group between its nodes: all of its time that its size does not change."""

    def __init__(self, network: Network, op: str, spread: Spread, sharing: Values) -> None:
        self.network = network
        below = network.nodes_per_switch * network.chips_per_node / network.domain_chips
        left = rate_left(op, spread, below, network.oversubscription)
        rate = left * network.chip_bytes_per_s * network.domain_chips / sharing
        self.rate = minimum(rate, spread.inside * network.link_bytes_per_s)
        self.nodes, passes = maximum(spread.nodes, 2.0), WIRE_PASSES[op]
        table, sharers = "allreduce_nic", self.nodes
        self.senders: Values = 1.0
        if op == "all_to_all":
            # Each rank sends the share of the other nodes' ranks; a node's ranks send at once.
            table, self.senders = "alltoall", spread.inside
        elif op != "all_reduce" or network.relative.collective_table not in SUMS_IN_SWITCH:
            sharers = maximum(spread.ranks, 2.0)
        self.shares, self.most_nodes = tables.scale_grid(table), MOST_NODES[table]
        self.share = passes * (sharers - 1) / sharers
        self.levels = ceil(log2(self.nodes))
        self.steps_s = passes * self.levels * network.step_latency_s
        self.reduces_along_trees = op == "all_reduce" and network.reduces_along_trees

    def time_s(self, size_bytes: Values, efficiency: float | None) -> Values:
        """Time with a buffer of a size [s]; with NCCL's efficiency where none is given."""
        outside = self.share * size_bytes * self.senders
        if efficiency is not None:
            return outside / (self.rate * efficiency) + LAUNCH_S + self.steps_s
        scaled_bytes = maximum(size_bytes * (SCALE_BYTES_PER_S / self.rate), 1.0)
        reached = self._reached(self.nodes, scaled_bytes)
        between = outside / (self.rate * reached) + LAUNCH_S + self.steps_s
        if not self.reduces_along_trees:
            return between
        ring_rate = self.rate * self._reached(2.0, scaled_bytes)
        channels = self.network.tree_channels_bytes_per_s
        return minimum(between, tree_s(size_bytes, self.nodes, self.levels, ring_rate, channels) + LAUNCH_S)

    def _reached(self, nodes: Values, size_bytes: Values) -> Values:
        """Share of the adapters' rate that NCCL reaches between so many nodes."""
        steps = maximum(nodes / self.most_nodes, 1.0)
        found = self.shares.latency_s(nodes, maximum(size_bytes / steps, 1.0))
        return PEAK_SHARE * minimum(maximum(found, LEAST_SHARE), 1.0)


_of_one = lru_cache(maxsize=REMEMBERED)(Collective)
"""That of a single group: choices ask for few of them again and again."""


def ring_latency_s(spread: Spread) -> Values:
    """Time of a buffer too small to matter once around a ring [s]."""
    inside, between = RING_STEP_S
    return (spread.ranks - spread.nodes) * inside + where(spread.nodes > 1, spread.nodes * between, 0.0)


def send_s(size_bytes: Values, rate_bytes_per_s: Values, latency_s: float) -> Values:
    """Time of a point-to-point transfer [s]."""
    return latency_s + size_bytes / (P2P_EFFICIENCY * rate_bytes_per_s)
