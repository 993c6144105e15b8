"""Mamba-2 layers: what their kernels move and keep, counted from the code; nobody published their times.

Megatron-LM (core 0.19, ssm/mamba_mixer.py, `_ssm_training`) runs mamba_split_conv1d_scan_combined of
mamba_ssm (Apache-2.0, ops/triton/ssd_combined.py) with the gate in the scan, and the norm behind it. Counts
are in values of 16 bits for each token of a rank: `inner` of an input, `state` of B and C together,
`scores` fp32 products of C and B within a chunk, `passed` states at the end of each chunk, one for each of
its tokens' inner values if there are as many states as tokens in a chunk. Each kernel reads its operands
and writes its results once.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.cost.elementwise import Values, where
from planner.cost.kernels.operators import HALF, SCAN_CHUNK
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec


class _Widths(NamedTuple):
    """Values of a token on one tensor-parallel rank."""

    inner: Values
    state: Values
    scores: Values
    passed: Values


def _widths(model: ModelSpec, s: Sizes) -> _Widths:
    spec = model.hybrid
    assert spec is not None
    inner = spec.mamba_heads * spec.mamba_head_dim / s.tp
    groups = spec.groups / s.tp
    return _Widths(
        inner, 2 * groups * spec.ssm_state, 2 * groups * SCAN_CHUNK, inner * (spec.ssm_state / SCAN_CHUNK)
    )


def mamba_traffic(model: ModelSpec, s: Sizes) -> tuple[Values, Values]:
    """Bytes that the kernels of convolution, scan, gate and norm move, forward and backward.

    Forward: convolution 2 (inner + state); states of chunks inner + state / 2 + 2 passed, which are fp32;
    their passing on 3 passed; products of C and B state + scores; the scan 4 inner (input, gate, results
    with and without it) + state / 2 + scores + passed; norm 2 inner. Backward: norm 3 inner; convolution,
    products, states and their passing again, now all in fp32 (4 passed); gate 6 inner; gradients of states
    inner + state / 2 + 2 passed, passed back with 6; of the input 3 inner + state / 2 + scores + passed; of
    B, and of C, inner + 1.5 state + passed; of the products 2 inner + scores, of which both gradients take
    2 state + scores; of decays 2 inner + scores; convolution 3 (inner + state). Where a micro-batch has
    several sequences, both ends of it are copied into their order.
    """
    w = _widths(model, s)
    forward = 9 * w.inner + 4 * w.state + 2 * w.scores + 6 * w.passed
    backward = 25 * w.inner + 14.5 * w.state + 6 * w.scores + 17 * w.passed
    turned = where(s.microbatch_size > 1, 2 * (3 * w.inner + w.state), 0.0)
    return HALF * s.tokens * (forward + turned), HALF * s.tokens * (backward + turned)


def mamba_bytes(model: ModelSpec, s: Sizes) -> tuple[Values, Values]:
    """Bytes kept for the backward, and passing in it.

    Kept: the input map's output, the scan's result with and without its gate, and the norm's. Passing,
    where gradients of states pass back: the convolution's output, the gradients of the input map's output
    and of the scan's, products of C and B, states and their gradients in fp32 and both in 16 bits.
    """
    w = _widths(model, s)
    kept = 5 * w.inner + w.state
    passing = 4 * w.inner + 2 * w.state + w.scores + 6 * w.passed
    return HALF * s.tokens * kept, HALF * s.tokens * passing
