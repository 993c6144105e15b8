"""The matrix products of a layer and of the head, by their shapes.

A product is C[m, n] = A[m, k] B[k, n] with m tokens; its backward is dgrad (m, k, n) and wgrad (n, k, m).
Everything else is bound by memory: `traffic.py`. Shapes follow the modules
of Megatron-LM core 0.19 (Apache-2.0): transformer/attention.py, multi_latent_attention.py, mlp.py,
moe/experts.py, moe/shared_experts.py, moe/router.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.cost.elementwise import Values, maximum
from planner.cost.sizes import Sizes
from planner.data.model_spec import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)
from planner.data.stack import SoftwareStack

Split = Literal["column", "row", "none"]

HALF = 2.0
"""Bytes of a 16-bit value."""

SCAN_CHUNK = 128.0
"""Tokens of a chunk of Mamba-2's scan (`chunk_size` of Megatron-LM core 0.19, ssm/mamba_mixer.py)."""


@dataclass(slots=True)  # frozen ones take three times as long to make
class Matmul:
    """A product of every choice, which nothing changes."""

    name: str
    m: Values
    n: Values
    k: Values
    count: Values
    """Equal products (experts, heads)."""
    split: Split = "none"
    """How tensor parallelism divides the weight."""
    grouped: bool = False
    """Whether the products run as one grouped kernel."""
    has_weight: bool = True
    """Whether B is a weight; without one both gradients are activations'."""
    after_norm: bool = False
    """Whether a norm makes its input."""
    input_again: bool = False
    """Whether the product before has read the same input, so that it is cast already."""
    own_rows: Values | None = None
    """Rows of the input of a column-parallel product (of the output's gradient of a row-parallel one) that a
    rank has before they are gathered; None where they are not."""
    narrow: bool = True
    """Whether it runs in the workload's format, else in 16 bits: Transformer Engine quantises the linear maps
    of layers alone (core/extensions/transformer_engine.py); the head and the router are Megatron's own."""

    @property
    def flop(self) -> Values:
        """FLOP of the forward product."""
        return 2.0 * self.count * self.m * self.n * self.k


def column_maps(model: ModelSpec, kind: LayerKind) -> int:
    """Column-parallel maps of a layer's attention and dense block, where none is joined with another."""
    attention = 3 if kind in WITH_ATTENTION else 0
    attention += kind in WITH_LINEAR_ATTENTION
    return attention + ((2 if model.gated_mlp else 1) if kind in WITH_ONE_MLP else 0)


def layer_matmuls(model: ModelSpec, kind: LayerKind, sizes: Sizes, joined_maps: str = "all") -> list[Matmul]:
    """Products with weights of one layer.

    Parameters
    ----------
    joined_maps
        Which maps of one input are one product (`SoftwareStack.joined_maps`).
    """
    if kind == "mamba":
        return _mamba_matmuls(model, sizes)
    out: list[Matmul] = []
    if kind in WITH_ATTENTION:
        joined = joined_maps != "none"
        out += _latent_matmuls(model, sizes) if model.mla else _attention_matmuls(model, sizes, joined)
    elif kind in WITH_LINEAR_ATTENTION:
        out += _linear_attention_matmuls(model, sizes)
    if kind in WITH_ONE_MLP:
        out += _mlp_matmuls(model, model.ffn_hidden_size, sizes, "fc", joined_maps == "all")
    elif kind in WITH_EXPERTS:
        out += _moe_matmuls(model, sizes)
    return out


def _maps_of_one_input(
    name: str, widths: Sequence[Values], hidden: Values, s: Sizes, joined: bool, after_norm: bool
) -> list[Matmul]:
    """Column-parallel maps to these widths, as one product or several."""
    parts = [sum(widths)] if joined else widths
    return [
        Matmul(
            name,
            s.tokens,
            n,
            hidden,
            s.ones,
            "column",
            after_norm=after_norm,
            input_again=i > 0,
            own_rows=s.norm_tokens,
        )
        for i, n in enumerate(parts)
    ]


