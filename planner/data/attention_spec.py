"""Attention of other kinds than grouped queries: latent attention, and linear attention in some layers."""

from __future__ import annotations

from pydantic import Field, model_validator

from planner.data.base import Data

LINEAR, FULL = "L", "*"
"""Letters of a pattern: a layer of linear attention, and one of full attention."""


class MlaSpec(Data):
    """Multi-head latent attention: ranks and head widths."""

    q_lora_rank: int | None = Field(default=None, ge=1)
    """Width of the compressed query; null where queries are not compressed."""
    kv_lora_rank: int = Field(ge=1)
    """Width of the compressed key and value."""
    qk_nope_head_dim: int = Field(ge=1)
    """Width of a query or key head without rotary positions."""
    qk_rope_head_dim: int = Field(ge=0)
    """Width of the rotary part of a query or key head."""
    v_head_dim: int = Field(ge=1)
    """Width of a value head."""


class LinearAttentionSpec(Data):
    """Layers of gated delta nets (arXiv:2412.06464) among those of full attention."""

    pattern: str = Field(pattern=r"^[L*]+$")
    """One character a layer: L linear attention, * full attention."""
    key_heads: int = Field(ge=1)
    """Heads of queries, and of keys."""
    value_heads: int = Field(ge=1)
    """Heads of values, of output gates, and of states."""
    key_head_dim: int = Field(ge=1)
    """Width of a query or key head."""
    value_head_dim: int = Field(ge=1)
    """Width of a value head."""
    conv: int = Field(ge=1)
    """Width of the causal convolution over queries, keys and values."""

    @model_validator(mode="after")
    def _keys_serve_whole_groups_of_values(self) -> LinearAttentionSpec:
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"value_heads {self.value_heads} must be a multiple of key_heads {self.key_heads}"
            )
        if LINEAR not in self.pattern:
            raise ValueError("pattern has no layer of linear attention (L); leave linear_attention out")
        return self

    @property
    def key_width(self) -> int:
        """Values of a token's queries, and of its keys."""
        return self.key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Values of a token's values, and of its gates."""
        return self.value_heads * self.value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def input_width(self) -> int:
        """What one map makes of a token: those, a gate, and two numbers for each head's state."""
        return self.conv_width + self.value_width + 2 * self.value_heads
