"""How much of the adapters' rate is left where a group's traffic leaves its switch.

Nodes below one leaf switch (or one switch a rail, to which adapter i of every node goes: NCCL sends along
rails and crosses them inside the node) reach each other at full rate. What leaves them shares links that
carry 1 / oversubscription of the adapters' rate. A ring or tree enters and leaves a switch once, however
many of its nodes are below; in an exchange every node sends to all others.
"""

from __future__ import annotations

from planner.cost.communication.placement import Spread
from planner.cost.elementwise import Values, maximum, minimum, where


def rate_left(op: str, spread: Spread, domains_per_switch: float, oversubscription: float) -> Values:
    """Share of the adapters' rate that a collective gets, array [choice]; groups lie at their worst.

    Parameters
    ----------
    domains_per_switch
        Nodes (or larger groups that fast links join) below one switch.
    """
    if oversubscription <= 1.0:
        return 1.0
    leaves = spread.nodes * spread.interleaved > domains_per_switch
    if op == "all_to_all":
        below = minimum(maximum(domains_per_switch / spread.interleaved, 1.0), spread.nodes)
        outside = (spread.nodes - below) / maximum(spread.nodes - 1, 1.0)
        slower = maximum(oversubscription * outside, 1.0)
    else:
        # Groups whose nodes are interleaved each have a ring through the switch.
        slower = maximum(oversubscription * spread.interleaved / domains_per_switch, 1.0)
    left = where(leaves, 1.0 / minimum(slower, oversubscription), 1.0)
    return left


def send_rate_left(num_nodes: int, nodes_per_switch: float, oversubscription: float) -> float:
    """Share of the rate of sends between stages: the nodes below a switch may all send out of it at once."""
    return 1.0 / oversubscription if num_nodes > nodes_per_switch else 1.0
