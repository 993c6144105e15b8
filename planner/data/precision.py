"""Which number formats a chip multiplies in."""

from __future__ import annotations

from planner.data.chip import Chip, Precision

LEAST_COMPUTE_CAPABILITY: dict[Precision, float] = {
    "fp16": 0.0,
    "bf16": 8.0,
    "fp8": 8.9,
    "fp8_block": 9.0,
    "mxfp8": 10.0,
    "nvfp4": 10.0,
}
"""CUDA compute capability from which a number format runs on tensor cores.

Sources: CUDA C++ Programming Guide 12, section "Compute Capabilities" (bf16 from 8.0; V100, T4,
Titan-RTX and RTX-20 lack it); Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/fp8.py,
`check_fp8_support`, `check_fp8_block_scaling_support`, `check_mxfp8_support`, `check_nvfp4_support`. On other
platforms a chip says whether it has MXFP8: of AMD's, MI350 and MI355 (gfx950: pytorch/ao, pull request 2066);
scales of 128 x 128 values are refused (ROCm/TransformerEngine, transformer_engine/pytorch/quantization.py,
`check_fp8_block_scaling_support`: "FP8 block scaled gemm not yet supported for ROCm").
"""


def chip_supports(chip: Chip, precision: Precision) -> bool:
    """Whether a chip multiplies in a number format: it states a peak, and is new enough."""
    if chip.peak_flop_per_s(precision) is None:
        return False
    if chip.backend != "cuda":
        return precision != "fp8_block" and (precision != "mxfp8" or chip.has_block_scales)
    if chip.compute_capability is None:
        return True
    return chip.compute_capability >= LEAST_COMPUTE_CAPABILITY[precision]


def supported_precisions(chip: Chip) -> tuple[Precision, ...]:
    """Every number format that a chip multiplies in."""
    return tuple(precision for precision in LEAST_COMPUTE_CAPABILITY if chip_supports(chip, precision))
