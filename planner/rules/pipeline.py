"""What the pipeline asks: every layer once, stages that can run their schedule, recomputation.

Each rule returns a sentence for each breach, with the thing, the value and the way out.
Line numbers are those of megatron-core 0.19.2 (Apache-2.0).
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.rules.target import TARGETS


def stages_hold_layers(plan: Plan) -> tuple[str, ...]:
    """Every (virtual) stage has a layer, or else the embedding, predictions or the loss alone ("E|t...|m|L").

    Our choice: Megatron lets any stage be empty, but between the ends such a stage only adds a hop.
    """
    last, may_be_empty = plan.virtual_stages - 1, TARGETS[plan.target].empty_ends
    ends = [(0, 0), (len(plan.stages) - 1, last)] if len(plan.stages) > 1 else []
    if plan.prediction_stage is not None:
        ends.append((plan.prediction_stage, last))
    return tuple(
        f"stage {s}{f', virtual stage {chunk}' if plan.virtual_stages > 1 else ''}: its layer range "
        f"[{first}, {last}] is empty; give it a layer or drop the stage"
        for s, stage in enumerate(plan.stages)
        for chunk, (first, last) in enumerate(stage.chunks)
        if last < first and not (may_be_empty and (s, chunk) in ends and last == first - 1)
    )


def layers_come_once_in_order(model: ModelSpec, plan: Plan) -> tuple[str, ...]:
    """Every layer of the model comes exactly once, in order: chunk 0 of all stages, then chunk 1, ...

    Source: megatron/core/transformer/pipeline_parallel_layer_layout.py, `validate_layer_layout`
    (count) and `get_layer_offset` (order).
    """
    expected = 0
    for chunk in range(plan.virtual_stages):
        for s, stage in enumerate(plan.stages):
            first, last = stage.chunks[chunk]
            if first != expected:
                where = f"stage {s}" if plan.virtual_stages == 1 else f"stage {s}, virtual stage {chunk}"
                what = "is lost" if first > expected else "comes twice"
                return (f"{where}: starts at layer {first}, but layer {expected} is due and {what}",)
            expected = max(last + 1, first)
    if expected != model.num_layers:
        return (
            f"layers: the stages hold layers 0 to {expected - 1}, but {model.id} has layers 0 to "
            f"{model.num_layers - 1}; correct the ranges",
        )
    return ()


def virtual_stages_need_stages(plan: Plan) -> tuple[str, ...]:
    """Interleaving needs at least two pipeline stages.

    Source: megatron/core/parallel_state.py:828.
    """
    if plan.virtual_stages == 1 or plan.pipeline_parallel > 1:
        return ()
    return (f"virtual_stages {plan.virtual_stages}: the pipeline has one stage; set it to 1",)


def interleaving_has_whole_groups(plan: Plan) -> tuple[str, ...]:
    """Interleaving runs micro-batches in groups: of p to m, the last of them whole or of p at least.

    For the default group of p this is: m is a multiple of p.
    Source: megatron/core/pipeline_parallel/schedules.py:1134 and :1146, checked in the first step only.
    """
    m, p, group = plan.num_microbatches, plan.pipeline_parallel, plan.microbatch_group_size
    if plan.virtual_stages == 1:
        if group is None:
            return ()
        return (f"microbatch_group_size {group}: goes with virtual stages only; leave it out",)
    if interleaving_is_legal(p, m, group):
        return ()
    other = next((g for g in range(p, m + 1) if interleaving_is_legal(p, m, g)), None)
    hint = f", or microbatch_group_size {other}" if other is not None else ""
    if group is None:
        return (
            f"num_microbatches {m}: with virtual stages it must be a multiple of the {p} pipeline stages; "
            f"raise global_batch_size, use fewer stages or virtual_stages 1{hint}",
        )
    what = f"must lie between the {p} pipeline stages and the {m} micro-batches"
    if p <= group <= m:
        what = f"leaves a last group of {m % group}, which must be 0 or at least the {p} pipeline stages"
    return (f"microbatch_group_size {group}: {what}; leave it out{hint}",)


def interleaving_is_legal(num_stages: int, num_microbatches: int, group_size: int | None = None) -> bool:
    """Whether the interleaved schedule runs so many micro-batches, in groups of p unless said otherwise.

    Source: megatron/core/pipeline_parallel/schedules.py:1134 (range of the group) and :1146 (rest).
    """
    group = num_stages if group_size is None else group_size
    if not num_stages <= group <= num_microbatches:
        return False
    rest = num_microbatches % group
    return rest == 0 or rest >= num_stages


def recomputed_layers_exist(plan: Plan) -> tuple[str, ...]:
    """`recompute_layers` counts layers of each (virtual) stage, and only with full recomputation.

    A virtual stage with fewer layers recomputes all that it has (transformer_block.py,
    `_checkpointed_forward`).
    Source: megatron/core/transformer/transformer_config.py:1742 and :1749; that the count is at most that of
    the longest is ours.
    """
    found = []
    for s, stage in enumerate(plan.stages):
        longest = stage.longest_chunk
        if stage.recompute != "full" and stage.recompute_layers != 0:
            found.append(
                f"stage {s}: recompute_layers {stage.recompute_layers} goes with recompute=full only; "
                f"set it to 0 or recompute ({stage.recompute}) to full"
            )
        elif stage.recompute == "full" and not 1 <= stage.recompute_layers <= max(longest, 1):
            found.append(
                f"stage {s}: recompute_layers {stage.recompute_layers} with recompute=full; "
                f"must lie between 1 and {longest}, the layers of its longest (virtual) stage"
            )
    return tuple(found)


def recomputed_pieces_cover_stages(plan: Plan) -> tuple[str, ...]:
    """Pieces of several layers are recomputed of whole stages only (the method `uniform`).

    Source: megatron/core/transformer/transformer_block.py, `_checkpointed_forward`.
    """
    found = []
    for s, stage in enumerate(plan.stages):
        whole = stage.longest_chunk == stage.recompute_layers
        if stage.recompute_piece > 1 and not (stage.recompute == "full" and whole):
            found.append(
                f"stage {s}: recompute_piece {stage.recompute_piece} goes with recompute=full of all its "
                f"layers; set recompute_layers to {stage.longest_chunk} or the piece to 1"
            )
    return tuple(found)


def predictions_are_recomputed_alone(model: ModelSpec, plan: Plan) -> str | None:
    """A layer that predicts further tokens is no part of a piece: beside it pieces are of one layer.

    Source: megatron/core/transformer/multi_token_prediction.py:1420 (core 0.19.2).
    """
    s = len(plan.stages) - 1 if plan.prediction_stage is None else plan.prediction_stage
    stage = plan.stages[min(s, len(plan.stages) - 1)]
    if not model.mtp_num_layers or stage.recompute != "full" or stage.recompute_piece == 1:
        return None
    return (
        f"stage {s}: recompute_piece {stage.recompute_piece} beside the {model.mtp_num_layers} layers of "
        f"{model.id} that predict further tokens; set the piece to 1"
    )


def predictions_follow_a_layer(model: ModelSpec, plan: Plan) -> str | None:
    """Predictions of a dense layer amid experts share their virtual stage with a layer.

    Source: megatron/training/models/gpt.py:402 (core 0.19.2): beside no layer they get experts.
    """
    end = len(plan.stages) - 1
    s = end if plan.prediction_stage is None else min(plan.prediction_stage, end)
    first, last = plan.stages[s].chunks[-1]
    if not model.predictions_need_a_layer or first <= last:
        return None
    return (
        f"stage {s}: has no layer beside the predictions of {model.id}, which Megatron then builds with "
        f"experts, unlike its last layer; give the stage a layer"
    )
