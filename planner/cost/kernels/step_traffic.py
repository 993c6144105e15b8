"""Bytes that gradients and the optimizer's state move once a step, beside their collectives."""

from __future__ import annotations

from planner.cost.elementwise import Values, where
from planner.cost.memory.passing_gradients import step_copy_share
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack

OPTIMIZER_SHARD_BYTES = 34.0
"""Bytes moved for each parameter of the own shard: Adam reads and writes master weight and two moments and
reads the gradient (28), writes the 16-bit weight (6)."""

CLIP_BYTES = 12.0
"""And to take the norm of its gradient (4) and clip it (8)."""

UNSCALE_BYTES = 8.0
"""And in fp16, where losses are scaled, to take the scale off its fp32 gradient and look for overflows
(_amp_foreach_non_finite_check_and_unscale_ in megatron/optimizer/optimizer.py of 2022; unscale_and_clip_grads
in deepspeed/runtime/fp16/fused_optimizer.py)."""

WIDE_GRADIENT_BYTES = 4.0
"""A gradient in fp32: written where its sum is narrower, read and written again to be joined with others."""

OPTIMIZER_RATE = 0.83
"""Rate of a fused AdamW over that of copies: 28 bytes for each of 500 million parameters took 5.68 ms on one
H100 (`instances/tables/README.md`)."""

ZERO_GRADIENT_BYTES = 4.0
"""Bytes written to clear a gradient, for each parameter of the rank or, where it keeps no more, its shard."""


def whole_gradient_bytes(stack: SoftwareStack, s: Sizes, precision: Precision) -> Values:
    """Bytes that passes over gradients move for each parameter of a rank before and after they are reduced.

    Megatron-LM core takes the norm of a bucket whatever the ranks, then divides experts' gradients by the
    same number as all others (check_grads and start_grad_sync of core/distributed/param_and_grad_buffer.py).
    In fp16 infinities tell the loss scaler to lower its scale, and nothing is checked (validate_args of
    megatron/training/arguments.py). That the host waits for each norm is left out.
    """
    checked = stack.gradient_bytes if stack.gradients_checked and precision != "fp16" else 0.0
    divided = 2 * stack.gradient_bytes if stack.gradients_divided_apart else 0.0
    copied = 4 * stack.gradient_bytes if stack.gradient_buckets_copied else 0.0
    if not divided and not copied:
        return checked
    return checked + where(s.gradient_ranks > 1, divided + copied, 0.0)


def step_bytes(stack: SoftwareStack, dp_mode: str, precision: Precision) -> float:
    """Bytes of the optimizer's step for each parameter of its shard, as many as copies of that time move."""
    if stack.optimizer_step_bytes is not None:
        return stack.optimizer_step_bytes
    moved = OPTIMIZER_SHARD_BYTES + (CLIP_BYTES if stack.clips_gradients else 0.0)
    if precision == "fp16":
        moved += UNSCALE_BYTES
    if step_copy_share(stack, dp_mode):
        moved += stack.gradient_bytes + WIDE_GRADIENT_BYTES
    if stack.joined_gradient_bytes:
        moved += 2 * WIDE_GRADIENT_BYTES
    return moved / OPTIMIZER_RATE
