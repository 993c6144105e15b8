"""Products on chips whose power limit sets the rate of long ones.

Measured in a loop on one H100 and one H200, the isolated kernel's latency tells how long a short product
takes, but nothing of one beyond 3e11 FLOP: chips lower their clock until they draw what they may, and all
kernels reach the same rate (`relations.csv`, long_*_tflop_per_s: 156 products of every shape, 4% mean
deviation; 5% from the isolated latencies times their median ratio). Products of few bits reach about twice
that rate; writing the output, which does not shrink, costs those of small depth more of it (fp8_over_bf16,
fp8_output_depth: 28 products, 5% mean deviation, while their isolated latencies, of kernels that nobody had
tuned, say nothing: correlation 0.0).

How much power a chip needs for a clock differs from chip to chip, so that a job waits for its slowest one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from planner.cost.kernels import tables
from planner.cost.kernels.products import Products
from planner.cost.kernels.relatives import Relative
from planner.cost.prices import Floats
from planner.data.chip import Chip
from planner.units import TFLOP, format_percent

SHORT_FLOP, LONG_FLOP = 1e11, 3e11
"""Work of the longest products that keep their kernel's pace, and of the shortest at the limit's; between
them the one passes into the other. Read off those 156 products (benchmarks/compact_tables.py)."""


def in_a_loop_s(table: str, latency_s: Floats, products: Products, scale: float) -> Floats:
    """Latency of 16-bit products in a training loop, array [pass, product, choice] in seconds.

    Parameters
    ----------
    latency_s
        The same from isolated kernels, were there no limit [s].
    scale
        Latency of long products over that on the table's chip.
    """
    share = products.once("share of the limit", lambda: _limit_share(products.flop))
    limited_s = scale * products.once(("at the limit", table), lambda: _limited_s(table, products))
    found: Floats = latency_s * (limited_s / latency_s) ** share
    return found


def _limit_share(flop: Floats) -> Floats:
    """How far products have passed from their kernel's pace to the limit's, in logarithms."""
    share = np.log(flop / SHORT_FLOP) / math.log(LONG_FLOP / SHORT_FLOP)
    return np.minimum(np.maximum(share, 0.0), 1.0)


def _limited_s(table: str, products: Products) -> Floats:
    """Latency of products at the limit's pace, array [pass, product, choice] in seconds."""
    forward, dgrad = (
        TFLOP * tables.relation(table, "gemm", f"long_{name}_tflop_per_s") for name in ("forward", "dgrad")
    )
    wgrad = TFLOP * tables.gemm_relation(table, "long_wgrad_tflop_per_s", products.m)
    flop = products.flop
    return np.array([flop / forward, flop / dgrad, flop / wgrad])


def narrow_shares(table: str, products: Products) -> Floats:
    """Latency of products of 8 bits, one scale a tensor, over 16 bits, array [pass, product, choice]."""
    depths = np.array([products.k, products.n, products.m])
    deep, output = (tables.relation(table, "gemm", name) for name in ("fp8_over_bf16", "fp8_output_depth"))
    return deep * (1 + output / depths)


CHIP_SPREAD = 0.08 / 5.4
"""Standard deviation of the rate of chips of one kind over its mean: between the ends of a box plot's
whiskers, 5.4 standard deviations of a normal distribution, lie 8% in the mean of five clusters (arXiv
2208.11035, abstract; that chips are distributed normally, and newer ones no closer, are guesses)."""


def slowest_of(relative: Relative, chip: Chip, num_chips: int) -> Relative:
    """The measured chip as slow as the slowest of so many that wait for each other.

    The largest of n normal values is expected at the quantile (n - 3/8) / (n + 1/4) (Blom). The one chip that
    was measured is taken for a middling one.
    """
    if not relative.power_limited or relative.capped or num_chips == 1:
        return relative
    slowdown = 1 + CHIP_SPREAD * NormalDist().inv_cdf((num_chips - 0.375) / (num_chips + 0.25))
    limits = (relative.sustained_flop_per_s, relative.sustained_16_bit_flop_per_s)
    limit, of_16_bit = (None if rate is None else rate / slowdown for rate in limits)
    behind = format_percent(slowdown - 1)
    note = f"{chip.id}: the slowest of {num_chips:,} sets the pace, {behind} behind a usual one (guess)"
    return replace(
        relative,
        compute_scale=relative.compute_scale * slowdown,
        rest_scale=relative.rest_scale * slowdown,
        sustained_flop_per_s=limit,
        sustained_16_bit_flop_per_s=of_16_bit,
        assumptions=(*relative.assumptions, note),
    )
