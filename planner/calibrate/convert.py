"""A measured run as a problem and the plans that it may have been.

All reading rules stand here and in the modules it calls: what a missing value means, which runs
cannot be scored and why. Usually one plan comes out; where the source does not say what was
recomputed there are several, and the score takes the fastest that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from planner.calibrate.layouts import stages_of, virtual_stages_of
from planner.calibrate.nodes import cluster_of
from planner.calibrate.patterns import SkipRun
from planner.calibrate.profiled import with_measured_layers
from planner.calibrate.runs import Run, RunGroup
from planner.calibrate.shapes import model_of
from planner.calibrate.stacks import stack_id, stack_of
from planner.cost.checkpointing import policy_of
from planner.data.chip import Chip, Precision
from planner.data.experts_spec import MoeSpec
from planner.data.options import Options
from planner.data.plan import DpMode, Plan, Recompute
from planner.data.problem import Problem
from planner.data.workload import Workload

NO_RECOMPUTE_STACKS = ("megatron-deepspeed", "sailor", "amp-deepspeed")
"""Stacks whose runs recompute nothing where they do not say so."""

NORMS_AGAIN_STACKS = ("internevo",)
"""Stacks whose layers compute their norms again in the backward unless all of a layer is checkpointed."""

NO_WHOLE_LAYER_STACKS = ("megatron-bridge",)
"""Stacks whose recipes recompute modules or move activations to the host, and never whole layers (all recipes
that the published rows show)."""

SHARES_OF_BLOCKS = {"fms-fsdp": (1 / 3, 1 / 2, 2 / 3, 1.0)}
"""Stacks whose selective recomputation is of whole layers: the shares of them that the software names, as
rows do not state theirs (foundation-model-stack/fms-fsdp, fms_fsdp/policies/ac_handler.py)."""

WHOLE_EXPERT_STACKS = ("megatron-bridge",)
"""Stacks whose recipes never split an expert where they do not say so (every other row of their tables, and
NVIDIA's own, github.com/yanring/Megatron-MoE-ModelZoo, column ETP)."""

NO_RESERVE = Options(memory_reserve_fraction=0.0)
"""A run that took place fitted: the reserve that a planner keeps does not count against it."""


@dataclass(frozen=True)
class Candidate:
    """A run that can be scored."""

    problem: Problem
    """Where and what it ran."""
    plans: tuple[Plan, ...]
    """The plan; several where the recomputation is unknown."""
    stack: str
    """Family of its software."""
    without_collectives: bool
    """Whether the measured chip ran alone: predicted communication is left out."""
    assumptions: tuple[str, ...]
    """What was filled in."""


def precision_of(run: Run, chips: list[Chip]) -> Precision:
    """Number format of a run; null is bf16 on chips that have it, else fp16.

    Raises
    ------
    SkipRun
        For a format that is not modelled, such as tf32.
    """
    stated = run.workload.precision
    if stated in get_args(Precision):
        return cast(Precision, stated)
    if stated is not None and not stated.startswith("amp"):
        raise SkipRun(f"precision: {stated} not modelled")
    return "bf16" if all(chip.bf16_tflop_per_s for chip in chips) else "fp16"


def layer_family(run: Run) -> str:
    """`dense` or `moe`, for grouping."""
    return "dense" if run.model.moe is None else "moe"


def convert(run: Run) -> Candidate:
    """Problem and plans of a run.

    Raises
    ------
    SkipRun
        With the reason why the run cannot be scored.
    """
    _refuse_what_cannot_be_scored(run)
    alone = run.plan.shard_of_one_rank_only
    if alone and run.model.moe is not None:
        run = _as_expert_parallel(run)
    model, model_notes = model_of(run)
    cluster, chips, network_notes = cluster_of(run)
    assumptions = [*model_notes, *network_notes]
    workload = Workload(
        seq_length=run.workload.seq_length,
        global_batch_size=run.workload.global_batch_size or 0,
        precision=precision_of(run, list(chips.values())),
    )
    if run.workload.precision != workload.precision:
        assumptions.append(f"precision {workload.precision}")
    problem = Problem(
        name=run.id,
        cluster=cluster,
        chips=chips,
        model=model,
        workload=workload,
        target="unrestricted",
        stack=stack_of(run),
        options=NO_RESERVE,
    )
    plans = _plans(run, problem, assumptions)
    problem, layer_notes = with_measured_layers(run, problem, plans[0])
    assumptions += layer_notes
    return Candidate(problem, plans, stack_id(run), alone, tuple(assumptions))


def _refuse_what_cannot_be_scored(run: Run) -> None:
    """Raise SkipRun for runs whose source leaves out what no rule can fill in."""
    if run.measured.failed:
        raise SkipRun("failed")
    if run.unstated:
        raise SkipRun(f"not stated: {', '.join(run.unstated)}")
    if run.measured.step_s is None and run.measured.peak_memory_gib is None:
        raise SkipRun("nothing measured")
    moe = run.model.moe
    if moe is not None and (moe.local_experts or 1) > moe.num_experts:
        raise SkipRun("model shape: more experts on a chip than there are")
    if run.plan.microbatch_size is None:
        raise SkipRun("microbatch_size")
    if run.workload.global_batch_size is None:
        raise SkipRun("global_batch_size")


def _as_expert_parallel(run: Run) -> Run:
    """The job of which one chip ran its experts: as many ranks as share the experts.

    Its collectives are left out of the prediction afterwards, as none ran.
    """
    moe = run.model.moe
    assert moe is not None
    ranks = moe.num_experts // (moe.local_experts or moe.num_experts)
    group = run.cluster.groups[0]
    plan = run.plan.model_copy(
        update={
            "expert_parallel": ranks,
            "expert_tensor_parallel": 1,
            "data_parallel": ranks,
            "shard_of_one_rank_only": False,
        }
    )
    batch = (run.workload.global_batch_size or 0) * ranks
    return run.model_copy(
        update={
            "plan": plan,
            "workload": run.workload.model_copy(update={"global_batch_size": batch}),
            "cluster": run.cluster.model_copy(
                update={"groups": (RunGroup(chip=group.chip, num_chips=ranks, chips_per_node=ranks),)}
            ),
        }
    )


def _tensor_parallel(run: Run) -> int:
    """Tensor-parallel degree, also where only the stages of a mixed cluster state it."""
    if run.plan.shard_of_one_rank_only:
        return 1  # the model itself is cut to the shard
    if run.plan.tensor_parallel is not None:
        return run.plan.tensor_parallel
    degrees = {r.tensor_parallel for s in run.plan.stages or () for r in s.replicas or ()}
    degrees |= {s.tensor_parallel for s in run.plan.stages or () if s.tensor_parallel is not None}
    if not degrees:
        raise SkipRun("tensor_parallel")
    return max(degrees)


def _plans(run: Run, problem: Problem, assumptions: list[str]) -> tuple[Plan, ...]:
    tp, cp = _tensor_parallel(run), run.plan.context_parallel or 1
    pp = run.plan.pipeline_parallel or 1
    dp = run.plan.data_parallel or max(1, run.cluster.num_chips // (tp * pp * cp))
    batch, microbatch = problem.workload.global_batch_size, run.plan.microbatch_size or 1
    if batch % (microbatch * dp):
        raise SkipRun("batch not divisible by data_parallel x microbatch_size")
    plans: list[Plan] = []
    for recompute, share in _recompute(run, assumptions):
        stages, note = stages_of(
            run,
            problem.model,
            problem.cluster,
            tensor_parallel=tp,
            data_parallel=dp,
            stage_size=tp * cp * dp,
            recompute=recompute,
            recompute_share=share,
        )
        plans.append(
            Plan(
                target="unrestricted",
                tensor_parallel=tp,
                context_parallel=cp,
                expert_parallel=run.plan.expert_parallel or 1,
                expert_tensor_parallel=_expert_tensor_parallel(run, tp, problem.model.moe),
                data_parallel=dp,
                microbatch_size=microbatch,
                num_microbatches=batch // (microbatch * dp),
                virtual_stages=virtual_stages_of(run),
                sequence_parallel=_sequence_parallel(run, tp, assumptions if not plans else []),
                dp_mode=_dp_mode(run, dp, assumptions if not plans else []),
                stages=stages,
            )
        )
        if note is not None and note not in assumptions:
            assumptions.append(note)
    return tuple(plans)


def _expert_tensor_parallel(run: Run, tp: int, moe: MoeSpec | None) -> int:
    """Megatron's default is the tensor-parallel degree; without experts there is nothing to split."""
    if moe is None:
        return 1
    usual = 1 if stack_id(run) in WHOLE_EXPERT_STACKS else tp
    return run.plan.expert_tensor_parallel or usual


def _recompute(run: Run, assumptions: list[str]) -> tuple[tuple[Recompute, float], ...]:
    """What is recomputed, and of which share of the layers; every setting where the source does not say."""
    if run.plan.recompute == "selective" and stack_id(run) in SHARES_OF_BLOCKS:
        return tuple(("full", share) for share in SHARES_OF_BLOCKS[stack_id(run)])
    return tuple((kind, 1.0) for kind in _recompute_kinds(run, assumptions))


def _recompute_kinds(run: Run, assumptions: list[str]) -> tuple[Recompute, ...]:
    """The same without shares."""
    stated = run.plan.recompute
    if stated == "none" and stack_id(run) in NORMS_AGAIN_STACKS:
        return ("selective",)
    if stated in get_args(Recompute):
        return (cast(Recompute, stated),)
    if stated is not None:
        raise SkipRun(f"recompute: {stated} not modelled")
    if stack_id(run) in NO_RECOMPUTE_STACKS:
        assumptions.append("nothing recomputed")
        return ("none",)
    if policy_of(stack_of(run).selective_modules):
        return ("selective",)
    if stack_id(run) in NO_WHOLE_LAYER_STACKS:
        return ("none", "selective")
    return ("none", "selective", "full")


def _sequence_parallel(run: Run, tp: int, assumptions: list[str]) -> bool:
    if run.plan.sequence_parallel is None and tp > 1:
        assumptions.append("no sequence parallelism")
    return bool(run.plan.sequence_parallel) and tp > 1


def _dp_mode(run: Run, dp: int, assumptions: list[str]) -> DpMode:
    """What the replicas shard; a shard of one rank is no shard."""
    mode = run.plan.dp_mode
    if mode is None:
        assumptions.append("distributed optimizer")
        return "distopt"
    if mode not in get_args(DpMode):
        raise SkipRun(f"dp_mode: {mode} not modelled")
    shards = run.plan.optimizer_shard_size
    return "ddp" if shards == 1 else cast(DpMode, mode)
