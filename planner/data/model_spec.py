"""The network to train: its shape, as its public configuration states it."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pydantic import Field, model_validator

from planner.data.attention_spec import LINEAR, LinearAttentionSpec, MlaSpec
from planner.data.base import Data
from planner.data.experts_spec import MoeSpec, check_groups
from planner.data.model_constants import ModelConstants

LayerKind = Literal["dense", "moe", "linear", "linear_moe", "mamba", "attention", "mlp", "experts"]
"""A transformer layer, with one feed-forward network or experts, the same of linear attention, or one of the
blocks of a hybrid model."""

WITH_LINEAR_ATTENTION: frozenset[LayerKind] = frozenset({"linear", "linear_moe"})
"""Kinds that hold linear attention."""
TRANSFORMER_LAYERS: frozenset[LayerKind] = WITH_LINEAR_ATTENTION | {"dense", "moe"}
"""Kinds of two blocks, attention and what follows; the others are one block."""
WITH_ATTENTION: frozenset[LayerKind] = frozenset({"dense", "moe", "attention"})
"""Kinds that hold attention over scores of all pairs."""
WITH_ONE_MLP: frozenset[LayerKind] = frozenset({"dense", "linear", "mlp"})
"""Kinds whose feed-forward network every token visits."""
WITH_EXPERTS: frozenset[LayerKind] = frozenset({"moe", "linear_moe", "experts"})
"""Kinds that hold a mixture of experts."""
LINEAR_OF: dict[LayerKind, LayerKind] = {"dense": "linear", "moe": "linear_moe"}
"""Kind of the same layer with linear attention."""

KIND_OF_LETTER: dict[str, LayerKind] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "experts"}
"""Kinds of a hybrid's layers by the letters of its pattern, which are Megatron-LM's."""

MOST_LAYERS = 10_000
"""More layers than any model has: kinds are listed layer by layer, and a slip must not ask for billions."""


class HybridSpec(Data):
    """Layers of several kinds in a stated order (Mamba-2, attention, feed-forward, experts)."""

    pattern: str = Field(pattern=r"^[M\-*E]+$")
    """One character a layer: M Mamba-2, * attention, - feed-forward, E experts (`moe` of the model)."""
    mamba_heads: int = Field(ge=1)
    """Heads of a Mamba-2 layer."""
    mamba_head_dim: int = Field(ge=1)
    """Width of a Mamba-2 head."""
    ssm_state: int = Field(ge=1)
    """State size of a Mamba-2 head."""
    groups: int = Field(ge=1)
    """Groups that share B and C of a Mamba-2 layer."""
    conv: int = Field(ge=1)
    """Width of the causal convolution."""
    prediction_pattern: str | None = Field(default=None, pattern=r"^[M\-*E]+$")
    """The layers of one multi-token prediction, in the same letters; null without any."""


class ModelSpec(Data):
    """A decoder-only transformer, dense or mixture of experts, or a hybrid of it."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")
    """Name used in problems, such as `llama3-70b`."""
    family: str
    """What it belongs to."""
    num_layers: int = Field(ge=1, le=MOST_LAYERS)
    """Transformer blocks."""
    hidden_size: int = Field(ge=1)
    """Width of the residual stream."""
    ffn_hidden_size: int = Field(ge=0)
    """Intermediate width of a dense feed-forward block; 0 where there is none."""
    num_attention_heads: int = Field(ge=1)
    """Query heads."""
    num_query_groups: int = Field(ge=1)
    """Key and value heads."""
    head_dim: int = Field(ge=1)
    """Width of a head."""
    vocab_size: int = Field(ge=1)
    """Entries of the vocabulary, before padding."""
    max_position_embeddings: int = Field(ge=1)
    """Longest sequence [tokens]."""
    tied_embeddings: bool
    """Whether the head shares the embedding's weights."""
    position_embedding: Literal["rope", "learned", "none"] = "rope"
    """How positions enter."""
    gated_mlp: bool
    """Whether the feed-forward block has a gate (three matrices instead of two)."""
    activation: str
    """Non-linearity of the feed-forward block."""
    normalization: Literal["rms", "layer"]
    """RMS norm (one vector) or layer norm (two)."""
    norms_per_layer: int = Field(default=2, ge=1, le=4)
    """Norms in a block."""
    qk_norm: bool = False
    """Whether queries and keys are normalised by head."""
    linear_bias: Literal["none", "all", "qkv", "attention"] = "none"
    """Which linear maps have biases."""
    attention_note: str = ""
    """What is special about the attention (windows, sinks), in words."""
    attention_sinks: bool = False
    """Whether each head has a learned sink logit."""
    sliding_window: int | None = Field(default=None, ge=1)
    """Window of the local layers [tokens]; null where all layers see everything."""
    global_layer_every: int = Field(default=1, ge=1)
    """With a window: every how many layers one sees everything; 1 where none does."""
    output_gate: bool = False
    """Whether a sigmoid of the token weighs what attention gives, value by value."""
    mla: MlaSpec | None = None
    """Latent attention, where the model has it."""
    linear_attention: LinearAttentionSpec | None = None
    """Layers of linear attention, where the model has them."""
    moe: MoeSpec | None = None
    """Experts, where the model has them."""
    mtp_num_layers: int = Field(default=0, ge=0, le=MOST_LAYERS)
    """Multi-token-prediction layers."""
    repeated_prediction: bool = False
    """Whether all predictions run one layer's weights, one after another."""
    hybrid: HybridSpec | None = None
    """Order of layer kinds, where they are mixed."""
    constants: ModelConstants = ModelConstants()
    """What changes neither time nor memory, but must stand in launch files."""
    published_params: int | None = Field(default=None, ge=1)
    """Parameters that the publisher states."""
    verified: bool = False
    """Whether an opened source confirms the shape."""
    source: str
    """Where the shape comes from."""
    note: str = ""
    """Anything a reader should know."""
    left_out: tuple[str, ...] = ()
    """Parts of the published network that are not described, such as `vision`."""

    @model_validator(mode="after")
    def _shape_is_possible(self) -> ModelSpec:
        if self.mla is None and self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} must be a multiple of "
                f"num_query_groups {self.num_query_groups}"
            )
        if self.hybrid is not None and len(self.hybrid.pattern) != self.num_layers:
            raise ValueError(
                f"hybrid.pattern has {len(self.hybrid.pattern)} characters, num_layers is {self.num_layers}"
            )
        if self.hybrid is not None:
            _check_blocks_of_experts(self.hybrid, self.moe)
            _check_predictions_of_blocks(self.hybrid, self.mtp_num_layers)
        if self.linear_attention is not None:
            _check_linear_attention(self, self.linear_attention)
        if self.output_gate and self.mla is not None:
            raise ValueError("output_gate is not described beside latent attention (mla)")
        if not self.ffn_hidden_size and WITH_ONE_MLP & set(self.kind_of_layer):
            raise ValueError(
                "ffn_hidden_size is 0, but some layers have a feed-forward block without experts"
            )
        if self.moe is not None and self.moe.top_k > self.moe.num_experts:
            raise ValueError(f"moe.top_k {self.moe.top_k} exceeds num_experts {self.moe.num_experts}")
        groups, visited = self.constants.expert_groups, self.constants.groups_visited
        if (groups is None) != (visited is None):
            raise ValueError("constants.expert_groups and constants.groups_visited go together")
        if groups is not None and visited is not None:
            check_groups(self.moe, groups, visited)
        return self

    @property
    def kind_of_layer(self) -> tuple[LayerKind, ...]:
        """Kind of every layer, in model order."""
        if self.hybrid is not None:
            return tuple(KIND_OF_LETTER[c] for c in self.hybrid.pattern)
        dense, every = (
            (self.num_layers, 1) if self.moe is None else (self.moe.first_dense_layers, self.moe.layer_freq)
        )
        linear = self.linear_attention.pattern if self.linear_attention is not None else ""
        return _kinds_among_experts(self.num_layers, dense, every, linear)

    @property
    def head_widths(self) -> tuple[int, int]:
        """Values of a head's queries and keys, and of its values."""
        if self.mla is None:
            return self.head_dim, self.head_dim
        return self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim, self.mla.v_head_dim

    @property
    def prediction_kinds(self) -> tuple[LayerKind, ...]:
        """Kinds of the layers of one prediction: the last layer's, with full attention, or a hybrid's own."""
        if self.hybrid is None or self.hybrid.prediction_pattern is None:
            last = self.kind_of_layer[-1]
            return (next((full for full, linear in LINEAR_OF.items() if linear == last), last),)
        return tuple(KIND_OF_LETTER[c] for c in self.hybrid.prediction_pattern)

    @property
    def predictions_need_a_layer(self) -> bool:
        """Whether Megatron gives predictions experts, unlike ours, where their virtual stage has no layer.

        It takes the kind of the last layer, but beside no layer that of `num_experts` (megatron-core 0.19.2,
        Apache-2.0, training/models/gpt.py:402).
        """
        has_mixed_ends = self.mtp_num_layers > 0 and self.moe is not None and self.hybrid is None
        return has_mixed_ends and not WITH_EXPERTS.issuperset(self.prediction_kinds)

    @property
    def query_maps_width(self) -> int:
        """Values of a token's queries, keys and values, and of the gate that queries bring along."""
        queries = self.num_attention_heads * (2 if self.output_gate else 1)
        return (queries + 2 * self.num_query_groups) * self.head_dim

    @property
    def own_predictions(self) -> int:
        """Predictions with weights of their own."""
        return min(self.mtp_num_layers, 1) if self.repeated_prediction else self.mtp_num_layers

    @property
    def routed_width(self) -> int:
        """Width of the tokens that routed experts get."""
        latent = self.moe.latent_size if self.moe is not None else None
        return latent or self.hidden_size

    @property
    def copies_embedding(self) -> bool:
        """Whether first and last stage each hold it: the head is tied, or predicts several tokens."""
        return self.tied_embeddings or self.mtp_num_layers > 0

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds that occur, each once, in order of first occurrence."""
        return _each_once(self.kind_of_layer)


def _check_blocks_of_experts(hybrid: HybridSpec, moe: MoeSpec | None) -> None:
    """The pattern says where a hybrid's experts are, and nothing else does."""
    if ("E" in hybrid.pattern) != (moe is not None):
        raise ValueError("hybrid.pattern has layers of experts (E) where the model has moe, and there alone")
    if moe is not None and (moe.first_dense_layers or moe.layer_freq != 1):
        raise ValueError(
            "hybrid.pattern says which layers are experts (E); leave out moe.first_dense_layers and "
            "moe.layer_freq"
        )


