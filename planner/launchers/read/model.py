"""The network, the workload and the software that a Megatron-LM command line states.

Defaults are those of megatron-core 0.19.2, `megatron/training/arguments.py` and
`megatron/core/transformer/transformer_config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from planner.data.attention_spec import LinearAttentionSpec, MlaSpec
from planner.data.experts_spec import MoeSpec
from planner.data.explain import explained
from planner.data.model_constants import ModelConstants
from planner.data.model_spec import KIND_OF_LETTER, HybridSpec, ModelSpec
from planner.errors import InstanceError
from planner.launchers.megatron.hybrid import PATTERN, PREDICTION, SPECS, STAGE_END
from planner.launchers.megatron.linear_attention import read_linear_attention
from planner.launchers.megatron.model import CONVOLUTION
from planner.launchers.read.constants import other_constants, read_constants
from planner.launchers.read.dialects import expert_pattern
from planner.launchers.read.flags import Flags
from planner.launchers.read.other import refuse_other_models
from planner.launchers.read.shipped import shipped, shipped_models

GPT2_VOCABULARY = 50_257
"""Entries of the vocabulary that GPT-2 published, which many scripts still name."""


def read_model(flags: Flags, notes: list[str]) -> ModelSpec:
    """The network; a shipped one where every flag of its shape agrees.

    Raises
    ------
    InstanceError
        Where something needed is missing, or our models cannot describe it.
    """
    refuse_other_models(flags)
    try:
        linear = read_linear_attention(flags)
    except ValidationError as error:
        raise explained(LinearAttentionSpec, error, flags.where) from None
    hybrid = _hybrid(flags)
    known = shipped(flags, hybrid, linear)
    try:
        model = known or _as_stated(flags, hybrid, linear, notes)
    except ValidationError as error:
        raise explained(ModelSpec, error, flags.where) from None
    stated = _with_constants(model, read_constants(flags))
    return known if known is not None and not any(other_constants(stated, known)) else stated


def _with_constants(model: ModelSpec, constants: ModelConstants) -> ModelSpec:
    """The network with what a script states of its numbers.

    Groups of experts that cannot be are left out: `planner.launchers.read.refusals` says what is wrong.
    """
    try:
        return ModelSpec(**(dict(model) | {"constants": constants}))
    except ValidationError:
        without = constants.model_copy(update={"expert_groups": None, "groups_visited": None})
        return model.model_copy(update={"constants": without})


def _as_stated(
    flags: Flags, hybrid: HybridSpec | None, linear: LinearAttentionSpec | None, notes: list[str]
) -> ModelSpec:
    """The network that the flags of its shape describe."""
    moe = _experts(flags, notes)
    hidden, heads = flags.number("--hidden-size"), flags.number("--num-attention-heads")
    if hidden % heads and "--kv-channels" not in flags:
        raise InstanceError(
            f"--hidden-size {hidden} is no multiple of --num-attention-heads {heads}; give --kv-channels, "
            "the width of a head",
            flags.where,
        )
    fields: dict[str, Any] = {
        "id": "from-script",
        "family": "read from a launch script",
        "num_layers": flags.number("--num-layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": _ffn(flags, moe, hybrid),
        "num_attention_heads": heads,
        "num_query_groups": flags.number("--num-query-groups", 1)
        if "--group-query-attention" in flags
        else heads,
        "head_dim": flags.number("--kv-channels", hidden // heads),
        "vocab_size": _vocabulary(flags, notes),
        "max_position_embeddings": flags.number("--max-position-embeddings"),
        "tied_embeddings": "--untie-embeddings-and-output-weights" not in flags,
        "position_embedding": _positions(flags),
        **_activation(flags),
        "normalization": "rms" if flags.text("--normalization", "LayerNorm") == "RMSNorm" else "layer",
        "qk_norm": "--qk-layernorm" in flags and "--multi-latent-attention" not in flags,
        "linear_bias": _biases(flags),
        **_window(flags),
        "attention_sinks": flags.text("--softmax-type", "vanilla") == "learnable",
        "output_gate": "--attention-output-gate" in flags,
        "mla": _latent(flags),
        "linear_attention": linear,
        "moe": moe,
        **({} if hybrid is None else {"hybrid": hybrid, "norms_per_layer": 1}),
        "mtp_num_layers": _predictions(flags),
        "repeated_prediction": "--mtp-use-repeated-layer" in flags,
        "source": flags.where,
    }
    return ModelSpec(**fields)


def _predictions(flags: Flags) -> int:
    """Multi-token predictions; a hybrid's pattern counts, whatever the number says."""
    if PATTERN in flags and PREDICTION in flags.text(PATTERN):
        return flags.text(PATTERN).count(PREDICTION)
    return flags.number("--mtp-num-layers", 0, least=0)


