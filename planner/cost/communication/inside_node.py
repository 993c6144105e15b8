"""Time of one collective among ranks of a node: measured latencies (NCCL) by ranks and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.communication.links import Network
from planner.cost.elementwise import Values, exists, maximum, minimum, where
from planner.cost.kernels import tables
from planner.cost.kernels.grid import LogGrid

WIRE_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Times that (n - 1) / n of the full buffer crosses a rank's link (nccl-tests, doc/PERFORMANCE.md)."""

SMALLEST_BYTES = 4096.0
"""Smallest buffer measured: its latency is that of the steps alone."""

REMEMBERED = 1024
"""Numbers of ranks kept, of a network and an operation."""

BRIDGED = ("rtx_pro_6000_server",)
"""Tables of nodes whose chips reach each other over PCIe bridges alone, which pairs that work at once
share: an all-reduce of 16 MiB reaches 35 GB/s among two of eight chips, 25 among four."""

FITS = {"b300_sxm": "b200_sxm", "gb200": "b200_sxm", "gb300": "b200_sxm"}
"""Tables that share the other source's line: chips with the same links. Of two measurements the slower
counts: the grids are best latencies of replayed calls, the lines those of calls one by one, as training makes
them (17 us against 110 us for a gather of 1 MiB among 8)."""


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
    return inside_node(network, op, ranks).time_s(size_bytes)


class InsideNode:
    """A collective among ranks of one node: all of its time that its size does not change."""

    def __init__(self, network: Network, op: str, ranks: Values) -> None:
        self.several = ranks > 1
        self.then: InsideNode | None = None
        self.is_one = not exists(self.several)
        if network.is_mesh and op == "all_reduce":
            # The measured all-reduce is summed by the switch.
            op, self.then = "reduce_scatter", InsideNode(network, "all_gather", ranks)
        relative = network.relative
        self.of = of = _measured(relative.collective_table, op)
        bridged = relative.collective_table in BRIDGED
        n = maximum(ranks, 2.0)
        # With lanes of its own each chip of a larger group reaches what those of a pair do.
        most_ranks = of.most_ranks if network.shares_bridges or not bridged else 2
        self.measured = measured = minimum(n, float(most_ranks))
        self.floor_s = of.latency_s(measured, SMALLEST_BYTES)
        self.bridge = _Bridge(network, of, measured) if bridged and network.shares_bridges else None
        over, self.link_scale = (n - 1) / n, relative.link_scale * network.unused_links(n)
        # Beyond the largest group measured the wire grows by its share, the latency by the steps.
        self.wire, self.steps_s = over / ((measured - 1) / measured), self.floor_s * (n / measured)
        if of.fit is not None:
            steps = WIRE_PASSES[op] * (measured - 1)  # larger groups take trees for small buffers
            self.line_s, self.line_share = of.fit.fixed_s + steps * of.fit.step_s, WIRE_PASSES[op] * over

    def time_s(self, size_bytes: Values) -> Values:
        """Time with a buffer of a size [s]."""
        if self.is_one:
            return 0.0 * size_bytes
        size = maximum(size_bytes, 1.0)
        latency = self.of.latency_s(self.measured, size)
        if self.bridge is not None:
            latency = maximum(latency, self.floor_s + self.bridge.beyond_floor_s(size))
        latency = self.steps_s + (latency - self.floor_s) * self.link_scale * self.wire
        if self.of.fit is not None:
            sent = self.line_share * size_bytes
            latency = maximum(latency, self.line_s + sent / self.of.fit.bytes_per_s * self.link_scale)
        once = where(self.several & (size_bytes > 0), maximum(latency, 0.0), 0.0)
        return once if self.then is None else once + self.then.time_s(size_bytes)


def inside_node(network: Network, op: str, ranks: Values) -> InsideNode:
    """A collective among ranks of a node; choices ask for few single numbers of them again and again."""
    return InsideNode(network, op, ranks) if isinstance(ranks, np.ndarray) else _of_one(network, op, ranks)


_of_one = lru_cache(maxsize=REMEMBERED)(InsideNode)


class _Bridge:
    """All groups of the node work at once and share its bridges: the rate is that of one group of all."""

    def __init__(self, network: Network, of: _Measured, measured: Values) -> None:
        everyone = maximum(measured, min(network.chips_per_node, float(of.most_ranks)))
        self.of, self.everyone = of, everyone
        self.floor_s = of.latency_s(everyone, SMALLEST_BYTES)
        self.share = ((measured - 1) / measured) / ((everyone - 1) / everyone)

    def beyond_floor_s(self, size_bytes: Values) -> Values:
        """What a buffer takes beyond the smallest one [s]."""
        return (self.of.latency_s(self.everyone, size_bytes) - self.floor_s) * self.share
