"""Latency of a kernel on a chip that nobody measured, from its latency on a relative.

Where both run the same kernels, what multiplies goes with the rate of products. What a product takes beyond
that waits for memory, or keeps multiprocessors idle at its start and end, and goes with the bandwidth of
memory; attention, which lives in the chip, waits no longer than in proportion to products. A chip that
multiplies a seventh as fast with the same memory then reaches more of its peak with short products, as H20
does beside H100: 95, 120, 133 and 139 of 148 TFLOP/s where products of 1,024, 2,048, 4,096 and 8,192 rows,
columns and depth were timed (github.com/zzc0721/torch-performance-test-data, issue 77), and 108 in causal
attention over 2,048 tokens (Dao-AILab/flash-attention, issue 1310). In proportion to peaks it would be 53,
102, 118, 117 and 58.

Chips of other generations and makers run other kernels: theirs stay in proportion to peaks.
"""

from __future__ import annotations

from typing import overload

from planner.cost.elementwise import Values, minimum
from planner.cost.kernels import tables
from planner.cost.kernels.relatives import Relative
from planner.cost.prices import Floats


@overload
def on_chip_s(
    relative: Relative, latency_s: Floats, flop: Floats, precision: str = "bf16", narrower: float = 1.0
) -> Floats: ...


@overload
def on_chip_s(
    relative: Relative, latency_s: Values, flop: Values, precision: str = "bf16", narrower: float = 1.0
) -> Values: ...


def on_chip_s(
    relative: Relative, latency_s: Values, flop: Values, precision: str = "bf16", narrower: float = 1.0
) -> Values:
    """Latency on a chip [s].

    Parameters
    ----------
    latency_s
        The same on the measured chip [s].
    flop
        Work of the kernel.
    precision
        Number format of the table.
    narrower
        Latency over the table's where the format itself was not measured.
    """
    return narrower * _scaled_s(relative, latency_s, flop, precision, relative.rest_scale)


def attention_on_chip_s(relative: Relative, latency_s: Values, flop: Values) -> Values:
    """Latency of fused attention on a chip from that on the measured one [s]."""
    rest_scale = min(relative.rest_scale, relative.compute_scale)
    return _scaled_s(relative, latency_s, flop, "bf16", rest_scale)


def _scaled_s(
    relative: Relative, latency_s: Values, flop: Values, precision: str, rest_scale: float
) -> Values:
    scaled = latency_s * relative.compute_scale
    if rest_scale == relative.compute_scale:
        return scaled
    rest = latency_s - minimum(latency_s, flop / tables.usual_flop_per_s(relative.measured.table, precision))
    return scaled + rest * (rest_scale - relative.compute_scale)
