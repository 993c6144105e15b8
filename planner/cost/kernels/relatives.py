"""Which measured chip stands in for a chip, and by what its latencies are scaled.

A chip with its own table uses it. Another takes its nearest relative's: products scale with the ratio of
datasheet peaks, reads and writes with the ratio of memory bandwidths, collectives with the ratio of
link rates.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from planner.cost.kernels import tables
from planner.cost.kernels.measured_chips import (
    BEST_MATMUL_TFLOP_PER_S,
    HOPPER,
    KERNELS_OF,
    MEASURED,
    MeasuredChip,
)
from planner.data.chip import HALF_PRECISIONS, Chip, Precision
from planner.units import GB, TFLOP

PATTERNS = (
    # (pattern of the chip's id, table, own measurements)
    (r"^a100-sxm|^a800-80gb", "a100_sxm", True),
    (r"^a100|^a800", "a100_sxm", True),
    (r"^h100-sxm|^h800", "h100_sxm", True),
    (r"^h200|^gh200-144", "h200_sxm", True),
    (r"^h100|^gh200|^h20-", "h100_sxm", False),
    (r"^b200", "b200_sxm", True),
    (r"^b300", "b300_sxm", True),
    (r"^gb200", "gb200", True),
    (r"^gb300", "gb300", True),
    (r"^l40s", "l40s", True),
    (r"^l4-|^rtx-6000-ada", "l40s", False),
    (r"^rtx-pro-6000", "rtx_pro_6000_server", True),
    # L40S falls to its power limit with long products; those with 0.6 of its rate a watt or less do not.
    (r"^l[24]0-|^rtx-(4090|50|3|a|20)|^a10g?-|^a40-|^titan", "rtx_pro_6000_server", False),
    (r"^v100|^t4-|^a30-", "a100_sxm", False),
)

WIDEST_SLOT_GB_PER_S = 100.0
"""Rate above which no PCIe joins a node's chips: 16 lanes carry 64 GB/s one way, no chip has 93 to 119."""

SAME_CHIP = 0.02
"""Difference of rounded peaks up to which a user's chip with own tables is the measured one (guess)."""

TablesOf = Literal["own", "same_maker", "other_maker"]
"""Whose operators: the chip's own, a relative's of the same maker, or another maker's."""

FALLBACK = "h100_sxm"
"""Stands in for accelerators without any measured relative (other vendors)."""

COLLECTIVE_PATTERNS = (
    (r"^v100-sxm", "v100", 150.0),
    (r"^h200|^gh200", "h200_sxm", 450.0),
    (r"^h100-(pcie|nvl)", "rtx_pro_6000_server", 64.0),
    (r"^h\d", "h100_sxm", 450.0),
    (r"^gb300", "gb300", 900.0),
    (r"^gb200", "gb200", 900.0),
    (r"^b300", "b300_sxm", 900.0),
    (r"^b200", "b200_sxm", 900.0),
    (r"^a[18]00-sxm|^a800-80gb", "a100_sxm", 300.0),
    (r"^rtx|^l4|^a40|^a10-|^t4|^titan|^a30|pcie|^v100s", "rtx_pro_6000_server", 64.0),
)
"""Pattern of the chip's id, collective table, one-way link rate of the measured chip [GB/s]."""


SUSTAINED_REFERENCE_W = 1000.0
"""Board power of the B200 whose sustained rate was measured (`relations.csv`, sustained_tflop_per_s)."""

TIMED_IN_NVFP4 = ("b300_sxm", "gb300")
"""Tables of chips whose products of NVFP4 Transformer Engine timed in a loop (compute capability 10.3, whose
peak in 4 bits is 1.5 times that of 10.0): they take 0.80 to 0.83 of what the tables' kernels take alone
(`relations.csv`, nvfp4_*, one layer's on a B300), and no limit was seen to bind."""

UNCAPPED_SHARE = 0.9
"""The best product of a chip stays below this share of its peak where its power limit binds (H100: 0.80 in
its table; that 0.9 tells them apart is a guess)."""

USUAL_POWER_W = {"a100_sxm": 400.0, "h100_sxm": 700.0, "h200_sxm": 700.0}
"""Board power of the measured chips [W], datasheets. Long products run at it, so that a lower limit slows
them with about its root (guess, as above)."""

AT_THE_SAME_POWER = {"bf16": 1.0, "nvfp4": 4.0}
"""Rate of a format at a power limit over that of 16 bits, of 8 bits 2: their products take half the energy,
those of 4 bits a quarter (guess)."""


def timed_in_nvfp4(measured: MeasuredChip, gemm_precision: str) -> bool:
    """Whether products of the format were timed in a loop, in NVFP4."""
    return gemm_precision == "nvfp4" and measured.table in TIMED_IN_NVFP4


