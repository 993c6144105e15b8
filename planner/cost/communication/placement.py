"""How the ranks of a group lie over nodes, whatever the position of their stage.

Prices must not depend on where in the pipeline a stage sits, so a stage is placed at its worst alignment.
Ranks of a stage are numbered tensor, context, data parallel, fastest first (`tp-cp-ep-dp-pp`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.elementwise import Values, ceil, minimum, where

REMEMBERED = 1024
"""Spreads of single groups kept."""


@dataclass(frozen=True, eq=False)
class Spread:
    """A group over nodes; the same where it is the same object."""

    ranks: Values
    """Ranks of the group."""
    inside: Values
    """Ranks of it on one node."""
    nodes: Values
    """Nodes that it touches."""
    interleaved: Values
    """Groups like it whose nodes lie between its own."""


def nodes_of_block(num_ranks: Values, chips_per_node: float) -> Values:
    """Nodes that a contiguous block of ranks touches at its worst alignment.

    One where the node is a multiple of the block, the quotient where the block is a multiple of the
    node; else the block may begin inside a node and touch one more than its size needs.
    """
    divides = chips_per_node % num_ranks == 0
    multiple = num_ranks % chips_per_node == 0
    worst = ceil(num_ranks / chips_per_node) + 1
    return where(divides, 1.0, where(multiple, num_ranks / chips_per_node, worst))


def spread_group(ranks: Values, stride: Values, chips_per_node: float) -> Spread:
    """A group of ranks that lie `stride` apart, at its worst alignment."""
    if isinstance(ranks, np.ndarray) or isinstance(stride, np.ndarray):
        return _spread(ranks, stride, chips_per_node)
    return _spread_of_one(ranks, stride, chips_per_node)


def _spread(ranks: Values, stride: Values, chips_per_node: float) -> Spread:
    block = nodes_of_block(ranks * stride, chips_per_node)
    nodes = minimum(block, ranks)
    return Spread(ranks, ranks / nodes, nodes, block / nodes)


_spread_of_one = lru_cache(maxsize=REMEMBERED)(_spread)
"""That of a single group: choices ask for few of them again and again."""
