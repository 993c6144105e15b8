"""What of a network, and of the software that a plan is priced for, a target's launch files cannot state."""

from __future__ import annotations

from planner.data.load import names
from planner.data.problem import Problem, TargetName
from planner.data.stack import SoftwareStack

NATIVE_LOSS_BYTES = 6.0
"""Bytes of a logit in Megatron-LM's own loss, fused or not (core/tensor_parallel/cross_entropy.py)."""

_FUSED_LOSS_BYTES = 4.0
"""What a fused loss is priced at where the software says nothing (`loss_bytes_per_logit`)."""

_WITH_OWN_LOSS: tuple[TargetName, ...] = ("megatron-lm", "flagscale")
"""Targets that start Megatron-LM's training script, which refuses Transformer Engine's loss (core 0.18.2 and
0.19.2, `validate_args`: "disabled due to stability issues")."""

_OTHER_SOFTWARE = frozenset(
    {
        *("amp-deepspeed", "deepspeed-zero", "fms-fsdp", "internevo", "jax", "jax-paxml", "llm-foundry"),
        *("oneflow", "paddlenlp", "pytorch-one-chip", "sailor", "torchtitan"),
    }
)
"""Shipped software that trains without Megatron's code."""


def software_refusals(problem: Problem) -> list[str]:
    """Why no plan of the target would run as it is priced, each in a sentence."""
    found = [
        loss_is_another(problem),
        positions_are_fewer(problem),
        optimizer_is_shared_by_all(problem),
        experts_are_not_padded(problem),
    ]
    return [sentence for sentence in found if sentence is not None]


def loss_is_fused_by_te(stack: SoftwareStack) -> bool:
    """Whether the loss is priced as Transformer Engine's, which holds less than Megatron-LM's own."""
    priced = stack.loss_bytes_per_logit or _FUSED_LOSS_BYTES
    return stack.fused_cross_entropy and priced < NATIVE_LOSS_BYTES


def loss_is_another(problem: Problem) -> str | None:
    """Megatron-LM's training script has its own loss alone, which takes more memory than others."""
    stack = problem.stack
    if problem.target not in _WITH_OWN_LOSS or not loss_is_fused_by_te(stack):
        return None
    priced = stack.loss_bytes_per_logit or _FUSED_LOSS_BYTES
    return (
        f"software {stack.id} has a fused loss of {priced:g} bytes a logit (Transformer Engine's), which "
        f"Megatron-LM refuses; its own takes {NATIVE_LOSS_BYTES:g}: take target megatron-bridge, or stack "
        "megatron-core"
    )


def optimizer_is_shared_by_all(problem: Problem) -> str | None:
    """FlagScale's heterogeneous mode has one instance of the distributed optimizer, of all replicas."""
    size = problem.stack.optimizer_shard_size
    if problem.target != "flagscale" or size is None:
        return None
    return (
        f"software {problem.stack.id} shares the optimizer's state among {size} ranks "
        "(optimizer_shard_size), FlagScale among all replicas of a stage; leave it out, or take target "
        "megatron-lm"
    )


def experts_are_not_padded(problem: Problem) -> str | None:
    """DeepEP hands experts as many tokens as come, whatever their capacity.

    Source: megatron-core 0.19.2, core/transformer/transformer_config.py:1600.
    """
    moe, stack = problem.model.moe, problem.stack
    by_deepep = stack.moe_dispatcher == "deduplicating" and stack.dispatcher_library == "deepep"
    if problem.target == "unrestricted" or moe is None or not moe.pad_to_capacity or not by_deepep:
        return None
    return (
        f"software {stack.id} exchanges tokens by DeepEP, which does not pad the experts of "
        f"{problem.model.id} to their capacity (pad_to_capacity): take dispatcher_library hybridep or "
        "moe_dispatcher alltoall"
    )


def positions_are_fewer(problem: Problem) -> str | None:
    """Megatron-Bridge makes as many learned positions as a sequence has tokens.

    Source: megatron-bridge 0.6.2, models/gpt_provider.py (`max_sequence_length=self.seq_length`).
    """
    model, length = problem.model, problem.workload.seq_length
    if problem.target != "megatron-bridge" or model.position_embedding != "learned":
        return None
    if length >= model.max_position_embeddings:
        return None
    return (
        f"seq_length {length}: Megatron-Bridge makes so many learned positions, {model.id} has "
        f"{model.max_position_embeddings}; take that length, or target megatron-lm"
    )


def told_of_software(problem: Problem, target: str) -> list[str]:
    """What a plan is priced for that its launch files do not start, each in a sentence."""
    told = [other_software(problem, target), graphs_are_not_captured(problem, target)]
    return [sentence for sentence in told if sentence is not None]


def graphs_are_not_captured(problem: Problem, target: str) -> str | None:
    """No launch file asks for CUDA graphs: they hold memory of their own, which is not priced."""
    stack = problem.stack
    if target == "unrestricted" or stack.id in names("stacks"):
        return None
    if stack.captured_modules:
        what = f"lets CUDA graphs launch {', '.join(stack.captured_modules)} (captured_modules)"
    elif stack.host_layer_floor_ms == 0:
        what = "leaves no time for the host's launches (host_layer_floor_ms 0)"
    else:
        return None
    return (
        f"software {stack.id} {what}, but these files do not ask for CUDA graphs, which need memory of "
        "their own: short layers may take longer than predicted"
    )


def other_software(problem: Problem, target: str) -> str | None:
    """A sentence where the plan is priced for software that the launch files do not start."""
    stack = problem.stack.id
    if target == "unrestricted" or stack not in _OTHER_SOFTWARE or stack not in names("stacks"):
        return None
    started = "megatron-bridge" if target == "megatron-bridge" else "megatron-core"
    return (
        f"time and memory are those of software {stack}, which these files do not start: plan with "
        f"--stack {started} for theirs"
    )
