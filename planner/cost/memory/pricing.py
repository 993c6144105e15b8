"""Fill the memory of the table of prices: sizes of every piece of a stage for every choice of degrees."""

from __future__ import annotations

import numpy as np

from planner.cost.communication.networks import networks_of
from planner.cost.elementwise import Values, by_choice, total, where
from planner.cost.identity import remembered
from planner.cost.kernels.operators import HALF
from planner.cost.kernels.work import Work
from planner.cost.memory import activations as memory
from planner.cost.memory import placeholders, states
from planner.cost.memory.communicators import communicator_bytes
from planner.cost.memory.passing_gradients import embedding_peak_bytes, largest_gradient_bytes
from planner.cost.memory.pipelines import PLANNED_PLACES
from planner.cost.parameters import ParameterCounts, mtp_parameters
from planner.cost.prices import ENDS, ROLES, STATES, Floats
from planner.cost.sizes import Sizes
from planner.cost.stacks import stacks_by_kernel, stacks_of
from planner.data.model_spec import WITH_ATTENTION
from planner.data.problem import Problem
from planner.units import GIB


def memory_prices(
    problem: Problem, work: Work, sizes: Sizes, counts: ParameterCounts, dp_mode: str
) -> dict[str, Floats]:
    """Sizes of every piece in bytes; axes choice, (kind,) (node_class or state)."""
    model, stack, num_kinds = problem.model, problem.stack, len(work.kinds)
    gradients = stack.gradient_bytes + stack.joined_gradient_bytes
    held = states.state_bytes(
        counts, sizes, dp_mode, gradients, len(ENDS), narrow_shards=stack.megatron_groups
    )
    precision, rows = problem.workload.precision, held.shape[1]
    layer, head_activation = _activations(problem, work, sizes, rows)
    if not stack.narrow_parameters:
        held[..., 0] += states.narrow_weight_bytes(
            counts, sizes, dp_mode, precision, len(ENDS), _predictions(problem)
        )
    for k, kind in enumerate(work.kinds):
        if kind in WITH_ATTENTION:
            held[k, :, STATES.index("weights")] += 4.0 * memory.rotary_values(model, stack, sizes)
    gathered = states.gathered_bytes(counts, sizes, dp_mode, stack.scattered_gradient_bytes)
    sharded, layer["placeholder"] = gathered[num_kinds] > 0, np.zeros((rows, num_kinds))
    if stack.gradient_placeholders and stack.gradient_accumulation_fusion:
        held[num_kinds + 1 :, :, STATES.index("gradients")] += placeholders.head_placeholders(work.pieces)
        layer["placeholder"] += placeholders.layer_placeholders(work.pieces, work.kinds, rows)
    if stack.plans_memory:
        # As in a pipeline; a stage alone: `planner.cost.memory.pipelines`.
        held[..., STATES.index("gradients")] *= PLANNED_PLACES
        layer["working"] += layer["recompute_peak"]
    beside = gathered[:num_kinds].T + layer["placeholder"]
    layer["working"] += beside[..., None]
    if not stack.gradient_accumulation_fusion:
        for k, kind in enumerate(work.kinds):
            # Sharded gradients are among what is gathered.
            alone = largest_gradient_bytes(work.pieces[kind].matmuls)
            layer["working"][:, k] += np.where(sharded, 0.0, alone)[:, None]
    waiting = states.waiting_bytes(counts, sizes, dp_mode, stack.gradient_bytes, overlap=stack.dp_overlap)
    layer["waiting"] = waiting[:num_kinds].T
    kept = memory.embedding_activation_bytes(model, stack, sizes)
    width = HALF + where(sharded, stack.scattered_gradient_bytes, 0.0)
    of_choice = {
        "embedding_activation_bytes": kept,
        "head_peak_bytes": memory.logits_peak_bytes(model, stack, work.vocab, sizes) + beside.max(axis=1),
        "embedding_peak_bytes": embedding_peak_bytes(model, work.vocab, sizes, width)
        + layer["placeholder"].max(axis=1)
        - kept,
        "pipeline_buffer_bytes": 2 * sizes.norm_tokens * model.hidden_size * HALF,
    }
    whole = np.empty((len(of_choice), rows))
    for filled, values in zip(whole, of_choice.values(), strict=True):
        filled[:] = values
    return {
        **{f"layer_{name}_bytes": filled for name, filled in layer.items()},
        "layer_state_bytes": held[:num_kinds].transpose(1, 0, 2),
        **{f"{end}_state_bytes": held[num_kinds + i] for i, end in enumerate(ENDS)},
        **dict(zip(of_choice, whole, strict=True)),
        "head_activation_bytes": head_activation,
        "fixed_bytes": fixed_bytes(problem, sizes, rows, dp_mode),
    }


@remembered
def _predictions(problem: Problem) -> ParameterCounts:
    """Parameters of the layers that predict further tokens."""
    return mtp_parameters(problem.model)


def _activations(problem: Problem, work: Work, sizes: Sizes, rows: int) -> tuple[dict[str, Floats], Floats]:
    """What layers keep by name, arrays [choice, kind, node_class], and what the head does, with its
    predictions, [choice, node_class]: classes whose attention keeps its scores hold more."""
    model, precision, stacks = problem.model, problem.workload.precision, stacks_of(problem)
    names = ("activation", "activation_selective", "activation_full", "working", "recompute_peak")
    layers, heads = dict[bool, list[list[Values]]](), dict[bool, Values]()
    for fused, stack in stacks_by_kernel(problem).items():
        of_kinds = [memory.layer_activations(model, kind, stack, sizes, precision) for kind in work.kinds]
        layers[fused] = [[*of, of.whole - of.full] for of in of_kinds]
        whole = {kind: of.whole for kind, of in zip(work.kinds, of_kinds, strict=True)}
        predicting = total(whole[kind] for kind in model.prediction_kinds) if model.mtp_num_layers else None
        heads[fused] = memory.head_activation_bytes(model, stack, work.vocab, sizes, predicting)
    kernels, kinds = [stack.flash_attention for stack in stacks], range(len(work.kinds))
    found = [layers[kernel][kind][i] for i in range(len(names)) for kind in kinds for kernel in kernels]
    layer = by_choice(found, rows, (len(names), len(kinds), len(kernels)), 1)
    head = by_choice([heads[kernel] for kernel in kernels], rows, (len(kernels),))
    return dict(zip(names, layer, strict=True)), head


def fixed_bytes(problem: Problem, sizes: Sizes, rows: int, dp_mode: str, holders: float = 2.0) -> Floats:
    """Device context and communicators, array [choice, node_class, length, role].

    Parameters
    ----------
    holders
        Stages that share an embedding that several hold.
    """
    domain_chips = [network.domain_chips for network in networks_of(problem)]
    joined = communicator_bytes(problem, sizes, domain_chips, dp_mode, holders)
    values = [size for of_class in joined for of_roles in of_class for size in of_roles]
    fixed = by_choice(values, rows, (len(joined), len(joined[0]), len(ROLES)))
    return problem.stack.context_gib * GIB + fixed
