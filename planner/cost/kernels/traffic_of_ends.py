"""Bytes that the memory-bound operators of a model's ends move: the embedding, and the head with its loss.

Each kernel reads its inputs and writes its outputs once, as in `traffic.py`.
"""

from __future__ import annotations

from planner.cost.elementwise import Values, where
from planner.cost.kernels.operators import HALF
from planner.cost.kernels.traffic import Traffic
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack

FUSED_LOSS_BYTES, PLAIN_LOSS_BYTES = (8.0, 4.0), (38.0, 14.0)
"""Bytes that a loss moves for each logit, forward and backward; counted by hand (`head_traffic`)."""

FP32_LOSS_BYTES = (14.0, 14.0)
"""Bytes that a fused loss moves for each logit that is cast to fp32, forward and backward: cast 6, read twice
8; read and overwritten by its gradient 8, that cast 6."""


def head_traffic(model: ModelSpec, stack: SoftwareStack, vocab: Values, sizes: Sizes) -> Traffic:
    """Final norm, and the cross-entropy over logits.

    Fused: one pass over 16-bit logits forward (read twice, write once), none backward but a scaling.
    Not fused: Megatron's vocab-parallel loss copies to fp32, takes the maximum, subtracts, exponentiates,
    sums and divides, 38 bytes a logit; backward scales (8) and casts (6), 14 bytes
    (core/tensor_parallel/cross_entropy.py, counted by hand). Ranks that gather all logits copy them in order
    first, and their share of the gradient at last.
    """
    s = sizes
    norm = s.norm_tokens * model.hidden_size
    logits = s.tokens * vocab / s.tp
    forward: Values
    backward: Values
    forward, backward = FUSED_LOSS_BYTES if stack.fused_cross_entropy else PLAIN_LOSS_BYTES
    if stack.fused_cross_entropy and stack.loss_in_fp32:
        forward, backward = FP32_LOSS_BYTES
    if stack.whole_loss_bytes_per_logit is not None:
        whole, again = FUSED_LOSS_BYTES
        forward, backward = where(s.tp > 1, forward, whole), where(s.tp > 1, backward, again)
    forward += stack.metric_bytes_per_logit
    if stack.gathers_logits:
        forward = where(s.tp > 1, (forward + 2 * HALF) * s.tp, forward)
        backward = where(s.tp > 1, backward * s.tp + 2 * HALF, backward)
    return Traffic(norm * 2 * HALF + logits * forward, norm * 3 * HALF + logits * backward)


def embedding_traffic(model: ModelSpec, sizes: Sizes) -> Traffic:
    """Rows read and written; backward their gradients are read and added at random places."""
    values = sizes.tokens * model.hidden_size
    return Traffic(values * 2 * HALF, values * 3 * HALF)
