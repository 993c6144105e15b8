"""The network's numbers that cost nothing, as a Megatron-LM command line states them.

The way back of `planner.launchers.model_constants`, which says what each of them is. Defaults are those of
megatron-core 0.19.2, `megatron/training/arguments.py`: a script that leaves one out trains with Megatron's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from planner.data.explain import explained
from planner.data.model_constants import ModelConstants, RotaryScaling
from planner.data.model_spec import ModelSpec
from planner.data.scores import expert_scores, softmax_over_all
from planner.errors import InstanceError
from planner.launchers.megatron.layer_lists import layer_list
from planner.launchers.megatron.rotary_positions import (
    BETA_FAST,
    BETA_SLOW,
    LLAMA3_FACTOR,
    ORIGINAL_LENGTH,
    has_rotary_positions,
    stretched_by,
)
from planner.launchers.model_constants import (
    DEFAULT_BASE,
    DEFAULT_EPSILON,
    INTERLEAVED,
    UNROTATED,
    norm_epsilon,
    rotary_base,
    routed_scale,
)
from planner.launchers.read.flags import Flags
from planner.rules.versions import NEWEST, VERSIONS


def read_constants(flags: Flags) -> ModelConstants:
    """What the network is trained with.

    Raises
    ------
    InstanceError
        Where a flag has no number, or one that cannot be.
    """
    try:
        return _stated(flags)
    except ValidationError as error:
        raise explained(ModelConstants, error, flags.where) from None


def _stated(flags: Flags) -> ModelConstants:
    groups = flags.number("--moe-router-num-groups", 1)
    return ModelConstants(
        norm_epsilon=flags.real("--norm-epsilon", DEFAULT_EPSILON),
        zero_centered_norms="--apply-layernorm-1p" in flags,
        rotary_base=round(flags.real("--rotary-base", DEFAULT_BASE)),
        rotary_fraction=_unless_one(flags.real("--rotary-percent", 1.0)),
        rotary_scaling=_scaling(flags),
        rotates_neighbours=INTERLEAVED in flags,
        unrotated_every=_unrotated(flags),
        routed_scale=_unless_one(flags.real("--moe-router-topk-scaling-factor", 1.0)),
        expert_scores=_scores(flags),
        softmax_over_all="--moe-router-pre-softmax" in flags,
        expert_groups=groups if groups > 1 else None,
        groups_visited=flags.number("--moe-router-group-topk", 1) if groups > 1 else None,
    )


def _scores(flags: Flags) -> Any:
    """Function of the router's scores, None where it is the one that the other flags imply."""
    stated = flags.text("--moe-router-score-function", "softmax")
    implied = "sigmoid" if "--moe-router-enable-expert-bias" in flags else "softmax"
    return None if stated == implied else stated


def _unrotated(flags: Flags) -> int | None:
    """Every how many layers one has no rotary positions, None where all have them.

    Raises
    ------
    InstanceError
        Where the layers are none of every so many, or no list of them.
    """
    if UNROTATED not in flags:
        return None
    text, layers = "".join(flags.values[UNROTATED]), flags.number("--num-layers")
    if text.isdecimal():
        every = flags.number(UNROTATED)
        if every < 2 or layers % every:
            raise InstanceError(
                f"{UNROTATED} {every} does not part {layers} layers into rotated ones", flags.where
            )
        return every
    try:
        pattern = layer_list(text)
    except ValueError:
        raise InstanceError(f"{UNROTATED} {text[:60]} is not understood", flags.where) from None
    if 1 not in pattern:
        return None
    every = pattern.index(1) + 1
    if pattern != [int(layer % every == 0) for layer in range(1, layers + 1)] or every == 1:
        raise InstanceError(
            f"{UNROTATED} {text[:60]}: layers without rotary positions are described where they are every so "
            "many of all layers, and some have them",
            flags.where,
        )
    return every


def _unless_one(value: float) -> float | None:
    return None if value == 1 else value


