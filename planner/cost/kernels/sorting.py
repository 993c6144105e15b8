"""Bytes that sorting tokens to experts moves, in one pass over a micro-batch.

Kernels follow Megatron-LM core 0.19 (Apache-2.0): transformer/moe/moe_utils.py, token_dispatcher.py and
experts.py.
"""

from __future__ import annotations

from planner.cost.elementwise import Values, maximum, where
from planner.cost.kernels.operators import HALF
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack

UNFUSED_PERMUTE_FACTOR = 10.0
"""Indexed copies and scatter-adds of plain PyTorch reach about 200 GB/s on an H100, a tenth of the fused
kernels' rate (12 shapes measured, `instances/tables/README.md`)."""

LOOP_BYTES = 10 * HALF * (1 + 8) / 256
"""Bytes a value and expert that take as long to move as fused sorting whose kernels loop over all experts for
every token, as Transformer Engine's did before version 2.6: of 8 in 256 experts the sorting was then up to 10
times as long (NVIDIA/Megatron-LM, docs/discussions, deepseek-v3-gb200-optimization.md, section 2.1.1;
TransformerEngine, pull request 1927)."""

PADDING_BYTES = 4 * HALF
"""Rows of each expert are copied to a padded count before its maps, and back behind them: read and written
twice, and their gradients as well (quantization_padding of TEGroupedMLP, transformer/moe/experts.py)."""


JOINING_BYTES = 2 * HALF
"""Results of a rank's experts that are modules of their own are joined, and in the backward the gradients of
their inputs: read and written (SequentialMLP.forward of transformer/moe/experts.py, torch.split and cat)."""


def pads_apart(stack: SoftwareStack, s: Sizes) -> Values:
    """1 where kernels of their own pad narrow products' rows, else 0; HybridEP pads as it sorts them."""
    if not stack.pads_narrow_experts:
        return 0.0
    hybrid = stack.moe_dispatcher == "deduplicating" and stack.dispatcher_library == "hybridep"
    return where(s.ep * s.etp > 1, 0.0, 1.0) if hybrid else 1.0


def sorting_bytes(model: ModelSpec, stack: SoftwareStack, s: Sizes, narrow: bool) -> Values:
    """Permutation before and after the exchange, sorting by local experts, and padding of their rows."""
    moe = model.moe
    assert moe is not None
    sent = s.norm_tokens * moe.top_k * model.routed_width
    own = s.norm_tokens * model.routed_width
    received = s.expert_rows(moe.top_k) * model.routed_width
    parted = s.ep * s.etp > 1
    sorted_again = where((moe.num_experts > s.ep) & parted, 4 * HALF, 0.0)
    permute = HALF * (own + sent) * (2.0 if stack.moe_permute_fusion else 1.0 + UNFUSED_PERMUTE_FACTOR)
    if stack.moe_permute_fusion and stack.moe_permute_loops:
        permute = maximum(permute, 2.0 * LOOP_BYTES * moe.num_experts * own)
    if stack.moe_dispatcher == "deduplicating":
        # Tokens leave as they are and are sorted where they arrive (flex dispatcher of token_dispatcher.py).
        permute = where(parted, HALF * own * 2.0, permute)
    padding = PADDING_BYTES * pads_apart(stack, s) if narrow else 0.0
    if stack.experts_apart:
        padding = padding + where(moe.num_experts > s.ep, JOINING_BYTES, 0.0)
    moved: Values = permute + received * (sorted_again + padding)
    return moved
