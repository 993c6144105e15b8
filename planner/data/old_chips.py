"""Chips that are too old for attention in one kernel, and what a run with them does instead."""

from __future__ import annotations

from planner.data.precision import chip_supports
from planner.data.problem import Problem

FUSED_FROM = 8.0
"""CUDA compute capability from which Transformer Engine has attention in one kernel; else it keeps scores.

Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/attention/dot_product_attention/
utils.py, `get_attention_backend`: neither FlashAttention nor cuDNN's below sm80.
"""

LATENT_FROM, WIDEST_BEFORE = 9.0, 128
"""The same for latent attention whose queries and keys are wider than that: FlashAttention-2 takes none whose
values are narrower, cuDNN's trains such from Hopper on.

Source: the same, and transformer_engine/common/fused_attn/fused_attn.cpp, `nvte_get_fused_attn_backend`.
"""


def with_attention_that_runs(problem: Problem) -> Problem:
    """The problem with scores kept in memory where a chip that may be used has no attention in one kernel.

    On all chips, as the software is one for a run: stages would otherwise be planned in memory that the old
    ones do not have. Left alone where the software names an older kernel of its own.
    """
    stack, spare = problem.stack, problem.options.spare
    if not stack.flash_attention or stack.attention_kernel != "newest":
        return problem
    old, mla = [], problem.model.mla
    wide = mla is not None and mla.qk_nope_head_dim + mla.qk_rope_head_dim > WIDEST_BEFORE
    least = LATENT_FROM if wide else FUSED_FROM
    for i, node_class in enumerate(problem.cluster.classes):
        chip = problem.chip_of(i)
        is_old = chip.compute_capability is not None and chip.compute_capability < least
        if is_old and node_class.name not in spare and chip_supports(chip, problem.workload.precision):
            old.append(node_class.name)
    if not old:
        return problem
    note = (
        f"attention: chips of {', '.join(old)} have none in one kernel (compute capability below "
        f"{least:g}), so that all stages keep their scores; --spare {old[0]} plans without them"
    )
    cluster = problem.cluster
    if note not in cluster.assumptions:
        cluster = cluster.model_copy(update={"assumptions": (*cluster.assumptions, note)})
    stack = stack.model_copy(update={"flash_attention": False})
    return problem.model_copy(update={"stack": stack, "cluster": cluster})
