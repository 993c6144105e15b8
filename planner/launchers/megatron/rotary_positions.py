"""How launch files say that rotary positions are stretched beyond the length of the first training.

Llama 3's rule, YaRN (arXiv:2309.00071) and division are known. Megatron-LM takes YaRN's numbers as
arguments from core 0.19 on; with latent attention it always took some, and keeps the rest at its own
values. It hands a division on to the model from core 0.19 on as well, and never the factor of Llama 3's
rule, whatever its parser is told. Megatron-Bridge has a field for each. Sources: megatron-core 0.19.2,
`megatron/training/argument_utils.py` (`_apply_yarn_config_from_args`, `gpt_config_from_args`),
`core/models/common/embeddings/yarn_rotary_pos_embedding.py` (which rotates whole heads) and
`MLATransformerConfig`; `gpt_builders.py` of Megatron-LM up to core 0.18 and of Megatron-LM-FL;
megatron-bridge 0.6.2, `gpt_provider.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.data.model_constants import RotaryScaling
from planner.data.model_spec import ModelSpec
from planner.launchers.megatron.arguments import Argument, Arguments, option, switch
from planner.rules.versions import VERSIONS

FIRST_YARN = "0.19"
"""Version of core from which arguments state YaRN without latent attention."""

FIRST_DIVISION = "0.19"
"""Version of core from which `--rotary-seq-len-interpolation-factor` reaches the model."""

LLAMA3_FACTOR, LLAMA3_LENGTH = 8.0, 8192
"""Factor of Llama 3's rule that every model of Megatron-LM has (NVIDIA/Megatron-LM#6305, in core 0.19.2 too),
and the length of the first training, for which there is no flag."""

BETA_FAST, BETA_SLOW, ORIGINAL_LENGTH = 32.0, 1.0, 4096
"""Numbers of YaRN that are meant where a model states none, in Megatron as in transformers' models."""


def has_rotary_positions(model: ModelSpec) -> bool:
    """Whether any layer rotates its queries and keys."""
    return model.position_embedding == "rope"


def trouble_with_positions(model: ModelSpec) -> list[str]:
    """Ways of turning queries and keys that Megatron-LM does not combine (core 0.19.2, its attention, latent
    attention, predictions and `TransformerConfig`)."""
    constants, wrong = model.constants, []
    if constants.unrotated_every is not None and (model.mla or model.mtp_num_layers or model.hybrid):
        wrong.append(
            f"{model.id} has layers without rotary positions (unrotated_every), which Megatron-LM does not "
            "build beside latent attention, predictions or Mamba layers"
        )
    if constants.rotates_neighbours and (model.mla or constants.rotary_scaling):
        wrong.append(
            f"{model.id} turns neighbouring values (rotates_neighbours) beside latent attention or stretched "
            "positions, which Megatron-LM does not build"
        )
    return wrong


def stretched_by(model: ModelSpec, version: str) -> str | None:
    """Rule by which the launch files stretch positions: llama3, yarn, linear, or None where they do not."""
    scaling = model.constants.rotary_scaling
    if scaling is None or not has_rotary_positions(model):
        return None
    if model.mla is not None:
        return "yarn" if scaling.kind == "yarn" else None
    if scaling.kind == "yarn":
        is_new = VERSIONS.index(version) >= VERSIONS.index(FIRST_YARN)
        return "yarn" if is_new and model.constants.rotary_fraction in (None, 1) else None
    if scaling.kind == "linear":  # Megatron-LM divides positions by whole numbers
        is_new = VERSIONS.index(version) >= VERSIONS.index(FIRST_DIVISION)
        return "linear" if is_new and scaling.factor.is_integer() else None
    return "llama3" if scaling.kind == "llama3" else None


def stretching_arguments(model: ModelSpec, version: str) -> Arguments:
    """Flags of Megatron-LM that say how positions are stretched."""
    scaling, rule = model.constants.rotary_scaling, stretched_by(model, version)
    if scaling is None or rule is None:
        return ()
    if rule == "llama3":
        return (switch("--use-rope-scaling"), option("--rope-scaling-factor", scaling.factor))
    if rule == "linear":
        return (option("--rotary-seq-len-interpolation-factor", round(scaling.factor)),)
    arguments: list[Argument] = [option("--rotary-scaling-factor", scaling.factor)]
    if _states_temperature(scaling):
        arguments.append(option("--mscale", scaling.mscale))
        arguments.append(option("--mscale-all-dim", scaling.mscale_all_dim))
    if model.mla is None:
        arguments += [
            option("--yarn-original-max-position-embeddings", scaling.original_length or ORIGINAL_LENGTH),
            option("--yarn-beta-fast", scaling.beta_fast or BETA_FAST),
            option("--yarn-beta-slow", scaling.beta_slow or BETA_SLOW),
        ]
        if not scaling.whole_dimensions:
            arguments.append(switch("--no-yarn-correction-range-round-to-int"))
    return tuple(arguments)


