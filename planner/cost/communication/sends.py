"""Point-to-point transfers of activations between stages, inside a node and over the network."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.communication.collectives import send_s
from planner.cost.communication.hops import INSIDE_LATENCY_S
from planner.cost.communication.inside_node import inside_s
from planner.cost.communication.links import TRANSPORT_LATENCY_S, transport_rate
from planner.cost.communication.networks import NO_ADAPTER_BYTES_PER_S, network_of, networks_of
from planner.cost.communication.oversubscription import send_rate_left
from planner.cost.elementwise import Values, by_choice, minimum, where
from planner.cost.identity import remembered
from planner.cost.kernels.host_waits import host_layer_s
from planner.cost.kernels.launches import DENSE_LAUNCHES
from planner.cost.kernels.operators import HALF
from planner.cost.prices import Floats
from planner.cost.profiles import value_bytes
from planner.cost.sizes import Sizes
from planner.data.problem import Problem

PARTED_LAUNCHES = 8.0
"""What hosts launch for a parted activation while the chips wait, in the mean of both ways: two sends and two
receives, of its shape and of a share; forward a copy of both; to clear, gather and copy the whole. The sender
waits for the pass before, as the shape comes from the host (PartitionedTensor.to_meta of
deepspeed/runtime/utils.py; _exec_send_activations and their like in runtime/pipe/engine.py)."""


def sends_s(problem: Problem, sizes: Sizes, rows: int) -> dict[str, Floats]:
    """Point-to-point transfers of an activation: A / t with sequence parallelism, else A by every rank.

    Stacks that part it send A / t as well, and the ranks that receive it gather it (PartitionedTensor.full of
    deepspeed/runtime/utils.py); where gradients are whole, those that receive one gather their own activation
    again (RecvGrad of the engine), so that each way has a gather.
    All chips of a node that belong to one stage send at once, so each has its share of the adapters. Where
    fast links join the nodes of a rack, stages that fill it have their neighbours in other racks, so that
    adapters carry what they send; that smaller ones meet a rack's end now and then is left out.
    """
    num = len(problem.cluster.classes)
    stack = problem.stack
    tokens = sizes.tokens / sizes.tp if stack.p2p_partitioned else sizes.norm_tokens
    if stack.p2p_partitioned and not stack.p2p_gradient_partitioned:
        # One price serves both ways: their mean.
        tokens = (tokens + sizes.tokens) / 2
    size = tokens * problem.model.hidden_size * value_bytes(problem)
    if stack.p2p_sends_mask:
        # Forward only: half of it stands for each way.
        size = size + sizes.seq_length**2 * HALF / 2
    parted = [_parted_s(problem, sizes, a) if stack.p2p_partitioned else 0.0 for a in range(num)]
    links = _links(problem)
    sends: list[Values] = []
    inside: list[Values] = []
    for a, network in enumerate(networks_of(problem)):
        inside.append(send_s(size, network.peer_bytes_per_s, INSIDE_LATENCY_S) + parted[a])
        for b in range(num):
            # One price serves both ways, which end on either class: their mean.
            more = (parted[a] + parted[b]) / 2
            hop = _send_between(links[a][b], sizes, size)
            if a == b and network.domain_chips > network.chips_per_node:
                fabric = send_s(size, network.link_bytes_per_s, network.latency_s)
                hop = where(sizes.stage_chips < network.domain_chips, fabric, hop)
            sends.append(hop + more)
    return {"send_s": by_choice(sends, rows, (num, num)), "send_inside_s": by_choice(inside, rows, (num,))}


def _parted_s(problem: Problem, sizes: Sizes, node_class: int) -> Values:
    """What an activation takes beside its way where each tensor-parallel rank sends a share of it [s].

    It is gathered inside a node, and hosts launch what that and its way need. With sequence parallelism a
    rank works on its share as it is.
    """
    whole = sizes.tokens * problem.model.hidden_size * value_bytes(problem)
    gather = inside_s(network_of(problem, node_class), "all_gather", whole, sizes.tp)
    launch_s = host_layer_s(problem.stack, problem.chip_of(node_class)) / DENSE_LAUNCHES
    launched = where(sizes.tp > 1, PARTED_LAUNCHES * launch_s, 0.0)
    return where(sizes.splits_sequence, 0.0, gather + launched)


@dataclass(frozen=True)
class _Link:
    """What carries activations between two classes, or within one, from node to node."""

    bytes_per_s: float
    """Rate of a node, or of a chip."""
    latency_s: float
    most_senders: float
    """Most chips that share the rate: those of a node, or a chip alone."""
    is_reached: bool
    """Whether messages reach the rate: it was measured so, or is what TCP leaves, whose many connections fill
    an adapter in rings and sends alike."""


@remembered
def _links(problem: Problem) -> tuple[tuple[_Link, ...], ...]:
    """Links [class from][class to]."""
    classes = range(len(problem.cluster.classes))
    return tuple(tuple(_link(problem, a, b) for b in classes) for a in classes)


def _link(problem: Problem, a: int, b: int) -> _Link:
    first, second = network_of(problem, a), network_of(problem, b)
    rate, latency, transport = problem.cluster.link_between(a, b)
    rate = rate if rate > 0 else NO_ADAPTER_BYTES_PER_S
    chips = max(first.chips_per_node, second.chips_per_node)
    if problem.cluster.rate_is_measured(a, b):
        return _Link(rate, latency, chips, is_reached=True)
    if a == b:
        one = problem.cluster.classes[a]
        rate *= send_rate_left(one.num_nodes, one.nodes_per_switch or float("inf"), one.oversubscription)
    rate = transport_rate(rate, transport, problem.cluster.mtu_bytes)
    return _Link(rate, latency + TRANSPORT_LATENCY_S[transport], chips, is_reached=transport == "tcp")


def _send_between(link: _Link, sizes: Sizes, size: Values) -> Values:
    """A transfer between chips of two classes over the network [s]."""
    senders = minimum(link.most_senders, sizes.stage_chips)
    if link.is_reached:
        return link.latency_s + size * senders / link.bytes_per_s
    return send_s(size, link.bytes_per_s / senders, link.latency_s)
