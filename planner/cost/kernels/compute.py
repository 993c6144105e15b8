"""Time of products and memory-bound operators on one chip.

Products: latency of the isolated kernel interpolated over measured shapes, times what a training loop
takes over it (relations.csv), or what the power limit leaves (power_limit.py), never below the time to move
the operands. dgrad and wgrad are their own shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.cost.elementwise import Values
from planner.cost.kernels import tables
from planner.cost.kernels.casts import cast_bytes
from planner.cost.kernels.measured_chips import HOPPER, MeasuredChip
from planner.cost.kernels.operators import HALF, Matmul
from planner.cost.kernels.power_limit import in_a_loop_s, narrow_shares
from planner.cost.kernels.products import Products
from planner.cost.kernels.relatives import (
    SCALED_IN_BLOCKS,
    TIMED_IN_NVFP4,
    Relative,
    sixteen_bit,
    timed_in_nvfp4,
)
from planner.cost.kernels.scaled import on_chip_s
from planner.cost.prices import Floats
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack

PASSES = ("forward", "dgrad", "wgrad")

UNTURNED = ("b200_sxm", "b300_sxm", "gb200", "gb300")
"""Tables of chips whose 8-bit products read operands along either dimension: compute capability 10 and 11
(transformer_engine/pytorch/utils.py, is_non_tn_fp8_gemm_supported)."""

WIDE_WGRAD = ("a100_sxm",)
"""Tables whose wgrad was timed adding to fp32 sums. With a 16-bit output it takes as much over dgrad as on
H100, where it was timed so."""

CAST_SUMS_PER_S = 2.6e11
"""Values of a 16-bit gradient that PyTorch adds to an fp32 sum [1/s]: it casts them one by one, which memory
does not limit. 500 million took 2.05 ms on one H100, 1.81 ms on one H200 (`instances/tables/README.md`); that
other chips make as many, where memory lets them, is a guess."""

SPLIT_ACCUMULATOR = 1.15
"""Latency of 8-bit products whose partial sums are promoted to full precision, over that of fast ones, on
Hopper: "1.1x to 1.2x" (github.com/pytorch/ao, issue 2377). Transformer Engine uses them in both backward
products (_2X_ACC_DGRAD and _2X_ACC_WGRAD); Blackwell has no such mode."""


@dataclass(frozen=True)
class MatmulTimes:
    """Latency of products, one a product [s]; cast of operands included."""

    forward_s: Sequence[Values]
    dgrad_s: Sequence[Values]
    wgrad_s: Sequence[Values]


def matmul_times(
    relative: Relative, products: Products, precision: Precision, stack: SoftwareStack
) -> MatmulTimes:
    """Forward, dgrad and wgrad of several products on one chip; those that are not narrow in 16 bits."""
    times = _times(relative, products, precision, stack)
    # Of a single choice plain numbers, else arrays of axis `choice`.
    return MatmulTimes(*(times[..., 0].tolist() if products.single else map(list, times)))


def _times(relative: Relative, products: Products, precision: Precision, stack: SoftwareStack) -> Floats:
    """Latency of products, array [pass, product, choice] in seconds."""
    if relative.gemm_precision == "bf16" or not products.wide:
        return _pass_times(relative, products, precision, stack)
    first = _pass_times(sixteen_bit(relative), products.in_16_bits, "bf16", stack)
    out = np.empty((len(PASSES), len(products.matmuls), first.shape[-1]))
    out[:, products.wide] = first
    if products.narrow:
        out[:, products.narrow] = _pass_times(relative, products.in_few_bits, precision, stack)
    return out


def in_pieces(
    relative: Relative,
    matmuls: Sequence[Matmul],
    pieces: Values,
    precision: Precision,
    stack: SoftwareStack,
) -> MatmulTimes:
    """The same where every product runs as so many products of fewer tokens, one after the other."""
    parts = [
        replace(
            x,
            m=x.m / pieces,
            count=x.count * pieces,
            own_rows=None if x.own_rows is None else x.own_rows / pieces,
        )
        for x in matmuls
    ]
    if not parts:
        return MatmulTimes([], [], [])
    return matmul_times(relative, Products(parts), precision, stack)


def _pass_times(relative: Relative, products: Products, precision: Precision, stack: SoftwareStack) -> Floats:
    """Latency of products in one format, array [pass, product, choice] in seconds."""
    m, n, k, count, weight = products.m, products.n, products.k, products.count, products.weight
    sums = _sums_factor(stack)
    wide = _table_s(relative.measured.table, "bf16", products)
    at, in_a_loop = products.grouped, _timed_in_a_loop(relative)
    if at or not in_a_loop:
        isolated = _isolated_s(relative, products, wide, sums)
    if in_a_loop:
        latency = _hopper_s(relative, products, wide, sums)
    else:
        latency = isolated * _gemm_factors(relative.measured, relative.gemm_precision, sums)
    apart = [] if _has_grouped_wgrad(relative) else at
    if at:
        joined = isolated[:, at] * _grouped_factors(relative, m[at])
        single = stack.experts_as_single_products and _grouped_training(relative) == "h100_sxm"
        alone = (count[at] == 1) | stack.experts_apart
        joined = np.where(alone, latency[:, at], joined)  # there is nothing to group
        latency[:, at] = np.minimum(joined, latency[:, at]) if single else joined
    if relative.sustained_flop_per_s is not None:
        limited = np.array([1.0, 1.0, sums])[:, None, None] * (products.flop / relative.sustained_flop_per_s)
        if apart:
            limited[2, apart] /= sums
        latency = np.maximum(latency, limited)
    rate = relative.memory_bytes_per_s
    element = 1.0 if relative.gemm_precision.startswith("fp8") else HALF
    moved_s = products.moved_bytes(element, stack.gradient_bytes) / rate
    if apart:
        latency[2, apart] += (2 * stack.gradient_bytes - HALF) * n[apart] * k[apart] / rate
    latency = count * np.maximum(latency, moved_s)
    if relative.gemm_precision != "bf16":
        turned = relative.measured.table not in UNTURNED
        latency = latency + cast_bytes(products, precision, stack, turned=turned) / rate
    if not stack.gradient_accumulation_fusion:
        latency[2] += np.where(weight, count * n * k * gradient_sum_s(relative, stack), 0.0)
    return latency


def gradient_sum_s(relative: Relative, stack: SoftwareStack) -> float:
    """Time to add one more micro-batch's gradient to the sum, by a kernel of its own [s/parameter].

    The gradient is read, the sum read and written. Full sharding has no whole sum: it copies gradients into
    the buffer of their reduction (`sharding.py`).
    """
    if stack.shard_copies != "none":
        return 0.0
    moved_s = (HALF + 2 * stack.gradient_bytes) / relative.memory_bytes_per_s
    return max(moved_s, 1 / CAST_SUMS_PER_S) if stack.gradient_bytes > HALF else moved_s


def _table_s(table: str, precision: str, products: Products) -> Floats:
    """Latency of isolated kernels on a measured chip, array [pass, product, choice] in seconds."""
    grid = tables.gemm_grid(table, precision)
    return products.once(grid, lambda: grid.latency_at_s(products.log_shapes))


def _isolated_s(relative: Relative, products: Products, wide_s: Floats, sums: float) -> Floats:
    """Latency of isolated kernels, array [pass, product, choice] in seconds.

    Parameters
    ----------
    wide_s
        The same in 16 bits on the measured chip [s].
    """
    measured, precision = relative.measured, relative.gemm_precision
    narrower, flop = relative.precision_scale, products.flop
    if precision == "bf16":
        return on_chip_s(relative, wide_s, flop, narrower=narrower)
    narrow = _table_s(measured.table, precision, products)
    if timed_in_nvfp4(measured, precision):
        narrow = narrow * _nvfp4_factors()
    if precision == "fp8" and measured.table in SCALED_IN_BLOCKS:
        narrow = np.minimum(narrow, _table_s(measured.table, "fp8_block", products))
    # Some narrow shapes were measured with kernels that nobody had tuned: 16 bits would be faster.
    wide_over_narrow = _gemm_factors(measured, "bf16", sums) / _gemm_factors(measured, precision, sums)
    narrow = on_chip_s(relative, narrow, flop, precision, narrower)
    return np.minimum(narrow, on_chip_s(relative, wide_s, flop) * wide_over_narrow)


def _timed_in_a_loop(relative: Relative) -> bool:
    """Whether products of its format were timed on Hopper long enough to meet the power limit."""
    hopper = relative.power_limited and relative.measured.table in HOPPER
    return hopper and relative.gemm_precision in ("bf16", "fp8")


def _hopper_s(relative: Relative, products: Products, wide_s: Floats, sums: float) -> Floats:
    """Latency of products on Hopper at its power limit, array [pass, product, choice] in seconds.

    Parameters
    ----------
    wide_s
        That of isolated kernels in 16 bits on the measured chip [s].
    """
    table, factors = relative.measured.table, _gemm_factors(relative.measured, "bf16", 1.0)
    latency = on_chip_s(relative, wide_s, products.flop)
    if relative.capped:
        latency = latency * (factors / factors[0])
    else:
        latency = in_a_loop_s(table, latency * factors, products, relative.compute_scale)
    if relative.gemm_precision == "fp8":
        split = np.array([1.0, SPLIT_ACCUMULATOR, SPLIT_ACCUMULATOR])[:, None, None]
        latency = latency * split * narrow_shares(table, products)
    latency[2] *= sums
    return latency * relative.precision_scale


def _sums_factor(stack: SoftwareStack) -> float:
    """Latency of wgrad with an output as wide as the stack asks for over that with a 16-bit one, on B200.

    Wider ones are asked for where the product adds to the sum itself.
    """
    if stack.gradient_bytes <= HALF or not stack.gradient_accumulation_fusion:
        return 1.0
    return tables.relation("b200_sxm", "gemm", "wgrad_fp32_over_bf16")


@lru_cache(maxsize=64)
def _gemm_factors(measured: MeasuredChip, gemm_precision: str, sums: float) -> Floats:
    """Latency in a training loop over the isolated kernel's, array [pass, 1, 1]."""
    return np.array([_gemm_factor(measured, gemm_precision, name, sums) for name in PASSES])[:, None, None]