def _attention_matmuls(model: ModelSpec, s: Sizes, joined: bool) -> list[Matmul]:
    queries = model.num_attention_heads * model.head_dim / s.tp
    groups = maximum(model.num_query_groups / s.tp, 1.0) * model.head_dim
    hidden = model.hidden_size * s.ones
    gated = 2 * queries if model.output_gate else queries
    return [
        *_maps_of_one_input("qkv", (gated, groups, groups), hidden, s, joined, True),
        Matmul("proj", s.tokens, hidden, queries, s.ones, "row", own_rows=s.norm_tokens),
    ]


def _linear_attention_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    """Input and output maps of a gated delta net; its rule is no product of the tables."""
    linear = model.linear_attention
    assert linear is not None
    hidden = model.hidden_size * s.ones
    return [
        *_maps_of_one_input("in", (linear.input_width / s.tp,), hidden, s, True, True),
        Matmul("out", s.tokens, hidden, linear.value_width / s.tp, s.ones, "row", own_rows=s.norm_tokens),
    ]


def _latent_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    """Down-projections run whole on every rank, over its share of the sequence."""
    mla = model.mla
    assert mla is not None
    heads, hidden = model.num_attention_heads / s.tp, model.hidden_size * s.ones
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    down = (mla.kv_lora_rank + mla.qk_rope_head_dim) * s.ones
    out = [
        Matmul("kv_down", s.norm_tokens, down, hidden, s.ones, after_norm=True),
        Matmul(
            "kv_up",
            s.tokens,
            heads * (mla.qk_nope_head_dim + mla.v_head_dim),
            mla.kv_lora_rank * s.ones,
            s.ones,
            "column",
        ),
        Matmul("proj", s.tokens, hidden, heads * mla.v_head_dim, s.ones, "row", own_rows=s.norm_tokens),
    ]
    if mla.q_lora_rank is None:
        out.append(Matmul("q", s.tokens, heads * query_dim, hidden, s.ones, "column"))
    else:
        rank = mla.q_lora_rank * s.ones
        out.append(Matmul("q_down", s.norm_tokens, rank, hidden, s.ones))
        out.append(Matmul("q_up", s.tokens, heads * query_dim, rank, s.ones, "column"))
    return out


def _mlp_matmuls(model: ModelSpec, width: int, s: Sizes, name: str, joined: bool = True) -> list[Matmul]:
    inner = width / s.tp
    hidden = model.hidden_size * s.ones
    widths = (inner,) * (2 if model.gated_mlp else 1)
    return [
        *_maps_of_one_input(f"{name}1", widths, hidden, s, joined, name == "fc"),
        Matmul(f"{name}2", s.tokens, hidden, inner, s.ones, "row", own_rows=s.norm_tokens),
    ]


def _moe_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    moe = model.moe
    assert moe is not None
    local = moe.num_experts / s.ep
    rows = s.expert_rows(moe.top_k) / local
    width = moe.ffn_hidden_size / s.etp
    hidden, outer = model.hidden_size * s.ones, model.routed_width * s.ones
    out = [
        Matmul("router", s.norm_tokens, moe.num_experts * s.ones, hidden, s.ones, narrow=False),
        Matmul("expert1", rows, (2 if model.gated_mlp else 1) * width, outer, local, grouped=True),
        Matmul("expert2", rows, outer, width, local, grouped=True),
    ]
    if moe.latent_size is not None:  # whole on every rank, as the router
        out.append(Matmul("latent1", s.norm_tokens, outer, hidden, s.ones))
        out.append(Matmul("latent2", s.norm_tokens, hidden, outer, s.ones))
    if moe.shared_ffn_hidden_size:
        out += _mlp_matmuls(model, moe.shared_ffn_hidden_size, s, "shared")
    return out


