"""The network's numbers that cost neither time nor memory: rotary base, epsilon of norms, weights of experts.

Where a model's file states none, Megatron's own default is used, and the page of the launch directory says
so. Flags and their meaning: megatron-core 0.19.2, `megatron/training/arguments.py`,
`core/transformer/transformer_config.py` and `core/transformer/moe/moe_utils.py` (how scores of experts are
weighed: `topk_routing_with_score_function`).
"""

from __future__ import annotations

from planner.data.model_spec import ModelSpec
from planner.launchers.arguments import Argument, Arguments, option, switch

DEFAULT_BASE = 10_000
"""Rotary base that Megatron takes unless told (`--rotary-base`)."""
DEFAULT_EPSILON = 1e-5
"""What its norms add to the variance unless told (`--norm-epsilon`)."""

YARN_BETA_FAST = 32
"""`beta_fast` of its latent attention's configuration, which no flag of Megatron-LM sets."""


def rotary_base(model: ModelSpec) -> int:
    """Base of the rotary frequencies, Megatron's own where the model states none."""
    return model.constants.rotary_base or DEFAULT_BASE


def norm_epsilon(model: ModelSpec) -> float:
    """What norms add to the variance, Megatron's own where the model states none."""
    return model.constants.norm_epsilon or DEFAULT_EPSILON


def has_rotary_positions(model: ModelSpec) -> bool:
    """Whether any layer rotates its queries and keys."""
    return model.position_embedding == "rope"


def weighs_by_sigmoid(model: ModelSpec) -> bool:
    """Whether a sigmoid weighs the experts: with a router bias that only balances, as in DeepSeek-V3."""
    return model.moe is not None and model.moe.router_bias and not model.moe.expert_bias


def softmax_over_all(model: ModelSpec) -> bool:
    """Whether experts are weighed by a softmax over all; one over a single chosen expert is always 1."""
    return (
        model.moe is not None
        and not weighs_by_sigmoid(model)
        and (model.constants.softmax_over_all or model.moe.top_k == 1)
    )


def routed_scale(model: ModelSpec) -> float | None:
    """Factor of the routed experts' output; None for 1, the only one where their weights sum to 1."""
    scale = model.constants.routed_scale
    if scale == 1 or not (weighs_by_sigmoid(model) or softmax_over_all(model)):
        return None
    return scale


def constant_arguments(model: ModelSpec) -> Arguments:
    """Flags beside `--rotary-base` and `--norm-epsilon`, which every script has."""
    return (*_positions(model), *_routing(model))


def left_out(model: ModelSpec) -> tuple[str, ...]:
    """What the launch files cannot state of the network or had to take for granted, in sentences."""
    constants, notes = model.constants, []
    unstated = [] if constants.norm_epsilon else [f"norm epsilon {DEFAULT_EPSILON:g}"]
    if has_rotary_positions(model) and constants.rotary_base is None:
        unstated.insert(0, f"rotary base {DEFAULT_BASE}")
    if unstated:
        notes.append(
            f"{' and '.join(unstated)}: Megatron's own, as the file of {model.id} states none; they change "
            "what is trained, not its time and memory"
        )
    scaling = constants.rotary_scaling
    if has_rotary_positions(model) and scaling is not None and not _positions_are_scaled(model):
        notes.append(
            f"rotary positions are not stretched: {model.id} has {scaling.kind} x {scaling.factor:g} for "
            "sequences longer than those it was first trained on"
        )
    if (
        scaling is not None
        and _positions_are_scaled(model)
        and scaling.beta_fast not in (None, YARN_BETA_FAST)
    ):
        notes.append(
            f"rotary positions are stretched with beta_fast {YARN_BETA_FAST:g}, Megatron's own; "
            f"{model.id} has {scaling.beta_fast:g}, which no flag states with latent attention"
        )
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


def _positions_are_scaled(model: ModelSpec) -> bool:
    """Whether flags state how positions are stretched: llama3's rule, and YaRN with latent attention."""
    scaling = model.constants.rotary_scaling
    return scaling is not None and scaling.kind == ("llama3" if model.mla is None else "yarn")


def _positions(model: ModelSpec) -> Arguments:
    if not has_rotary_positions(model):
        return ()
    constants, arguments = model.constants, list[Argument]()
    if constants.rotary_fraction not in (None, 1):
        arguments.append(option("--rotary-percent", constants.rotary_fraction))
    scaling = constants.rotary_scaling
    if scaling is None or not _positions_are_scaled(model):
        return tuple(arguments)
    if model.mla is None:
        return (
            *arguments,
            switch("--use-rope-scaling"),
            option("--rope-scaling-factor", scaling.factor),
        )
    arguments.append(option("--rotary-scaling-factor", scaling.factor))
    if scaling.mscale is not None:
        arguments.append(option("--mscale", scaling.mscale))
    if scaling.mscale_all_dim is not None:
        arguments.append(option("--mscale-all-dim", scaling.mscale_all_dim))
    return tuple(arguments)


def _routing(model: ModelSpec) -> Arguments:
    constants, arguments = model.constants, list[Argument]()
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