def _check_predictions_of_blocks(hybrid: HybridSpec, predictions: int) -> None:
    """A hybrid's predictions are of layers that it has as well."""
    own = hybrid.prediction_pattern
    if (own is not None) != (predictions > 0):
        raise ValueError(
            "hybrid.prediction_pattern says of which layers the mtp_num_layers predictions of a hybrid are; "
            "state both or neither"
        )
    strange = set(own or "") - set(hybrid.pattern)
    if strange:
        raise ValueError(f"hybrid.prediction_pattern has {', '.join(sorted(strange))}, hybrid.pattern none")


def _check_linear_attention(model: ModelSpec, linear: LinearAttentionSpec) -> None:
    """What is not described beside linear attention, and a pattern as long as the model."""
    if len(linear.pattern) != model.num_layers:
        raise ValueError(
            f"linear_attention.pattern has {len(linear.pattern)} characters, num_layers is {model.num_layers}"
        )
    for name in ("hybrid", "mla", "sliding_window"):
        if getattr(model, name) is not None:
            raise ValueError(f"{name} is not described beside linear_attention")
    if model.mtp_num_layers and not set(model.prediction_kinds) <= set(model.kind_of_layer):
        raise ValueError("mtp_num_layers: predictions are of full attention, in layers that the model has")


@lru_cache(maxsize=64)
def _kinds_among_experts(
    num_layers: int, first_dense_layers: int, layer_freq: int, linear: str = ""
) -> tuple[LayerKind, ...]:
    """Kind of every layer: dense or of experts, with linear attention where a pattern has it."""
    kinds: list[LayerKind] = [
        "moe" if i >= first_dense_layers and (i + 1) % layer_freq == 0 else "dense" for i in range(num_layers)
    ]
    return tuple(
        LINEAR_OF[kind] if i < len(linear) and linear[i] == LINEAR else kind for i, kind in enumerate(kinds)
    )


@lru_cache(maxsize=64)
def _each_once(kinds: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    """Kinds in order of first occurrence."""
    return tuple(dict.fromkeys(kinds))
