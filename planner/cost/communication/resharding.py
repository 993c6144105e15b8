"""Sends between stages of different shape: which rank sends what, and how long the hop takes.

Two neighbouring stages hold the same B sequences at a time. A stage of tensor parallel t and data parallel
d cuts them into d blocks of B / d sequences, each of them into t pieces of the sequence; rank (i, k) holds
piece i of block k. Where the cuts of two stages differ, a rank sends each overlap of its part with a part of
the next stage as a message of its own, one after the other, and receives in the same way; gradients go back
along the same overlaps. Source: FlagScale 16a2dd5 (Apache-2.0),
flagscale/train/hetero/parallel_context.py (`get_inter_mesh_tensor_slices`) and p2p_communication.py
(`send_forward_hetero`, `recv_forward_hetero`), where each slice waits for the one before it.

So a hop takes as long as the side with more to move through its share of the adapters, plus the latency of
every message after the first. Between equal shapes it is the hop of `planner.cost.communication.hops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.cost.communication.hops import INSIDE_LATENCY_S, hops_inside_host
from planner.cost.communication.links import TRANSPORT_LATENCY_S
from planner.cost.communication.networks import network_of
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem


@dataclass(frozen=True)
class StageShape:
    """Where one stage lies and how it cuts its work."""

    choice: int
    """Row of the prices with its degrees."""
    node_class: int
    tensor_parallel: int
    data_parallel: int
    num_chips: int
    """Chips of the stage, context parallelism included."""


@lru_cache(maxsize=4096)
def most_overlaps(parts: int, others: int) -> int:
    """Most of `others` equal pieces of a whole that one of `parts` equal pieces of it touches."""
    return max((-(-(i + 1) * others // parts)) - i * others // parts for i in range(parts))


def num_messages(here: StageShape, there: StageShape) -> int:
    """Messages that the busiest rank of either stage sends or receives one after the other."""

    def of(a: StageShape, b: StageShape) -> int:
        return most_overlaps(a.tensor_parallel, b.tensor_parallel) * most_overlaps(
            a.data_parallel, b.data_parallel
        )

    return max(of(here, there), of(there, here))


def message_latency_s(problem: Problem, a: int, b: int) -> float:
    """Latency of one more message between chips of two classes, or within one, over the network [s]."""
    if a == b:
        network = network_of(problem, a)
        if network.domain_chips > network.chips_per_node:
            return network.latency_s
    _, latency, transport = problem.cluster.link_between(a, b)
    return latency if problem.cluster.rate_is_measured(a, b) else latency + TRANSPORT_LATENCY_S[transport]


def hop_between_s(
    problem: Problem, prices: Prices, here: StageShape, there: StageShape, inside: bool
) -> float:
    """One activation of all B sequences from a stage to the next [s].

    Parameters
    ----------
    inside
        Whether both lie in one host.
    """
    a, b = here.node_class, there.node_class
    if inside:
        hop = max(prices.send_inside_s[here.choice, a], prices.send_inside_s[there.choice, b])
        return float(hop) + (num_messages(here, there) - 1) * INSIDE_LATENCY_S
    hop = max(prices.send_s[here.choice, a, b], prices.send_s[there.choice, a, b])
    more = num_messages(here, there) - 1
    return float(hop) + (more * message_latency_s(problem, a, b) if more else 0.0)


def hops_between_s(problem: Problem, prices: Prices, shapes: Sequence[StageShape]) -> tuple[Floats, Floats]:
    """`hop_between_s` of every pair of shapes, [from, to]: over the network, and inside one host."""
    choice = np.array([shape.choice for shape in shapes])
    place = np.array([shape.node_class for shape in shapes])
    here, there = place[:, None], place[None, :]
    messages = np.array([[num_messages(a, b) for b in shapes] for a in shapes]) - 1.0
    classes = range(len(problem.cluster.classes))
    latency = np.array([[message_latency_s(problem, a, b) for b in classes] for a in classes])
    sends = np.maximum(
        prices.send_s[choice[:, None], here, there], prices.send_s[choice[None, :], here, there]
    )
    alone = prices.send_inside_s[choice, place]
    inside = np.maximum(alone[:, None], alone[None, :]) + messages * INSIDE_LATENCY_S
    return sends + messages * latency[here, there], inside


def mesh_hops_s(problem: Problem, prices: Prices, shapes: Sequence[StageShape]) -> Floats:
    """Time of each hop s -> s + 1, array [stage] in seconds; the last leads back to the first stage."""
    hops = np.zeros(len(shapes))
    if len(shapes) == 1:
        return hops
    inside = hops_inside_host(
        [shape.node_class for shape in shapes],
        [shape.num_chips for shape in shapes],
        [node_class.chips_per_node for node_class in problem.cluster.classes],
    )
    for s, shape in enumerate(shapes):
        hops[s] = hop_between_s(problem, prices, shape, shapes[(s + 1) % len(shapes)], inside[s])
    return hops
