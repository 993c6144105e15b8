"""Bytes that a norm moves for each value, fused or by plain operators."""

from __future__ import annotations

from planner.cost.kernels.operators import HALF
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack

PLAIN_NORM = (1.5, 2.6)
"""Time of PyTorch's own norms, forward and backward, over that of copying what they must read and write:
0.286 and 0.701 ms for 16,384 tokens of 8,192 values on one H100 (`instances/tables/README.md`)."""

PLAIN_RMS_NORM_BYTES = (36.0, 84.0)
"""Bytes that an RMS norm of plain operators moves for each value, forward and backward, counted by hand from
x * rsqrt(mean(x^2) + eps) of x in fp32, cast back, times the weight: cast 6, square 8, mean 4, product 8,
cast 6, weight 4; backward weight 4 and its gradient 8, cast 6, both factors 8 and 16, mean 4, square 20,
their sum 12, cast 6 (torchtitan/models/norms.py, RMSNorm)."""

FP32_NORM_BYTES = (12.0, 16.0)
"""Bytes that a fused norm moves for each value where its input is cast to fp32, forward and backward: cast 6,
read and written 6; backward both read and the input's gradient written 10, that cast 6."""


def norm_bytes(model: ModelSpec, stack: SoftwareStack) -> tuple[float, float]:
    """Bytes for each value of a layer's input, forward and backward."""
    if stack.norms_read_fp32 and not (stack.plain_modules and model.normalization == "rms"):
        return FP32_NORM_BYTES
    return head_norm_bytes(model, stack)


def head_norm_bytes(model: ModelSpec, stack: SoftwareStack) -> tuple[float, float]:
    """The same of queries and keys, which no cast precedes.

    A norm reads and writes once, its backward reads two and writes one.
    """
    if stack.plain_modules and model.normalization == "rms":
        return PLAIN_RMS_NORM_BYTES
    slower = (1.0, 1.0) if stack.fused_pointwise else PLAIN_NORM
    return 2 * HALF * slower[0], 3 * HALF * slower[1]
