"""Fill the table of prices: what each piece of a stage costs for every choice of degrees.

The one entry of the cost model. Everything here is arithmetic over arrays of axis `choice`; what a
number means stands in `prices.py`, where it comes from in the module that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.assumptions import assumptions
from planner.cost.bands import error_band
from planner.cost.class_pricing import ClassPricing
from planner.cost.communication.networks import network_of, networks_of
from planner.cost.communication.scales import agrees_on_scales, scale_reduction_s
from planner.cost.communication.sends import sends_s
from planner.cost.communication.tied_embedding import tied_sync_s
from planner.cost.elementwise import Values, by_choice
from planner.cost.identity import remembered
from planner.cost.kernels.product_times import product_times, work_of_one
from planner.cost.kernels.small_tensors import parameter_tensors
from planner.cost.kernels.work import Work
from planner.cost.memory.passing_gradients import step_copy_share
from planner.cost.memory.pricing import memory_prices
from planner.cost.memory.states import rank_parameters
from planner.cost.parameters import (
    ParameterCounts,
    embedding_copies,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    mtp_parameters,
    padded_vocab,
)
from planner.cost.prices import ENDS, PARTS, TASKS, Degrees, Floats, Prices
from planner.cost.profiles import with_profiles
from planner.cost.sizes import Sizes
from planner.cost.stacks import stacks_of
from planner.data.problem import Problem
from planner.units import MS

HIDDEN_FRACTION = 0.9
"""Share of the last backward (first forward) that hides gradient reduction (parameter gathering): the last
bucket is ready only when the backward ends (guess)."""


def price(problem: Problem, degrees: Degrees) -> Prices:
    """Prices of every piece for every choice of degrees on every node class."""
    model, single = problem.model, len(degrees) == 1
    sizes = Sizes.single(problem, degrees) if single else Sizes.of(problem, degrees)
    tensor_parallel = int(degrees.tensor_parallel.item()) if single else degrees.tensor_parallel
    vocab: Values = padded_vocab(model.vocab_size, tensor_parallel) * sizes.ones
    if isinstance(vocab, float):
        work, times = work_of_one(problem, sizes.of_one_replica, vocab)
        counts = _parameters_of_one(problem, vocab)
    else:
        work, counts = Work.of(problem, sizes, vocab), _parameters(problem, vocab)
        times = product_times(problem, work.products)
    of_classes = zip(times, networks_of(problem), stacks_of(problem), strict=True)
    classes = [ClassPricing(problem, work, *of, sizes, i, degrees.dp_mode) for i, of in enumerate(of_classes)]
    slowdown, given = classes[0].sync.slowdown, _given(problem)
    prices = Prices(
        kinds=classes[0].kinds,
        **_microbatch_times(classes, len(degrees)),
        **sends_s(problem, sizes, len(degrees)),
        **_once_a_step(problem, classes, sizes, vocab, counts),
        **memory_prices(problem, work, sizes, counts, degrees.dp_mode),
        hidden_fraction=HIDDEN_FRACTION * (1 - slowdown) if problem.stack.dp_overlap else 0.0,
        slowed_fraction=slowdown / (1 - slowdown),
        num_predictions=model.mtp_num_layers,
        prediction_kinds=given.prediction_kinds,
        later_stages_have_one_bucket=problem.stack.dp_overlap and problem.stack.later_stages_have_one_bucket,
        scales_s=_scales_s(problem, sizes, len(degrees)),
        plans_memory=problem.stack.plans_memory,
        step_copy_share=step_copy_share(problem.stack, degrees.dp_mode),
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
    prediction_kinds: tuple[int, ...]
    error_band: float
    assumptions: tuple[str, ...]


@remembered
def _given(problem: Problem) -> _Given:
    classes = range(len(problem.cluster.classes))
    limits = np.array([problem.memory_limit_bytes(i) for i in classes])
    limits.setflags(write=False)
    model, kinds = problem.model, problem.model.layer_kinds
    predicted = model.prediction_kinds if model.mtp_num_layers else kinds[:1]
    return _Given(
        limits,
        tuple(kinds.index(kind) for kind in predicted),
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
    layers = by_choice(layer, rows, (len(names), len(kinds), len(classes), len(PARTS)), 1)
    others = by_choice(ends, rows, (len(end_names), len(classes), len(PARTS)), 1)
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


def _once_a_step(
    problem: Problem, classes: list[ClassPricing], sizes: Sizes, vocab: Values, counts: ParameterCounts
) -> dict[str, Floats]:
    """Synchronisation and optimizer; axes choice, (kind,) class."""
    num_kinds = len(classes[0].kinds)
    dense, expert = rank_parameters(counts, sizes)
    rows, names = dense.shape[1], TASKS
    pieces = list(zip(*(p[:, 0].tolist() if rows == 1 else p for p in (dense, expert)), strict=True))
    of_kinds = [[of.sync.once_a_step_s(*piece) for of in classes] for piece in pieces[:num_kinds]]
    of_ends = [
        [of.last_bucket.once_a_step_s(end, *piece) for of in classes]
        for end, piece in zip(ENDS, pieces[num_kinds:], strict=True)
    ]
    of_pieces = of_kinds + of_ends
    of_task = [times[task] for task in range(len(names)) for row in of_pieces for times in row]
    tasks = by_choice(of_task, rows, (len(names), len(pieces), len(classes)), 1)
    ends_of_step = [of.sync.tail_s for of in classes]
    tails = by_choice([tail[i] for i in range(2) for tail in ends_of_step], rows, (2, len(classes)), 1)
    times = {"reduce_tail_s": tails[0], "gather_tail_s": tails[1]}
    shown = [of_end[-1] for row in of_ends for of_end in row]
    times["end_shown_s"] = by_choice(shown, rows, (len(ENDS), len(classes)))
    for name, filled in zip(names, tasks, strict=True):
        times[f"layer_{name}_s"] = filled[:, :num_kinds]
        times |= {f"{end}_{name}_s": filled[:, num_kinds + i] for i, end in enumerate(ENDS)}
    if problem.stack.optimizer_tensor_launches:
        first = classes[0]
        tensors = [parameter_tensors(problem.model, kind, first.pieces[kind].matmuls) for kind in first.kinds]
        launched = np.array([[of.host.step_s(count) for of in classes] for count in tensors])
        times["layer_optimizer_s"] = np.maximum(times["layer_optimizer_s"], launched)
    times["step_fixed_s"] = np.full((rows, len(classes)), problem.stack.step_host_ms * MS)
    times["tied_sync_s"] = tied_sync_s(problem, sizes, vocab, rows)
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
