"""Fill the table of prices: what each piece of a stage costs for every choice of degrees.

The one entry of the cost model. Everything here is arithmetic over arrays of axis `choice`; what a
number means stands in `prices.py`, where it comes from in the module that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost import memory
from planner.cost.collective_counts import tensor_blocks
from planner.cost.collectives import TRANSPORT_LATENCY_S, TRANSPORT_RATE, Network, inside_s, send_s
from planner.cost.compute import MatmulTimes, attention_times, matmul_times, traffic_s
from planner.cost.layer_communication import (
    TensorCollectives,
    context_layer_s,
    expert_layer_s,
    partly_hidden,
    tensor_collectives,
    tensor_layer_s,
)
from planner.cost.operators import (
    HALF,
    Matmul,
    embedding_traffic,
    head_matmul,
    head_traffic,
    layer_matmuls,
    layer_traffic,
    score_matmuls,
    score_traffic,
)
from planner.cost.parameters import (
    ParameterCounts,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.cost.prices import PARTS, Degrees, Floats, Prices
from planner.cost.relatives import relative_of
from planner.cost.sizes import Sizes
from planner.cost.synchronisation import Synchronisation, synchronisation
from planner.data.model_spec import LayerKind
from planner.data.problem import Problem
from planner.units import GIB, MS

HIDDEN_FRACTION = 0.9
"""Share of the last backward (first forward) that hides gradient reduction (parameter gathering): the last
bucket is ready only when the backward ends."""

NO_ADAPTER_BYTES_PER_S = 0.125e9
"""Rate between nodes without adapters: their management Ethernet of 1 Gbit/s (guess)."""

EMBEDDING_RATE = 0.5
"""Rate of gathering and scattering rows over that of copies (guess)."""

STEP_HOST_S = 5e-3
"""Host work of a step that nothing hides: gradient norm, scalars, schedule (guess)."""

UNMEASURED_BAND, SCALED_BAND = 0.15, 0.35
"""Relative error of step times with the chip's own tables and with scaled ones, before any anchor
(published comparisons of unanchored predictors)."""


@dataclass(frozen=True)
class LayerTimes:
    """Prices of one layer, arrays [choice, part] in seconds."""

    forward: Floats
    backward: Floats
    selective: Floats
    full: Floats


@dataclass(frozen=True)
class Piece:
    """Products of a piece and where they stand in the joint evaluation."""

    matmuls: list[Matmul]
    first: int

    def rows(self, times: Floats) -> Floats:
        """The piece's rows of an array [product, choice]."""
        return times[self.first : self.first + len(self.matmuls)]


