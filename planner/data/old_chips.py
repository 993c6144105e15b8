"""Chips that are too old for attention in one kernel, which keep its scores in memory instead."""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.problem import Problem

FUSED_FROM = 8.0
"""CUDA compute capability from which Transformer Engine has attention in one kernel; else it keeps scores.

Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/attention/dot_product_attention/
utils.py, `get_attention_backend`: neither FlashAttention nor cuDNN's below sm80. Each process asks it of its
own chip, as Megatron-LM leaves the choice to it (`_set_attention_backend` of megatron-core 0.19.2,
core/models/common/language_module/language_module.py: `auto` allows all three backends).
"""

LATENT_FROM, WIDEST_BEFORE = 9.0, 128
"""The same for latent attention whose queries and keys are wider than that: FlashAttention-2 takes none whose
values are narrower, cuDNN's trains such from Hopper on.

Source: the same, and transformer_engine/common/fused_attn/fused_attn.cpp, `nvte_get_fused_attn_backend`.
"""


def fuses_from(model: ModelSpec) -> float:
    """CUDA compute capability from which a model's attention is one kernel."""
    mla = model.mla
    wide = mla is not None and mla.qk_nope_head_dim + mla.qk_rope_head_dim > WIDEST_BEFORE
    return LATENT_FROM if wide else FUSED_FROM


def is_too_old(problem: Problem, class_index: int) -> bool:
    """Whether software that fuses attention keeps its scores all the same on a node class, whose chip has no
    such kernel. Never where the software names an older kernel of its own."""
    capability = problem.chip_of(class_index).compute_capability
    if capability is None or problem.stack.attention_kernel != "newest":
        return False
    return problem.stack.flash_attention and capability < fuses_from(problem.model)