def _mamba_matmuls(model: ModelSpec, s: Sizes) -> list[Matmul]:
    """Input and output maps of a Mamba-2 mixer, and its scan as products over chunks.

    Products of C and B are made once for a group of heads; each head multiplies its input with them and
    with B, which makes the states, and these with C (mamba_ssm, ops/triton: ssd_bmm.py, ssd_chunk_state.py,
    ssd_chunk_scan.py).
    """
    spec = model.hybrid
    assert spec is not None
    inner = spec.mamba_heads * spec.mamba_head_dim / s.tp
    state = 2 * spec.groups * spec.ssm_state / s.tp
    hidden = model.hidden_size * s.ones
    heads = spec.mamba_heads / s.tp
    chunk = SCAN_CHUNK * s.ones
    chunks = s.tokens / chunk
    head_dim, states = spec.mamba_head_dim * s.ones, spec.ssm_state * s.ones
    scan = (
        ("scan_scores", s.tokens, chunk, states, spec.groups / s.tp),
        ("scan_values", s.tokens, head_dim, chunk, heads),
        ("scan_states", chunks * states, head_dim, chunk, heads),
        ("scan_outputs", s.tokens, head_dim, states, heads),
    )
    return [
        Matmul("in", s.tokens, 2 * inner + state + heads, hidden, s.ones, "column", own_rows=s.norm_tokens),
        Matmul("out", s.tokens, hidden, inner, s.ones, "row", own_rows=s.norm_tokens),
        *(Matmul(*product, has_weight=False, narrow=False) for product in scan),
    ]


def score_matmuls(model: ModelSpec, sizes: Sizes) -> list[Matmul]:
    """Both products of attention without a fused kernel, over whole score matrices."""
    s = sizes
    heads = model.num_attention_heads / s.tp
    rows = s.microbatch_size * heads * s.seq_length / s.cp
    seq = s.seq_length * s.ones
    query_dim, value_dim = attention_dims(model)
    return [
        Matmul("scores", rows, seq, query_dim * s.ones, s.ones, has_weight=False, narrow=False),
        Matmul("values", rows, value_dim * s.ones, seq, s.ones, has_weight=False, narrow=False),
    ]


def attention_dims(model: ModelSpec) -> tuple[int, int]:
    """Width of a query or key head and of a value head."""
    return model.head_widths


def repeats_groups(model: ModelSpec, stack: SoftwareStack) -> bool:
    """Whether grouped keys and values are repeated for every head: by plain modules, and where scores are
    kept.

    Source: `repeat_interleave` in core/transformer/dot_product_attention.py of Megatron-LM core 0.19 and in
    pytorch/attention/dot_product_attention/backends.py of Transformer Engine 2 (UnfusedDotProductAttention).
    """
    plain = stack.plain_modules or stack.repeats_groups or not stack.flash_attention
    return model.mla is None and plain


def exchanged_groups(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Values:
    """Keys, and values, of a token on one tensor-parallel rank that context-parallel ranks exchange."""
    if model.mla is not None or repeats_groups(model, stack):
        return model.num_attention_heads / sizes.tp
    return maximum(model.num_query_groups / sizes.tp, 1.0)


def head_matmul(model: ModelSpec, vocab: Values, sizes: Sizes, narrow: bool = False) -> Matmul:
    """The head, in the workload's format or in 16 bits; `vocab` is the padded number of entries."""
    s = sizes
    hidden = model.hidden_size * s.ones
    return Matmul("head", s.tokens, vocab / s.tp, hidden, s.ones, "column", narrow=narrow)


def merge_matmul(model: ModelSpec, sizes: Sizes) -> Matmul:
    """The map of a multi-token-prediction layer from hidden state and embedding to one hidden state."""
    s = sizes
    hidden = model.hidden_size * s.ones
    return Matmul("merge", s.tokens, hidden / s.tp, 2 * hidden, s.ones, "column")