@lru_cache(maxsize=1)
def _nvfp4_factors() -> Floats:
    """Latency of NVFP4 products of Transformer Engine over the table's kernels, array [pass, 1, 1]."""
    of = [tables.relation(TIMED_IN_NVFP4[0], "gemm", f"nvfp4_{name}") for name in PASSES]
    return np.array(of)[:, None, None]


def _gemm_factor(measured: MeasuredChip, gemm_precision: str, name: str, sums: float) -> float:
    """Latency in a training loop over the isolated kernel's.

    Where wgrad was timed with a 16-bit output, `sums` makes up for a wider one.
    8-bit products were timed forward on H100 and H200 only: there the other passes keep their 16-bit ratio
    to it; elsewhere narrow products lose in a loop what 16-bit ones do. Where the power limit is known, it
    says the rest, and what was timed in a loop loses nothing more.
    """
    if timed_in_nvfp4(measured, gemm_precision):
        return sums if name == "wgrad" else 1.0
    training = measured.products or measured.training
    source = training if tables.has_relation(training, "gemm", "forward") else "h100_sxm"
    factor = tables.relation(source, "gemm", name)
    if name == "wgrad" and source in ("h100_sxm", "h200_sxm"):
        factor *= sums
    if name == "wgrad" and source in WIDE_WGRAD and sums == 1.0:
        wgrad, dgrad = (tables.relation("h100_sxm", "gemm", of) for of in ("wgrad", "dgrad"))
        factor = tables.relation(source, "gemm", "dgrad") * wgrad / dgrad
    over_forward = factor / tables.relation(source, "gemm", "forward")
    if gemm_precision == "bf16" or measured.table not in HOPPER:
        return factor if source == training else over_forward
    split = SPLIT_ACCUMULATOR if name != "forward" else 1.0
    return split * over_forward * tables.relation(source, "gemm", "fp8_forward")


