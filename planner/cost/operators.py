"""The operators of a layer, of the embedding and of the head: shapes of products, bytes of the rest.

A product is C[m, n] = A[m, k] B[k, n] with m tokens; its backward is dgrad (m, k, n) and wgrad (n, k, m).
Everything else is bound by memory and counts the bytes it reads and writes. Shapes follow the modules
of Megatron-LM core 0.19 (Apache-2.0): transformer/attention.py, multi_latent_attention.py, mlp.py,
moe/experts.py, moe/shared_experts.py, moe/router.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.cost.prices import Floats
from planner.cost.sizes import Sizes
from planner.data.model_spec import LayerKind, ModelSpec
from planner.data.stack import SoftwareStack

Split = Literal["column", "row", "none"]

HALF = 2.0
"""Bytes of a 16-bit value."""


@dataclass(frozen=True)
class Matmul:
    """A product of every choice: arrays of axis `choice`."""

    name: str
    m: Floats
    n: Floats
    k: Floats
    count: Floats
    """Equal products (experts, heads)."""
    split: Split = "none"
    """How tensor parallelism divides the weight."""
    grouped: bool = False
    """Whether the products run as one grouped kernel."""
    has_weight: bool = True
    """Whether B is a weight; without one both gradients are activations'."""

    @property
    def flop(self) -> Floats:
        """FLOP of the forward product."""
        return 2.0 * self.count * self.m * self.n * self.k


@dataclass(frozen=True)
class Traffic:
    """Bytes that memory-bound operators move in one pass over a micro-batch."""

    forward_bytes: Floats
    backward_bytes: Floats

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.forward_bytes + other.forward_bytes, self.backward_bytes + other.backward_bytes)


def layer_matmuls(model: ModelSpec, kind: LayerKind, sizes: Sizes) -> list[Matmul]:
    """Products with weights of one layer."""
    if kind == "mamba":
        return _mamba_matmuls(model, sizes)
    out: list[Matmul] = []
    if kind != "mlp":
        out += _latent_matmuls(model, sizes) if model.mla else _attention_matmuls(model, sizes)
    if kind in ("dense", "mlp"):
        out += _mlp_matmuls(model, model.ffn_hidden_size, sizes, "fc")
    elif kind == "moe":
        out += _moe_matmuls(model, sizes)
    return out


def _attention_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    queries = model.num_attention_heads * model.head_dim / s.tp
    groups = np.maximum(model.num_query_groups / s.tp, 1.0) * model.head_dim
    hidden = model.hidden_size * s.ones
    return [
        Matmul("qkv", s.tokens, queries + 2 * groups, hidden, s.ones, "column"),
        Matmul("proj", s.tokens, hidden, queries, s.ones, "row"),
    ]


def _latent_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    """Down-projections run whole on every rank, over its share of the sequence."""
    mla = model.mla
    assert mla is not None
    heads, hidden = model.num_attention_heads / s.tp, model.hidden_size * s.ones
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    down = (mla.kv_lora_rank + mla.qk_rope_head_dim) * s.ones
    out = [
        Matmul("kv_down", s.norm_tokens, down, hidden, s.ones),
        Matmul(
            "kv_up",
            s.tokens,
            heads * (mla.qk_nope_head_dim + mla.v_head_dim),
            mla.kv_lora_rank * s.ones,
            s.ones,
            "column",
        ),
        Matmul("proj", s.tokens, hidden, heads * mla.v_head_dim, s.ones, "row"),
    ]
    if mla.q_lora_rank is None:
        out.append(Matmul("q", s.tokens, heads * query_dim, hidden, s.ones, "column"))
    else:
        rank = mla.q_lora_rank * s.ones
        out.append(Matmul("q_down", s.norm_tokens, rank, hidden, s.ones))
        out.append(Matmul("q_up", s.tokens, heads * query_dim, rank, s.ones, "column"))
    return out


def _mlp_matmuls(model: ModelSpec, width: int, s: Sizes, name: str) -> list[Matmul]:
    inner = width / s.tp
    hidden = model.hidden_size * s.ones
    return [
        Matmul(f"{name}1", s.tokens, (2 if model.gated_mlp else 1) * inner, hidden, s.ones, "column"),
        Matmul(f"{name}2", s.tokens, hidden, inner, s.ones, "row"),
    ]


def _moe_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    moe = model.moe
    assert moe is not None
    local = moe.num_experts / s.ep
    rows = s.expert_rows(moe.top_k) / local
    width = moe.ffn_hidden_size / s.etp
    hidden = model.hidden_size * s.ones
    out = [
        Matmul("router", s.norm_tokens, moe.num_experts * s.ones, hidden, s.ones),
        Matmul("expert1", rows, (2 if model.gated_mlp else 1) * width, hidden, local, grouped=True),
        Matmul("expert2", rows, hidden, width, local, grouped=True),
    ]
    if moe.shared_ffn_hidden_size:
        out += _mlp_matmuls(model, moe.shared_ffn_hidden_size, s, "shared")
    return out


