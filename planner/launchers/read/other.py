"""What a command line may ask for that nothing of ours describes: refused, or told as a warning.

A flag that makes it another network, or another training than of all weights, would turn every number of the
prediction into one of something else: such a script is refused. What only moves memory or time is told.
(megatron-core 0.19.2, `megatron/training/arguments.py`, and its forks' arguments.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.errors import InstanceError
from planner.launchers.megatron.model import CLAMP, LINEAR_OFFSET
from planner.launchers.read.flags import Flags

_OTHER_MODEL = {
    "--heterogeneous-layers-config-path": "layers that differ from one another, by a file",
    "--heterogeneous-layers-config-encoded-json": "layers that differ from one another",
    "--enable-hyper-connections": "several residual streams",
    "--retro-add-retriever": "retrieval of text",
    "--decoder-num-layers": "an encoder beside the decoder",
    "--vision-pretraining": "a vision model",
    "--use-mla-engram": "tables of n-grams",
    "--yaml-cfg": "arguments in a file of their own",
    "--use-checkpoint-args": "sizes that a checkpoint states",
}
"""Flags of networks that we cannot describe, and what they have."""

_OTHER_TRAINING = {
    "--freeze-all-layers": "frozen weights",
    "--perform-rl-step": "reinforcement learning",
    "--logits-load-dir": "distillation",
    "--skip-train": "no training",
}
"""Flags of work other than training all weights on text, and what it is."""

_ADAPTERS = re.compile(r"^--(.*-)?(q?lora|peft|dora|adapter)(-.*)?$")
_LATENT_RANKS = ("--q-lora-rank", "--kv-lora-rank")

_ACTIVATIONS = "activations go to the host's memory: less memory on the chip, more time"
_OPTIMIZER = "the optimizer's state is on the host: less memory on the chip, a longer update"

_UNPRICED = {
    "--cpu-offloading-num-layers": _ACTIVATIONS,
    "--fine-grained-activation-offloading": _ACTIVATIONS,
    "--optimizer-cpu-offload": _OPTIMIZER,
    "--swap-optimizer": _OPTIMIZER,
    "--use-precision-aware-optimizer": "the optimizer's state may be narrower: less memory",
    "--rampup-batch-size": "the batch grows at first; predicted is the step with the whole of it",
    "--step-batch-size-schedule": "the batch changes; predicted is the step with --global-batch-size",
    "--schedules-method": "pipelines run by another schedule than 1F1B, which is predicted",
    "--first-last-layers-bf16": "some layers stay in 16 bits; predicted are all in the narrower format",
    "--deepspeed-config": "DeepSpeed's file is not read: give its ZeRO stage as --zero-stage, 0 is taken",
    "--extra-vocab-size": "entries beyond the tokenizer's, which is not read; give --vocab-size",
}
"""Flags that move memory or time in ways that are not priced, and which way."""


def refuse_other_models(flags: Flags) -> None:
    """Stop at a flag that makes it another network, or another training, than any of ours.

    Raises
    ------
    InstanceError
        With the flag and what it asks for.
    """
    for flag in flags.values:
        if flag in _OTHER_MODEL:
            raise InstanceError(
                f"{flag}: the model has {_OTHER_MODEL[flag]}, which cannot be read back; a prediction "
                "without would be of another model",
                flags.where,
            )
        adapters = _ADAPTERS.match(flag) and flag not in _LATENT_RANKS
        if adapters or flag in _OTHER_TRAINING:
            what = "adapters beside frozen weights" if adapters else _OTHER_TRAINING[flag]
            raise InstanceError(
                f"{flag}: {what}; predicted is the training of all weights alone, which takes other time and "
                "memory; leave the flag out to predict that",
                flags.where,
            )


def same_cost_other_network(flags: Flags) -> Iterator[str]:
    """A phrase for each flag of a network that no model file describes, at the cost of one that it does.

    Source: megatron-core 0.19.2, `core/transformer/mlp.py` (`glu`).
    """
    if flags.text("--position-embedding-type", "none") == "alibi":
        yield "scores fall with distance (--position-embedding-type alibi)"
    clamp = flags.real("--activation-func-clamp-value") if "--activation-func-clamp-value" in flags else None
    offset = flags.real("--glu-linear-offset", 0.0)
    if "--quick-geglu" in flags and (clamp, offset) != (float(CLAMP), float(LINEAR_OFFSET)):
        told = "not clamped" if clamp is None else f"clamped at {clamp:g}"
        yield f"--quick-geglu {told} and moved by {offset:g}, not as gpt-oss: {CLAMP} and {LINEAR_OFFSET}"
    elif "--swiglu" in flags and (clamp is not None or offset != 0):
        yield "gated units are clamped or moved (--activation-func-clamp-value, --glu-linear-offset)"


def unpriced(flags: Flags) -> Iterator[str]:
    """A sentence for each flag whose effect the prediction lacks."""
    for flag, effect in _UNPRICED.items():
        if flag in flags:
            yield f"{flag} is not priced: {effect}"
    optimizer = flags.text("--optimizer", "adam")
    if optimizer != "adam":
        yield f"--optimizer {optimizer} is not priced: predicted is Adam, with two moments a weight"
