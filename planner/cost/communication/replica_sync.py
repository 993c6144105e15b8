"""Gradient reduction and parameter gathering among replicas that lie on different chips.

A ring in the order of the replicas: each of its links carries (d - 1) / d of the buffer once a pass, and
the slowest link sets the pace. Every tensor-parallel rank of a node runs a ring of its own at the same
time, so that they share the node's adapters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.communication.collectives import LAUNCH_S
from planner.cost.communication.links import TRANSPORT_LATENCY_S, transport_rate
from planner.cost.communication.networks import NO_ADAPTER_BYTES_PER_S, network_of
from planner.cost.identity import remembered
from planner.cost.memory.states import WEIGHT_BYTES
from planner.cost.parameters import padded_vocab
from planner.cost.sharding import GATHERS_IN_FORWARD, SCATTERS_EACH_MICROBATCH
from planner.data.problem import Problem


@dataclass(frozen=True)
class ReplicaPlace:
    """Where one data-parallel rank of a stage lies."""

    node_class: int
    hosts: tuple[str, ...]
    num_chips: int
    """Chips of the rank: tensor x context parallel."""
    tensor_parallel: int


def replica_reduce_s(
    problem: Problem, places: Sequence[ReplicaPlace], shard_parameters: Sequence[float], dp_mode: str
) -> float:
    """Reduction of a stage's gradients among its replicas [s].

    Parameters
    ----------
    shard_parameters
        Parameters of the stage on one chip, by replica.
    """
    if dp_mode in SCATTERS_EACH_MICROBATCH:
        return 0.0
    passes = 2 if dp_mode == "ddp" else 1
    return passes * _ring_pass_s(problem, places, shard_parameters, problem.stack.gradient_bytes)


def replica_gather_s(
    problem: Problem, places: Sequence[ReplicaPlace], shard_parameters: Sequence[float], dp_mode: str
) -> float:
    """Gathering of a stage's updated parameters among its replicas [s]; zero where nothing is shared."""
    if dp_mode == "ddp" or dp_mode in GATHERS_IN_FORWARD:
        return 0.0
    return _ring_pass_s(problem, places, shard_parameters, WEIGHT_BYTES)


def replica_exchange_s(
    problem: Problem, places: Sequence[ReplicaPlace], shard_parameters: Sequence[float], dp_mode: str
) -> tuple[float, float]:
    """Gathering of a stage's parameters and scattering of its gradients in one micro-batch, a pass each [s].

    Zero where the mode does it once a step (`sharding.py` has which do not).
    """
    gather = scatter = 0.0
    if dp_mode in GATHERS_IN_FORWARD:
        gather = _ring_pass_s(problem, places, shard_parameters, WEIGHT_BYTES)
    if dp_mode in SCATTERS_EACH_MICROBATCH:
        scatter = _ring_pass_s(problem, places, shard_parameters, problem.stack.scattered_gradient_bytes)
    return gather, scatter


def _ring_pass_s(
    problem: Problem, places: Sequence[ReplicaPlace], shard_parameters: Sequence[float], value_bytes: float
) -> float:
    """One pass around the ring [s]: what each link carries at its share of the rate, and its latency."""
    d = len(places)
    if d == 1:
        return 0.0
    cuts = [shard * value_bytes * (d - 1) / d for shard in shard_parameters]
    slowest = 0.0
    for r, place in enumerate(places):
        after = places[(r + 1) % d]
        bytes_per_s, latency_s = replica_link(problem, place, after)
        bytes_per_s *= left_by_switch(problem, place, after)
        slowest = max(slowest, cuts[r] / bytes_per_s + (d - 1) * latency_s)
    return slowest + LAUNCH_S


def tied_embedding_s(problem: Problem, ends: Sequence[tuple[ReplicaPlace, ReplicaPlace]]) -> float:
    """All-reduce of a tied embedding's gradients between the first and the last stage of each replica [s].

    Among two ranks each direction of the link carries the buffer once. The replicas whose first stages
    share a host share its adapters too.
    """
    width = problem.stack.tied_gradient_bytes or problem.stack.gradient_bytes
    replicas_on = Counter(first.hosts[0] for first, _ in ends)
    slowest = 0.0
    for first, last in ends:
        bytes_per_s, latency_s = replica_link(problem, first, last)
        bytes_per_s *= left_by_switch(problem, first, last)
        sharing = 1 if first.hosts[-1] == last.hosts[0] else replicas_on[first.hosts[0]]
        vocab = padded_vocab(problem.model.vocab_size, first.tensor_parallel)
        size = width * vocab * problem.model.hidden_size / first.tensor_parallel
        slowest = max(slowest, size * sharing / bytes_per_s + 2 * latency_s)
    return slowest + LAUNCH_S


def replica_link(problem: Problem, place: ReplicaPlace, after: ReplicaPlace) -> tuple[float, float]:
    """Rate that one rank gets towards the next replica [bytes/s], and the latency of a message [s]."""
    node_class = problem.cluster.classes[place.node_class]
    if place.hosts[-1] == after.hosts[0]:
        return network_of(problem, place.node_class).peer_bytes_per_s, 0.0
    rate, latency_s, transport = problem.cluster.link_between(place.node_class, after.node_class)
    rate = rate if rate > 0 else NO_ADAPTER_BYTES_PER_S
    if not problem.cluster.rate_is_measured(place.node_class, after.node_class):
        rate = transport_rate(rate, transport, problem.cluster.mtu_bytes)
    sharing = min(place.num_chips, node_class.chips_per_node)
    return rate / sharing, latency_s + TRANSPORT_LATENCY_S[transport]


@remembered
def _number_of_host(problem: Problem) -> tuple[dict[str, int], ...]:
    """Place of every host among those of its class, by class."""
    return tuple(
        {host: i for i, host in enumerate(problem.cluster.hosts_of(c))}
        for c in range(len(problem.cluster.classes))
    )


def left_by_switch(problem: Problem, place: ReplicaPlace, after: ReplicaPlace) -> float:
    """Share of the rate to the next replica that is left where it lies below another switch of its class.

    The ring of every node of a replica goes through the switch; no other node below it need do so at once
    (`oversubscription.py`). Between classes the rate is what the cluster states.
    """
    node_class = problem.cluster.classes[place.node_class]
    below = node_class.nodes_per_switch
    if place.node_class != after.node_class or below is None:
        return 1.0
    number, pairs = _number_of_host(problem)[place.node_class], zip(place.hosts, after.hosts, strict=False)
    crossing = sum(number[a] // below != number[b] // below for a, b in pairs)
    if not crossing:
        return 1.0
    slower = node_class.oversubscription * len(place.hosts) / below
    return 1.0 / min(max(slower, 1.0), node_class.oversubscription)
