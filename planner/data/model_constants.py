"""Numbers of a network that change what it computes, but not its memory, and its time hardly."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.data.base import Data


class RotaryScaling(Data):
    """How rotary positions are stretched beyond the length that a model was first trained at."""

    kind: Literal["llama3", "yarn", "linear", "dynamic", "longrope"]
    """Rule, as transformers names it (`rope_type`)."""
    factor: float = Field(gt=0)
    """How many times longer sequences become."""
    mscale: float | None = Field(default=None, ge=0)
    """YaRN's factor of the attention's temperature; null where not stated."""
    mscale_all_dim: float | None = Field(default=None, ge=0)
    """The same for the part of a head without positions."""
    beta_fast: float | None = Field(default=None, gt=0)
    """Rotations within the first length from which YaRN stretches no longer; null for 32, the usual one."""
    beta_slow: float | None = Field(default=None, gt=0)
    """Rotations within the first length up to which YaRN stretches fully; null for 1, the usual one."""
    original_length: int | None = Field(default=None, ge=1)
    """Tokens of the sequences that the model was first trained at; null for the rule's usual number."""
    whole_dimensions: bool = True
    """Whether YaRN's stretching begins and ends at whole dimensions of a head (`truncate`)."""


class ModelConstants(Data):
    """What launch files must state for the network to be the published one; null where not known."""

    norm_epsilon: float | None = Field(default=None, gt=0)
    """What norms add to the variance."""
    latent_norm_epsilon: float | None = Field(default=None, gt=0)
    """What norms of compressed queries, keys and values add, where it is another; null where it is not."""
    zero_centered_norms: bool = False
    """Whether norms multiply by their weights and 1, so that decay draws them to 1."""
    rotary_base: int | None = Field(default=None, ge=2)
    """Base of the rotary frequencies (`rope_theta`)."""
    rotary_fraction: float | None = Field(default=None, gt=0, le=1)
    """Share of a head that is rotated; null for all of it."""
    rotary_scaling: RotaryScaling | None = None
    """How rotary positions are stretched; null where they are not."""
    rotates_neighbours: bool = False
    """Whether neighbouring values of a head turn together, not those of its two halves."""
    unrotated_every: int | None = Field(default=None, ge=2)
    """Every how many layers one has no rotary positions, from the last of the first so many on; null where
    all have them."""
    routed_scale: float | None = Field(default=None, gt=0)
    """Factor of the routed experts' output; null for 1."""
    expert_scores: Literal["softmax", "sigmoid", "sqrtsoftplus"] | None = None
    """Function of the router's scores; null for a sigmoid with a router bias that only balances, else a
    softmax."""
    softmax_over_all: bool = False
    """Whether experts are weighed by a softmax over all of them, not over those that a token visits."""
    expert_groups: int | None = Field(default=None, ge=1)
    """Groups of experts of which a token visits some, which keeps it on fewer nodes; null where it may visit
    any expert."""
    groups_visited: int | None = Field(default=None, ge=1)
    """How many groups a token visits."""
    group_experts: int | None = Field(default=None, ge=1)
    """How many of a group's best experts weigh it; null where not known."""
