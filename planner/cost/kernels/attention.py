"""Time of core attention: measured by length, heads and width, with its backward as training was timed."""

from __future__ import annotations

import math

from planner.cost.elementwise import Values, maximum, minimum
from planner.cost.kernels import tables
from planner.cost.kernels.operators import HALF, attention_dims
from planner.cost.kernels.relatives import Relative
from planner.cost.kernels.scaled import attention_on_chip_s
from planner.cost.sizes import Sizes, context_levels
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack

FLASH2_ON_HOPPER = (1.95, 1.66)
"""Time of FlashAttention-2, forward and backward, over that of cuDNN's attention on Hopper: medians over 58
shapes measured with both on one H100 (1.94, 1.64) and one H200 (1.97, 1.69); `instances/tables/README.md`."""

MXFP8_ON_BLACKWELL = (0.668, 0.708)
"""Time of cuDNN's attention in MXFP8, forward and backward, over that in 16 bits: medians over 2,048 to
32,768 tokens of DeepSeek-V3's heads on GB300 (0.651 to 0.678, 0.658 to 0.803; NVIDIA/cudnn-frontend, commit
bdfff66, benchmark/sdpa_benchmark_training/results/dsv3). Other heads are taken to gain as much."""

MXFP8_CAST_BYTES = HALF + 2 * 33 / 32
"""Bytes that the cast of one value for it moves: read in 16 bits, written along both dimensions with a scale
for 32 values."""

KERNEL_SLOWDOWN = {
    "newest": ((1.0, 1.0), (1.0, 1.0)),
    "mxfp8": (MXFP8_ON_BLACKWELL, MXFP8_ON_BLACKWELL),
    "flash2": ((1.0, 1.0), FLASH2_ON_HOPPER),
    "flash1": ((2.0, 2.0), (2.0 * FLASH2_ON_HOPPER[0], 2.0 * FLASH2_ON_HOPPER[1])),
    "triton": ((1.9, 1.9), (1.9 * FLASH2_ON_HOPPER[0], 1.9 * FLASH2_ON_HOPPER[1])),
}
"""Time of older fused attention over that of the measured kernels: (forward, backward) where the chip's best
kernel is FlashAttention-2 (Ampere), and where kernels of its own generation were measured (Hopper and later).
FlashAttention-2 is 2 times FlashAttention (arXiv 2307.08691, abstract) and 1.3 to 2.5 times its Triton form
(section 4.1), of which the middle is taken."""

QUERY_BLOCK = 128.0
"""Queries that fused attention takes at once, with whole blocks of keys (Dao-AILab/flash-attention,
hopper/tile_size.h: 128 of most widths of heads, 192 of narrow ones on Hopper)."""

SHORTEST_MEASURED = 1024.0
"""Tokens of the shortest sequences of the tables."""

AMPERE = ("a100_sxm",)
"""Tables whose attention was FlashAttention-2."""


def attention_times(
    relative: Relative, model: ModelSpec, sizes: Sizes, stack: SoftwareStack, domain_chips: float
) -> tuple[Values, Values]:
    """Forward and backward of fused causal attention of one layer [s].

    With context parallelism over a ring, a rank works on c blocks of its own length, each with the work
    of a causal block of that length; with exchanged heads it works on the whole sequence with 1/c heads.
    """
    s = sizes
    query_dim, value_dim = attention_dims(model)
    head_dim = (query_dim + value_dim) / 2
    heads = s.microbatch_size * model.num_attention_heads / s.tp
    inner, outer = context_levels(stack, sizes, domain_chips)
    seq, heads, blocks = s.seq_length / outer, heads / inner, outer
    forward = blocks * _attention_s(relative, seq, maximum(heads, 1.0), head_dim)
    if visible_fraction(model, s.seq_length) < 1.0:
        windowed = _windowed_s(relative, model, s.seq_length, seq, maximum(heads, 1.0), head_dim)
        share_global = _share_global(model)
        forward = share_global * forward + (1 - share_global) * minimum(windowed, forward)
    measured, kind = relative.measured.training, ""
    if model.mla is not None and relative.measured.latent_attention is not None:
        measured, kind = relative.measured.latent_attention, "latent_"
    relation = tables.attention_relation(measured, f"{kind}forward", seq)
    # Both products of queries with keys and with values, of half of the pairs.
    flop = blocks * 2 * maximum(heads, 1.0) * seq * seq * head_dim * visible_fraction(model, s.seq_length)
    forward = attention_on_chip_s(relative, forward * relation, flop)
    backward = forward * tables.attention_relation(measured, f"{kind}backward_over_forward", seq)
    older = KERNEL_SLOWDOWN[stack.attention_kernel][relative.measured.table not in AMPERE]
    forward, backward = forward * older[0], backward * older[1]
    if stack.attention_kernel != "mxfp8":
        return forward, backward
    # Queries, keys and values are cast first, and in the backward the output's gradient.
    rank_heads = model.num_attention_heads / s.tp
    groups = rank_heads if model.mla is not None else maximum(model.num_query_groups / s.tp, 1.0)
    read = s.tokens * (rank_heads * query_dim + groups * (query_dim + value_dim))
    cast_s = MXFP8_CAST_BYTES / relative.memory_bytes_per_s
    return forward + cast_s * read, backward + cast_s * s.tokens * rank_heads * value_dim


def _attention_s(relative: Relative, seq: Values, heads: Values, head_dim: float) -> Values:
    """Isolated forward, interpolated between the measured head widths; beyond them proportional."""
    table = relative.measured.table
    dims = tables.attention_head_dims(table)
    if head_dim <= dims[0] or head_dim >= dims[-1]:
        nearest = dims[0] if head_dim <= dims[0] else dims[-1]
        return tables.attention_s(table, nearest, seq, heads) * (head_dim / nearest)
    above = next(d for d in dims if d >= head_dim)
    below = max(d for d in dims if d <= head_dim)
    low = tables.attention_s(table, below, seq, heads)
    if above == below:
        return low
    high = tables.attention_s(table, above, seq, heads)
    weight = math.log(head_dim / below) / math.log(above / below)
    return low ** (1 - weight) * high**weight


def _windowed_s(
    relative: Relative, model: ModelSpec, seq_length: float, tokens: Values, heads: Values, head_dim: float
) -> Values:
    """Isolated forward of a layer with a sliding window [s].

    A block of queries visits the keys of its window and its own, whole blocks of them. It goes at the pace of
    sequences whose blocks visit as many in the mean, or of the shortest measured.

    Parameters
    ----------
    tokens
        Queries of a sequence on one rank.
    """
    window = float(model.sliding_window or seq_length)
    first = window * (window + QUERY_BLOCK) / 2
    visited = (first + (seq_length - window) * (window + QUERY_BLOCK)) / seq_length
    length = max(2 * visited - QUERY_BLOCK, SHORTEST_MEASURED)
    once = _attention_s(relative, length, heads * tokens / length, head_dim)
    return once * visited / ((length + QUERY_BLOCK) / 2)


def _share_global(model: ModelSpec) -> float:
    """Share of the layers that see all former tokens, of a model with windows."""
    return 1.0 / model.global_layer_every if model.global_layer_every > 1 else 0.0


def visible_fraction(model: ModelSpec, seq_length: float) -> float:
    """Share of the causal scores that a layer computes, averaged over local and global layers."""
    if model.sliding_window is None or model.sliding_window >= seq_length:
        return 1.0
    window = float(model.sliding_window)
    local = (window * seq_length - window * window / 2) / (seq_length * seq_length / 2)
    share_global = _share_global(model)
    return share_global + (1 - share_global) * local
