"""One stage of a plan as the counts of collectives see it, and what they count."""

from __future__ import annotations

from dataclasses import dataclass

from planner.data.model_spec import LayerKind

HALF_BYTES, FLOAT_BYTES = 2, 4
"""Bytes of a value in 16 bits and in fp32."""


@dataclass(frozen=True)
class Collective:
    """One kind of call in a step."""

    phase: str
    """forward, backward, gradients (after the last backward) or parameters (before the first forward)."""
    op: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, send."""
    group: str
    """tp, dp (data x context), expert_dp, ep, etp, ep_etp, tp_cp, pp or embedding; with several optimizer
    instances dp and expert_dp are the ranks of one, dp_instances and expert_dp_instances lead across them."""
    size_bytes: float
    """The full buffer: gathered, or before the reduction."""
    count: int
    """Calls in a step."""


@dataclass(frozen=True)
class StageShape:
    """One stage of a plan and what the degrees make of it."""

    kinds: tuple[LayerKind, ...]
    """Kinds of its layers."""
    has_embedding: bool
    has_head: bool
    stage: int
    num_stages: int
    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    microbatch_size: int = 1
    num_microbatches: int = 1
    virtual_stages: int = 1
    recomputed_layers: int = 0
    """Layers recomputed in full."""
    dp_mode: str = "distopt"
    fused_cross_entropy: bool = False
    gradient_bytes: int = FLOAT_BYTES
    """Bytes of a gradient where it is summed and reduced: 2 with --grad-reduce-in-bf16."""
    overlap: bool = False
    """Whether gradients are reduced behind backward, in buckets, and parameters gathered behind forward."""
    bucket_parameters: int | None = None
    """Parameters from which a bucket is full; None takes Megatron-LM's default."""
    router_bytes: int = FLOAT_BYTES
    """Bytes of a routing probability: 4 with --moe-router-dtype fp32, else 2."""
    gathers_tokens: bool = False
    """Whether experts gather all tokens of their group instead of exchanging those they need
    (--moe-token-dispatcher-type allgather)."""
    optimizer_instances: int = 1
    """Groups of data-parallel ranks that hold a copy of the optimizer state each
    (--num-distributed-optimizer-instances)."""
