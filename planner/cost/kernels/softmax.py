"""Softmax over score matrices in memory, where attention is no fused kernel: what it launches and keeps.

Megatron-LM's kernel for scale, mask and softmax takes whole blocks of four matrices of up to 4,096 columns
(`is_kernel_available` in core/fusions/fused_softmax.py), Transformer Engine's of fewer than 16,384
(pytorch/attention/dot_product_attention/softmax.py); neither has a column for a sink. Other scores are cast
to fp32, scaled, masked, normalised and cast back by kernels of their own: a rank with two heads and one
sequence, say.
"""

from __future__ import annotations

from planner.cost.elementwise import Flags, Values, where
from planner.cost.kernels.operators import HALF
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack

MATRICES_OF_A_BLOCK = 4
"""Score matrices that one block of the kernel takes, and rows of one that it takes at once
(`is_kernel_available`, above)."""

SHORTEST_ROW = 16
"""Columns of a score matrix beyond which the kernel takes it, up to the stack's `longest_softmax`
(the same)."""

PLAIN_LAUNCHES = {True: 4.0, False: 1.0}
"""Launches of a softmax without the kernel beyond its one, where scores are cast to fp32 and where not:
cast, scaled, masked, cast back (`forward_torch_softmax` of the same file, counted by hand)."""


def is_fused(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Flags:
    """Whether one kernel scales, masks and normalises the scores of a rank."""
    s = sizes
    if not stack.fused_softmax or model.attention_sinks:
        return False
    if not SHORTEST_ROW < s.seq_length <= stack.longest_softmax or s.seq_length % MATRICES_OF_A_BLOCK:
        return False
    return s.microbatch_size * model.num_attention_heads / s.tp % MATRICES_OF_A_BLOCK == 0


def more_launches(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Values:
    """Launches of a layer's forward beyond those of one with fused attention or softmax."""
    if stack.flash_attention:
        return 0.0
    return where(is_fused(model, stack, sizes), 0.0, PLAIN_LAUNCHES[stack.softmax_in_fp32])


def kept_of_a_score(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Values:
    """Bytes that stay of a score: its softmax, in fp32 too where no kernel makes it of 16 bits, and dropout's
    mask and output."""
    plain = 4.0 if stack.softmax_in_fp32 else 0.0
    dropout = 3.0 if stack.has_dropout(model) else 0.0
    return where(is_fused(model, stack, sizes), 0.0, plain) + HALF + dropout


def passing_of_a_score(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Values:
    """Bytes of a score that the backward makes and lets go of, at its fullest.

    The kernel's writes over the gradient of its output, which the products made. Dropout makes that of its
    own. Plain operators in fp32 each read a gradient and write one; in 16 bits likewise.
    """
    plain = 8.0 if stack.softmax_in_fp32 else 2 * HALF
    fused = 2 * HALF if stack.has_dropout(model) and not stack.softmax_drops else HALF
    return where(is_fused(model, stack, sizes), fused, plain)


def passing_bytes(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, gone: Values) -> Values:
    """What the backward of attention over scores in memory holds beside its layer's activations [bytes].

    Parameters
    ----------
    gone
        Activations of what follows attention in the layer, which its backward has let go of [bytes].
    """
    if stack.flash_attention:
        return 0.0
    s = sizes
    scores = s.microbatch_size * model.num_attention_heads / s.tp * s.seq_length * s.seq_length / s.cp
    return scores * passing_of_a_score(model, stack, s) + 2 * s.tokens * model.hidden_size * HALF - gone
