"""Mixture of experts, as a layer of a network has it."""

from __future__ import annotations

from pydantic import Field, model_validator

from planner.data.base import Data


class MoeSpec(Data):
    """Mixture of experts: how many, how wide, how many a token visits."""

    num_experts: int = Field(ge=1)
    """Routed experts of a layer."""
    top_k: int = Field(ge=1)
    """Routed experts that a token visits."""
    ffn_hidden_size: int = Field(ge=1)
    """Intermediate width of one routed expert."""
    shared_ffn_hidden_size: int = Field(default=0, ge=0)
    """Intermediate width of all shared experts together; 0 without any."""
    latent_size: int | None = Field(default=None, ge=1)
    """Width to which tokens are mapped before they go to routed experts, and from which back; null for the
    hidden one."""
    shared_expert_gate: bool = False
    """Whether a sigmoid of the token weighs what the shared experts give."""
    first_dense_layers: int = Field(default=0, ge=0)
    """Leading layers that have a dense feed-forward block instead."""
    layer_freq: int = Field(default=1, ge=1)
    """Every how many layers one is a mixture of experts, after the leading dense ones."""
    router_bias: bool = False
    """Whether the router has a bias for each expert."""
    expert_bias: bool = False
    """Whether the linear maps of the experts have biases."""
    capacity_factor: float | None = Field(default=None, gt=0)
    """Most tokens that an expert takes, over an even share; the rest is dropped. Null drops none."""
    pad_to_capacity: bool = False
    """Whether every expert computes as many tokens as it may take, padded where fewer come."""

    @model_validator(mode="after")
    def _padding_has_a_capacity(self) -> MoeSpec:
        if self.pad_to_capacity and self.capacity_factor is None:
            raise ValueError("pad_to_capacity needs a capacity_factor, up to which experts are padded")
        if self.shared_expert_gate and not self.shared_ffn_hidden_size:
            raise ValueError("shared_expert_gate needs shared experts (shared_ffn_hidden_size)")
        return self


def check_groups(moe: MoeSpec | None, groups: int, visited: int) -> None:
    """Groups of experts are equal, and hold as many as a token visits."""
    if moe is None:
        raise ValueError("constants.expert_groups needs a model with experts (moe)")
    if moe.num_experts % groups:
        raise ValueError(
            f"constants.expert_groups {groups} does not divide moe.num_experts {moe.num_experts}"
        )
    if visited > groups or visited * (moe.num_experts // groups) < moe.top_k:
        raise ValueError(
            f"constants.groups_visited {visited} of {groups} groups with {moe.num_experts // groups} experts "
            f"each hold no {moe.top_k} experts (moe.top_k)"
        )
    if visited > moe.top_k:  # a group is weighed by its best top_k // visited experts: then by none
        raise ValueError(f"constants.groups_visited {visited} must be at most moe.top_k {moe.top_k}")