def stretching_fields(model: ModelSpec, version: str) -> dict[str, str]:
    """The same as fields of Megatron-Bridge's model provider, with their values as Python text."""
    scaling, rule = model.constants.rotary_scaling, stretched_by(model, version)
    if scaling is None or rule is None:
        # Latent attention of Megatron-Bridge stretches positions 40 times unless it is told not to.
        return {"rotary_scaling_factor": "1.0"} if model.mla is not None else {}
    if rule == "llama3":
        return {"rope_scaling": "True", "rope_scaling_factor": repr(scaling.factor)}
    if rule == "linear":
        return {"seq_len_interpolation_factor": repr(round(scaling.factor))}
    fields: dict[str, object] = {
        "rotary_scaling_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_length or ORIGINAL_LENGTH,
        "beta_fast": scaling.beta_fast or BETA_FAST,
        "beta_slow": scaling.beta_slow or BETA_SLOW,
    }
    if _states_temperature(scaling):
        fields |= {"mscale": scaling.mscale, "mscale_all_dim": scaling.mscale_all_dim}
    if model.mla is None:
        fields = {f"yarn_{name}": value for name, value in fields.items()}
        fields["yarn_correction_range_round_to_int"] = scaling.whole_dimensions
    return {name: repr(value) for name, value in fields.items()}


def unstated_stretching(model: ModelSpec, version: str, *, by_fields: bool = False) -> tuple[str, ...]:
    """What the launch files cannot say of it, in sentences; `by_fields`: as Megatron-Bridge's fields."""
    scaling = model.constants.rotary_scaling
    if scaling is None or not has_rotary_positions(model):
        return ()
    rule = stretched_by(model, version)
    if rule is None:
        takes = f"; core {FIRST_YARN} takes it as arguments" if stretched_by(model, VERSIONS[-1]) else ""
        return (
            f"rotary positions are not stretched: {model.id} has {scaling.kind} x {scaling.factor:g} for "
            f"sequences longer than those it was first trained on{takes}",
        )
    if rule == "llama3":
        return tuple(_unstated_of_llama3(model.id, scaling, by_fields=by_fields))
    if model.mla is None:
        return ()
    taken = {
        "beta_fast": (scaling.beta_fast or BETA_FAST, BETA_FAST),
        "beta_slow": (scaling.beta_slow or BETA_SLOW, BETA_SLOW),
        "original_length": (scaling.original_length or ORIGINAL_LENGTH, ORIGINAL_LENGTH),
    }
    notes = [
        f"rotary positions are stretched with {name} {own:g}, Megatron's own; {model.id} has {asked:g}, "
        "which no flag states with latent attention"
        for name, (asked, own) in taken.items()
        if asked != own and not by_fields
    ]
    if not scaling.whole_dimensions:
        notes.append(
            "rotary positions are stretched from and to whole dimensions of a head, Megatron's own rule "
            f"with latent attention; {model.id} has fractions"
        )
    return tuple(notes)


def _unstated_of_llama3(name: str, scaling: RotaryScaling, *, by_fields: bool) -> Iterator[str]:
    if scaling.factor != LLAMA3_FACTOR and not by_fields:
        yield (
            f"rotary positions are stretched {LLAMA3_FACTOR:g} times, as Megatron-LM up to core 0.19.2 does "
            f"whatever --rope-scaling-factor says (NVIDIA/Megatron-LM#6305); {name} has {scaling.factor:g}, "
            "which newer code and the target megatron-bridge take"
        )
    length = scaling.original_length or LLAMA3_LENGTH
    if length != LLAMA3_LENGTH:
        yield (
            f"rotary positions are stretched beyond {LLAMA3_LENGTH:,} tokens, Megatron's own length of the "
            f"first training; {name} has {length:,}"
        )


def _states_temperature(scaling: RotaryScaling) -> bool:
    """Whether both of YaRN's factors are given; with one alone transformers takes the usual 1 and 0."""
    return bool(scaling.mscale and scaling.mscale_all_dim)
