"""Random plans for Megatron-LM that turn every knob: short models of all families, software, schedules."""

from __future__ import annotations

import random
from typing import Any, get_args

from planner.data.chip import Precision
from planner.data.load import load_model, names
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.stack import SelectiveModule
from planner.launchers.megatron.model import builds, inexpressible
from planner.launchers.nearest import is_legal
from planner.rules.versions import NEWEST, version_violations
from tests.planner.launchers import plans
from tests.planner.launchers.random_plans import random_attempt

MODELS = tuple(n for n in names("models") if not inexpressible(load_model(n), **builds("megatron-lm")))
"""Shipped models that Megatron-LM builds."""

CHIPS: dict[Precision, tuple[str, ...]] = {
    "bf16": ("h100-sxm-80gb", "a100-sxm-80gb", "h200-sxm-141gb", "mi300x-192gb"),
    "fp16": ("v100-sxm-32gb", "a100-sxm-80gb", "t4-16gb"),
    "fp8": ("h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb"),
    "fp8_block": ("h100-sxm-80gb", "h200-sxm-141gb"),
    "mxfp8": ("b200-180gb", "b300-288gb"),
    "nvfp4": ("b200-180gb", "b300-288gb"),
}
"""Chips that run a number format."""


def wide_case(seed: int, version: str = NEWEST) -> plans.Case:
    """A plan that breaks no rule, of any shipped model made short; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(20):
        model = load_model(rng.choice(MODELS))
        for _ in range(300):  # most are illegal, more of models with experts than of others
            found = _attempt(rng, model)
            if found is not None and is_legal(*found) and not version_violations(*found, version):
                return found
    raise AssertionError(f"seed {seed}: no legal plan of 20 models")


def _attempt(rng: random.Random, shipped: ModelSpec) -> plans.Case | None:
    model = varied_model(short_model(shipped, rng), rng)
    precision: Precision = rng.choice([*["bf16"] * 4, *CHIPS])
    found = random_attempt(rng, [model], CHIPS[precision], precision)
    if found is None:
        return None
    problem, plan = found
    problem = problem.model_copy(
        update={
            "stack": problem.stack.model_copy(update=_software(rng)),
            "workload": problem.workload.model_copy(update={"precision": precision}),
        }
    )
    return problem, _varied_plan(problem, plan, rng)


def short_model(model: ModelSpec, rng: random.Random) -> ModelSpec:
    """The first layers of a model, with all its kinds where they come early, and few experts."""
    model = plans.few_experts(model)
    count = min(rng.randint(4, 16), model.num_layers)
    update: dict[str, Any] = {"id": f"{model.id}-short", "num_layers": count, "published_params": None}
    if model.hybrid is not None:
        pattern = model.hybrid.pattern[:count]
        needed = (model.hybrid.prediction_pattern or "") + ("E" if model.moe is not None else "")
        pattern += "".join(c for c in dict.fromkeys(needed) if c not in pattern)
        update |= {"num_layers": len(pattern), "hybrid": model.hybrid.model_copy(update={"pattern": pattern})}
    if model.linear_attention is not None:
        pattern = model.linear_attention.pattern[:count]
        update["linear_attention"] = model.linear_attention.model_copy(update={"pattern": pattern})
    return ModelSpec.model_validate(model.model_copy(update=update).model_dump())


def varied_model(model: ModelSpec, rng: random.Random) -> ModelSpec:
    """A change or none of what launch files state of a network."""
    update: dict[str, Any] = {}
    if rng.random() < 0.2:
        update["tied_embeddings"] = not model.tied_embeddings
    if rng.random() < 0.2 and model.mla is None and model.hybrid is None:
        update["qk_norm"] = not model.qk_norm
    if rng.random() < 0.2 and model.hybrid is None:
        update["mtp_num_layers"] = rng.choice([0, 1, 2])
    if rng.random() < 0.2:
        update["constants"] = model.constants.model_copy(
            update={"unrotated_every": rng.choice([None, 2, 3]), "rotates_neighbours": rng.random() < 0.5}
        )
    if rng.random() < 0.3:
        update["vocab_size"] = rng.choice([1000, 32000, 50257, 65536, 128256, 151936])
    if rng.random() < 0.2 and model.moe is None and model.hybrid is None:
        update["linear_bias"] = rng.choice(["none", "all", "qkv"])
        update["activation"], update["gated_mlp"] = rng.choice(
            [("gelu", False), ("squared-relu", False), ("silu", True), ("swiglu-clamped", True)]
        )
        update["normalization"] = rng.choice(["rms", "layer"])
    moe = model.moe
    if moe is not None and rng.random() < 0.4:
        changes: dict[str, Any] = {
            "capacity_factor": rng.choice([None, 1.0, 1.25]),
            "top_k": rng.choice([1, 2, moe.top_k]),
            "first_dense_layers": moe.first_dense_layers
            if model.hybrid is not None
            else rng.choice([0, 1, 2]),
        }
        changes["pad_to_capacity"] = changes["capacity_factor"] is not None and rng.random() < 0.5
        if model.hybrid is None and not model.ffn_hidden_size:
            update["ffn_hidden_size"] = 1024
        update["moe"] = moe.model_copy(update=changes)
        update["constants"] = update.get("constants", model.constants).model_copy(
            update={"expert_groups": None, "groups_visited": None, "group_experts": None}
        )
    try:
        return ModelSpec.model_validate(model.model_copy(update=update).model_dump())
    except ValueError:
        return model


def _software(rng: random.Random) -> dict[str, Any]:
    """Software that a launch file states in arguments."""
    return {
        "flash_attention": rng.random() < 0.85,
        "fused_cross_entropy": rng.random() < 0.2,
        "loss_bytes_per_logit": rng.choice([None, 6.0]),
        "dp_overlap": rng.random() < 0.7,
        "gradient_bytes": rng.choice([2.0, 4.0, 4.0]),
        "scattered_gradient_bytes": rng.choice([2.0, 4.0]),
        "gradient_accumulation_fusion": rng.random() < 0.7,
        "moe_permute_fusion": rng.random() < 0.7,
        "moe_router_fusion": rng.random() < 0.3,
        "moe_dispatcher": rng.choice(["alltoall", "deduplicating"]),
        "dispatcher_library": rng.choice(["deepep", "hybridep"]),
        "pads_narrow_experts": rng.random() < 0.3,
        "ep_overlap": rng.random() < 0.3,
        "narrow_parameters": rng.random() < 0.3,
        "current_scaling": rng.random() < 0.3,
        "tp_userbuffers": rng.random() < 0.2,
        "bucket_parameters": rng.choice([None, 5e7]),
        "optimizer_shard_size": rng.choice([None, None, 2, 4]),
        "cp_exchange": rng.choice(["p2p", "all_gather", "a2a", "a2a+p2p"]),
    }


def _varied_plan(problem: Problem, plan: Plan, rng: random.Random) -> Plan:
    """The same layers with another schedule, sharding, order of ranks and recomputation."""
    update: dict[str, Any] = {"dp_mode": rng.choice(["distopt", "distopt", "ddp", "zero2", "fsdp"])}
    if plan.virtual_stages > 1 and rng.random() < 0.5:
        update["microbatch_group_size"] = rng.randint(
            plan.pipeline_parallel, max(plan.num_microbatches, plan.pipeline_parallel)
        )
    if problem.model.moe is not None:
        degree = rng.choice([1, plan.tensor_parallel, 2])
        update["expert_tensor_parallel"] = degree
    if problem.model.mtp_num_layers and plan.pipeline_parallel > 2 and rng.random() < 0.5:
        update["prediction_stage"] = plan.pipeline_parallel - 2
    if rng.random() < 0.15:
        update["rank_order"] = "tp-cp-ep-pp-dp"
        hosts = tuple(dict.fromkeys(host for stage in plan.stages for host in stage.hosts))
        plan = plan.model_copy(
            update={"stages": tuple(s.model_copy(update={"hosts": hosts}) for s in plan.stages)}
        )
    if rng.random() < 0.5:
        known = get_args(SelectiveModule)
        update["recompute_modules"] = tuple(rng.sample(known, rng.choice([1, 2, 3])))
    update["stages"] = tuple(_in_pieces(stage, rng) for stage in plan.stages)
    return plan.model_copy(update=update)


def _in_pieces(stage: Stage, rng: random.Random) -> Stage:
    if stage.recompute != "full" or rng.random() < 0.6:
        return stage
    whole = stage.longest_chunk
    if whole < 2:
        return stage
    return stage.model_copy(update={"recompute_layers": whole, "recompute_piece": rng.randint(2, whole)})
