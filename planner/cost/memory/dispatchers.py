"""Buffers of the libraries that send a token once to each rank or node that holds its experts.

They lie outside the framework's allocator and are made once. DeepEP's are for rows in flight
(csrc/config.hpp of deepseek-ai/DeepEP, `get_nvl_buffer_size_hint` and `get_rdma_buffer_size_hint`, as
Megatron-LM asks for them: core/transformer/moe/fused_a2a.py, get_buffer; `moe_deepep_num_sms` = 20).
HybridEP's hold what comes where every token of every rank is routed to this one (csrc/hybrid_ep of its
branch hybrid-ep, allocate_buffer, the buffer of both directions shared).
"""

from __future__ import annotations

from planner.cost.elementwise import Values, maximum, minimum, where
from planner.cost.kernels.operators import HALF
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack

CHANNELS = 10.0
"""Two multiprocessors serve one (num_channels = num_sms / 2 in csrc/config.hpp), of 20."""

NEAR_PEERS = 8.0
"""Ranks below one switch, as DeepEP takes them (NUM_MAX_NVL_PEERS); the others are reached by adapters."""

NEAR_ROWS = ((8.0, 256.0), (64.0, 288.0), (128.0, 560.0))
"""Rows in flight from one near rank on one channel, up to so many ranks (buffer.py, get_dispatch_config)."""

MOST_NEAR_ROWS = 720.0
"""The same of more ranks (buffer.py, the last entry)."""

FAR_ROWS = 140.0
"""The same between nodes: 128, rounded up to a multiple of at most 36 rows that are sent at once
(buffer.py)."""

ROW_BYTES = 128 * (8.0 + 4.0 + 4.0) + 8.0
"""Beside a row's values: places and weights of 128 experts, 128 scales, and where it came from
(kNumMaxTopK and kNumMaxScales of csrc/config.hpp)."""


def dispatcher_bytes(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, domain_chips: float) -> Values:
    """Buffers of the library that a stack exchanges tokens with [bytes].

    Parameters
    ----------
    domain_chips
        Chips that fast links join.
    """
    ranks = sizes.ep * sizes.etp
    if stack.dispatcher_library == "deepep":
        return deepep_bytes(model.routed_width, ranks)
    assert model.moe is not None
    near = minimum(ranks, domain_chips)
    experts = model.moe.num_experts * near / ranks
    return hybridep_bytes(model.routed_width, experts, sizes.routed_tokens, ranks, near)


def hybridep_bytes(hidden_size: int, experts: Values, tokens: Values, ranks: Values, near: Values) -> Values:
    """HybridEP's buffers of one rank [bytes]: rows of all ranks, and three for those of other nodes.

    Parameters
    ----------
    experts
        Routed experts of the ranks below the fast links, a weight of each of which a row brings along.
    tokens
        Tokens that one rank sends.
    near
        Those of the ranks that fast links join.
    """
    row = hidden_size * HALF + 4.0 * experts
    scales = 4.0 * hidden_size / 128
    found = tokens * (ranks * (row + scales) + 3 * (ranks / near - 1) * row)
    return where(ranks > 1, found, 0.0)


def deepep_bytes(hidden_size: int, ranks: Values) -> Values:
    """DeepEP's buffers of one rank [bytes]; none where a rank exchanges tokens with no other.

    Parameters
    ----------
    ranks
        Ranks that exchange tokens.
    """
    rows: Values = MOST_NEAR_ROWS
    for most, count in reversed(NEAR_ROWS):
        rows = where(ranks <= most, count, rows)
    row = hidden_size * HALF + ROW_BYTES
    near = CHANNELS * minimum(ranks, NEAR_PEERS) * rows * row
    nodes = maximum(ranks / NEAR_PEERS, 1.0)
    far = where(nodes > 1, 2 * CHANNELS * nodes * FAR_ROWS * row, 0.0)
    return where(ranks > 1, near + far, 0.0)
