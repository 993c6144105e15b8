"""Bytes that casting operands to fewer bits moves, beside the products that read them.

Scales of small blocks (MXFP8, NVFP4, 128 values): an operand is read once and written twice, along rows and
along columns, for the two products that read it. One scale for a tensor, taken from earlier steps: it is
read and written once, and where products need it turned (Hopper has no others in 8 bits) once more; the norm
before a product writes its input narrow. Taken from the tensor itself: all are read once more, for the
largest value, and norms write wide. Where tensor-parallel ranks split the sequence, a rank casts its own rows
and gathers them narrow: the input of column-parallel maps, the output's gradient of row-parallel ones. What
was gathered with a scale a tensor is turned after that (transformer_engine/pytorch: module/linear.py,
layernorm_linear.py; base.py, grad_output_preprocess; utils.py, is_non_tn_fp8_gemm_supported).
"""

from __future__ import annotations

import numpy as np

from planner.cost.kernels.operators import HALF
from planner.cost.kernels.products import Products
from planner.cost.prices import Floats
from planner.data.chip import Precision
from planner.data.stack import SoftwareStack

MXFP8_CAST_RATE = 0.96
"""Rate of Transformer Engine's cast with scales of 32 values along both dimensions over that of copies:
52.3 us for 8,192 x 8,192 values on B200, scales included (ROCm/TransformerEngine, pull request 598), of which
2.9 are the start of a kernel (`KERNEL_S`)."""

MXFP8_CAST_BYTES = (4.0 + 2 / 32) / MXFP8_CAST_RATE + 4 / 32
"""Scales, a byte each, are written, and a kernel of its own reads them and writes them as products want them
(NVIDIA/Megatron-LM, docs/discussions, deepseek-v3-gb200-optimization.md, section 2.1.3)."""

NVFP4_CAST_BYTES = 0.79 * (2.0 + 2 * (2.0 + 0.5 + 1 / 16) + 4 / 16)
"""A value is read for the largest one, plain and transformed along columns, and once more by each of the two
kernels that write it along rows and, transformed, along columns; scales are put in order like MXFP8's
(transformer_engine/pytorch/csrc/quantizer.cpp, NVFP4Quantizer::quantize_impl with with_rht); a weight's,
neither transformed nor read twice, 5.4 of the 7.4 bytes. Casts of as many values of both on a B300 took 0.79
of their time (docs/examples/gemm_profiling, autocast over pre-quantized), its kernels' starts (`KERNEL_S`)
left out: the second-level cache holds much of what is read again."""

BLOCK_CAST_BYTES = {"fp8_block": 4.0, "mxfp8": MXFP8_CAST_BYTES, "nvfp4": NVFP4_CAST_BYTES}
"""To cast one 16-bit value with scales of small blocks: read 2, write it along both at 1 (0.56) each. The
norm before a product does not write them itself (normalization.cpp: NVFP4's never, MXFP8's with cuDNN's,
which Megatron-Bridge takes out of most of its recipes, perf_plugins.py, del_cudnn_ln)."""

RESCALE_BYTES = 4.0
"""Bytes moved for each value of a gradient's product with scales by rows: without the faster accumulation
torchao calls the product of one scale, and multiplies what it wrote by the scales in a kernel of its own
(float8_ops.py, addmm_float8_unwrapped; pytorch/ao, issue 2184)."""

ROW_CAST_BYTES, COLUMN_CAST_BYTES = 5.0, 7.0
"""Bytes moved to cast one 16-bit operand with a scale for each row, or for each column: it is read for the
maxima (2) and read and written again (3); a column's cast is then turned round for the product (2). torchao
casts input, weight and gradient both ways (float8/float8_linear.py, matmul_with_hp_or_float8_args)."""

TURN_BYTES = 2.0
"""To turn one 8-bit value that was gathered: read and write."""


def cast_bytes(products: Products, precision: Precision, stack: SoftwareStack, *, turned: bool) -> Floats:
    """Bytes moved by casts, array [pass, product, choice]; zero for products of activations.

    Parameters
    ----------
    turned
        Whether 8-bit products with a scale a tensor read operands along one dimension alone.
    """
    if stack.row_scales:
        moved = _by_rows(products)
    elif precision in BLOCK_CAST_BYTES:
        moved = _by_blocks(products, precision)
    else:
        moved = _by_tensors(products, stack, turned=turned)
    return np.where(products.weight, moved, 0.0)


def _inputs(products: Products) -> Floats:
    """Values of the inputs that a rank casts, array [product, choice]: shared ones once."""
    return np.where(products.input_again, 0.0, products.count * products.own_inputs * products.k)


def _by_rows(products: Products) -> Floats:
    row, column, count = ROW_CAST_BYTES, COLUMN_CAST_BYTES, products.count
    whole, weights = count * products.m * products.k, count * products.n * products.k
    inputs = np.where(products.input_again, 0.0, whole)
    gradients = count * products.m * products.n
    return np.array(
        [
            row * (inputs + weights),
            row * gradients + column * weights + RESCALE_BYTES * whole,
            column * (gradients + inputs) + RESCALE_BYTES * weights,
        ]
    )


def _by_blocks(products: Products, precision: Precision) -> Floats:
    cast = BLOCK_CAST_BYTES[precision]
    inputs = cast * _inputs(products)
    gradients = cast * products.count * products.own_gradients * products.n
    return np.array([inputs, gradients, np.zeros_like(inputs)])


def _by_tensors(products: Products, stack: SoftwareStack, *, turned: bool) -> Floats:
    p, turn = products, 1.0 if turned else 0.0
    largest = HALF if stack.current_scaling else 0.0
    cast = largest + HALF + 1.0
    # Cast and turned in one kernel where both happen on the same rows.
    gathers_input = p.own_inputs < p.m
    inputs = np.where(gathers_input | p.after_norm, cast, cast + turn) * _inputs(p)
    if not stack.current_scaling:
        inputs = np.where(p.after_norm, 0.0, inputs)
    turns_later = (gathers_input | p.after_norm) & ~p.input_again
    turned_later = np.where(turns_later, TURN_BYTES * turn * p.count * p.m * p.k, 0.0)
    gathers_gradient = p.own_gradients < p.m
    gradients = np.where(
        gathers_gradient,
        cast * p.own_gradients + TURN_BYTES * turn * p.m,
        (cast + turn) * p.m,
    )
    return np.array(np.broadcast_arrays(inputs, p.count * gradients * p.n, turned_later))
