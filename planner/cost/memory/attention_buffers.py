"""Memory that attention takes in passing, beside what it keeps: heads and sequences of other ranks."""

from __future__ import annotations

from planner.cost.elementwise import Values, where
from planner.cost.kernels.operators import HALF, attention_dims, exchanged_groups
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack


def gathered_heads_bytes(model: ModelSpec, s: Sizes) -> Values:
    """Queries, keys and values of all tensor-parallel ranks, from which each cuts its heads [bytes].

    Zero where every rank has whole key-value heads (core/transformer/attention.py of Megatron-LM core 0.16 or
    newer, `all_gather_last_dim_from_tensor_parallel_region`).
    """
    if model.mla is not None:
        return s.zeros
    return where(model.num_query_groups < s.tp, s.tokens * HALF * model.query_maps_width, 0.0)


def context_exchange_bytes(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> Values:
    """What attention over context-parallel ranks holds until it ends, in the forward [bytes].

    Around a ring: keys and values of all steps, and an output of each, which are weighted when the last is
    there (`p2p_comm_buffers` and `out_per_step` in Transformer Engine's context_parallel.py). Gathered: keys
    and values of all ranks, and once more in order. Rings between nodes have fewer steps than are counted.
    """
    if stack.cp_exchange == "a2a":
        return s.zeros
    query_dim, value_dim = attention_dims(model)
    heads = model.num_attention_heads / s.tp
    groups = exchanged_groups(model, stack, s)
    brought = groups * (query_dim + value_dim)
    of_a_rank = 2 * brought if stack.cp_exchange == "all_gather" else brought + heads * value_dim
    return where(s.cp > 1, s.cp * s.tokens * HALF * of_a_rank, 0.0)
