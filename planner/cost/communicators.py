"""Memory of communicators, which lies outside what the framework's allocator hands out.

Each kind of group with several ranks has a communicator, and so has the whole job. On A100 joined by NVLink a
group of two took 544 MB, one of three or four 688 MB (github.com/NVIDIA/nccl, issue 964); beyond a node the
number of ranks no longer counts (issue 986). An exchange of all with all connects every pair of a node: the
first one among eight H100 took 3.28 GB more (issue 1685).
"""

from __future__ import annotations

from planner.cost.elementwise import Values, maximum, minimum, where
from planner.cost.sizes import Sizes
from planner.data.problem import Problem
from planner.data.stack import SoftwareStack
from planner.units import GB, GIB

TWO_RANKS = 544 / 688
"""Memory of a group of two over that of a larger one."""

EXCHANGE_PEERS = 7.0
"""Peers of a rank in the exchange that was measured; more are not known to take more."""

EXCHANGE_BYTES_PER_PEER = 3.28 * GB / EXCHANGE_PEERS


def communicator_bytes(problem: Problem, sizes: Sizes, domain_chips: float) -> Values:
    """Memory of all communicators of a rank [bytes].

    A stage that has fewer chips than the cluster is taken to have others beside it in a pipeline.

    Parameters
    ----------
    domain_chips
        Chips that fast links join.
    """
    stack, s, job = problem.stack, sizes, float(problem.cluster.num_chips)
    sets = _sets(s.tp) + _sets(s.cp) + _sets(s.gradient_ranks) + _sets(s.ep) + _sets(job / s.stage_chips)
    return (sets + _sets(job)) * stack.communicator_gib * GIB + _exchange_bytes(stack, s, domain_chips)


def _sets(ranks: Values) -> Values:
    """Communicators of a group, in those of a large one."""
    return where(ranks > 2, 1.0, where(ranks > 1, TWO_RANKS, 0.0))


def _exchange_bytes(stack: SoftwareStack, sizes: Sizes, domain_chips: float) -> Values:
    """What the exchange of tokens among experts connects; zero where another library moves them."""
    if stack.moe_dispatcher == "deduplicating" or not stack.communicator_gib:
        return 0.0
    peers = maximum(minimum(sizes.ep, domain_chips) - 1, 0.0)
    return minimum(peers, EXCHANGE_PEERS) * EXCHANGE_BYTES_PER_PEER
