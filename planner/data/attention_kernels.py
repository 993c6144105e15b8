"""Chips on which attention is no single kernel, so that its scores are kept in memory instead.

Megatron-LM leaves the choice to Transformer Engine (`_set_attention_backend` of megatron-core 0.19.2,
core/models/common/language_module/language_module.py: `auto` allows all of its attentions), which each
process asks for the best that its own chip has.
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem

FUSED_FROM = 8.0
"""CUDA compute capability below which there is none."""

WIDEST_OF_CUDNN, WIDEST_OF_FLASH = 128, 192
"""Values of a head up to which cuDNN's and FlashAttention-2 train on all chips from there on."""

LATENT = ((9.0, 10.0), (10.0, 12.0))
"""Compute capabilities, from one and below the next, on which cuDNN trains wider heads whose values are
narrower than their queries: any such, and those of `OF_DEEPSEEK`."""

OF_DEEPSEEK = 192, 128
"""Values of a query and of a value."""

WIDE_FLASH = (8.0, 9.0, 10.0, 12.0)
"""Compute capabilities on which FlashAttention-2 takes still wider heads."""


def has_fused_attention(model: ModelSpec, capability: float) -> bool:
    """Whether a model's attention is trained in one kernel on a chip of a CUDA compute capability.

    Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/attention/dot_product_attention/
    utils.py, `get_attention_backend`; transformer_engine/common/fused_attn/fused_attn.cpp,
    `nvte_get_fused_attn_backend`.
    """
    queries, values = model.head_widths
    if capability < FUSED_FROM:
        return False
    if max(queries, values) <= WIDEST_OF_CUDNN:
        return True
    if queries != values:
        any_width, of_deepseek = (least <= capability < end for least, end in LATENT)
        return any_width or (of_deepseek and (queries, values) == OF_DEEPSEEK)
    return queries <= WIDEST_OF_FLASH or capability in WIDE_FLASH


def keeps_scores(problem: Problem, class_index: int) -> bool:
    """Whether software that fuses attention does not on a node class, whose chip lacks the kernel.

    Never where the software names an older kernel of its own.
    """
    stack, capability = problem.stack, problem.chip_of(class_index).compute_capability
    if capability is None or not stack.flash_attention or stack.attention_kernel != "newest":
        return False
    return not has_fused_attention(problem.model, capability)


def why_scores_are_kept(problem: Problem, class_index: int) -> str:
    """What of a chip and a model has no kernel, in a few words."""
    capability = problem.chip_of(class_index).compute_capability
    return f"compute capability {capability:g}, heads of {problem.model.head_widths[0]} values"
