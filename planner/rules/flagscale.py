"""What of a plan FlagScale's heterogeneous mode can run: the plan in its terms, one mesh a stage.

One mesh a stage, because FlagScale forms wrong pipeline groups for a mesh of several stages and
replicas; each with a device type of its own, because ranks are sorted by type.
"""

from __future__ import annotations

from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.rules.flagscale_config import HeteroConfig, StageValues, config_violations

ROWS_MULTIPLE = 128
"""Megatron pads the vocabulary to a multiple of this times the tensor-parallel degree."""


def hetero_config(problem: Problem, plan: Plan) -> HeteroConfig:
    """A plan in FlagScale's terms: one mesh a stage, each with a device type of its own."""
    lists = recompute_lists(plan) if any(stage.recompute == "full" for stage in plan.stages) else ()
    kinds = {stage.recompute for stage in plan.stages}
    granularity = "full" if lists else "selective" if kinds == {"selective"} else None
    return HeteroConfig(
        process_meshes=tuple(
            number
            for stage in plan.stages
            for number in (
                stage.tensor_parallel,
                plan.context_parallel,
                plan.expert_parallel,
                stage.data_parallel,
                1,
            )
        ),
        layer_split=tuple(stage.num_layers for stage in plan.stages),
        device_types=tuple(f"{stage.chip}_{s}" for s, stage in enumerate(plan.stages)),
        num_layers=problem.model.num_layers,
        pipeline_parallel=plan.pipeline_parallel,
        microbatch_size=plan.microbatch_size,
        global_batch_size=problem.workload.global_batch_size,
        tied_or_predicting=problem.model.copies_embedding,
        distributed_optimizer=plan.dp_mode == "distopt",
        # It cuts the embedding's rows evenly among the replicas; where both ends have as many none need be.
        partial_reduce=plan.stages[0].data_parallel != plan.stages[-1].data_parallel,
        virtual_stages=plan.virtual_stages,
        world_size=plan.world_size,
        expert_tensor_parallel=tuple(
            # Without experts Megatron would take that of the first mesh, into which others may not divide.
            plan.expert_tensor_parallel if problem.model.moe is not None else stage.tensor_parallel
            for stage in plan.stages
        ),
        recompute_granularity=granularity,
        recompute_method="block" if lists else None,
        recompute_lists=lists,
    )


def recompute_lists(plan: Plan) -> tuple[tuple[str, tuple[StageValues, ...]], ...]:
    """What each stage recomputes of every micro-batch: on or off, by block, how many layers."""
    m = plan.num_microbatches

    def row(value: int) -> StageValues:
        return (1, m, value)

    counts = [stage.recompute_layers if stage.recompute == "full" else 0 for stage in plan.stages]
    return (
        ("granularity", tuple(row(int(count > 0)) for count in counts)),
        ("method", tuple(row(1) for _ in counts)),
        ("num_layers", tuple(row(count) for count in counts)),
    )


def plan_violations(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """What of a plan FlagScale cannot run: its rules, and what no configuration of it states."""
    return tuple(
        [
            *config_violations(hetero_config(problem, plan)),
            *selective_is_for_all(plan),
            *different_cuts_need_sequence_parallelism(plan),
            *pieces_are_single_layers(plan),
            *parameters_are_whole(plan),
            *shared_rows_divide(problem, plan),
        ]
    )


def selective_is_for_all(plan: Plan) -> tuple[str, ...]:
    """Selective recomputation is a setting of all stages; its lists by stage switch full ones only."""
    kinds = {stage.recompute for stage in plan.stages}
    if "selective" not in kinds or len(kinds) == 1:
        return ()
    stage = next(s for s, stage in enumerate(plan.stages) if stage.recompute == "selective")
    return (
        f"stage {stage}: recompute selective, but {' and '.join(sorted(kinds - {'selective'}))} on others; "
        "FlagScale has selective for all stages or none, so use full or none on it",
    )


def parameters_are_whole(plan: Plan) -> tuple[str, ...]:
    """Its meshes of different degrees know replicas and the distributed optimizer only."""
    if plan.dp_mode in ("ddp", "distopt"):
        return ()
    return (f'dp_mode {plan.dp_mode}: target flagscale shards no parameters; use "distopt" or "ddp"',)


def shared_rows_divide(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Where first and last stage differ in replicas, those share the rows of a common embedding evenly.

    Source: `_allreduce_embedding_grad` of Megatron-LM-FL (megatron/plugin/distributed/
    finalize_model_grads.py), which stops in the first step where they do not.
    """
    first, last = plan.stages[0], plan.stages[-1]
    if not problem.model.copies_embedding or plan.dp_mode != "distopt":
        return ()
    rows = shared_rows(problem.model.vocab_size, first.tensor_parallel)
    if rows_divide(rows, first.data_parallel, last.data_parallel):
        return ()
    return (
        f"data parallel of the first stage is {first.data_parallel}, of the last {last.data_parallel}: the "
        f"{rows} rows of the embedding on a rank do not divide by both; take other numbers of replicas there",
    )


def shared_rows(vocab_size: int, tp: int) -> int:
    """Rows of the embedding that a rank holds, padding included."""
    return -(-vocab_size // (ROWS_MULTIPLE * tp)) * ROWS_MULTIPLE


def rows_divide(rows: int, first: int, last: int) -> bool:
    """Whether replicas of the first and the last stage share the rows evenly, where they must."""
    return first == last or rows % max(first, last) == 0


def pieces_are_single_layers(plan: Plan) -> tuple[str, ...]:
    """Its configuration is written by block, which recomputes layers one by one."""
    return tuple(
        f"stage {s}: recompute_piece {stage.recompute_piece}; target flagscale recomputes layers one by one, "
        "set it to 1"
        for s, stage in enumerate(plan.stages)
        if stage.recompute_piece > 1
    )


def different_cuts_need_sequence_parallelism(plan: Plan) -> tuple[str, ...]:
    """Stages that differ in tensor parallelism pass on pieces of the sequence, so it must be cut.

    Source: flagscale/train/hetero/parallel_context.py, `get_inter_mesh_tensor_slices`: the length of a
    rank's activation times the tensor parallel degree of its mesh counts as the whole sequence.
    """
    degrees = [stage.tensor_parallel for stage in plan.stages]
    if plan.sequence_parallel or len(set(degrees)) == 1:
        return ()
    s = next(s for s, degree in enumerate(degrees) if degree != degrees[0])
    return (
        f"stage {s}: tensor_parallel {degrees[s]} differs from stage 0 ({degrees[0]}), and FlagScale then "
        "sends pieces of the sequence; switch sequence_parallel on",
    )
