"""Flags that contradict one another, so that Megatron-LM stops before it builds anything.

What degrees, batch and layers break is the rules' to say; here is what a command line alone shows. Sources:
megatron-core 0.19.2, `megatron/training/arguments.py` (`validate_args`) and
`megatron/core/transformer/transformer_config.py` (`__post_init__`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import get_args

from planner.data.attention_kernels import keeps_scores, why_scores_are_kept
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.stack import SelectiveModule
from planner.launchers.read.flags import Flags

_MODULES = {*get_args(SelectiveModule)}
_SHARDED = ("--use-distributed-optimizer", "--use-megatron-fsdp", "--use-custom-fsdp", "--use-torch-fsdp2")
_VIRTUAL = ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank")


def refusals_of(flags: Flags) -> Iterator[str]:
    """A sentence for each contradiction: what Megatron-LM refuses, and the way out."""
    yield from _of_formats(flags)
    yield from _of_recomputation(flags)
    yield from _of_overlap(flags)
    yield from _of_experts(flags)
    yield from _of_attention(flags)
    others = [flag for flag in ("--quick-geglu", "--squared-relu") if flag in flags]
    if "--swiglu" in flags and others:
        yield f"--swiglu with {others[0]}: Megatron-LM takes one of them; leave the other out"


def attention_refusals(problem: Problem, plan: Plan, flags: Flags) -> Iterator[str]:
    """Attention in one kernel and no other, where chips of the plan have none: the first forward stops.

    Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/attention/dot_product_attention/
    dot_product_attention.py: "No dot product attention backend is available for the provided inputs".
    """
    asked = flags.text("--attention-backend", "auto")
    used = {name for stage in plan.stages for name, _, _ in stage.places}
    classes = enumerate(problem.cluster.classes)
    for c, one in classes if asked in ("flash", "fused") else ():
        if one.name in used and keeps_scores(problem, c):
            yield (
                f"--attention-backend {asked} on chips of class {one.name}, which have no attention in one "
                f"kernel ({why_scores_are_kept(problem, c)}); take auto"
            )


def _of_formats(flags: Flags) -> Iterator[str]:
    if "--bf16" in flags and "--fp16" in flags:
        yield "--bf16 with --fp16: Megatron-LM takes one of them; leave the other out"
    length = flags.number("--seq-length")
    longest = flags.number("--max-position-embeddings", length)
    if longest < length:
        yield f"--max-position-embeddings {longest} is below --seq-length {length}; raise it to that"


def _of_recomputation(flags: Flags) -> Iterator[str]:
    kind = flags.text("--recompute-granularity", "none")
    method = flags.text("--recompute-method", "none")
    if kind == "full" and method not in ("uniform", "block"):
        yield f"--recompute-granularity full with --recompute-method {method}; add uniform or block"
    if kind == "selective" and method != "none":
        yield f"--recompute-method {method} with selective recomputation, which has none; leave it out"
    modules = flags.values.get("--recompute-modules", ())
    if unknown := [name for name in modules if name not in _MODULES]:
        known = ", ".join(sorted(_MODULES))
        yield f"--recompute-modules {' '.join(unknown)}: no such module; there are {known}"
    if "mla_up_proj" in modules and "--multi-latent-attention" not in flags:
        yield "--recompute-modules mla_up_proj without --multi-latent-attention; leave the module out"
    if "--distribute-saved-activations" in flags and "--sequence-parallel" in flags:
        yield "--distribute-saved-activations with --sequence-parallel, which shares them; leave it out"
    if "moe_act" in modules and "--moe-grouped-gemm" not in flags:
        yield "--recompute-modules moe_act without --moe-grouped-gemm; add that, or leave the module out"


def _of_overlap(flags: Flags) -> Iterator[str]:
    if "--overlap-param-gather" in flags:
        if not any(flag in flags for flag in _SHARDED) and flags.text("--optimizer", "adam") == "adam":
            yield "--overlap-param-gather without --use-distributed-optimizer, whose gathers it means; add it"
        if "--overlap-grad-reduce" not in flags:
            yield "--overlap-param-gather without --overlap-grad-reduce; add that"
    if "--tp-comm-overlap" in flags and "--sequence-parallel" not in flags:
        yield "--tp-comm-overlap without --sequence-parallel; add that"
    stages = flags.number("--pipeline-model-parallel-size", 1)
    virtual = [flag for flag in _VIRTUAL if flag in flags]
    if virtual and "--no-overlap-p2p-communication" in flags and stages == 2:
        yield "virtual stages on 2 pipeline ranks with --no-overlap-p2p-communication; leave that out"
    if len(virtual) > 1:
        yield f"{' with '.join(virtual)}: each says how many virtual stages there are; give one of them"


def _of_experts(flags: Flags) -> Iterator[str]:
    if "--num-experts" not in flags:
        return
    if "--moe-pad-expert-input-to-capacity" in flags and "--moe-expert-capacity-factor" not in flags:
        yield "--moe-pad-expert-input-to-capacity without --moe-expert-capacity-factor, up to which it pads"
    scores = flags.text("--moe-router-score-function", "softmax")
    if "--moe-router-enable-expert-bias" in flags and scores == "softmax":
        yield "--moe-router-enable-expert-bias on a softmax; add --moe-router-score-function sigmoid"
    experts, groups = flags.number("--num-experts"), flags.number("--moe-router-num-groups", 1)
    if experts % groups:
        yield f"--moe-router-num-groups {groups} does not divide the {experts} experts; take a divisor"
    gathered = flags.text("--moe-token-dispatcher-type", "allgather") == "allgather"
    if "--moe-shared-expert-overlap" in flags and gathered:
        yield "--moe-shared-expert-overlap with --moe-token-dispatcher-type allgather; take alltoall or flex"
    if "--overlap-moe-expert-parallel-comm" in flags:
        stages = flags.number("--pipeline-model-parallel-size", 1)
        by_layout = flags.text("--pipeline-model-parallel-layout", "").count("|") + 1 > stages
        if stages > 1 and not by_layout and not any(flag in flags for flag in _VIRTUAL):
            yield "--overlap-moe-expert-parallel-comm with several stages needs virtual ones; add 2 a rank"
        if flags.text("--recompute-granularity", "none") == "full":
            yield "--overlap-moe-expert-parallel-comm with whole layers recomputed; leave one of the two out"


def _of_attention(flags: Flags) -> Iterator[str]:
    if "--multi-latent-attention" in flags and "--group-query-attention" in flags:
        yield "--group-query-attention with --multi-latent-attention, which has no such groups; leave it out"
    if "a2a+p2p" in flags.values.get("--cp-comm-type", ()):
        cp = flags.number("--context-parallel-size", 1)
        sizes = flags.values.get("--hierarchical-context-parallel-sizes", ())
        if prod(int(size) for size in sizes if size.isdecimal()) != cp:
            yield (
                f"--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes whose product is {cp}: "
                "ranks that exchange heads, then rings of them"
            )