def _mamba_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    """Input and output maps of a Mamba-2 mixer, and its chunked scan as products over chunks of 128."""
    spec = model.hybrid
    assert spec is not None
    inner = spec.mamba_heads * spec.mamba_head_dim / s.tp
    state = 2 * spec.groups * spec.ssm_state / s.tp
    hidden = model.hidden_size * s.ones
    heads = spec.mamba_heads / s.tp
    chunk = 128.0 * s.ones
    chunks = s.tokens / chunk
    head_dim, states = spec.mamba_head_dim * s.ones, spec.ssm_state * s.ones
    return [
        Matmul("in", s.tokens, 2 * inner + state + heads, hidden, s.ones, "column"),
        Matmul("out", s.tokens, hidden, inner, s.ones, "row"),
        Matmul("scan_scores", chunks * chunk, chunk, states, heads, has_weight=False),
        Matmul("scan_values", chunks * chunk, head_dim, chunk, heads, has_weight=False),
        Matmul("scan_states", chunks * states, head_dim, chunk, heads, has_weight=False),
    ]


def score_matmuls(model: ModelSpec, sizes: Sizes) -> list[Matmul]:
    """Both products of attention without a fused kernel, over whole score matrices."""
    s = sizes
    heads = model.num_attention_heads / s.tp
    rows = s.microbatch_size * heads * s.seq_length / s.cp
    seq = s.seq_length * s.ones
    query_dim, value_dim = attention_dims(model)
    return [
        Matmul("scores", rows, seq, query_dim * s.ones, s.ones, has_weight=False),
        Matmul("values", rows, value_dim * s.ones, seq, s.ones, has_weight=False),
    ]


def attention_dims(model: ModelSpec) -> tuple[int, int]:
    """Width of a query or key head and of a value head."""
    if model.mla is None:
        return model.head_dim, model.head_dim
    return model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim, model.mla.v_head_dim