def sustained_flop_per_s(measured: MeasuredChip, gemm_precision: str) -> float | None:
    """Rate of long products at the power limit [FLOP/s], None where it was not seen to bind.

    The rate at a limit grows with about the root of the power, as voltage and clock rise together: B200's
    peak is 2,250 TFLOP/s at 1,000 W, GB200's 2,500 at 1,200 W (NVIDIA's architecture brief, as
    glennklockwood.com/garden/processors/B200 has it).
    """
    if measured.power_w is None or timed_in_nvfp4(measured, gemm_precision):
        return None
    rate = tables.relation("b200_sxm", "gemm", "sustained_tflop_per_s") * TFLOP
    rate *= math.sqrt(measured.power_w / SUSTAINED_REFERENCE_W)
    return rate * AT_THE_SAME_POWER.get(gemm_precision, 2.0)


@dataclass(frozen=True)
class Relative:
    """The measured chip behind a chip, with the scales of its latencies."""

    measured: MeasuredChip
    compute_scale: float
    """Latency of a product over the table's."""
    rest_scale: float
    """The same of what a kernel takes beyond its multiplications (`scaled_kernels.py`)."""
    memory_bytes_per_s: float
    """Rate that reads and writes reach [bytes/s]."""
    collective_table: str
    link_scale: float
    """Latency of a large collective over the table's, apart from the node's own link rate."""
    gemm_precision: str
    """Number format of the table used."""
    precision_scale: float
    """Latency over the table's where the format itself was not measured."""
    sustained_flop_per_s: float | None
    """Rate that long products of the format keep up, None where no limit was seen to bind [FLOP/s]."""
    sustained_16_bit_flop_per_s: float | None
    """The same of products in 16 bits."""
    power_limited: bool
    """Whether it is a chip of a kind whose long products run at its power limit."""
    capped: bool
    """Whether it is one whose products are held below what its power would sustain."""
    assumptions: tuple[str, ...]


def _matching_table(chip: Chip) -> tuple[str, bool]:
    for pattern, table, own in PATTERNS:
        if re.search(pattern, chip.id):
            return table, own
    return FALLBACK, False


def has_own_tables(chip: Chip) -> bool:
    """Whether operators were measured on the chip itself."""
    return _matching_table(chip)[1]


def tables_of(chip: Chip) -> TablesOf:
    """Whose operators a chip is priced by. All tables are of NVIDIA's chips."""
    if has_own_tables(chip):
        return "own"
    return "same_maker" if chip.vendor == "NVIDIA" else "other_maker"


def _collectives(chip: Chip) -> tuple[str, float]:
    for pattern, table, link in COLLECTIVE_PATTERNS:
        if re.search(pattern, chip.id):
            return table, link
    switched = chip.intra_node_bandwidth_gb_per_s > WIDEST_SLOT_GB_PER_S
    return ("h100_sxm", 450.0) if switched else ("rtx_pro_6000_server", 64.0)


def link_of_pair(chip: Chip, pair_gb_per_s: float) -> float:
    """Rate of a chip's links where messages between two chips of a node reach a rate [GB/s].

    The collectives' table knows what two of its chips reach of theirs: 22.5 of 150 GB/s on V100s, whose six
    links part among neighbours; 35 of 64 GB/s over PCIe.
    """
    table, link = _collectives(chip)
    return pair_gb_per_s * link * GB / tables.pair_bytes_per_s(table)


SCALED_IN_BLOCKS = ("b200_sxm", "b300_sxm", "gb200", "gb300")
"""Tables whose products with scales of blocks ran as MXFP8 does, with exponents that the chip applies itself
(ai-dynamo/aiconfigurator, collector/trtllm/collect_gemm.py: "UE8M0 scale (MXFP8 style)"). Their per-tensor
ones fall short of it: 1.3 PFLOP/s for 4,096 x 2,048 x 7,168 on GB200, where the others reach 1.7 and
Transformer Engine's grouped MXFP8 products of that width 2.7 (NVIDIA/Megatron-LM, docs/discussions,
deepseek-v3-gb200-optimization.md, section 1). Both multiply at one rate, so that neither is slower than the
other where kernels are tuned."""


def _format(measured: MeasuredChip, precision: Precision) -> tuple[str, float]:
    """Table of a number format and the scale that makes up for a missing one."""
    if precision in HALF_PRECISIONS:
        return "bf16", 1.0
    wanted: str = precision
    if precision == "mxfp8":
        wanted = "fp8_block" if measured.table in SCALED_IN_BLOCKS else "fp8"
    if tables.gemm_table_exists(measured.table, wanted):
        return wanted, 1.0
    if tables.gemm_table_exists(measured.table, "fp8"):
        return "fp8", 0.5 if precision == "nvfp4" else 1.0
    return "bf16", 0.5


def _sixteen_bit_peak(chip: Chip, precision: Precision) -> float | None:
    """Peak of products in 16 bits [TFLOP/s].

    NVIDIA's chips multiply both formats at one rate where sums are kept in fp32, as training does; a larger
    fp16 peak is that of fp16 sums (GeForce).
    """
    if precision == "bf16" or chip.vendor == "NVIDIA":
        return chip.bf16_tflop_per_s or chip.fp16_tflop_per_s
    return chip.fp16_tflop_per_s or chip.bf16_tflop_per_s


