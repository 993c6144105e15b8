"""How many parameters a layer, the embedding and the head have, and who holds them.

Three shares, because three groups of ranks divide them differently: `tensor_sharded` over the
tensor-parallel ranks, `replicated` on each of them whole (norms, biases of row-parallel maps, router,
norms of queries and keys, the down-projections of latent attention), `expert` over the
expert-parallel ranks.

Sources: the modules of Megatron-LM core 0.19 (Apache-2.0): transformer/attention.py (qkv and output
map), transformer/multi_latent_attention.py (down-projections are not sharded), transformer/mlp.py,
transformer/moe/router.py, moe/experts.py, moe/shared_experts.py, ssm/mamba_mixer.py, ssm/gated_delta_net,
transformer/multi_token_prediction.py, models/common/embeddings; which map is column- or row-parallel
decides where its bias lives. Totals agree with the public checkpoints (tests).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from planner.data.attention_spec import LinearAttentionSpec, MlaSpec
from planner.data.experts_spec import MoeSpec
from planner.data.model_spec import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)

VOCAB_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to a multiple of this times tp (`--make-vocab-size-divisible-by`)."""


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by the ranks that divide them."""

    tensor_sharded: int = 0
    """Divided by the tensor-parallel degree."""
    replicated: int = 0
    """Held whole by every tensor-parallel rank."""
    expert: int = 0
    """Routed experts, divided by expert-parallel x expert-tensor-parallel degree."""

    @property
    def total(self) -> int:
        """All of them, counted once."""
        return self.tensor_sharded + self.replicated + self.expert

    def __add__(self, other: ParameterCounts) -> ParameterCounts:
        return ParameterCounts(
            self.tensor_sharded + other.tensor_sharded,
            self.replicated + other.replicated,
            self.expert + other.expert,
        )

    def times(self, count: int) -> ParameterCounts:
        """The counts of several equal pieces."""
        return ParameterCounts(self.tensor_sharded * count, self.replicated * count, self.expert * count)

    def per_rank(
        self, tensor_parallel: int, expert_parallel: int = 1, expert_tensor_parallel: int = 1
    ) -> float:
        """Parameters that one rank holds."""
        return (
            self.tensor_sharded / tensor_parallel
            + self.replicated
            + self.expert / (expert_parallel * expert_tensor_parallel)
        )


@overload
def padded_vocab(vocab_size: int, tp: int) -> int: ...


@overload
def padded_vocab(vocab_size: int, tp: NDArray[np.int64]) -> NDArray[np.float64]: ...


def padded_vocab(vocab_size: int, tp: int | NDArray[np.int64]) -> int | NDArray[np.float64]:
    """Vocabulary rounded up to a multiple of 128 x tp, as Megatron-LM pads it; one for each of several tp."""
    multiple = VOCAB_MULTIPLE * tp
    padded = -(-vocab_size // multiple) * multiple
    return padded if isinstance(padded, int) else padded.astype(np.float64)


def layer_parameters(model: ModelSpec, kind: LayerKind) -> ParameterCounts:
    """Parameters of one layer of a kind."""
    if kind == "mamba":
        return _mamba(model) + _norms(model, model.norms_per_layer)
    counts = _norms(model, model.norms_per_layer)
    if kind in WITH_ATTENTION:
        counts += _latent_attention(model, model.mla) if model.mla else _attention(model)
    elif kind in WITH_LINEAR_ATTENTION and model.linear_attention is not None:
        counts += _linear_attention(model, model.linear_attention)
    if kind in WITH_ONE_MLP:
        counts += _mlp(model, model.ffn_hidden_size, bias=model.linear_bias == "all")
    elif kind in WITH_EXPERTS:
        counts += _experts(model, _moe_of(model))
    return counts


def embedding_parameters(model: ModelSpec, padded_vocab: int | None = None) -> ParameterCounts:
    """Parameters of the embedding, learned positions included.

    Parameters
    ----------
    padded_vocab
        Entries after padding; the model's own number where absent.
    """
    entries = model.vocab_size if padded_vocab is None else padded_vocab
    positions = model.max_position_embeddings if model.position_embedding == "learned" else 0
    return ParameterCounts(
        tensor_sharded=entries * model.hidden_size, replicated=positions * model.hidden_size
    )


def head_parameters(model: ModelSpec, padded_vocab: int | None = None) -> ParameterCounts:
    """Parameters of the final norm and the vocabulary head beside the embedding, which a tied head shares."""
    entries = model.vocab_size if padded_vocab is None else padded_vocab
    weights = 0 if model.tied_embeddings else entries * model.hidden_size
    return ParameterCounts(tensor_sharded=weights) + _norms(model, 1)


def embedding_copies(model: ModelSpec, padded_vocab: int) -> ParameterCounts:
    """What the last of several stages holds of the embedding beside head and predictions.

    A tied head is a copy of it. Predictions read a copy of their own, and then a tied head has weights too,
    which no pass uses (core/models/gpt/gpt_model.py: `mtp_process`, `skip_weight_param_allocation`).
    """
    copies = int(model.tied_embeddings) + int(model.mtp_num_layers > 0)
    return ParameterCounts(tensor_sharded=copies * padded_vocab * model.hidden_size)


def mtp_parameters(model: ModelSpec) -> ParameterCounts:
    """Parameters of all multi-token-prediction layers; they share embedding and head.

    Each is a layer of the last kind (or those of a hybrid's pattern), a map from two hidden states to one,
    and three norms.
    """
    one = ParameterCounts(tensor_sharded=2 * model.hidden_size * model.hidden_size) + _norms(model, 3)
    for kind in model.prediction_kinds:
        one += layer_parameters(model, kind)
    return one.times(model.own_predictions)


def total_parameters(model: ModelSpec) -> int:
    """Parameters of the model without padding and without multi-token-prediction layers."""
    counts = embedding_parameters(model) + head_parameters(model)
    kinds = model.kind_of_layer
    for kind in model.layer_kinds:
        counts += layer_parameters(model, kind).times(kinds.count(kind))
    return counts.total


def _norms(model: ModelSpec, count: int) -> ParameterCounts:
    return ParameterCounts(replicated=count * _vectors(model) * model.hidden_size)


def _vectors(model: ModelSpec) -> int:
    """Vectors of one norm: a layer norm has scale and shift."""
    return 1 if model.normalization == "rms" else 2


def _attention(model: ModelSpec) -> ParameterCounts:
    """Grouped-query attention: qkv (with its gate) column-parallel, output map row-parallel."""
    queries = model.num_attention_heads * model.head_dim
    qkv = model.query_maps_width
    sharded = model.hidden_size * (qkv + queries)
    replicated = 0
    if model.linear_bias in ("all", "attention", "qkv"):
        sharded += qkv
    if model.linear_bias in ("all", "attention"):
        replicated += model.hidden_size
    if model.attention_sinks:
        sharded += model.num_attention_heads
    if model.qk_norm:
        replicated += 2 * _vectors(model) * model.head_dim
    return ParameterCounts(sharded, replicated)


def _latent_attention(model: ModelSpec, mla: MlaSpec) -> ParameterCounts:
    """Multi-head latent attention: every rank holds the down-projections and their norms whole."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    query_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    output = heads * mla.v_head_dim * hidden
    vectors = _vectors(model)
    down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + vectors * mla.kv_lora_rank
    if mla.q_lora_rank is None:
        return ParameterCounts(hidden * query_width + up + output, down)
    return ParameterCounts(
        mla.q_lora_rank * query_width + up + output, down + (hidden + vectors) * mla.q_lora_rank
    )


def _linear_attention(model: ModelSpec, linear: LinearAttentionSpec) -> ParameterCounts:
    """Gated delta net: all is sharded over the heads but the norm of one head's output."""
    maps = model.hidden_size * (linear.input_width + linear.value_width)
    per_head = 2 * linear.value_heads  # decay, and the bias of its step
    return ParameterCounts(
        maps + linear.conv_width * linear.conv + per_head, _vectors(model) * linear.value_head_dim
    )


def _mlp(model: ModelSpec, width: int, *, bias: bool, outer: int | None = None) -> ParameterCounts:
    """Feed-forward block: first map (with its gate) column-parallel, second row-parallel.

    What it reads and writes is as wide as the hidden state unless `outer` says otherwise.
    """
    inner, outer = (2 if model.gated_mlp else 1) * width, outer or model.hidden_size
    sharded = outer * (inner + width) + (inner if bias else 0)
    return ParameterCounts(sharded, outer if bias else 0)


def _experts(model: ModelSpec, moe: MoeSpec) -> ParameterCounts:
    """Router, routed experts and shared experts."""
    router = moe.num_experts * (model.hidden_size + (1 if moe.router_bias else 0))
    one = _mlp(model, moe.ffn_hidden_size, bias=moe.expert_bias, outer=model.routed_width).total
    shared = _mlp(model, moe.shared_ffn_hidden_size, bias=False) if moe.shared_ffn_hidden_size else None
    gate = model.hidden_size if moe.shared_expert_gate else 0
    latent = 2 * model.hidden_size * (moe.latent_size or 0)
    counts = ParameterCounts(replicated=router + gate + latent, expert=moe.num_experts * one)
    return counts + shared if shared else counts


def _moe_of(model: ModelSpec) -> MoeSpec:
    assert model.moe is not None, "a layer of experts in a model without any"
    return model.moe


def _mamba(model: ModelSpec) -> ParameterCounts:
    """Mamba-2 mixer: all but the layer's norm is sharded over the heads."""
    assert model.hybrid is not None, "a mamba layer in a model without hybrid layers"
    spec = model.hybrid
    inner = spec.mamba_heads * spec.mamba_head_dim
    state = 2 * spec.groups * spec.ssm_state
    in_map = model.hidden_size * (2 * inner + state + spec.mamba_heads)
    convolution = (inner + state) * (spec.conv + 1)  # one bias a channel
    per_head = 3 * spec.mamba_heads  # A, D and the bias of the time step
    return ParameterCounts(in_map + convolution + per_head + inner + inner * model.hidden_size)