class ClassPricing:
    """Prices on one node class: evaluates all products once, then each piece."""

    def __init__(self, problem: Problem, sizes: Sizes, vocab: Floats, class_index: int, dp_mode: str) -> None:
        self.problem, self.sizes, self.vocab = problem, sizes, vocab
        self.model, self.stack = problem.model, problem.stack
        chip = problem.chip_of(class_index)
        self.network = network_of(problem, class_index)
        self.relative = self.network.relative
        self.factor = self.stack.time_factor.get(chip.id, 1.0)
        self.sync: Synchronisation = synchronisation(
            self.network, sizes, dp_mode, self.stack.dp_overlap, self.model.moe is not None
        )
        self.tensor: TensorCollectives = tensor_collectives(
            self.network, self.model, sizes, problem.workload.precision
        )
        self.pieces: dict[str, Piece] = {}
        matmuls: list[Matmul] = []
        groups: list[tuple[str, list[Matmul]]] = [
            (kind, layer_matmuls(self.model, kind, sizes)) for kind in self.model.layer_kinds
        ]
        groups.append(("head", [head_matmul(self.model, vocab, sizes)]))
        if not self.stack.flash_attention:
            groups.append(("scores", score_matmuls(self.model, sizes)))
        for name, group in groups:
            self.pieces[name] = Piece(group, len(matmuls))
            matmuls += group
        self.times: MatmulTimes = matmul_times(
            self.relative, matmuls, problem.workload.precision, self.stack.gradient_accumulation_fusion
        )
        self.attention = self._attention()

    def _attention(self) -> tuple[Floats, Floats]:
        """Forward and backward of core attention [s]."""
        if self.stack.flash_attention:
            return attention_times(self.relative, self.model, self.sizes, self.stack.cp_exchange)
        piece = self.pieces["scores"]
        traffic = score_traffic(self.model, self.stack, self.sizes)
        forward = piece.rows(self.times.forward_s).sum(axis=0)
        both = piece.rows(self.times.dgrad_s).sum(axis=0) + piece.rows(self.times.wgrad_s).sum(axis=0)
        return (
            forward + traffic_s(self.relative, traffic.forward_bytes),
            both + traffic_s(self.relative, traffic.backward_bytes),
        )

    def layer(self, kind: LayerKind) -> LayerTimes:
        """Forward, backward and recomputation of one layer."""
        stack, sizes, piece = self.stack, self.sizes, self.pieces[kind]
        forward = piece.rows(self.times.forward_s).sum(axis=0)
        dgrad, wgrad = piece.rows(self.times.dgrad_s), piece.rows(self.times.wgrad_s)
        backward = dgrad.sum(axis=0) + wgrad.sum(axis=0)
        traffic = layer_traffic(self.model, kind, stack, sizes)
        forward = forward + traffic_s(self.relative, traffic.forward_bytes)
        backward = backward + traffic_s(self.relative, traffic.backward_bytes)
        has_attention = kind in ("dense", "moe", "attention")
        core = self.attention if has_attention else (0.0 * forward, 0.0 * forward)
        forward, backward = forward + core[0], backward + core[1]
        floor = stack.host_layer_floor_ms * MS
        compute = (
            self.factor * np.maximum(forward, floor),
            self.factor * np.maximum(backward, 2 * floor),
        )
        column = np.array([x.split == "column" for x in piece.matmuls])
        blocks = tensor_blocks(self.model, kind)
        tp = tensor_layer_s(
            self.tensor, stack, sizes, blocks, dgrad[column].sum(axis=0), wgrad[column].sum(axis=0)
        )
        zero = np.zeros_like(forward)
        cp = (zero, zero)
        if has_attention:
            cp = context_layer_s(self.network, self.model, stack, sizes, core[0], core[1])
        ep = expert_layer_s(self.network, self.model, kind, sizes)
        return LayerTimes(
            forward=_parts(compute[0], tp[0], cp[0], ep[0]),
            backward=_parts(compute[1], tp[1], cp[1], ep[1]),
            selective=_parts(self.factor * core[0], zero, cp[0], zero),
            full=_parts(compute[0], tp[0], cp[0], ep[0]),
        )

    def embedding(self) -> tuple[Floats, Floats]:
        """Forward and backward of the embedding, arrays [choice, part] in seconds."""
        traffic = embedding_traffic(self.model, self.sizes)
        rate = EMBEDDING_RATE * self.relative.memory_bytes_per_s
        sp, t, zero = self.sizes.sequence_parallel > 0, self.tensor, np.zeros_like(self.sizes.tp)
        learned = self.model.position_embedding == "learned"
        scatter = t.all_reduce_s if learned else t.reduce_scatter_s
        return (
            _parts(traffic.forward_bytes / rate, np.where(sp, scatter, t.all_reduce_s), zero, zero),
            _parts(traffic.backward_bytes / rate, np.where(sp, t.all_gather_s, 0.0), zero, zero),
        )

    def head(self) -> tuple[Floats, Floats]:
        """Forward and backward of final norm, head and loss, arrays [choice, part] in seconds."""
        piece, sizes, t = self.pieces["head"], self.sizes, self.tensor
        traffic = head_traffic(self.model, self.stack, self.vocab, sizes)
        forward = piece.rows(self.times.forward_s).sum(axis=0)
        dgrad, wgrad = piece.rows(self.times.dgrad_s)[0], piece.rows(self.times.wgrad_s)[0]
        forward = self.factor * (forward + traffic_s(self.relative, traffic.forward_bytes))
        backward = self.factor * (dgrad + wgrad + traffic_s(self.relative, traffic.backward_bytes))
        sp, zero = sizes.sequence_parallel > 0, np.zeros_like(sizes.tp)
        rows = 4.0 * sizes.tokens
        if self.stack.fused_cross_entropy:
            loss = inside_s(self.network, "all_reduce", rows, sizes.tp)
            loss = loss + inside_s(self.network, "all_reduce", 2 * rows, sizes.tp)
        else:
            loss = 3 * inside_s(self.network, "all_reduce", rows, sizes.tp)
        gather = partly_hidden(np.where(sp, t.all_gather_s, 0.0), self.stack.tp_overlap_fraction)
        # Two collectives run behind dgrad and wgrad of the head, which are always the longer.
        behind = np.where(sp, t.all_gather_s + t.reduce_scatter_s, t.all_reduce_s)
        return (
            _parts(forward, gather + loss, zero, zero),
            _parts(backward, partly_hidden(behind, 1.0), zero, zero),
        )


