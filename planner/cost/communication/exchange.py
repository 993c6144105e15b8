"""What pipelines side by side send to sum their gradients: parameters of layers, rates of adapters."""

from __future__ import annotations

from planner.cost.communication.links import TRANSPORT_LATENCY_S, transport_rate
from planner.cost.communication.networks import NO_ADAPTER_BYTES_PER_S
from planner.cost.parameters import (
    embedding_copies,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.data.problem import Problem


def exchanged_parameters(problem: Problem, first: int, end: int, *, copies: bool) -> float:
    """Parameters of layers `first` to `end - 1`, with the embedding before and the head behind them.

    With `copies` the last stage of some pipeline holds a copy of the embedding, whose gradients its pipeline
    has summed with those of the first stage: both need the sum of all pipelines.
    """
    model = problem.model
    vocab = padded_vocab(model.vocab_size, 1)
    total = sum(layer_parameters(model, kind).total for kind in model.kind_of_layer[first:end])
    if first == 0:
        total += embedding_parameters(model, vocab).total
    if end == model.num_layers:
        total += head_parameters(model, vocab).total + mtp_parameters(model).total
        total += embedding_copies(model, vocab).total if copies else 0
    return float(total)


def exchange_link(problem: Problem, a: int, b: int) -> tuple[float, float]:
    """Rate of one host of class a towards class b [bytes/s], and the latency of a message [s]."""
    rate, latency_s, transport = problem.cluster.link_between(a, b)
    rate = rate if rate > 0 else NO_ADAPTER_BYTES_PER_S
    if not problem.cluster.rate_is_measured(a, b):
        rate = transport_rate(rate, transport, problem.cluster.mtu_bytes)
    return rate, latency_s + TRANSPORT_LATENCY_S[transport]
