"""Mamba-2 layers: what their operators move and keep; estimates, as nobody measured them."""

from __future__ import annotations

from planner.cost.elementwise import Values
from planner.cost.kernels.operators import HALF
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec


def mamba_traffic(model: ModelSpec, s: Sizes) -> tuple[Values, Values]:
    """Bytes of convolution, gate, gated norm and the scan's own reads and writes, forward and backward."""
    spec = model.hybrid
    assert spec is not None
    inner = spec.mamba_heads * spec.mamba_head_dim / s.tp
    state = 2 * spec.groups * spec.ssm_state / s.tp
    values = s.tokens * (inner + state)
    return values * 12 * HALF, values * 24 * HALF


def mamba_bytes(model: ModelSpec, s: Sizes) -> tuple[Values, Values]:
    """Input map's output, convolution's output, scan's output and gated norm; and as much in passing."""
    spec = model.hybrid
    assert spec is not None
    inner = spec.mamba_heads * spec.mamba_head_dim / s.tp
    state = 2 * spec.groups * spec.ssm_state / s.tp
    kept = s.tokens * HALF * (2 * inner + state + (inner + state) + 2 * inner)
    return kept, kept