def _parts(compute: Floats, tp: Floats, cp: Floats, ep: Floats) -> Floats:
    """Array [choice, part] in the order of PARTS."""
    assert PARTS == ("compute", "tp", "cp", "ep"), "the order of parts is fixed here"
    return np.stack([compute, tp, cp, ep], axis=-1)


def fast_domain(chips_per_node: int, scale_up_chips: int | None) -> float:
    """Chips that fast links join for a job: a node's, or as many nodes of a rack as make a power of two.

    Jobs take racks in segments of 16 of their 18 nodes, so that groups of powers of two stay inside.
    """
    if scale_up_chips is None or scale_up_chips <= chips_per_node:
        return float(chips_per_node)
    nodes = scale_up_chips // chips_per_node
    return float(chips_per_node * 2 ** (nodes.bit_length() - 1))


def network_of(problem: Problem, class_index: int) -> Network:
    """What a chip of a class can reach others through."""
    node_class = problem.cluster.classes[class_index]
    chip = problem.chip_of(class_index)
    link = node_class.intra_node_bandwidth_gb_per_s or chip.intra_node_bandwidth_gb_per_s
    rate, latency, transport = problem.cluster.link_between(class_index, class_index)
    return Network(
        relative=relative_of(chip, problem.workload.precision, link),
        domain_chips=fast_domain(node_class.chips_per_node, chip.scale_up_chips),
        chips_per_node=float(node_class.chips_per_node),
        node_bytes_per_s=rate if rate > 0 else NO_ADAPTER_BYTES_PER_S,
        latency_s=latency,
        transport=transport,
        link_bytes_per_s=link * 1e9,
    )


def price(problem: Problem, degrees: Degrees) -> Prices:
    """Prices of every piece for every choice of degrees on every node class."""
    model, sizes = problem.model, Sizes.of(problem, degrees)
    vocab = np.array([padded_vocab(model.vocab_size, int(t)) for t in degrees.tensor_parallel], dtype=float)
    num_classes = len(problem.cluster.classes)
    classes = [ClassPricing(problem, sizes, vocab, i, degrees.dp_mode) for i in range(num_classes)]
    return Prices(
        kinds=model.layer_kinds,
        **_microbatch_times(classes),
        **_sends(problem, classes, sizes),
        **_once_a_step(problem, classes, sizes, vocab),
        **_memory(problem, sizes, vocab, degrees.dp_mode),
        hidden_fraction=HIDDEN_FRACTION if problem.stack.dp_overlap else 0.0,
        head_shares_embedding=model.tied_embeddings,
        allocated_fraction=problem.stack.allocated_fraction,
        limit_bytes=np.array([problem.memory_limit_bytes(i) for i in range(num_classes)]),
        error_band=max(SCALED_BAND if c.relative.assumptions else UNMEASURED_BAND for c in classes),
        assumptions=tuple(dict.fromkeys(note for c in classes for note in c.relative.assumptions)),
    )


def _microbatch_times(classes: list[ClassPricing]) -> dict[str, Floats]:
    """Times of one micro-batch; axes choice, (kind,) class, part."""
    kinds = classes[0].model.layer_kinds
    layers = [[c.layer(kind) for c in classes] for kind in kinds]
    ends = [(c.embedding(), c.head()) for c in classes]

    def by_kind(name: str) -> Floats:
        return np.stack([np.stack([getattr(x, name) for x in row], axis=1) for row in layers], axis=1)

    return {
        "layer_forward_s": by_kind("forward"),
        "layer_backward_s": by_kind("backward"),
        "layer_selective_s": by_kind("selective"),
        "layer_full_s": by_kind("full"),
        "embedding_forward_s": np.stack([e[0] for e, _ in ends], axis=1),
        "embedding_backward_s": np.stack([e[1] for e, _ in ends], axis=1),
        "head_forward_s": np.stack([h[0] for _, h in ends], axis=1),
        "head_backward_s": np.stack([h[1] for _, h in ends], axis=1),
    }


