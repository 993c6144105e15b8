"""The chips on which operators were measured, with the datasheet rates that others are scaled by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredChip:
    """What a table was measured on: datasheet rates, and the share of memory bandwidth that copies reach."""

    table: str
    bf16_tflop_per_s: float
    fp8_tflop_per_s: float | None
    memory_gb_per_s: float
    link_gb_per_s: float
    memory_efficiency: float
    training: str
    """Table whose training relations hold for it (its own, or that of a near relative)."""
    products: str | None = None
    """The same for products, where another table is nearer."""
    latent_attention: str | None = None
    """Table where latent attention was timed in training, None where its kernels count as any others."""
    power_w: float | None = None
    """Board power [W], where the power limit rather than the kernel sets the rate of long products."""


MEASURED = {
    m.table: m
    for m in (
        # memory_efficiency: SimuMax's fitted 0.91 of 1,600 GiB/s on an A100-PCIe (1,935 GB/s) is 0.81 of
        # what the datasheet says; a residual addition over 134 M values on our H100 reached 0.89 and copies
        # 0.90; SimuMax's B200 0.666 of 8,000 GiB/s is 0.715. Others take the nearest of these.
        MeasuredChip("a100_sxm", 312.0, None, 2039.0, 300.0, 0.81, "a100_sxm", latent_attention="a100_sxm"),
        MeasuredChip("h100_sxm", 989.4, 1978.9, 3350.0, 450.0, 0.89, "h100_sxm"),
        MeasuredChip("h200_sxm", 989.4, 1978.9, 4800.0, 450.0, 0.88, "h200_sxm"),
        MeasuredChip("b200_sxm", 2250.0, 4500.0, 8000.0, 900.0, 0.715, "b200_sxm", None, "b200_sxm", 1000.0),
        MeasuredChip("b300_sxm", 2250.0, 4500.0, 8000.0, 900.0, 0.715, "b200_sxm", None, "gb300", 1100.0),
        # GB200's isolated kernels outrun what its power sustains, in every format alike. GB300's 1,400 W were
        # not seen to bind: its steps are as its kernels say, in a loop like Hopper's short ones (judged with
        # measured runs of both in view).
        MeasuredChip("gb200", 2500.0, 5000.0, 8000.0, 900.0, 0.715, "b200_sxm", None, "gb200", 1200.0),
        MeasuredChip("gb300", 2500.0, 5000.0, 8000.0, 900.0, 0.715, "b200_sxm", "h100_sxm", "gb300"),
        MeasuredChip("l40s", 362.0, 733.0, 864.0, 32.0, 0.81, "a100_sxm"),
        MeasuredChip("rtx_pro_6000_server", 467.8, 935.6, 1597.0, 64.0, 0.81, "a100_sxm"),
    )
}

HOPPER = ("h100_sxm", "h200_sxm")
"""Tables of chips whose products were also timed in a loop long enough to meet their power limit."""

BEST_MATMUL_TFLOP_PER_S = {"a100_sxm": 271.2, "h100_sxm": 794.5, "l40s": 271.0, "rtx_pro_6000_server": 409.4}
"""Fastest 16-bit products found on the measured chips (stas00/ml-engineering @ 744d01e, maximum achievable
matmul table, CC BY-SA 4.0; L40S: in its own table; RTX PRO 6000: zzc0721/torch-performance-test-data,
database.md, whose 265, 797 and 269 for the others agree): where a chip has such a figure too, their ratio
says more than that of peaks."""

KERNELS_OF = {
    "a100_sxm": (8.0,),
    "h100_sxm": (9.0,),
    "h200_sxm": (9.0,),
    "l40s": (8.9,),
    "rtx_pro_6000_server": (8.6, 8.9, 12.0),
}
"""Compute capabilities of chips that run the same kernels as those behind tables that stand in for others.
Boards from Ampere's to Blackwell's multiply with one kind of instruction, `mma.sync`, which Ada and SM120
only gave further formats (docs.nvidia.com/cutlass, pythonDSL/mma_docs/wmma_programming.html)."""
