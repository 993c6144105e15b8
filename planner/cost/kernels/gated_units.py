"""Gated units of plain operators, which memory does not limit on every chip.

The activation of one map's output times the other's are kernels that move 10 bytes a value, and 18 in the
backward (activation 4, product 6; two products and the activation's backward, 6 each), which is what
`traffic.py` counts. On chips with fast memory PyTorch's take longer, as long on one with 4.8 TB/s as on one
with 3.35: 134 million values took 0.51 and 1.66 ms on one H100, 0.60 and 1.72 ms on one H200
(`instances/tables/README.md`). That other chips make as many, where memory lets them, is a guess.
"""

from __future__ import annotations

from planner.cost.elementwise import Values
from planner.cost.kernels.operators import HALF
from planner.cost.kernels.relatives import Relative
from planner.cost.sizes import Sizes
from planner.data.model_spec import WITH_EXPERTS, WITH_ONE_MLP, LayerKind, ModelSpec
from planner.data.stack import SoftwareStack

VALUES_PER_S = (2.42e11, 7.9e10)
"""Most values that they make, forward and backward, the mean of both chips [1/s]: 134 million over
the times above."""


def activation_bytes(gated: bool, fused: bool) -> tuple[float, float]:
    """Bytes that an activation moves for each value that it makes, forward and backward.

    A gated unit reads two and writes one (backward reads three, writes two); a plain one one and one. Without
    fused kernels what it reads is written and read once more.
    """
    inputs = 2 if gated else 1
    extra = 0.0 if fused else inputs * HALF
    return HALF * (inputs + 1) + extra, HALF * (2 * inputs + 1) + 2 * extra


def plain_gated_s(
    relative: Relative, model: ModelSpec, kind: LayerKind, stack: SoftwareStack, sizes: Sizes
) -> tuple[Values, Values]:
    """What the gated units of one layer take beside what they move, forward and backward [s]."""
    if stack.fused_pointwise or not model.gated_mlp:
        return 0.0, 0.0
    beside = (
        max(1 / most - moved / relative.memory_bytes_per_s, 0.0)
        for most, moved in zip(VALUES_PER_S, activation_bytes(gated=True, fused=False), strict=True)
    )
    values = _values(model, kind, sizes)
    forward, backward = (values * each for each in beside)
    return forward, backward


def _values(model: ModelSpec, kind: LayerKind, s: Sizes) -> Values:
    """Values that the gated units of one layer make on a rank."""
    if kind in WITH_ONE_MLP:
        return s.tokens * model.ffn_hidden_size / s.tp
    if kind not in WITH_EXPERTS or model.moe is None:
        return s.zeros
    shared = s.tokens * model.moe.shared_ffn_hidden_size / s.tp
    return s.expert_rows(model.moe.top_k) * model.moe.ffn_hidden_size / s.etp + shared
