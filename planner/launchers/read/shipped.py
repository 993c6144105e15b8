"""Which shipped model a Megatron-LM command line trains, told by the flags of its shape."""

from __future__ import annotations

from functools import cache

from planner.data.attention_spec import LinearAttentionSpec
from planner.data.catalog import names
from planner.data.load import load_model
from planner.data.model_spec import HybridSpec, ModelSpec
from planner.launchers.megatron.arguments import words
from planner.launchers.megatron.model import (
    inexpressible,
    mock_vocabulary,
    model_arguments,
    moe_arguments,
)
from planner.launchers.read.flags import Flags
from planner.rules.versions import NEWEST, VERSIONS


def shipped(flags: Flags, hybrid: HybridSpec | None, linear: LinearAttentionSpec | None) -> ModelSpec | None:
    """The shipped model whose own arguments are all there, with no other word on its shape."""
    size = (flags.number("--num-layers"), flags.number("--hidden-size"))
    length = flags.number("--seq-length")
    vocabulary = flags.values.get("--vocab-size")
    version = NEWEST if flags.text("--position-embedding-type", "") == "yarn" else VERSIONS[0]
    found = list[ModelSpec]()
    for model in shipped_models():
        if (model.num_layers, model.hidden_size) != size or inexpressible(model, builds_hybrids=True):
            continue
        if model.hybrid != hybrid or model.linear_attention != linear:
            continue
        if vocabulary not in (None, (str(model.vocab_size),), *_one_fewer(model, flags)):
            continue
        rest = model.model_copy(update={"linear_attention": None})
        shape = Flags(
            words((*model_arguments(rest, length, version), *moe_arguments(model, grouped_gemm=False)))
        )
        if all(
            _agree(flag, flags.values.get(flag), values) for flag, values in shape.values.items()
        ) and not (_SHAPE & flags.values.keys() - shape.values.keys()):
            found.append(model)
    return found[0] if len(found) == 1 else None


def _one_fewer(model: ModelSpec, flags: Flags) -> list[tuple[str, ...]]:
    """The vocabulary as the tokenizer of made-up data is told that adds an entry (`mock_vocabulary`)."""
    is_mock = flags.text("--tokenizer-type", "") == "NullTokenizer"
    return [(str(mock_vocabulary(model, VERSIONS[0])),)] if is_mock else []


def _agree(flag: str, found: tuple[str, ...] | None, wanted: tuple[str, ...]) -> bool:
    """Whether a flag says the same; FlagScale's files have a list of layers without parentheses."""
    if flag == "--moe-layer-freq" and found is not None:
        return "".join(found).strip("()") == "".join(wanted).strip("()")
    return found == wanted


@cache
def shipped_models() -> tuple[ModelSpec, ...]:
    """All models that are shipped."""
    return tuple(load_model(name) for name in names("models"))


_SHAPE = {
    "--group-query-attention", "--kv-channels", "--qk-layernorm", "--softmax-type", "--window-size",
    "--multi-latent-attention", "--swiglu", "--squared-relu", "--quick-geglu", "--disable-bias-linear",
    "--add-qkv-bias", "--num-experts", "--moe-shared-expert-intermediate-size", "--mtp-num-layers",
    "--untie-embeddings-and-output-weights", "--moe-router-enable-expert-bias",
    "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity", "--moe-shared-expert-gate",
    "--moe-latent-size", "--mtp-use-repeated-layer", "--attention-output-gate",
}  # fmt: skip