def _scaling(flags: Flags) -> RotaryScaling | None:
    """How positions are stretched: by llama3's rule, by a whole number, or by YaRN."""
    latent = "--multi-latent-attention" in flags
    if not latent and "--use-rope-scaling" in flags:
        return RotaryScaling(kind="llama3", factor=flags.real("--rope-scaling-factor", LLAMA3_FACTOR))
    divided_by = flags.number("--rotary-seq-len-interpolation-factor", 1)
    if not latent and divided_by > 1:
        return RotaryScaling(kind="linear", factor=divided_by)
    factor = flags.real("--rotary-scaling-factor", 1.0)
    kind = flags.text(*(("--rope-type", "yarn") if latent else ("--position-embedding-type", "none")))
    if factor == 1 or kind != "yarn":
        return None
    return RotaryScaling(
        kind="yarn",
        factor=factor,
        mscale=flags.real("--mscale", 1.0),
        mscale_all_dim=flags.real("--mscale-all-dim", 0.0),
        beta_fast=flags.real("--yarn-beta-fast", BETA_FAST),
        beta_slow=flags.real("--yarn-beta-slow", BETA_SLOW),
        original_length=flags.number("--yarn-original-max-position-embeddings", ORIGINAL_LENGTH),
        whole_dimensions="--no-yarn-correction-range-round-to-int" not in flags,
    )


def other_constants(found: ModelSpec, wanted: ModelSpec) -> Iterator[str]:
    """A phrase for each number in which a network that was read differs from the one that it should be.

    What the wanted one does not state is not compared, nor what no launch file could state of it.
    """
    for name, mine, other in _pairs(found, wanted):
        if mine != other:
            yield f"{name} {_in_words(mine)}, not {_in_words(other)}"


def _pairs(found: ModelSpec, wanted: ModelSpec) -> Iterator[tuple[str, Any, Any]]:
    """Name, number found and number wanted of all that can be compared."""
    mine, other = found.constants, wanted.constants
    if other.norm_epsilon is not None:
        yield "norm_epsilon", norm_epsilon(found), other.norm_epsilon
    if other.zero_centered_norms:  # without, a script may train the same network by other weights
        yield "zero_centered_norms", mine.zero_centered_norms, True
    if has_rotary_positions(wanted):
        if other.rotary_base is not None:
            yield "rotary_base", rotary_base(found), other.rotary_base
        yield "rotates_neighbours", mine.rotates_neighbours, other.rotates_neighbours
        yield "unrotated_every", mine.unrotated_every, other.unrotated_every
        yield "rotary_fraction", mine.rotary_fraction or 1.0, other.rotary_fraction or 1.0
        if _stretching_shows(mine.rotary_scaling, wanted):
            latent = wanted.mla is not None
            yield (
                "rotary_scaling",
                _stretching(mine.rotary_scaling, latent=latent),
                _stretching(other.rotary_scaling, latent=latent),
            )
    if wanted.moe is not None and found.moe is not None:
        yield "expert_scores", expert_scores(found), expert_scores(wanted)
        if expert_scores(wanted) == "softmax":
            yield "softmax_over_all", softmax_over_all(found), softmax_over_all(wanted)
        yield "routed_scale", mine.routed_scale or 1.0, routed_scale(wanted) or 1.0
        yield "expert_groups", mine.expert_groups or 1, other.expert_groups or 1
        if (other.expert_groups or 1) > 1:
            yield "groups_visited", mine.groups_visited, other.groups_visited


def _stretching_shows(found: RotaryScaling | None, wanted: ModelSpec) -> bool:
    """Whether flags could state how positions are stretched; in older versions not all of it, so that a
    script without it may be right."""
    if wanted.constants.rotary_scaling is None:
        return True
    version = VERSIONS[0] if found is None else NEWEST
    return stretched_by(wanted, version) is not None


def _stretching(scaling: RotaryScaling | None, *, latent: bool) -> str:
    """How positions are stretched, with the numbers that Megatron-LM takes where none are told."""
    if scaling is None:
        return "none"
    words = f"{scaling.kind} x {scaling.factor:g}"
    if scaling.kind != "yarn":
        return words
    both = scaling.mscale is not None and scaling.mscale_all_dim is not None
    mscale, all_dim = (scaling.mscale, scaling.mscale_all_dim) if both else (1.0, 0.0)
    words += f" mscale {mscale:g} mscale_all_dim {all_dim:g}"
    if latent:  # the rest is Megatron-LM's own
        return words
    fast, slow = scaling.beta_fast or BETA_FAST, scaling.beta_slow or BETA_SLOW
    rounding = "whole dimensions" if scaling.whole_dimensions else "fractions"
    length = scaling.original_length or ORIGINAL_LENGTH
    return f"{words} beta_fast {fast:g} beta_slow {slow:g} original_length {length} {rounding}"


def _in_words(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
