"""Fill the table of prices: what each piece of a stage costs for every choice of degrees.

The one entry of the cost model. Everything here is arithmetic over arrays of axis `choice`; what a
number means stands in `prices.py`, where it comes from in the module that makes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost import memory
from planner.cost.bands import error_band
from planner.cost.class_pricing import NO_ADAPTER_BYTES_PER_S, ClassPricing, network_of
from planner.cost.collectives import TRANSPORT_LATENCY_S, send_s, transport_rate
from planner.cost.operators import HALF
from planner.cost.parameters import (
    ParameterCounts,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.cost.prices import Degrees, Floats, Prices
from planner.cost.profiles import value_bytes, with_profiles
from planner.cost.sizes import Sizes
from planner.data.model_spec import LayerKind
from planner.data.problem import Problem
from planner.units import GIB

HIDDEN_FRACTION = 0.9
"""Share of the last backward (first forward) that hides gradient reduction (parameter gathering): the last
bucket is ready only when the backward ends."""

STEP_HOST_S = 5e-3
"""Host work of a step that nothing hides: gradient norm, scalars, schedule (guess)."""


def price(problem: Problem, degrees: Degrees) -> Prices:
    """Prices of every piece for every choice of degrees on every node class."""
    model, sizes = problem.model, Sizes.of(problem, degrees)
    vocab = np.array([padded_vocab(model.vocab_size, int(t)) for t in degrees.tensor_parallel], dtype=float)
    num_classes = len(problem.cluster.classes)
    classes = [ClassPricing(problem, sizes, vocab, i, degrees.dp_mode) for i in range(num_classes)]
    prices = Prices(
        kinds=classes[0].kinds,
        **_microbatch_times(classes),
        **_sends(problem, classes, sizes),
        **_once_a_step(problem, classes, sizes, vocab),
        **_memory(problem, classes[0].kinds, sizes, vocab, degrees.dp_mode),
        hidden_fraction=HIDDEN_FRACTION if problem.stack.dp_overlap else 0.0,
        head_shares_embedding=model.tied_embeddings,
        allocated_fraction=problem.stack.allocated_fraction,
        limit_bytes=np.array([problem.memory_limit_bytes(i) for i in range(num_classes)]),
        error_band=max(error_band(problem.chip_of(i), problem.stack, model) for i in range(num_classes)),
        assumptions=_assumptions(problem, classes),
    )
    return with_profiles(problem, degrees, prices)


def _stacked(arrays: Sequence[Floats], axis: int) -> Floats:
    """Arrays along a new axis; one alone, which most clusters have, without a copy."""
    return np.expand_dims(arrays[0], axis) if len(arrays) == 1 else np.stack(arrays, axis=axis)


def _assumptions(problem: Problem, classes: list[ClassPricing]) -> tuple[str, ...]:
    """What was taken for granted: scaled chips, missing adapters, layers that nobody measured."""
    notes = [note for c in classes for note in c.relative.assumptions]
    several = problem.cluster.num_nodes > 1
    for i, node_class in enumerate(problem.cluster.classes):
        if several and problem.cluster.link_between(i, i)[0] <= 0:
            notes.append(f"{node_class.name}: no adapters stated; 1 Gbit/s between its nodes")
    if "mamba" in problem.model.layer_kinds:
        notes.append("Mamba layers: an estimate from their FLOP and bytes; no operator was measured")
    return tuple(dict.fromkeys(notes))


def _microbatch_times(classes: list[ClassPricing]) -> dict[str, Floats]:
    """Times of one micro-batch; axes choice, (kind,) class, part."""
    kinds = classes[0].kinds
    layers = [[c.layer(kind) for c in classes] for kind in kinds]
    ends = [(c.embedding(), c.head()) for c in classes]

    def by_kind(name: str) -> Floats:
        return _stacked([_stacked([getattr(x, name) for x in row], axis=1) for row in layers], axis=1)

    return {
        "layer_forward_s": by_kind("forward"),
        "layer_backward_s": by_kind("backward"),
        "layer_selective_s": by_kind("selective"),
        "layer_full_s": by_kind("full"),
        "embedding_forward_s": _stacked([e[0] for e, _ in ends], axis=1),
        "embedding_backward_s": _stacked([e[1] for e, _ in ends], axis=1),
        "head_forward_s": _stacked([h[0] for _, h in ends], axis=1),
        "head_backward_s": _stacked([h[1] for _, h in ends], axis=1),
    }


def _sends(problem: Problem, classes: list[ClassPricing], sizes: Sizes) -> dict[str, Floats]:
    """Point-to-point transfers of an activation: A / t with sequence parallelism, else A by every rank.

    Stacks that part it send A / t as well and gather it at the receiver.
    All chips of a node that belong to one stage send at once, so each has its share of the adapters.
    """
    num = len(classes)
    tokens = sizes.tokens / sizes.tp if problem.stack.p2p_partitioned else sizes.norm_tokens
    size = tokens * problem.model.hidden_size * value_bytes(problem)
    sends = np.zeros((len(size), num, num))
    inside = np.zeros((len(size), num))
    for a in range(num):
        network = classes[a].network
        inside[:, a] = send_s(size, network.link_bytes_per_s, 0.0) + 2e-6
        for b in range(num):
            sends[:, a, b] = _send_between(problem, classes, sizes, size, a, b)
    return {"send_s": sends, "send_inside_s": inside}


def _send_between(
    problem: Problem, classes: list[ClassPricing], sizes: Sizes, size: Floats, a: int, b: int
) -> Floats:
    """A transfer between chips of two classes over the network [s]."""
    if a == b and classes[a].network.domain_chips > classes[a].network.chips_per_node:
        network = classes[a].network
        return send_s(size, network.link_bytes_per_s, network.latency_s)
    rate, latency, transport = problem.cluster.link_between(a, b)
    rate = rate if rate > 0 else NO_ADAPTER_BYTES_PER_S
    chips = max(classes[a].network.chips_per_node, classes[b].network.chips_per_node)
    senders = np.minimum(chips, sizes.stage_chips)
    if problem.cluster.rate_is_measured(a, b):  # what messages reached: nothing is left to take off
        return latency + size * senders / rate
    share = transport_rate(rate, transport) / senders
    return send_s(size, share, latency + TRANSPORT_LATENCY_S[transport])


def _once_a_step(
    problem: Problem, classes: list[ClassPricing], sizes: Sizes, vocab: Floats
) -> dict[str, Floats]:
    """Synchronisation and optimizer; axes choice, (kind,) class."""
    model = problem.model
    layers = [layer_parameters(model, kind) for kind in classes[0].kinds]
    embedding, head = _end_parameters(problem, vocab)

    def by_kind(method: str) -> Floats:
        return _stacked(
            [_stacked([getattr(c.sync, method)(p) for c in classes], axis=1) for p in layers], axis=1
        )

    def by_class(method: str, counts: ParameterCounts) -> Floats:
        return _stacked([getattr(c.sync, method)(counts) for c in classes], axis=1)

    tails = [c.sync.tail_s for c in classes]
    ones = np.ones((len(sizes.tp), len(classes)))
    return {
        "layer_reduce_s": by_kind("reduce_s"),
        "layer_gather_s": by_kind("gather_s"),
        "layer_optimizer_s": by_kind("optimizer_s"),
        "embedding_reduce_s": by_class("reduce_s", embedding),
        "embedding_gather_s": by_class("gather_s", embedding),
        "embedding_optimizer_s": by_class("optimizer_s", embedding),
        "head_reduce_s": by_class("reduce_s", head),
        "head_gather_s": by_class("gather_s", head),
        "head_optimizer_s": by_class("optimizer_s", head),
        "reduce_tail_s": _stacked([t[0] for t in tails], axis=1),
        "gather_tail_s": _stacked([t[1] for t in tails], axis=1),
        "step_fixed_s": ones * STEP_HOST_S,
        "tied_sync_s": _tied_sync_s(problem, sizes, vocab),
    }


def _end_parameters(problem: Problem, vocab: Floats) -> tuple[ParameterCounts, ParameterCounts]:
    """Parameters of embedding and head with the vocabulary padded; arrays stand in for numbers.

    Multi-token-prediction layers live with the head.
    """
    model = problem.model
    embedding = embedding_parameters(model, vocab)  # type: ignore[arg-type]
    head = head_parameters(model, vocab)  # type: ignore[arg-type]
    if model.tied_embeddings:
        head = head + ParameterCounts(tensor_sharded=vocab * model.hidden_size)  # type: ignore[arg-type]
    return embedding, head + mtp_parameters(model)


def _tied_sync_s(problem: Problem, sizes: Sizes, vocab: Floats) -> Floats:
    """All-reduce of the tied embedding's gradients between the first and the last stage.

    All chips of the stage on a node send at once.
    """
    if not problem.model.tied_embeddings:
        return np.zeros_like(sizes.tp)
    networks = [network_of(problem, i) for i in range(len(problem.cluster.classes))]
    slowest = np.min(
        [
            n.chip_bytes_per_s * n.chips_per_node / np.minimum(n.chips_per_node, sizes.stage_chips)
            for n in networks
        ],
        axis=0,
    )
    width = problem.stack.tied_gradient_bytes or problem.stack.gradient_bytes
    size = width * vocab * problem.model.hidden_size / sizes.tp
    return send_s(size, slowest, max(n.step_latency_s for n in networks))


def _memory(
    problem: Problem, kinds: tuple[LayerKind, ...], sizes: Sizes, vocab: Floats, dp_mode: str
) -> dict[str, Floats]:
    """Sizes of every piece in bytes; axes choice, (kind,) (state)."""
    model, stack = problem.model, problem.stack
    width = stack.gradient_bytes
    states = [memory.state_bytes(layer_parameters(model, k), sizes, dp_mode, width) for k in kinds]
    precision = problem.workload.precision
    acts = [memory.layer_activations(model, k, stack, sizes, precision) for k in kinds]
    embedding, head = _end_parameters(problem, vocab)
    buffer = sizes.norm_tokens * model.hidden_size * HALF
    fixed = (stack.context_gib + stack.communicator_gib) * GIB
    return {
        "layer_state_bytes": _stacked(states, axis=1),
        "embedding_state_bytes": memory.state_bytes(embedding, sizes, dp_mode, width),
        "head_state_bytes": memory.state_bytes(head, sizes, dp_mode, width),
        "layer_activation_bytes": _stacked([a.whole for a in acts], axis=1),
        "layer_activation_selective_bytes": _stacked([a.selective for a in acts], axis=1),
        "layer_activation_full_bytes": _stacked([a.full for a in acts], axis=1),
        "layer_working_bytes": _stacked([a.working for a in acts], axis=1),
        "layer_recompute_peak_bytes": _stacked([a.whole - a.full for a in acts], axis=1),
        "embedding_activation_bytes": memory.embedding_activation_bytes(model, stack, sizes),
        "head_activation_bytes": memory.head_activation_bytes(model, sizes),
        "head_peak_bytes": memory.logits_peak_bytes(stack, vocab, sizes),
        "pipeline_buffer_bytes": 2 * buffer,
        "fixed_bytes": np.full((len(sizes.tp), len(problem.cluster.classes)), fixed),
    }
