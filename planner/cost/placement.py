"""How the ranks of a group lie over nodes, whatever the position of their stage.

Prices must not depend on where in the pipeline a stage sits, so a stage is placed at its worst alignment.
Ranks of a stage are numbered tensor, context, data parallel, fastest first (`tp-cp-ep-dp-pp`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats


@dataclass(frozen=True)
class Spread:
    """A group over nodes: arrays of axis `choice`."""

    ranks: Floats
    """Ranks of the group."""
    inside: Floats
    """Ranks of it on one node."""
    nodes: Floats
    """Nodes that it touches."""
    interleaved: Floats
    """Groups like it whose nodes lie between its own."""


def nodes_of_block(num_ranks: Floats, chips_per_node: float) -> Floats:
    """Nodes that a contiguous block of ranks touches at its worst alignment.

    One where the node is a multiple of the block, the quotient where the block is a multiple of the
    node; else the block may begin inside a node and touch one more than its size needs.
    """
    divides = chips_per_node % num_ranks == 0
    multiple = num_ranks % chips_per_node == 0
    worst = np.ceil(num_ranks / chips_per_node) + 1
    return np.where(divides, 1.0, np.where(multiple, num_ranks / chips_per_node, worst))


def spread_group(ranks: Floats, stride: Floats, chips_per_node: float) -> Spread:
    """A group of ranks that lie `stride` apart, at its worst alignment."""
    block = nodes_of_block(ranks * stride, chips_per_node)
    nodes = np.minimum(block, ranks)
    return Spread(ranks, ranks / nodes, nodes, block / nodes)