def _usual_gain(measured: MeasuredChip, precision: Precision) -> float:
    """Peak of a narrow format over that of 16 bits on the measured chip: of 8 bits two where it has none."""
    eight_bits = (measured.fp8_tflop_per_s or 2 * measured.bf16_tflop_per_s) / measured.bf16_tflop_per_s
    return 2 * eight_bits if precision == "nvfp4" else eight_bits


def _rest_scale(chip: Chip, measured: MeasuredChip, scale: float) -> float:
    """Latency of what a product takes beyond its multiplications over the measured chip's.

    Where the same kernels run it goes with the bandwidth of memory, but launches and fills are no shorter
    unless products are.
    """
    if chip.compute_capability not in KERNELS_OF.get(measured.table, ()):
        return scale
    reached = chip.reached_memory_bytes_per_s(measured.memory_efficiency)
    return max(measured.memory_gb_per_s * measured.memory_efficiency * GB / reached, min(1.0, scale))


def _sustained(chip: Chip, measured: MeasuredChip, gemm_precision: str, scale: float) -> float | None:
    """The chip's own sustained rate where it was measured, else its relative's scaled [FLOP/s]."""
    if chip.sustained_tflop_per_s is not None:
        return chip.sustained_tflop_per_s * TFLOP * AT_THE_SAME_POWER.get(gemm_precision, 2.0)
    rate = sustained_flop_per_s(measured, gemm_precision)
    return None if rate is None else rate / scale


@lru_cache(maxsize=256)
def sixteen_bit(relative: Relative) -> Relative:
    """The same chip for products in 16 bits."""
    limit = relative.sustained_16_bit_flop_per_s
    return replace(relative, gemm_precision="bf16", precision_scale=1.0, sustained_flop_per_s=limit)


@lru_cache(maxsize=256)
def relative_of(chip: Chip, precision: Precision, link_gb_per_s: float) -> Relative:
    """The measured chip that stands in for a chip in a number format.

    Parameters
    ----------
    link_gb_per_s
        One-way link rate of a chip inside its node [GB/s].
    """
    name, own = _matching_table(chip)
    measured = MEASURED[name]
    notes: list[str] = []
    half, peak = _sixteen_bit_peak(chip, precision), chip.peak_flop_per_s(precision)
    if half is None:
        # A chip that states no 16-bit peak cannot be planned for; its file fails this on loading.
        raise ValueError(f"chip {chip.id} states neither a bf16 nor an fp16 peak")
    scale = measured.bf16_tflop_per_s / half
    if not own and chip.best_matmul_tflop_per_s is not None and name in BEST_MATMUL_TFLOP_PER_S:
        scale = BEST_MATMUL_TFLOP_PER_S[name] / chip.best_matmul_tflop_per_s
    if peak is None:
        if precision == "bf16":
            notes.append(f"{chip.id} has no bf16: priced as fp16")
        elif precision != "fp16":
            notes.append(f"{chip.id} has no {precision}: priced as 16-bit")
        table_precision, precision_scale = "bf16", 1.0
    else:
        table_precision, precision_scale = _format(measured, precision)
        if not own and precision not in HALF_PRECISIONS:
            precision_scale *= _usual_gain(measured, precision) / (peak / (half * TFLOP))
    if not own:
        notes.append(
            f"{chip.id}: no operator was measured; scaled from {name} by datasheet peak and bandwidth"
        )
    collective_table, link = _collectives(chip)
    scale = 1.0 if own and abs(scale - 1) < SAME_CHIP else scale
    best = 0.0 if own else (chip.best_matmul_tflop_per_s or 0.0)
    capped = chip.vendor == "NVIDIA" and name in HOPPER and best > UNCAPPED_SHARE * half
    if chip.power_limit_w is not None and name in USUAL_POWER_W:
        scale *= max(1.0, math.sqrt(USUAL_POWER_W[name] / chip.power_limit_w))
        notes.append(f"{chip.id}: rates fall with the root of its power limit (guess)")
    return Relative(
        measured=measured,
        compute_scale=scale,
        rest_scale=_rest_scale(chip, measured, scale),
        memory_bytes_per_s=chip.reached_memory_bytes_per_s(measured.memory_efficiency),
        collective_table=collective_table,
        link_scale=link / link_gb_per_s,
        gemm_precision=table_precision,
        precision_scale=precision_scale,
        sustained_flop_per_s=_sustained(chip, measured, table_precision, scale * precision_scale),
        sustained_16_bit_flop_per_s=_sustained(chip, measured, "bf16", scale),
        power_limited=chip.vendor == "NVIDIA" and (name in HOPPER or measured.power_w is not None),
        capped=capped,
        assumptions=tuple(notes),
    )