def _grouped_training(relative: Relative) -> str:
    """Table of grouped products: H100's ran in one grouped kernel, the others as Transformer Engine's do."""
    training = relative.measured.products or relative.measured.training
    return "h100_sxm" if training == "h200_sxm" else training


def _grouped_factors(relative: Relative, rows: Floats) -> Floats:
    """The same for grouped products over as many single ones, by the rows [product, choice] of one, array
    [pass, product, choice]."""
    if rows.shape[1] > 1:
        return np.array([_grouped_factor(relative, name, rows) for name in PASSES])
    each = rows[:, 0].tolist()
    alike = {of: [_grouped_factor(relative, name, of) for name in PASSES] for of in dict.fromkeys(each)}
    return np.array([alike[of] for of in each]).T[..., None]


def _grouped_factor(relative: Relative, name: str, rows: Values) -> Values:
    """The same in one pass."""
    training = _grouped_training(relative)
    if name == "wgrad" and not _has_grouped_wgrad(relative):
        return 1.0 + 0.0 * rows
    return tables.grouped_relation(training, name, rows)


def _has_grouped_wgrad(relative: Relative) -> bool:
    """Whether grouped wgrad was measured where the kernel set its rate.

    On B200 it never was. There it takes as long as single products at the power limit and then, nothing
    hidden, to read the sums and write them wide: over what was measured 1.01 with sums in fp32 (median of 20
    products of 128 to 9,832 rows, 0.87 to 1.23), 0.91 in 16 bits (of 16; SimuMax, general_grouped_gemm).
    """
    return tables.has_relation(_grouped_training(relative), "grouped_gemm", "wgrad")


def traffic_s(relative: Relative, moved_bytes: Values) -> Values:
    """Time of memory-bound operators [s]."""
    return moved_bytes / relative.memory_bytes_per_s