def _sends(problem: Problem, classes: list[ClassPricing], sizes: Sizes) -> dict[str, Floats]:
    """Point-to-point transfers of an activation: A / t with sequence parallelism, else A by every rank.

    All chips of a node send at once, so each has its share of the adapters.
    """
    num = len(classes)
    size = sizes.norm_tokens * problem.model.hidden_size * HALF
    sends = np.zeros((len(size), num, num))
    inside = np.zeros((len(size), num))
    for a in range(num):
        network = classes[a].network
        inside[:, a] = send_s(size, network.link_bytes_per_s, 0.0) + 2e-6
        for b in range(num):
            sends[:, a, b] = _send_between(problem, classes, size, a, b)
    return {"send_s": sends, "send_inside_s": inside}


def _send_between(problem: Problem, classes: list[ClassPricing], size: Floats, a: int, b: int) -> Floats:
    """A transfer between chips of two classes over the network [s]."""
    if a == b and classes[a].network.domain_chips > classes[a].network.chips_per_node:
        network = classes[a].network
        return send_s(size, network.link_bytes_per_s, network.latency_s)
    rate, latency, transport = problem.cluster.link_between(a, b)
    rate = rate if rate > 0 else NO_ADAPTER_BYTES_PER_S
    chips = max(classes[a].network.chips_per_node, classes[b].network.chips_per_node)
    return send_s(size, TRANSPORT_RATE[transport] * rate / chips, latency + TRANSPORT_LATENCY_S[transport])


def _once_a_step(
    problem: Problem, classes: list[ClassPricing], sizes: Sizes, vocab: Floats
) -> dict[str, Floats]:
    """Synchronisation and optimizer; axes choice, (kind,) class."""
    model = problem.model
    layers = [layer_parameters(model, kind) for kind in model.layer_kinds]
    embedding, head = _end_parameters(problem, vocab)

    def by_kind(method: str) -> Floats:
        return np.stack(
            [np.stack([getattr(c.sync, method)(p) for c in classes], axis=1) for p in layers], axis=1
        )

    def by_class(method: str, counts: ParameterCounts) -> Floats:
        return np.stack([getattr(c.sync, method)(counts) for c in classes], axis=1)

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
        "reduce_tail_s": np.stack([t[0] for t in tails], axis=1),
        "gather_tail_s": np.stack([t[1] for t in tails], axis=1),
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
    """All-reduce of the tied embedding's fp32 gradients between the first and the last stage."""
    if not problem.model.tied_embeddings:
        return np.zeros_like(sizes.tp)
    networks = [network_of(problem, i) for i in range(len(problem.cluster.classes))]
    slowest = min(n.chip_bytes_per_s for n in networks)
    size = 4.0 * vocab * problem.model.hidden_size / sizes.tp
    return send_s(size, slowest, max(n.step_latency_s for n in networks))


def _memory(problem: Problem, sizes: Sizes, vocab: Floats, dp_mode: str) -> dict[str, Floats]:
    """Sizes of every piece in bytes; axes choice, (kind,) (state)."""
    model, stack = problem.model, problem.stack
    states = [memory.state_bytes(layer_parameters(model, k), sizes, dp_mode) for k in model.layer_kinds]
    acts = [memory.layer_activations(model, k, stack, sizes) for k in model.layer_kinds]
    embedding, head = _end_parameters(problem, vocab)
    buffer = sizes.norm_tokens * model.hidden_size * HALF
    fixed = (stack.context_gib + stack.communicator_gib) * GIB
    return {
        "layer_state_bytes": np.stack(states, axis=1),
        "embedding_state_bytes": memory.state_bytes(embedding, sizes, dp_mode),
        "head_state_bytes": memory.state_bytes(head, sizes, dp_mode),
        "layer_activation_bytes": np.stack([a.whole for a in acts], axis=1),
        "layer_activation_selective_bytes": np.stack([a.selective for a in acts], axis=1),
        "layer_activation_full_bytes": np.stack([a.full for a in acts], axis=1),
        "layer_working_bytes": np.stack([a.working for a in acts], axis=1),
        "layer_recompute_peak_bytes": np.stack([a.whole - a.full for a in acts], axis=1),
        "embedding_activation_bytes": memory.embedding_activation_bytes(model, stack, sizes),
        "head_activation_bytes": memory.head_activation_bytes(model, sizes),
        "head_peak_bytes": memory.logits_peak_bytes(stack, vocab, sizes),
        "pipeline_buffer_bytes": 2 * buffer,
        "fixed_bytes": np.full((len(sizes.tp), len(problem.cluster.classes)), fixed),
    }
