"""All-reduce of the gradients of an embedding that the first and the last stage hold, by their classes."""

from __future__ import annotations

import numpy as np

from planner.cost.communication.collectives import send_s
from planner.cost.communication.links import TRANSPORT_LATENCY_S, transport_rate
from planner.cost.communication.networks import NO_ADAPTER_BYTES_PER_S, network_of
from planner.cost.elementwise import Values, minimum
from planner.cost.prices import Floats
from planner.cost.sizes import Sizes
from planner.data.problem import Problem


def tied_sync_s(problem: Problem, sizes: Sizes, vocab: Values, rows: int) -> Floats:
    """What the exchange takes over the link between the two classes, [choice, class, class] in seconds.

    Among two ranks each direction carries the buffer once. All chips of the stage on a node send at once, so
    that each has its share of the adapters.

    Parameters
    ----------
    vocab
        Padded vocabulary.
    """
    num = len(problem.cluster.classes)
    found = np.zeros((rows, num, num))
    if not problem.model.copies_embedding:
        return found
    width = problem.stack.tied_gradient_bytes or problem.stack.gradient_bytes
    size = width * vocab * problem.model.hidden_size / sizes.tp
    for a in range(num):
        for b in range(a, num):
            rate, chips, latency_s = _link(problem, a, b)
            taken = send_s(size, rate / minimum(chips, sizes.stage_chips), latency_s)
            found[:, a, b] = found[:, b, a] = taken
    return found


def _link(problem: Problem, a: int, b: int) -> tuple[float, float, float]:
    """Rate of a node [bytes/s], most chips that share it, and latency of a message [s]."""
    first, second = network_of(problem, a), network_of(problem, b)
    if a == b:
        return first.chip_bytes_per_s * first.chips_per_node, first.chips_per_node, first.step_latency_s
    rate, latency_s, transport = problem.cluster.link_between(a, b)
    rate = transport_rate(rate if rate > 0 else NO_ADAPTER_BYTES_PER_S, transport, problem.cluster.mtu_bytes)
    chips = max(first.chips_per_node, second.chips_per_node)
    return rate, chips, latency_s + TRANSPORT_LATENCY_S[transport]
