"""Random legal plans for Megatron-LM, and plans spoilt in one way each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from planner.data.load import load_model
from planner.data.plan import Plan, Recompute
from planner.launchers.nearest import is_legal
from planner.rules.tensor import tp_is_legal
from tests.planner.launchers import plans

MODELS = ("llama3-8b", "llama2-7b", "qwen3-8b", "mixtral-8x7b", "gpt-oss-20b", "phi-4", "qwen3-30b-a3b")
CHIPS = ("h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb")


def random_case(seed: int) -> plans.Case:
    """A plan that breaks no rule, on one or two classes of nodes; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(1000):
        found = _attempt(rng)
        if found is not None and is_legal(*found):
            return found
    raise AssertionError(f"seed {seed}: no legal plan in 1000 attempts")


def _attempt(rng: random.Random) -> plans.Case | None:
    model = load_model(rng.choice(MODELS))
    chips_a_node = rng.choice([4, 8])
    tp = rng.choice([t for t in (1, 2, 4, 8) if t <= chips_a_node and tp_is_legal(model, t)])
    cp, dp, pp = rng.choice([1, 1, 1, 2]), rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 2, 3, 4, 6, 8])
    if tp * cp * dp * pp > 96:
        return None
    chunks = rng.choice([1, 1, 1, 2]) if pp > 1 else 1
    layers = _split(rng, model.num_layers, pp * chunks)
    if layers is None:
        return None
    by_stage = [[layers[v * pp + s] for v in range(chunks)] for s in range(pp)]
    num_classes = rng.choice([1, 2]) if pp > 1 else 1
    border = rng.randint(1, pp - 1) if num_classes == 2 else pp
    node_class = [0] * border + [1] * (pp - border)
    size = tp * cp * dp
    nodes = [max(1, -(-node_class.count(c) * size // chips_a_node)) for c in range(num_classes)]
    names = rng.sample(CHIPS, num_classes)
    cluster = ", ".join(f"{n}x{chips_a_node} {name}" for n, name in zip(nodes, names, strict=True))
    count = rng.choice([1, 2, 4]) * (pp if chunks > 1 else rng.choice([1, 2, 3]))
    batch = count * dp * rng.choice([1, 1, 2])
    ep = 1
    if model.moe is not None:
        ep = rng.choice(
            [e for e in (1, 2, 4, 8) if model.moe.num_experts % e == 0 and (tp * cp * dp) % e == 0]
        )
    sketch = plans.Sketch(
        by_stage,
        node_class,
        tensor_parallel=tp,
        context_parallel=cp,
        expert_parallel=ep,
        data_parallel=dp,
        num_microbatches=count,
        sequence_parallel=tp > 1 and (model.moe is not None or rng.random() < 0.7),
        recompute={s: _recompute(rng, by_stage[s]) for s in range(pp)},
    )
    problem, plan = plans.case(model.id, cluster, batch, 2048, sketch)
    return problem, plan.model_copy(update={"dp_mode": rng.choice(["distopt", "distopt", "ddp"])})


def _split(rng: random.Random, layers: int, parts: int) -> list[int] | None:
    """Layers in uneven parts, none of them empty."""
    if parts > layers:
        return None
    cuts = sorted(rng.sample(range(1, layers), parts - 1))
    return [end - start for start, end in zip([0, *cuts], [*cuts, layers], strict=True)]


def _recompute(rng: random.Random, layers: list[int]) -> tuple[Recompute, int]:
    kind: Recompute = rng.choice(["none", "selective", "full"])
    return kind, rng.randint(1, min(layers)) if kind == "full" else 0


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
        "no chip may be used twice",
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
        lambda: _with_batch(plans.virtual_stages(), 6),
        plan_with(num_microbatches=3),
        "must be a multiple of the 2",
    ),
    "full sharding": (plans.mixed_128, plan_with(dp_mode="zero3"), 'use "distopt" or "ddp"'),
}  # fmt: skip


def _with_batch(case: plans.Case, batch: int) -> plans.Case:
    problem, plan = case
    workload = problem.workload.model_copy(update={"global_batch_size": batch})
    return problem.model_copy(update={"workload": workload}), plan
