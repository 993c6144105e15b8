"""Which collectives one rank of a stage issues in a training step: operation, group, size, count.

Exact for Megatron-LM core 0.19 (counted on its own calls of torch.distributed; the tests compare). Prices
take each time from how a collective is hidden, and so never list the calls one by one: `collective_counts` is
what they are held against, as tests add its calls up to what a layer, the embedding and the head take.
Left out: broadcasts of the data, scalars of a few bytes, and context-parallel attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.communication.gradient_counts import gradient_counts
from planner.cost.stage_shape import FLOAT_BYTES, HALF_BYTES, Collective, StageShape
from planner.data.model_spec import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)

COUNT_BYTES = 8
"""Bytes of a number of tokens."""


def collective_counts(model: ModelSpec, shape: StageShape, seq_length: int) -> tuple[Collective, ...]:
    """All collectives of one rank of a stage in one step.

    Parameters
    ----------
    seq_length
        Tokens of a sequence.
    """
    activation = seq_length * shape.microbatch_size * model.hidden_size * HALF_BYTES / shape.cp
    found: list[Collective] = []
    if shape.tp > 1:
        found += _tensor_layers(model, shape, activation)
        found += _tensor_ends(model, shape, activation, seq_length)
        if shape.has_head:
            for _ in range(model.mtp_num_layers):
                found += _prediction(model, shape, activation, seq_length)
    if shape.num_stages > 1:
        found += _sends(shape, activation)
    found += _experts(model, shape, activation)
    found += gradient_counts(model, shape)
    return tuple(c for c in found if c.count > 0)


def _tensor_layers(model: ModelSpec, shape: StageShape, activation: float) -> Iterator[Collective]:
    """Layers: 2 all-reduce each way; with sequence parallelism 2 + 2 forward and 4 + 2 backward."""
    calls = sum(tensor_blocks(model, kind) for kind in shape.kinds) * shape.num_microbatches
    again = sum(tensor_blocks(model, kind) for kind in shape.kinds[: shape.recomputed_layers])
    again *= shape.num_microbatches
    yield from _cut_heads(model, shape, activation)
    if not shape.sequence_parallel:
        yield Collective("forward", "all_reduce", "tp", activation, calls)
        yield Collective("backward", "all_reduce", "tp", activation, calls + again)
        return
    yield Collective("forward", "all_gather", "tp", activation, calls)
    yield Collective("forward", "reduce_scatter", "tp", activation, calls)
    yield Collective("backward", "all_gather", "tp", activation, 2 * calls + again)
    yield Collective("backward", "reduce_scatter", "tp", activation, calls + again)


def _cut_heads(model: ModelSpec, shape: StageShape, activation: float) -> Iterator[Collective]:
    """Where heads are copied: gather of all ranks' queries, keys and values, scatter of their gradients."""
    if model.mla is not None or model.num_query_groups >= shape.tp:
        return
    size, m = activation / model.hidden_size * model.query_maps_width, shape.num_microbatches
    calls = m * sum(kind in WITH_ATTENTION for kind in shape.kinds)
    again = m * sum(kind in WITH_ATTENTION for kind in shape.kinds[: shape.recomputed_layers])
    yield Collective("forward", "all_gather", "tp", size, calls)
    yield Collective("backward", "all_gather", "tp", size, again)
    yield Collective("backward", "reduce_scatter", "tp", size, calls)


def tensor_blocks(model: ModelSpec, kind: LayerKind) -> int:
    """Pairs of a column- and a row-parallel map in a layer: shared experts are one, routed ones are not."""
    shared = model.moe is not None and model.moe.shared_ffn_hidden_size > 0
    experts = shared if kind in WITH_EXPERTS else kind in WITH_ONE_MLP
    mixes = kind in WITH_ATTENTION | WITH_LINEAR_ATTENTION or kind == "mamba"
    return int(mixes) + int(experts)


def _prediction(
    model: ModelSpec, shape: StageShape, activation: float, seq_length: int
) -> Iterator[Collective]:
    """One multi-token prediction: the embedding again, the map of two states to one, a layer, head and loss.

    The map is column-parallel and its result gathered whole (transformer/multi_token_prediction.py); counted
    from the code, as no run with tensor parallelism was counted.
    """
    m = shape.num_microbatches
    yield from _tensor_layers(
        model, replace(shape, kinds=model.prediction_kinds, recomputed_layers=0), activation
    )
    yield from _tensor_ends(model, replace(shape, has_embedding=True), activation, seq_length)
    yield Collective("forward", "all_gather", "tp", activation, m)
    if not shape.sequence_parallel:
        yield Collective("backward", "all_reduce", "tp", 2 * activation, m)
        return
    yield Collective("forward", "all_gather", "tp", 2 * activation, m)
    yield Collective("backward", "all_gather", "tp", activation, m)
    yield Collective("backward", "all_gather", "tp", 2 * activation, m)
    yield Collective("backward", "reduce_scatter", "tp", 2 * activation, m)


