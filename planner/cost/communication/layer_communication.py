"""Communication of one layer and micro-batch that no computation hides, by the group that causes it.

Counts and sizes are those of Megatron-LM core 0.19 (`collective_counts.py`); here is what remains of
them beside the products that they overlap with:

- tensor parallel, forward: everything is exposed but for the share that the stack's overlap hides;
- backward: the gather of the saved input runs behind dgrad, the reduction of the input's gradient
  behind wgrad (core/tensor_parallel/layers.py); two gathers with sequence parallelism are exposed;
- context parallel: over a ring the next block's keys and values travel behind this one's attention;
- expert parallel: exchanges are exposed; HybridEP runs kernels of its own where fast links join all ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cost.communication.collectives import collective_s, send_s
from planner.cost.communication.links import Network
from planner.cost.communication.overlap import exposed_behind, partly_hidden
from planner.cost.communication.placement import spread_group
from planner.cost.communication.routing import distinct_share
from planner.cost.communication.userbuffers import PieceTimes, pipelined_scatter_s, ring_gather_s
from planner.cost.elementwise import Values, everywhere, exists, maximum, minimum, where
from planner.cost.kernels.compute import traffic_s
from planner.cost.kernels.operators import HALF, attention_dims, exchanged_groups
from planner.cost.sizes import Sizes, context_levels
from planner.data.chip import Precision
from planner.data.model_spec import WITH_EXPERTS, LayerKind, ModelSpec
from planner.data.stack import SoftwareStack


class TensorCollectives(NamedTuple):
    """One collective of each kind over the full activation A [s]."""

    all_gather_s: Values
    reduce_scatter_s: Values
    all_reduce_s: Values
    forward_scatter_s: Values
    """Reduce-scatter of the forward pass, which may sum narrower values."""


GATHERED_BYTES = {"bf16": HALF, "fp16": HALF, "fp8": 1.0, "fp8_block": 1.0, "mxfp8": 1.0, "nvfp4": 0.5625}
"""Bytes of a gathered value: Transformer Engine gathers what its products read, scales included; sums stay
in 16 bits (transformer_engine/pytorch/distributed.py, gather_along_first_dim)."""

NARROW_SUM_BYTES = 1.0
"""Bytes of a value that user buffers sum where per-tensor 8-bit products made it (`fp8_buf` of NVIDIA's
published configurations; NeMo, collections/llm/recipes/tp_overlap_configs/userbuffers.py)."""


def tensor_collectives(
    network: Network, model: ModelSpec, sizes: Sizes, precision: Precision, stack: SoftwareStack
) -> TensorCollectives:
    """Gather, scatter and reduction of one activation among the tensor-parallel ranks.

    They lie within a node in every plan of ours; measured runs with wider groups cross nodes. NCCL joins and
    splits along the outermost dimension; where that is the batch, the whole activation is copied into order
    behind a gather and before a scatter (gather_dim and scatter_dim in
    torch/distributed/_functional_collectives.py).
    """
    values = sizes.tokens * model.hidden_size
    spread = spread_group(sizes.tp, sizes.ones, network.domain_chips)
    split = sizes.splits_sequence

    def one_s(op: str, width: float) -> Values:
        taken = collective_s(network, op, values * width, spread, sizes.ones)
        if stack.tp_collectives_copy and op != "all_reduce":
            taken = taken + traffic_s(network.relative, 2 * values * width)
        return taken

    gather = scatter = forward_scatter = reduce = sizes.zeros
    if exists(split):
        width = HALF if stack.row_scales else GATHERED_BYTES[precision]
        gather, scatter = one_s("all_gather", width), one_s("reduce_scatter", HALF)
        forward_scatter = scatter
        if stack.tp_userbuffers and stack.tp_narrow_sums and precision == "fp8":
            forward_scatter = one_s("reduce_scatter", NARROW_SUM_BYTES)
    if not everywhere(split) or model.position_embedding == "learned":
        reduce = one_s("all_reduce", HALF)
    return TensorCollectives(gather, scatter, reduce, forward_scatter)


def tensor_layer_s(
    collectives: TensorCollectives,
    stack: SoftwareStack,
    sizes: Sizes,
    blocks: int,
    reductions: int,
    dgrad_s: Values,
    wgrad_s: Values,
    pieces: PieceTimes | None = None,
) -> tuple[Values, Values]:
    """Forward and backward of the tensor-parallel collectives of a layer [s].

    Parameters
    ----------
    blocks
        Pairs of a column- and a row-parallel product (`collective_counts.tensor_blocks`).
    reductions
        Reductions of input gradients where the sequence is whole.
    dgrad_s, wgrad_s
        Time of these passes over all column-parallel products of the layer [s].
    pieces
        Times of the products that run in pieces beside their collectives, where the stack does so.
    """
    c, hidden = collectives, 0.0 if stack.tp_userbuffers else stack.tp_overlap_fraction
    sp = sizes.splits_sequence
    behind_dgrad = blocks * where(sp, c.all_gather_s, 0.0)
    behind_wgrad = where(sp, blocks * c.reduce_scatter_s, reductions * c.all_reduce_s)
    if stack.tp_backward_overlap:
        behind_dgrad = exposed_behind(behind_dgrad, dgrad_s)
        behind_wgrad = exposed_behind(behind_wgrad, wgrad_s)
    exposed = partly_hidden(blocks * where(sp, c.all_gather_s, 0.0), hidden)
    forward = tensor_forward_s(c, stack, sizes, blocks)
    if pieces is not None:
        parted = ring_gather_s(c.all_gather_s, pieces.column_forward_s, pieces.ring_pieces)
        parted = parted + pipelined_scatter_s(c.forward_scatter_s, pieces.row_forward_s)
        forward = where(sp, parted, forward)
        gathered = ring_gather_s(c.all_gather_s, pieces.row_dgrad_s, pieces.ring_pieces)
        exposed = where(sp, gathered, exposed)
    return forward, behind_dgrad + behind_wgrad + exposed


def tensor_forward_s(
    collectives: TensorCollectives, stack: SoftwareStack, sizes: Sizes, blocks: int
) -> Values:
    """Forward of the tensor-parallel collectives of so many pairs of maps, in one piece [s]."""
    c = collectives
    once = where(sizes.splits_sequence, c.all_gather_s + c.reduce_scatter_s, c.all_reduce_s)
    return blocks * partly_hidden(once, 0.0 if stack.tp_userbuffers else stack.tp_overlap_fraction)


def cut_heads_s(network: Network, gathered_bytes: Values, sizes: Sizes) -> tuple[Values, Values]:
    """Forward and backward where ranks cut their heads out of all ranks' queries, keys and values [s].

    A gather, and the scatter of its gradient; nothing hides them (core/tensor_parallel/mappings.py).

    Parameters
    ----------
    gathered_bytes
        Queries, keys and values of all ranks (`attention_buffers.gathered_heads_bytes`).
    """
    spread = spread_group(sizes.tp, sizes.ones, network.domain_chips)
    forward, backward = (
        collective_s(network, op, gathered_bytes, spread, sizes.ones)
        for op in ("all_gather", "reduce_scatter")
    )
    needed = gathered_bytes > 0
    return where(needed, forward, 0.0), where(needed, backward, 0.0)


def context_layer_s(
    network: Network,
    model: ModelSpec,
    stack: SoftwareStack,
    sizes: Sizes,
    attention_forward_s: Values,
    attention_backward_s: Values,
) -> tuple[Values, Values]:
    """Forward and backward of the context-parallel exchange of one attention [s].

    The four ways of Megatron-LM's --cp-comm-type. Around a ring the next keys and values travel behind the
    block at hand. All ranks' keys and values may be gathered first, and again in the backward, which scatters
    their gradients: nothing hides that. Heads may be exchanged for tokens: queries, keys and values go out by
    head, the result comes back. Or heads are exchanged inside a node, and a ring joins the nodes.
    """
    s = sizes
    if not exists(s.cp > 1):
        return s.zeros, s.zeros
    query_dim, value_dim = attention_dims(model)
    heads = model.num_attention_heads / s.tp
    groups = exchanged_groups(model, stack, s)
    keys_values = s.tokens * groups * (query_dim + value_dim) * HALF
    heads_moved = keys_values + s.tokens * heads * (query_dim + value_dim) * HALF
    inner, outer = context_levels(stack, sizes, network.domain_chips)
    forward = backward = s.zeros
    if stack.cp_exchange in ("a2a", "a2a+p2p"):
        spread = spread_group(inner, s.tp, network.domain_chips)
        forward = collective_s(network, "all_to_all", heads_moved, spread, s.tp)
        backward = forward
    if stack.cp_exchange == "all_gather":
        spread = spread_group(s.cp, s.tp, network.domain_chips)
        forward = collective_s(network, "all_gather", s.cp * keys_values, spread, s.tp)
        backward = forward + collective_s(network, "reduce_scatter", s.cp * keys_values, spread, s.tp)
    if stack.cp_exchange in ("p2p", "a2a+p2p"):
        crosses = spread_group(s.cp, s.tp, network.domain_chips).nodes > 1
        rate = where(crosses, network.chip_bytes_per_s, network.peer_bytes_per_s)
        latency, steps = network.step_latency_s, outer - 1
        forward = forward + steps * exposed_behind(
            send_s(keys_values, rate, latency), attention_forward_s / outer
        )
        # Backward sends keys and values and their gradients.
        backward = backward + steps * exposed_behind(
            send_s(2 * keys_values, rate, latency), attention_backward_s / outer
        )
    return where(s.cp > 1, forward, 0.0), where(s.cp > 1, backward, 0.0)


DEDUPLICATING_EFFICIENCY = 0.88
"""Share of the adapters' rate that dispatchers which send a token once a node reach: over 4 and 8 nodes 58
and 51 GB/s, of which 3/4 and 7/8 cross adapters of 50 GB/s (github.com/deepseek-ai/DeepEP, README,
internode kernels on H800)."""


HYBRIDEP_RANKS = (8.0, 16.0, 24.0, 32.0, 36.0)

HYBRIDEP_SHARE = (0.729, 0.715, 0.695, 0.671, 0.663)
"""Share of one chip's link that HybridEP reaches among so many ranks that fast links join: GB200, 32
multiprocessors as Megatron-Bridge's recipes set them, kernels alone, the mean of 16-bit dispatch and combine
over what crosses the link (764 and 737 GB/s of all that 8 ranks receive, 632 and 597 of 36;
deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md). That more ranks reach what 36 do, and other
links as much, is a guess."""


def hybridep_s(network: Network, received_bytes: Values, ranks: Values) -> Values:
    """Dispatch or combination of tokens by HybridEP among ranks that fast links join, weights along [s]."""
    share = np.interp(ranks, HYBRIDEP_RANKS, HYBRIDEP_SHARE)
    return received_bytes * (1 - 1 / ranks) / (share * network.link_bytes_per_s)


def expert_layer_s(
    network: Network, model: ModelSpec, kind: LayerKind, stack: SoftwareStack, sizes: Sizes
) -> tuple[Values, Values]:
    """Forward and backward of the exchanges of one mixture-of-experts layer, nothing hidden [s].

    Forward: tokens, probabilities, results, and the counts (of HybridEP, which sends probabilities along with
    tokens, the map of all ranks' choices); with expert tensor parallelism two gathers and
    one reduction more. Backward: three exchanges; one gather and two reductions.
    """
    s = sizes
    if kind not in WITH_EXPERTS or model.moe is None or not exists(s.ep * s.etp > 1):
        return s.zeros, s.zeros
    moe = model.moe
    spread = spread_group(s.ep, s.etp, network.domain_chips)
    sharing = maximum(minimum(network.domain_chips, s.stage_chips) / spread.inside, 1.0)
    # The busiest rank sets the pace: what it receives exceeds an even share, or is cut to its capacity.
    rows = s.norm_tokens * moe.top_k * s.expert_load
    sent = rows
    once_a_node = stack.moe_dispatcher == "deduplicating"
    if once_a_node:
        sent = rows * distinct_share(model, where(spread.nodes > 1, spread.nodes, spread.ranks))
    reached = DEDUPLICATING_EFFICIENCY if once_a_node else None
    tokens, probabilities = (
        collective_s(network, "all_to_all", size, spread, sharing, reached)
        for size in (sent * model.routed_width * HALF, rows * 4.0)
    )
    counts = collective_s(network, "all_gather", 8.0 * moe.num_experts * s.ep, spread, sharing)
    exchange = 2 * tokens + probabilities
    if once_a_node and stack.dispatcher_library == "hybridep":
        near = spread.nodes <= 1
        once = hybridep_s(network, sent * model.routed_width * HALF, spread.ranks)
        exchange = where(near, 2 * once, exchange)
        routed = s.norm_tokens * moe.num_experts * s.ep  # every rank learns who goes where, a byte each
        counts = where(near, collective_s(network, "all_gather", routed, spread, sharing), counts)
    gathered = s.expert_rows(moe.top_k)
    expert_spread = spread_group(s.etp, s.ones, network.domain_chips)
    gather, scatter = (
        [
            collective_s(network, op, gathered * width, expert_spread, s.ones)
            for width in (model.routed_width * HALF, 4.0)
        ]
        for op in ("all_gather", "reduce_scatter")
    )
    forward = exchange + counts + gather[0] + gather[1] + scatter[0]
    backward = exchange + gather[0] + scatter[0] + scatter[1]
    return forward, backward