def _hybrid(flags: Flags) -> HybridSpec | None:
    """Layers of a model of Mamba-2, attention, feed-forward and expert layers; None for others."""
    spec = flags.values.get("--spec")
    if PATTERN not in flags:
        if spec is not None or "--hybrid-override-pattern" in flags:
            raise InstanceError(
                "layers by --spec or --hybrid-override-pattern cannot be read back; Mamba models can with "
                f"{PATTERN}",
                flags.where,
            )
        return None
    if spec is not None and spec not in SPECS.values():
        raise InstanceError(f"--spec {' '.join(spec)}: layers of one's own cannot be read back", flags.where)
    pattern, *predictions = flags.text(PATTERN).replace(STAGE_END, "").split(PREDICTION)
    if len(set(predictions)) > 1:
        raise InstanceError(f"{PATTERN}: its predictions differ, which Megatron-LM refuses", flags.where)
    if not pattern or not all(predictions):
        raise InstanceError(f"{PATTERN} {flags.text(PATTERN)!r} names no layer", flags.where)
    strange = set(pattern).union(*predictions) - KIND_OF_LETTER.keys()
    if strange:
        raise InstanceError(
            f"{PATTERN}: {', '.join(sorted(strange))} cannot be read back, only {', '.join(KIND_OF_LETTER)}",
            flags.where,
        )
    head_dim = flags.number("--mamba-head-dim", 64)
    heads = flags.number("--mamba-num-heads", 2 * flags.number("--hidden-size") // head_dim)
    return HybridSpec(
        pattern=pattern,
        mamba_heads=heads,
        mamba_head_dim=head_dim,
        ssm_state=flags.number("--mamba-state-dim", 128),
        groups=flags.number("--mamba-num-groups", 8),
        conv=CONVOLUTION,
        prediction_pattern=predictions[0] if predictions else None,
    )


def _ffn(flags: Flags, moe: MoeSpec | None, hybrid: HybridSpec | None) -> int:
    hidden = flags.number("--hidden-size")
    # Megatron shrinks the default block of a gated unit to two thirds, in whole multiples of 64.
    default = int(4 * hidden * 2 / 3) // 64 * 64 if "--swiglu" in flags else 4 * hidden
    width = flags.number("--ffn-hidden-size", default)
    if hybrid is not None:
        return width if moe is None or "-" in hybrid.pattern else 0
    every_layer_has_experts = moe is not None and moe.first_dense_layers == 0 and moe.layer_freq == 1
    return 0 if every_layer_has_experts else width


def _vocabulary(flags: Flags, notes: list[str]) -> int:
    if "--vocab-size" in flags:
        return flags.number("--vocab-size")
    bpe = flags.text("--tokenizer-type", "GPT2BPETokenizer" if "--merge-file" in flags else "")
    if bpe == "GPT2BPETokenizer":
        notes.append(f"vocabulary of {GPT2_VOCABULARY:,} entries, as GPT-2's tokenizer has")
        return GPT2_VOCABULARY
    size = (flags.number("--num-layers"), flags.number("--hidden-size"))
    for model in shipped_models():
        if (model.num_layers, model.hidden_size) == size:
            notes.append(
                f"vocabulary of {model.vocab_size:,} entries, as {model.id} has; no --vocab-size is given"
            )
            return model.vocab_size
    notes.append("vocabulary of 128,256 entries: no --vocab-size is given, and a tokenizer is not read")
    return 128_256


def _positions(flags: Flags) -> str:
    if "--use-rotary-position-embeddings" in flags:
        return "rope"
    kind = flags.text("--position-embedding-type", "learned_absolute")
    if "--no-position-embedding" in flags and "--position-embedding-type" not in flags:
        return "none"
    # ALiBi has no weights, and its biases go into the scores.
    known = {
        "alibi": "none",
        "rope": "rope",
        "yarn": "rope",
        "mrope": "rope",
        "learned_absolute": "learned",
        "none": "none",
    }
    if kind not in known:
        raise InstanceError(f"--position-embedding-type {kind} is not known", flags.where)
    return known[kind]


def _activation(flags: Flags) -> dict[str, Any]:
    if "--quick-geglu" in flags and "--squared-relu" not in flags:  # which goes first
        return {"gated_mlp": True, "activation": "swiglu-clamped"}
    if "--swiglu" in flags:
        return {"gated_mlp": True, "activation": "silu"}
    return {"gated_mlp": False, "activation": "squared-relu" if "--squared-relu" in flags else "gelu"}


def _biases(flags: Flags) -> str:
    if "--disable-bias-linear" not in flags:
        return "all"
    return "qkv" if "--add-qkv-bias" in flags else "none"


def _window(flags: Flags) -> dict[str, Any]:
    if "--window-size" not in flags:
        return {}
    left = re.match(r"\(?\s*(\d+)", ",".join(flags.values["--window-size"]))
    if left is None:
        raise InstanceError(f"--window-size {flags.text('--window-size')} is not understood", flags.where)
    every = flags.number("--window-attn-skip-freq", 1)
    return {"sliding_window": int(left[1]) + 1, "global_layer_every": every}


def _latent(flags: Flags) -> MlaSpec | None:
    if "--multi-latent-attention" not in flags:
        return None
    return MlaSpec(
        q_lora_rank=flags.number("--q-lora-rank") if "--q-lora-rank" in flags else None,
        kv_lora_rank=flags.number("--kv-lora-rank", 32),
        qk_nope_head_dim=flags.number("--qk-head-dim", 128),
        qk_rope_head_dim=flags.number("--qk-pos-emb-head-dim", 64),
        v_head_dim=flags.number("--v-head-dim", 128),
    )


def _experts(flags: Flags, notes: list[str]) -> MoeSpec | None:
    if "--num-experts" not in flags:
        return None
    dense, every = (0, 1) if PATTERN in flags else _spacing(layers_with_experts(flags), notes)
    has_bias = "--disable-bias-linear" not in flags
    return MoeSpec(
        num_experts=flags.number("--num-experts"),
        top_k=flags.number("--moe-router-topk", 2),
        ffn_hidden_size=flags.number("--moe-ffn-hidden-size", flags.number("--ffn-hidden-size", 0) or None),
        shared_ffn_hidden_size=flags.number("--moe-shared-expert-intermediate-size", 0, least=0),
        latent_size=flags.number("--moe-latent-size") if "--moe-latent-size" in flags else None,
        shared_expert_gate="--moe-shared-expert-gate" in flags,
        first_dense_layers=dense,
        layer_freq=every,
        router_bias=has_bias or "--moe-router-enable-expert-bias" in flags,
        expert_bias=has_bias,
        **read_capacity(flags),
    )


def read_capacity(flags: Flags) -> dict[str, Any]:
    """How many tokens an expert takes: fields of the experts, empty where it takes all that come.

    Raises
    ------
    InstanceError
        Where the factor is no number.
    """
    if "--moe-expert-capacity-factor" not in flags:
        return {}
    factor = flags.real("--moe-expert-capacity-factor")
    if factor <= 0:  # Megatron-LM reads a negative factor as none
        return {}
    return {
        "capacity_factor": factor,
        "pad_to_capacity": "--moe-pad-expert-input-to-capacity" in flags,
    }


def layers_with_experts(flags: Flags) -> tuple[bool, ...]:
    """Which layers have experts, by `--moe-layer-freq`: every how many, or a list expression."""
    text = "".join(flags.values.get("--moe-layer-freq", ("1",)))
    return tuple(expert_pattern(text, flags.number("--num-layers"), flags.where))


def _spacing(pattern: Sequence[bool], notes: list[str]) -> tuple[int, int]:
    """Leading dense layers and the distance of layers with experts; the nearest where none is exact."""
    dense = pattern.index(True) if True in pattern else len(pattern)
    rest = pattern[dense:]
    every = next((i for i in range(1, len(rest)) if rest[i]), 1)
    for spacing in ((0, every), (dense, every), (0, dense + 1)):  # the last where one layer alone has them
        if all(has == (i >= spacing[0] and (i + 1) % spacing[1] == 0) for i, has in enumerate(pattern)):
            return spacing
    notes.append("layers with experts are spread otherwise than our models say; their number may differ")
    return dense if every == 1 else 0, every