def _tensor_ends(
    model: ModelSpec, shape: StageShape, activation: float, seq_length: int
) -> Iterator[Collective]:
    """Embedding, head and loss."""
    m = shape.num_microbatches
    if shape.has_embedding:
        learned = model.position_embedding == "learned"
        scatters = shape.sequence_parallel and not learned
        yield Collective("forward", "reduce_scatter" if scatters else "all_reduce", "tp", activation, m)
        if shape.sequence_parallel:
            yield Collective("backward", "all_gather", "tp", activation, m)
    if not shape.has_head:
        return
    if shape.sequence_parallel:
        yield Collective("forward", "all_gather", "tp", activation, m)
        yield Collective("backward", "all_gather", "tp", activation, m)
        yield Collective("backward", "reduce_scatter", "tp", activation, m)
    else:
        yield Collective("backward", "all_reduce", "tp", activation, m)
    rows = float(FLOAT_BYTES * seq_length * shape.microbatch_size / shape.cp)
    if shape.fused_cross_entropy:
        yield Collective("forward", "all_reduce", "tp", rows, m)
        yield Collective("forward", "all_reduce", "tp", 2 * rows, m)
    else:
        yield Collective("forward", "all_reduce", "tp", rows, 3 * m)


def _sends(shape: StageShape, activation: float) -> Iterator[Collective]:
    """Sends to the neighbours: with virtual stages the last rank sends on to the first, and back."""
    size = activation / (shape.tp if shape.sequence_parallel else 1)
    v, m = shape.virtual_stages, shape.num_microbatches
    forward = v - 1 if shape.stage == shape.num_stages - 1 else v
    backward = v - 1 if shape.stage == 0 else v
    yield Collective("forward", "send", "pp", size, forward * m)
    yield Collective("backward", "send", "pp", size, backward * m)


def _experts(model: ModelSpec, shape: StageShape, activation: float) -> Iterator[Collective]:
    """Mixture-of-experts layers; sizes of the all-to-all dispatcher for perfect balance."""
    kinds = [*shape.kinds, *(model.prediction_kinds * model.mtp_num_layers if shape.has_head else ())]
    again, calls = (
        sum(kind in WITH_EXPERTS for kind in some) * shape.num_microbatches
        for some in (shape.kinds[: shape.recomputed_layers], kinds)
    )
    if model.moe is None or not calls:
        return
    if shape.tp * shape.cp > 1:  # tokens of each expert, for the loss that balances them
        size = float(COUNT_BYTES * model.moe.num_experts)
        yield Collective("forward", "all_reduce", "tp_cp", size, calls)
        yield Collective("backward", "all_reduce", "tp_cp", size, again)
    for collective in (_gathered if shape.gathers_tokens else _exchanged)(model, shape, activation, calls):
        yield collective
        if collective.phase == "forward":
            yield replace(collective, phase="backward", count=collective.count // calls * again)


def _exchanged(model: ModelSpec, shape: StageShape, activation: float, calls: int) -> Iterator[Collective]:
    """All-to-all dispatcher: tokens, probabilities, results; with expert tensor parallelism gathers."""
    assert model.moe is not None
    split = shape.tp if shape.sequence_parallel else 1
    rows = activation / model.hidden_size / HALF_BYTES * model.moe.top_k / split
    tokens, probabilities = rows * model.routed_width * HALF_BYTES, rows * shape.router_bytes
    group = shape.ep * shape.etp
    if shape.ep > 1:
        for phase in ("forward", "backward"):
            yield Collective(phase, "all_to_all", "ep", tokens, 2 * calls)
            yield Collective(phase, "all_to_all", "ep", probabilities, calls)
    if group > 1:
        size = float(COUNT_BYTES * model.moe.num_experts * group)
        yield Collective("forward", "all_gather", "ep_etp", size, calls)
    if shape.etp > 1:
        received = tokens * shape.etp
        yield Collective("forward", "all_gather", "etp", received, calls)
        yield Collective("forward", "all_gather", "etp", probabilities * shape.etp, calls)
        yield Collective("forward", "reduce_scatter", "etp", received, calls)
        yield Collective("backward", "all_gather", "etp", received, calls)
        yield Collective("backward", "reduce_scatter", "etp", received, calls)
        yield Collective("backward", "reduce_scatter", "etp", probabilities * shape.etp, calls)


def _gathered(model: ModelSpec, shape: StageShape, activation: float, calls: int) -> Iterator[Collective]:
    """All-gather dispatcher: routing map (a byte a score), probabilities and tokens of the whole group."""
    assert model.moe is not None
    group = shape.ep * shape.etp
    if group == 1:
        return
    rows = activation / model.hidden_size / HALF_BYTES / (shape.tp if shape.sequence_parallel else 1) * group
    tokens, scores = rows * model.routed_width * HALF_BYTES, rows * model.moe.num_experts
    yield Collective("forward", "all_gather", "ep_etp", scores, calls)
    yield Collective("forward", "all_gather", "ep_etp", scores * shape.router_bytes, calls)
    yield Collective("forward", "all_gather", "ep_etp", tokens, calls)
    yield Collective("forward", "reduce_scatter", "ep_etp", tokens, calls)
    yield Collective("backward", "all_gather", "ep_etp", tokens, calls)
    yield Collective("backward", "reduce_scatter", "ep_etp", tokens, calls)
    yield Collective("backward", "reduce_scatter", "ep_etp", scores * shape.router_bytes, calls)
