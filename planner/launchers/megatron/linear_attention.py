"""Linear attention as arguments of Megatron-LM, there and back.

Its `pretrain_gpt.py` builds gated delta nets in some layers and attention in the others where
`--experimental-attention-variant` says so (megatron-core 0.19.2, `core/transformer/transformer_config.py:349`
and `core/models/gpt/experimental_attention_variant_module_specs.py`, `get_linear_attention_pattern`).
"""

from __future__ import annotations

from planner.data.attention_spec import FULL, LINEAR, LinearAttentionSpec
from planner.data.model_spec import ModelSpec
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.launchers.megatron.arguments import Arguments, option
from planner.launchers.megatron.layer_lists import layer_list, list_expression
from planner.launchers.read.flags import Flags

VARIANT, FREQUENCY = "--experimental-attention-variant", "--linear-attention-freq"
GATED_DELTA_NET = "gated_delta_net"

PACKAGE = "Linear attention: the package flash-linear-attention is installed on every node."
"""What the launch page asks for."""


def linear_attention_troubles(model: ModelSpec) -> tuple[str, ...]:
    """What Megatron-LM's gated delta nets cannot be beside, each in a sentence.

    Their convolution knows SiLU alone (core/ssm/gated_delta_net/gdn.py), their maps have no biases.
    """
    if model.linear_attention is None:
        return ()
    wrong = []
    if not model.gated_mlp or model.activation not in ("silu", "swiglu"):
        wrong.append(
            f"{model.id} has linear attention beside the activation {model.activation}; Megatron-LM's needs "
            "a gated silu"
        )
    if model.linear_bias not in ("none", "qkv"):
        wrong.append(
            f"{model.id} has biases ({model.linear_bias}) beside linear attention; Megatron-LM's has none"
        )
    return tuple(wrong)


def linear_arguments(model: ModelSpec) -> Arguments:
    """Which layers are linear, and their shape; empty for other models."""
    linear = model.linear_attention
    if linear is None:
        return ()
    return (
        option(VARIANT, GATED_DELTA_NET),
        option(FREQUENCY, _frequency(linear.pattern)),
        option("--linear-conv-kernel-dim", linear.conv),
        option("--linear-key-head-dim", linear.key_head_dim),
        option("--linear-value-head-dim", linear.value_head_dim),
        option("--linear-num-key-heads", linear.key_heads),
        option("--linear-num-value-heads", linear.value_heads),
    )


def linear_fields(model: ModelSpec) -> dict[str, str]:
    """The same as fields of Megatron-Bridge's model provider, whose names are those of the flags."""
    fields = {}
    for argument in linear_arguments(model):
        value = argument.values[0]
        if argument.flag == FREQUENCY and not value.isdecimal():
            value = repr(layer_list(value))
        name = argument.flag.removeprefix("--").replace("-", "_")
        fields[name] = value if value[0] in "[0123456789" else repr(value)
    return fields


def linear_refusals(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Where Megatron-Bridge would make predictions of the wrong layer, or none, beside linear attention.

    It takes the last layer of the last stage for it (0.6.2, models/gpt_provider.py, `mtp_block_spec`).
    """
    linear = problem.model.linear_attention
    if linear is None or not problem.model.mtp_num_layers or plan.target != "megatron-bridge":
        return ()
    first, last = plan.stages[-1].chunks[-1]
    if linear.pattern.endswith(FULL) and first <= last:
        return ()
    return (
        f"predictions of {problem.model.id} need a last layer of full attention, on the last stage; leave "
        "them out (mtp_num_layers 0), or move a layer there",
    )


def _frequency(pattern: str) -> str:
    """Every how many layers one has full attention, or a list with 1 for a linear layer."""
    every = pattern.index(FULL) + 1 if FULL in pattern else 0
    if every and pattern == _by_frequency(every, len(pattern)):
        return str(every)
    return list_expression([int(letter == LINEAR) for letter in pattern])


def _by_frequency(every: int, layers: int) -> str:
    return "".join(FULL if (i + 1) % every == 0 else LINEAR for i in range(layers))


def read_linear_attention(flags: Flags) -> LinearAttentionSpec | None:
    """Layers of linear attention that a command line states; None without any.

    Raises
    ------
    InstanceError
        Where it states another variant of attention, or no layers that can be.
    """
    variant = flags.text(VARIANT, "none")
    if variant == "none":
        return None
    if variant != GATED_DELTA_NET:
        raise InstanceError(
            f"{VARIANT} {variant}: the model has sparse attention, which cannot be read back; a prediction "
            "without would be of another model",
            flags.where,
        )
    if FREQUENCY not in flags:
        raise InstanceError(
            f"{VARIANT} {variant} without {FREQUENCY}, which Megatron-LM refuses", flags.where
        )
    pattern = _pattern("".join(flags.values[FREQUENCY]), flags)
    if LINEAR not in pattern:
        return None
    return LinearAttentionSpec(
        pattern=pattern,
        conv=flags.number("--linear-conv-kernel-dim", 4),
        key_head_dim=flags.number("--linear-key-head-dim", 128),
        value_head_dim=flags.number("--linear-value-head-dim", 128),
        key_heads=flags.number("--linear-num-key-heads", 16),
        value_heads=flags.number("--linear-num-value-heads", 32),
    )


def _pattern(text: str, flags: Flags) -> str:
    layers = flags.number("--num-layers")
    if text.isdecimal() and int(text[:9]) > 0:
        return _by_frequency(int(text[:9]), layers)
    try:
        found = layer_list(text)
    except ValueError:
        raise InstanceError(f"{FREQUENCY} {text[:60]} is not understood", flags.where) from None
    if len(found) != layers:
        raise InstanceError(f"{FREQUENCY} {text[:60]} names {len(found)} layers of {layers}", flags.where)
    return "".join(LINEAR if number == 1 else FULL for number in found)
