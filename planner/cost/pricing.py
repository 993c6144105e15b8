"""Fill the table of prices: what each piece of a stage costs for every choice of degrees.

The one entry of the cost model. Everything here is arithmetic over arrays of axis `choice`; what a
number means stands in `prices.py`, where it comes from in the module that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from planner.cost import memory, placeholders, states
from planner.cost.assumptions import assumptions
from planner.cost.bands import error_band
from planner.cost.class_pricing import ClassPricing
from planner.cost.collectives import send_s
from planner.cost.communicators import communicator_bytes
from planner.cost.elementwise import Values, minimum
from planner.cost.identity import remembered
from planner.cost.networks import network_of
from planner.cost.operators import HALF
from planner.cost.parameters import (
    ParameterCounts,
    embedding_copies,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.cost.prices import PARTS, STATES, Degrees, Floats, Prices
from planner.cost.profiles import with_profiles
from planner.cost.scales import agrees_on_scales, scale_reduction_s
from planner.cost.sends import sends_s
from planner.cost.sizes import Sizes
from planner.cost.states import rank_parameters
from planner.cost.work import Work, work_of_one
from planner.data.problem import Problem
from planner.units import GIB

HIDDEN_FRACTION = 0.9
"""Share of the last backward (first forward) that hides gradient reduction (parameter gathering): the last
bucket is ready only when the backward ends."""

ENDS = ("embedding", "head", "head_beside_embedding")
"""Pieces beside layers, as the arrays hold them; the head on a stage without the embedding, and with it."""

STEP_HOST_S = 5e-3
"""Host work of a step that nothing hides: gradient norm, scalars, schedule (guess)."""


def price(problem: Problem, degrees: Degrees) -> Prices:
    """Prices of every piece for every choice of degrees on every node class."""
    model, single = problem.model, len(degrees) == 1
    sizes = Sizes.single(problem, degrees) if single else Sizes.of(problem, degrees)
    tensor_parallel = int(degrees.tensor_parallel.item()) if single else degrees.tensor_parallel
    vocab: Values = padded_vocab(model.vocab_size, tensor_parallel) * sizes.ones
    if isinstance(vocab, float):
        work = work_of_one(problem, sizes.of_one_replica, vocab)
        counts = _parameters_of_one(problem, vocab)
    else:
        work, counts = Work.of(problem, sizes, vocab), _parameters(problem, vocab)
    num_classes = len(problem.cluster.classes)
    classes = [ClassPricing(problem, work, sizes, i, degrees.dp_mode) for i in range(num_classes)]
    slowdown, given = classes[0].sync.slowdown, _given(problem)
    prices = Prices(
        kinds=classes[0].kinds,
        **_microbatch_times(classes, len(degrees)),
        **sends_s(problem, sizes, len(degrees)),
        **_once_a_step(problem, classes, sizes, vocab, counts),
        **_memory(problem, work, sizes, counts, degrees.dp_mode),
        hidden_fraction=HIDDEN_FRACTION * (1 - slowdown) if problem.stack.dp_overlap else 0.0,
        slowed_fraction=slowdown / (1 - slowdown),
        num_predictions=model.mtp_num_layers,
        last_kind=classes[0].kinds.index(model.kind_of_layer[-1]),
        later_stages_have_one_bucket=problem.stack.dp_overlap and problem.stack.later_stages_have_one_bucket,
        scales_s=_scales_s(problem, sizes, len(degrees)),
        allocated_fraction=problem.stack.allocated_fraction,
        limit_bytes=given.limit_bytes,
        error_band=given.error_band,
        assumptions=given.assumptions,
    )
    return with_profiles(problem, degrees, prices)


@dataclass(frozen=True)
class _Given:
    """What prices hold whatever the degrees."""

    limit_bytes: Floats
    error_band: float
    assumptions: tuple[str, ...]


@remembered
def _given(problem: Problem) -> _Given:
    classes = range(len(problem.cluster.classes))
    limits = np.array([problem.memory_limit_bytes(i) for i in classes])
    limits.setflags(write=False)
    return _Given(
        limits,
        max(error_band(problem.chip_of(i), problem.stack, problem.model) for i in classes),
        assumptions(problem, [network_of(problem, i).relative for i in classes]),
    )


def _microbatch_times(classes: list[ClassPricing], rows: int) -> dict[str, Floats]:
    """Times of one micro-batch; axes choice, (kind,) class, part."""
    kinds, names = classes[0].kinds, ("forward", "backward", "selective", "full")
    of_kind = [[of.layer(kind) for of in classes] for kind in kinds]
    layer = [value for name in names for row in of_kind for times in row for value in getattr(times, name)]
    end_names = ("embedding_forward", "embedding_backward", "head_forward", "head_backward")
    of_class = [(*of.embedding(), *of.head()) for of in classes]
    ends = [value for end in range(len(end_names)) for found in of_class for value in found[end]]
    layers = _by_choice(layer, rows, (len(names), len(kinds), len(classes), len(PARTS)))
    others = _by_choice(ends, rows, (len(end_names), len(classes), len(PARTS)))
    return {
        **{f"layer_{name}_s": values for name, values in zip(names, layers, strict=True)},
        **{f"{name}_s": values for name, values in zip(end_names, others, strict=True)},
    }


def _scales_s(problem: Problem, sizes: Sizes, rows: int) -> Floats | None:
    """What each pass of a chunk takes to agree on its scales; axes choice, class."""
    if not agrees_on_scales(problem.workload.precision, problem.stack):
        return None
    found = np.empty((rows, len(problem.cluster.classes)))
    for c in range(found.shape[1]):
        found[:, c] = scale_reduction_s(network_of(problem, c), sizes, problem.stack)
    return found


def _by_choice(values: list[Values], rows: int, shape: tuple[int, ...]) -> Floats:
    """Values of several axes, the last one fastest, as an array whose second axis is the choice."""
    if rows == 1 and isinstance(values[0], float):
        found = np.array(values)
    else:
        found = np.empty((len(values), rows))
        for row, value in zip(found, values, strict=True):
            row[:] = value
    return np.ascontiguousarray(np.moveaxis(found.reshape(*shape, rows), -1, 1))


def _once_a_step(
    problem: Problem, classes: list[ClassPricing], sizes: Sizes, vocab: Values, counts: ParameterCounts
) -> dict[str, Floats]:
    """Synchronisation and optimizer; axes choice, (kind,) class."""
    num_kinds = len(classes[0].kinds)
    dense, expert = rank_parameters(counts, sizes)
    pieces, rows = dense.shape
    tasks = {name: np.empty((rows, pieces, len(classes))) for name in ("reduce", "gather", "optimizer")}
    tails = np.empty((2, rows, len(classes)))
    for c, of in enumerate(classes):
        for filled, found in zip(tasks.values(), of.sync.once_a_step_s(dense, expert), strict=True):
            filled[:, :, c] = found.T
        tails[0, :, c], tails[1, :, c] = of.sync.tail_s
    times = {"reduce_tail_s": tails[0], "gather_tail_s": tails[1]}
    for name, filled in tasks.items():
        times[f"layer_{name}_s"] = filled[:, :num_kinds]
        times |= {f"{end}_{name}_s": filled[:, num_kinds + i] for i, end in enumerate(ENDS)}
    times["step_fixed_s"] = np.full((rows, len(classes)), STEP_HOST_S)
    times["tied_sync_s"] = np.full(rows, _tied_sync_s(problem, sizes, vocab))
    return times


@remembered
def _parameters_of_one(problem: Problem, vocab: float) -> ParameterCounts:
    """Those of a single choice of degrees."""
    return _parameters(problem, vocab)


def _parameters(problem: Problem, vocab: Values) -> ParameterCounts:
    """Parameters of each layer kind and of the `ENDS`, arrays [piece, choice].

    The vocabulary is padded. Multi-token-prediction layers live with the head.
    """
    model = problem.model
    beside = head_parameters(model, vocab) + mtp_parameters(model)  # type: ignore[arg-type]
    pieces = [layer_parameters(model, kind) for kind in model.layer_kinds]
    pieces.append(embedding_parameters(model, vocab))  # type: ignore[arg-type]
    pieces += [beside + embedding_copies(model, vocab), beside]  # type: ignore[arg-type]
    sharded = np.empty((len(pieces), np.size(vocab)))
    for row, counts in zip(sharded, pieces, strict=True):
        row[:] = counts.tensor_sharded
    return ParameterCounts(
        sharded,  # type: ignore[arg-type]
        np.array([[float(counts.replicated)] for counts in pieces]),  # type: ignore[arg-type]
        np.array([[float(counts.expert)] for counts in pieces]),  # type: ignore[arg-type]
    )


def _tied_sync_s(problem: Problem, sizes: Sizes, vocab: Values) -> Values:
    """All-reduce of the gradients of an embedding that the first and the last stage hold.

    All chips of the stage on a node send at once.
    """
    if not problem.model.copies_embedding:
        return 0.0
    networks = [network_of(problem, i) for i in range(len(problem.cluster.classes))]
    slowest = reduce(
        minimum,
        (
            n.chip_bytes_per_s * n.chips_per_node / minimum(n.chips_per_node, sizes.stage_chips)
            for n in networks
        ),
    )
    width = problem.stack.tied_gradient_bytes or problem.stack.gradient_bytes
    size = width * vocab * problem.model.hidden_size / sizes.tp
    return send_s(size, slowest, max(n.step_latency_s for n in networks))


def _memory(
    problem: Problem, work: Work, sizes: Sizes, counts: ParameterCounts, dp_mode: str
) -> dict[str, Floats]:
    """Sizes of every piece in bytes; axes choice, (kind,) (state)."""
    model, stack = problem.model, problem.stack
    held = states.state_bytes(
        counts, sizes, dp_mode, stack.gradient_bytes, len(ENDS), narrow_shards=stack.megatron_groups
    )
    precision, rows = problem.workload.precision, held.shape[1]
    layer = {
        name: np.empty((rows, len(work.kinds)))
        for name in ("activation", "activation_selective", "activation_full", "working", "recompute_peak")
    }
    last_kind, predicting = model.kind_of_layer[-1], None
    for k, kind in enumerate(work.kinds):
        of = memory.layer_activations(model, kind, stack, sizes, precision)
        if model.mtp_num_layers and kind == last_kind:
            predicting = of
        found = (of.whole, of.selective, of.full, of.working, of.whole - of.full)
        for filled, size in zip(layer.values(), found, strict=True):
            filled[:, k] = size
    if not stack.narrow_parameters:
        predictions = mtp_parameters(model)
        held[..., 0] += states.narrow_weight_bytes(counts, sizes, dp_mode, precision, len(ENDS), predictions)
    gathered = states.gathered_bytes(counts, sizes, dp_mode, stack.scattered_gradient_bytes)
    num_kinds = len(work.kinds)
    layer["working"] += gathered[:num_kinds].T
    beside_logits = gathered[:num_kinds].max(axis=0)
    if stack.gradient_placeholders and stack.gradient_accumulation_fusion:
        held[num_kinds + 1 :, :, STATES.index("gradients")] += placeholders.head_placeholders(work.pieces)
        of_layers = placeholders.layer_placeholders(work.pieces, work.kinds, rows)
        layer["working"] += of_layers
        beside_logits = beside_logits + of_layers.max(axis=1)
    waiting = states.waiting_bytes(counts, sizes, dp_mode, stack.gradient_bytes, overlap=stack.dp_overlap)
    layer["waiting"] = waiting[:num_kinds].T
    num_classes = len(problem.cluster.classes)
    fixed = np.empty((rows, num_classes))
    for c in range(num_classes):
        joined = communicator_bytes(
            problem, problem.chip_of(c), sizes, network_of(problem, c).domain_chips, dp_mode
        )
        fixed[:, c] = stack.context_gib * GIB + joined
    of_choice = {
        "embedding_activation_bytes": memory.embedding_activation_bytes(model, stack, sizes),
        "head_activation_bytes": memory.head_activation_bytes(model, stack, work.vocab, sizes, predicting),
        "head_peak_bytes": memory.logits_peak_bytes(model, stack, work.vocab, sizes) + beside_logits,
        "pipeline_buffer_bytes": 2 * sizes.norm_tokens * model.hidden_size * HALF,
    }
    return {
        **{f"layer_{name}_bytes": filled for name, filled in layer.items()},
        "layer_state_bytes": held[:num_kinds].transpose(1, 0, 2),
        **{f"{end}_state_bytes": held[num_kinds + i] for i, end in enumerate(ENDS)},
        **{name: np.full(rows, values) for name, values in of_choice.items()},
        "fixed_bytes": fixed,
    }
