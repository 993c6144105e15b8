"""Plans spoilt in one way each: a sound plan, what is done to it, and words of the refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.data.plan import Plan, Replica
from planner.data.problem import Problem
from tests.planner.launchers import plans


def stage(plan: Plan, s: int, **changes: Any) -> Plan:
    """The plan with one stage changed."""
    stages = list(plan.stages)
    stages[s] = stages[s].model_copy(update=changes)
    return plan.model_copy(update={"stages": tuple(stages)})


def everywhere(plan: Plan, **changes: Any) -> Plan:
    """The plan with all stages changed, and its own degrees with them."""
    stages = tuple(one.model_copy(update=changes) for one in plan.stages)
    return plan.model_copy(update={"stages": stages, **changes})


def plan_with(**changes: Any) -> Callable[[Plan], Plan]:
    """A change of the plan's own fields."""
    return lambda plan: plan.model_copy(update=changes)


# Way of spoiling -> sound plan, how, and words of the refusal. The plan of most has 4 stages of tensor 8 x
# data 4 on 128 chips with 26, 28, 13 and 13 layers of llama3-70b, and 4 micro-batches of 1 sequence.
SPOILT: dict[str, tuple[Callable[[], plans.Case], Callable[[Plan], Plan], str]] = {
    "a layer lost at the end": (
        plans.mixed_128, lambda p: stage(p, 3, layers=(67, 78)), "has layers 0 to 79",
    ),
    "a layer lost between": (
        plans.mixed_128, lambda p: stage(p, 1, layers=(27, 53)), "layer 26 is due and is lost",
    ),
    "a layer twice": (
        plans.mixed_128, lambda p: stage(p, 1, layers=(25, 53)), "layer 26 is due and comes twice",
    ),
    "a layer too many": (plans.mixed_128, lambda p: stage(p, 3, layers=(67, 80)), "correct the ranges"),
    "an empty stage": (plans.mixed_128, lambda p: stage(p, 1, layers=(26, 25)), "is empty"),
    "stages swapped": (
        plans.mixed_128,
        lambda p: p.model_copy(update={"stages": (p.stages[1], p.stages[0], *p.stages[2:])}),
        "starts at layer 26, but layer 0 is due",
    ),
    "a batch that does not divide": (
        plans.mixed_128, plan_with(microbatch_size=3), "is no multiple of microbatch_size 3",
    ),
    "a wrong number of micro-batches": (plans.mixed_128, plan_with(num_microbatches=5), "is 4; write 4"),
    "heads that do not split": (
        plans.mixed_128, lambda p: everywhere(p, tensor_parallel=3), "64 attention heads do not split",
    ),
    "a group across nodes": (
        plans.mixed_128,
        lambda p: everywhere(p, tensor_parallel=16, data_parallel=2),
        "a node of class .* has 8 chips; take a divisor",
    ),
    "another degree on one stage": (
        plans.mixed_128,
        lambda p: stage(p, 2, tensor_parallel=4),
        "stage 2: tensor_parallel 4 differs from the plan's 8; target megatron-lm has one for all stages",
    ),
    "other replicas on one stage": (
        plans.mixed_128,
        lambda p: stage(p, 2, data_parallel=8),
        "stage 2: data_parallel 8 differs from the plan's 4; target megatron-lm has one for all stages",
    ),
    "more chips than there are": (
        plans.mixed_128, lambda p: everywhere(p, data_parallel=16), "the plan uses 256 chips, it has 64",
    ),
    "too many layers recomputed": (
        plans.mixed_128, lambda p: stage(p, 3, recompute_layers=14), "must lie between 1 and 13",
    ),
    "layers recomputed by nothing": (
        plans.mixed_128, lambda p: stage(p, 1, recompute_layers=2), "goes with recompute=full only",
    ),
    "sequence parallelism without ranks": (
        plans.biases_and_learned_positions,
        plan_with(sequence_parallel=True),
        "needs tensor_parallel above 1",
    ),
    "a sequence that does not split": (
        plans.mixed_128, plan_with(context_parallel=3), "seq_length 8192 is no multiple of 6",
    ),
    "a host that is not there": (
        plans.mixed_128,
        lambda p: stage(p, 0, hosts=("nowhere", *p.stages[0].hosts[1:])),
        "host nowhere is not in the cluster",
    ),
    "a host twice": (
        plans.mixed_128,
        lambda p: stage(p, 0, hosts=(p.stages[0].hosts[0],) * 4),
        "lists a host twice",
    ),
    "a host of another stage": (
        plans.mixed_128,
        lambda p: stage(p, 1, hosts=p.stages[0].hosts),
        "whose chips the stages before it take",
    ),
    "another chip than the class has": (
        plans.mixed_128, lambda p: stage(p, 0, chip="a100-sxm-80gb"), "is not that of class",
    ),
    "a class that is not there": (
        plans.mixed_128, lambda p: stage(p, 0, node_class="b200"), "node class 'b200' is not in the cluster",
    ),
    "experts without experts": (
        plans.mixed_128, plan_with(expert_parallel=2), "has no experts; set it to 1",
    ),
    "experts that do not split": (
        plans.experts, plan_with(expert_parallel=3), "8 experts do not split evenly",
    ),
    "more expert ranks than a stage has": (
        plans.experts, plan_with(expert_tensor_parallel=2), "does not divide the 8 ranks of a stage",
    ),
    "micro-batches that fill no group of stages": (
        lambda: _with_workload(plans.virtual_stages(), global_batch_size=6),
        plan_with(num_microbatches=3),
        "must be a multiple of the 2",
    ),
    "experts recomputed without any": (
        plans.mixed_128, plan_with(recompute_modules=("moe",)), "has none of the modules",
    ),
    # Layers
    "the first layer lost": (
        plans.mixed_128, lambda p: stage(p, 0, layers=(1, 25)), "starts at layer 1, but layer 0 is due",
    ),
    "a last range backwards": (plans.mixed_128, lambda p: stage(p, -1, layers=(80, 6)), r"80, 6. is empty"),
    "a range backwards": (plans.mixed_128, lambda p: stage(p, 2, layers=(66, 54)), r"\[66, 54\] is empty"),
    "a layer before the first": (
        plans.mixed_128, lambda p: stage(p, 0, layers=(-1, 25)), "starts at layer -1, but layer 0 is due",
    ),
    "the last stage dropped": (
        plans.mixed_128,
        lambda p: p.model_copy(update={"stages": p.stages[:-1]}),
        "layers 0 to 66, but llama3-70b has layers 0 to 79",
    ),
    "a stage repeated": (
        plans.mixed_128,
        lambda p: p.model_copy(update={"stages": (*p.stages, p.stages[-1])}),
        "starts at layer 67, but layer 80 is due and comes twice",
    ),
    "a chunk of another round": (
        plans.virtual_stages,
        lambda p: stage(p, 0, layers=((0, 8), (9, 16))),
        "virtual stage 1: starts at layer 9, but layer 17 is due",
    ),
    "a layer of a chunk lost": (
        plans.virtual_stages,
        lambda p: stage(p, 1, layers=((9, 15), (25, 31))),
        "starts at layer 17, but layer 16 is due and is lost",
    ),
    "an empty chunk": (
        plans.virtual_stages,
        lambda p: stage(p, 0, layers=((0, 8), (17, 16))),
        r"\[17, 16\] is empty; give it a layer",
    ),
    "virtual stages without a pipeline": (
        plans.context_parallel,
        lambda p: stage(p.model_copy(update={"virtual_stages": 2}), 0, layers=((0, 15), (16, 31))),
        "the pipeline has one stage; set it to 1",
    ),
    # Batch
    "a larger micro-batch with as many of them": (
        plans.mixed_128, plan_with(microbatch_size=2), r"x data_parallel 4\) is 2; write 2",
    ),
    "a batch smaller than a round": (
        lambda: _with_workload(plans.mixed_128(), global_batch_size=3), plan_with(num_microbatches=1),
        "nearest legal: 4",
    ),
    "replicas that the stages do not have": (
        plans.mixed_128, plan_with(data_parallel=2, num_microbatches=8),
        "stage 0: data_parallel 4 differs from the plan's 2",
    ),
    # Degrees
    "a tensor degree that the stages do not have": (
        plans.mixed_128, plan_with(tensor_parallel=4), "tensor_parallel 8 differs from the plan's 4",
    ),
    "key-value heads that do not split": (
        lambda: _short(plans.uniform(), num_query_groups=3, num_attention_heads=48),
        lambda p: everywhere(p, tensor_parallel=4, data_parallel=2),
        "3 key-value heads are neither a multiple nor a divisor",
    ),
    "a feed-forward block that does not split": (
        lambda: _short(plans.uniform(), ffn_hidden_size=14338),
        lambda p: everywhere(p, tensor_parallel=4, data_parallel=2),
        "feed-forward width 14338 does not split evenly",
    ),
    "a group wider than the smaller node": (
        plans.stages_share_a_host,
        lambda p: everywhere(p, tensor_parallel=8, data_parallel=1),
        "has 4 chips; take a divisor",
    ),
    "a sequence too odd for its ranks": (
        lambda: _with_workload(plans.uniform(), seq_length=2050),
        lambda p: everywhere(p, tensor_parallel=4, data_parallel=2),
        "seq_length 2050: does not split over context_parallel 1 x tensor_parallel 4",
    ),
    "pieces of the sequence that do not pair": (
        lambda: _with_workload(plans.context_parallel(), seq_length=8190),
        lambda p: p.model_copy(update={"sequence_parallel": False}),
        "seq_length 8190 is no multiple of 4",
    ),
    "experts without sequence parallelism": (
        plans.latent_attention_and_prediction,
        plan_with(sequence_parallel=False),
        "off with experts and tensor_parallel 2; switch it on",
    ),
    "more expert ranks than experts": (
        plans.experts, plan_with(expert_parallel=16), "8 experts do not split evenly; take a divisor",
    ),
    "experts split thinner than they are wide": (
        lambda: _short(plans.experts(), moe={"ffn_hidden_size": 14338}),
        plan_with(expert_parallel=2, expert_tensor_parallel=4),
        "expert width 14338 does not split evenly",
    ),
    "expert ranks that do not fill a stage": (
        plans.latent_attention_and_prediction,
        plan_with(expert_parallel=8, expert_tensor_parallel=2),
        r"tensor_parallel 2 = 16 does not divide the 8 ranks of a stage \(tensor .*; lower one of them",
    ),
    "replicas of experts in the other order of ranks": (
        plans.latent_attention_and_prediction,
        plan_with(rank_order="tp-cp-ep-pp-dp"),
        "experts have 2 replicas, the rest 4; use tp-cp-ep-dp-pp",
    ),
    # Numbers and chips
    "bf16 on a V100": (
        lambda: _with_workload(plans.biases_and_learned_positions(), precision="bf16"),
        lambda p: stage(p, 0, recompute="selective"),
        r"chip v100-sxm-16gb \(compute capability 7.0\) does not have it",
    ),
    "fp8 on an A100": (
        lambda: _with_workload(plans.mixed_128(), precision="fp8"),
        lambda p: stage(p, 0, recompute="selective", recompute_layers=0),
        "precision fp8: chip a100-sxm-80gb .* does not have it",
    ),
    "fp8 with rows left over": (
        lambda: _with_workload(plans.uniform(), precision="fp8", seq_length=1032),
        lambda p: everywhere(p, tensor_parallel=8, data_parallel=1).model_copy(
            update={"num_microbatches": 8}
        ),
        "are no multiple of 16 on each; change microbatch_size",
    ),
    # Sharding and recomputation
    "pieces of a part of a stage": (
        plans.mixed_128, lambda p: stage(p, 0, recompute_piece=2), "recompute_piece 2 goes with",
    ),
    "all recomputed, but no layer": (
        plans.mixed_128, lambda p: stage(p, 0, recompute_layers=0), "must lie between 1 and 26",
    ),
    "layers recomputed beside selective": (
        plans.mixed_128, lambda p: stage(p, 2, recompute_layers=3), "goes with recompute=full only",
    ),
    "more recomputed than the longer chunk has": (
        plans.virtual_stages,
        lambda p: stage(p, 1, recompute_layers=9),
        "must lie between 1 and 8, the layers of its longest",
    ),
    # Hosts
    "a host too few": (
        plans.mixed_128,
        lambda p: stage(p, 0, hosts=p.stages[0].hosts[:-1]),
        "lists 3 hosts; its 32 chips lie on 4 hosts",
    ),
    "a host too many": (
        plans.mixed_128,
        lambda p: stage(p, 3, hosts=(*p.stages[3].hosts, p.stages[2].hosts[0])),
        "stage 3: lists 5 hosts",
    ),
    "no hosts": (plans.mixed_128, lambda p: stage(p, 1, hosts=()), "stage 1: lists 0 hosts"),
    "a host of the other class": (
        plans.mixed_128,
        lambda p: stage(p, 0, hosts=(p.stages[2].hosts[0], *p.stages[0].hosts[1:])),
        "is in class",
    ),
    "a chip that nobody knows": (
        plans.mixed_128, lambda p: stage(p, 0, chip="h100-sxm-81gb"), "is not that of class",
    ),
    "both halves of a shared host on the second": (
        plans.stages_share_a_host,
        lambda p: stage(stage(p, 1, hosts=p.stages[2].hosts), 2, hosts=p.stages[1].hosts),
        "is in class",
    ),
    "replicas of one stage with degrees of their own": (
        plans.uniform, lambda p: _replicas(p, tensor_parallel=1), "target megatron-lm has 2 for all of them",
    ),
}  # fmt: skip


def _replicas(plan: Plan, tensor_parallel: int) -> Plan:
    """The plan with the replicas of its first stage listed, the first with another degree."""
    first = plan.stages[0]
    replicas = tuple(
        Replica(
            node_class=first.node_class,
            chip=first.chip,
            hosts=first.hosts,
            tensor_parallel=tensor_parallel if r == 0 else first.tensor_parallel,
        )
        for r in range(first.data_parallel)
    )
    return stage(plan, 0, replicas=replicas)


def _short(case: plans.Case, moe: dict[str, Any] | None = None, **changes: Any) -> plans.Case:
    """The case with another model; its published size no longer counts."""
    problem, plan = case
    if moe is not None:
        assert problem.model.moe is not None
        changes["moe"] = problem.model.moe.model_copy(update=moe)
    model = problem.model.model_copy(update={"id": "odd", "published_params": None, **changes})
    return Problem(**(dict(problem) | {"model": model})), plan


def _with_workload(case: plans.Case, **changes: Any) -> plans.Case:
    problem, plan = case
    workload = problem.workload.model_copy(update=changes)
    return problem.model_copy(update={"workload": workload}), plan
