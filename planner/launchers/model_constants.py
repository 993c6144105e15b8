"""The network's numbers that cost neither time nor memory: rotary base, epsilon of norms, weights of experts.

Where a model's file states none, Megatron's own default is used, and the page of the launch directory says
so. Flags and their meaning: megatron-core 0.19.2, `megatron/training/arguments.py`,
`core/transformer/transformer_config.py` and `core/transformer/moe/moe_utils.py` (how scores of experts are
weighed: `topk_routing_with_score_function`).
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.data.scores import balances_by_bias, expert_scores, softmax_over_all
from planner.launchers.megatron.arguments import Argument, Arguments, option, switch
from planner.launchers.megatron.layer_lists import list_expression
from planner.launchers.megatron.rotary_positions import (
    has_rotary_positions,
    stretching_arguments,
    unstated_stretching,
)

UNROTATED, INTERLEAVED = "--no-rope-freq", "--rotary-interleaved"
"""Which layers have no rotary positions, and that those of the others turn neighbouring values."""

DEFAULT_BASE = 10_000
"""Rotary base that Megatron takes unless told (`--rotary-base`)."""
DEFAULT_EPSILON = 1e-5
"""What its norms add to the variance unless told (`--norm-epsilon`)."""


def rotary_base(model: ModelSpec) -> int:
    """Base of the rotary frequencies, Megatron's own where the model states none."""
    return model.constants.rotary_base or DEFAULT_BASE


def norm_epsilon(model: ModelSpec) -> float:
    """What norms add to the variance, Megatron's own where the model states none."""
    return model.constants.norm_epsilon or DEFAULT_EPSILON


def balancing_loss(model: ModelSpec) -> tuple[str, str]:
    """What keeps experts evenly loaded, as plans count them, and its weight.

    DeepSeek-V3 balances by router bias and keeps a weak loss beside it (arXiv:2412.19437, 4.2).
    """
    return ("seq_aux_loss", "1e-4") if balances_by_bias(model) else ("aux_loss", "1e-2")


def routed_scale(model: ModelSpec) -> float | None:
    """Factor of the routed experts' output; None for 1, the only one where their weights sum to 1."""
    scale = model.constants.routed_scale
    if scale == 1 or (expert_scores(model) == "softmax" and not softmax_over_all(model)):
        return None
    return scale


def constant_arguments(model: ModelSpec, version: str) -> Arguments:
    """Flags beside `--rotary-base` and `--norm-epsilon`, which every script has, for a version of core."""
    return (
        *rotated_share(model),
        *rotated_layers(model),
        *stretching_arguments(model, version),
        *routing_arguments(model),
    )


def all_constants(model: ModelSpec, version: str) -> Arguments:
    """The same with those two flags."""
    base = (option("--rotary-base", rotary_base(model)),) if has_rotary_positions(model) else ()
    return (*base, option("--norm-epsilon", norm_epsilon(model)), *constant_arguments(model, version))


def left_out(model: ModelSpec, version: str, *, by_fields: bool = False) -> tuple[str, ...]:
    """What the launch files cannot state of the network or had to take for granted, in sentences.

    `by_fields`: whether they state it as fields of Megatron-Bridge, of which there are more than flags.
    """
    constants, notes = model.constants, []
    if model.left_out:
        notes.append(f"the {' and '.join(model.left_out)} part of {model.id}; text alone is trained")
    unstated = [] if constants.norm_epsilon else [f"norm epsilon {DEFAULT_EPSILON:g}"]
    if has_rotary_positions(model) and constants.rotary_base is None:
        unstated.insert(0, f"rotary base {DEFAULT_BASE}")
    if unstated:
        notes.append(
            f"{' and '.join(unstated)}: Megatron's own, as the file of {model.id} states none; they change "
            "what is trained, not its time and memory"
        )
    if constants.latent_norm_epsilon not in (None, norm_epsilon(model)):
        notes.append(
            f"norms of compressed queries, keys and values add {norm_epsilon(model):g}, as all others do; "
            f"those of {model.id} add {constants.latent_norm_epsilon:g}"
        )
    notes += unstated_stretching(model, version, by_fields=by_fields)
    if model.moe is not None and constants.group_experts is not None and constants.groups_visited is not None:
        best = model.moe.top_k // constants.groups_visited
        if best != constants.group_experts:
            notes.append(
                f"groups of experts are weighed by the sum of their best {best}, Megatron's own rule (top_k "
                f"over groups visited); {model.id} weighs them by their best {constants.group_experts}"
            )
    if constants.routed_scale not in (None, 1) and routed_scale(model) is None:
        notes.append(f"the routed experts' output is not scaled by {constants.routed_scale:g}")
    return tuple(notes)


def rotated_share(model: ModelSpec) -> Arguments:
    """How much of a head is rotated; nothing where all of it is."""
    share = model.constants.rotary_fraction
    return (
        (option("--rotary-percent", share),) if has_rotary_positions(model) and share not in (None, 1) else ()
    )


def rotated_layers(model: ModelSpec) -> Arguments:
    """Which layers rotate queries and keys, and which values together; nothing where all do, by halves.

    Positions that turn neighbouring values are those of `--rotary-interleaved` (core 0.19.2,
    `core/models/common/embeddings/rope_utils.py`).
    """
    if not has_rotary_positions(model):
        return ()
    arguments = [switch(INTERLEAVED)] if model.constants.rotates_neighbours else []
    every = model.constants.unrotated_every
    if every is not None:
        layers = range(1, model.num_layers + 1)
        unrotated = list_expression([int(layer % every == 0) for layer in layers])
        # A number must divide the layers.
        arguments.append(option(UNROTATED, unrotated if model.num_layers % every else every))
    return tuple(arguments)


def routing_arguments(model: ModelSpec) -> Arguments:
    """How experts are weighed and grouped."""
    constants, arguments = model.constants, list[Argument]()
    scores = expert_scores(model)
    if scores not in (None, "softmax"):
        arguments.append(option("--moe-router-score-function", scores))
    if softmax_over_all(model):
        arguments.append(switch("--moe-router-pre-softmax"))
    scale = routed_scale(model)
    if scale is not None:
        arguments.append(option("--moe-router-topk-scaling-factor", scale))
    if constants.expert_groups not in (None, 1):
        arguments += [
            option("--moe-router-num-groups", constants.expert_groups),
            option("--moe-router-group-topk", constants.groups_visited),
        ]
    return tuple(arguments)