def score_traffic(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Traffic:
    """Softmax and dropout over score matrices in memory.

    The fused scale-mask-softmax reads and writes each 16-bit score once (backward: reads two, writes one);
    without it the scores are cast to fp32 (6 bytes moved), scaled (8), masked (9), normalised (8) and cast
    back (6), and the backward goes the same way with one read more. Dropout reads and writes a score and a
    mask of one byte (Korthikanti et al. 2022, section 4.1; megatron/model/fused_softmax.py of Megatron-LM).
    """
    s = sizes
    scores = s.microbatch_size * model.num_attention_heads / s.tp * s.seq_length * s.seq_length / s.cp
    forward, backward = (2 * HALF, 3 * HALF) if stack.fused_softmax else (37.0, 41.0)
    dropout = 2 * HALF + 1.0 if stack.dropout else 0.0
    return Traffic(scores * (forward + dropout), scores * (backward + dropout))


def layer_traffic(model: ModelSpec, kind: LayerKind, stack: SoftwareStack, sizes: Sizes) -> Traffic:
    """Norms, residuals, positions and activation of one layer, and the sorting of tokens to experts."""
    s = sizes
    out = _norm_and_residual_traffic(model, kind, stack, s)
    if kind == "mamba":
        return out + _mamba_traffic(model, s)
    if kind != "mlp":
        out = out + _attention_traffic(model, stack, s)
    if kind in ("dense", "mlp"):
        out = out + _activation_traffic(model, stack, s.tokens * model.ffn_hidden_size / s.tp)
    elif kind == "moe":
        out = out + _moe_traffic(model, stack, s)
    return out


def _norm_and_residual_traffic(model: ModelSpec, kind: LayerKind, stack: SoftwareStack, s: Sizes) -> Traffic:
    """A norm reads and writes once, its backward reads two and writes one; a residual sum moves three."""
    values = s.norm_tokens * model.hidden_size
    blocks = 1 if kind in ("mlp", "mamba", "attention") else 2
    norms = model.norms_per_layer if blocks == 2 else 1
    mask = 1.0 if stack.dropout else 0.0
    unfused = 0.0 if stack.fused_pointwise else 2 * HALF
    forward = norms * (2 * HALF) + blocks * (3 * HALF + mask + unfused * mask)
    backward = norms * (3 * HALF + unfused) + blocks * (3 * HALF + mask)
    return Traffic(values * forward, values * backward)


def _attention_traffic(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> Traffic:
    """Rotary positions and head norms read and write queries and keys once each way."""
    groups = np.maximum(model.num_query_groups / s.tp, 1.0)
    query_dim, _ = attention_dims(model)
    heads = model.num_attention_heads / s.tp
    if model.mla is not None:
        groups = heads
    values = s.tokens * (heads + groups) * query_dim
    times = (1.0 if model.position_embedding == "rope" else 0.0) + (1.0 if model.qk_norm else 0.0)
    unfused = 1.0 if stack.fused_pointwise else 2.5
    moved = values * times * unfused * 2 * HALF
    if model.mla is not None:
        # Keys are put together from their two parts and queries split, which copies them once more.
        moved = moved + values * 2 * HALF
    return Traffic(moved, moved)


def _activation_traffic(model: ModelSpec, stack: SoftwareStack, values: Floats) -> Traffic:
    """A gated unit reads two and writes one (backward reads three, writes two); a plain one one and one."""
    inputs = 2 if model.gated_mlp else 1
    extra = 0.0 if stack.fused_pointwise else inputs * HALF
    return Traffic(values * (HALF * (inputs + 1) + extra), values * (HALF * (2 * inputs + 1) + 2 * extra))


UNFUSED_PERMUTE_FACTOR = 10.0
"""Indexed copies and scatter-adds of plain PyTorch reach about 200 GB/s on an H100, a tenth of the fused
kernels' rate (12 shapes measured, `instances/tables/README.md`)."""

ROUTER_BYTES_PER_SCORE = 40.0
"""Softmax, top-k, scatter and auxiliary loss over fp32 scores: ten passes of four bytes; a guess that gives
the 0.1 to 0.2 ms measured on one H100 for 4,096 to 8,192 tokens and 256 experts, launches apart."""


def _moe_traffic(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> Traffic:
    """Router scores, permutation before and after the exchange, the activation over routed rows."""
    moe = model.moe
    assert moe is not None
    sent = s.norm_tokens * moe.top_k * model.hidden_size
    own = s.norm_tokens * model.hidden_size
    received = s.expert_rows(moe.top_k) * model.hidden_size
    sorted_again = np.where((moe.num_experts > s.ep) & (s.ep * s.etp > 1), 4 * HALF, 0.0)
    permute = HALF * (own + sent) * (2.0 if stack.moe_permute_fusion else 1.0 + UNFUSED_PERMUTE_FACTOR)
    moved = permute + received * sorted_again + s.norm_tokens * moe.num_experts * ROUTER_BYTES_PER_SCORE
    out = Traffic(moved, moved)
    rows = s.expert_rows(moe.top_k) * moe.ffn_hidden_size / s.etp
    out = out + _activation_traffic(model, stack, rows)
    if moe.shared_ffn_hidden_size:
        out = out + _activation_traffic(model, stack, s.tokens * moe.shared_ffn_hidden_size / s.tp)
        out = out + Traffic(own * 3 * HALF, own * 3 * HALF)
    return out


def _mamba_traffic(model: ModelSpec, s: Sizes) -> Traffic:
    """Convolution, gate, gated norm and the scan's own reads and writes; an estimate, nobody measured it."""
    spec = model.hybrid
    assert spec is not None
    inner = spec.mamba_heads * spec.mamba_head_dim / s.tp
    state = 2 * spec.groups * spec.ssm_state / s.tp
    values = s.tokens * (inner + state)
    return Traffic(values * 12 * HALF, values * 24 * HALF)


def head_matmul(model: ModelSpec, vocab: Floats, sizes: Sizes) -> Matmul:
    """The vocabulary head; `vocab` is the padded number of entries of each choice."""
    s = sizes
    return Matmul("head", s.tokens, vocab / s.tp, model.hidden_size * s.ones, s.ones, "column")


def merge_matmul(model: ModelSpec, sizes: Sizes) -> Matmul:
    """The map of a multi-token-prediction layer from hidden state and embedding to one hidden state."""
    s = sizes
    hidden = model.hidden_size * s.ones
    return Matmul("merge", s.tokens, hidden / s.tp, 2 * hidden, s.ones, "column")


def head_traffic(model: ModelSpec, stack: SoftwareStack, vocab: Floats, sizes: Sizes) -> Traffic:
    """Final norm, and the cross-entropy over logits.

    Fused: one pass over 16-bit logits forward (read twice, write once), none backward but a scaling.
    Not fused: Megatron's vocab-parallel loss copies to fp32, takes the maximum, subtracts, exponentiates,
    sums and divides, 38 bytes a logit; backward scales and casts, 18 bytes
    (core/tensor_parallel/cross_entropy.py, counted by hand).
    """
    s = sizes
    norm = s.norm_tokens * model.hidden_size
    logits = s.tokens * vocab / s.tp
    forward, backward = (8.0, 4.0) if stack.fused_cross_entropy else (38.0, 18.0)
    return Traffic(norm * 2 * HALF + logits * forward, norm * 3 * HALF + logits * backward)


def embedding_traffic(model: ModelSpec, sizes: Sizes) -> Traffic:
    """Rows read and written; the gradient is added to the fp32 rows at random places."""
    values = sizes.tokens * model.hidden_size
    return Traffic(values * 2 * HALF, values * (HALF + 2 * 4.0))
