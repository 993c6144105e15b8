"""Does a script train the model that it should? Its shape against that of a model file."""

from __future__ import annotations

from collections.abc import Iterator

from planner.data.base import Data
from planner.data.model_spec import WITH_ONE_MLP, ModelSpec

_SHAPE = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "head_dim",
    "vocab_size", "tied_embeddings", "position_embedding", "gated_mlp", "activation", "normalization",
    "qk_norm", "linear_bias", "attention_sinks", "sliding_window", "global_layer_every", "mla", "moe",
    "mtp_num_layers", "repeated_prediction", "hybrid", "linear_attention",
    "output_gate",
)  # fmt: skip
_ROUTING = ("router_bias", "capacity_factor", "pad_to_capacity")
"""Of experts, what training chooses and not the shape of the network."""


def differences(found: ModelSpec, wanted: ModelSpec, *, vocabulary_is_known: bool = True) -> tuple[str, ...]:
    """A phrase for each part of the shape in which two models differ; empty where they are the same network.

    Parameters
    ----------
    vocabulary_is_known
        Whether the first states its vocabulary, rather than a tokenizer that we do not read.
    """
    leave_out = {"" if vocabulary_is_known else "vocab_size"}
    if found.mla is not None and wanted.mla is not None:
        leave_out |= {"num_query_groups", "head_dim", "qk_norm"}  # latent attention has its own
    if not WITH_ONE_MLP & {*found.layer_kinds, *wanted.layer_kinds}:
        leave_out.add("ffn_hidden_size")
        if {found.linear_bias, wanted.linear_bias} == {"all", "attention"}:
            leave_out.add("linear_bias")  # all maps of the network are attention's; experts state their own
    names = [name for name in _SHAPE if name not in leave_out]
    return tuple(_of_fields(found, wanted, names))


def _of_fields(found: Data, wanted: Data, names: list[str], prefix: str = "") -> Iterator[str]:
    for name in names:
        mine, other = getattr(found, name), getattr(wanted, name)
        if isinstance(mine, Data) and isinstance(other, Data):
            inner = [field for field in type(mine).model_fields if field not in _ROUTING]
            yield from _of_fields(mine, other, inner, f"{name}.")
        elif mine != other:
            yield f"{prefix}{name} {_in_words(mine)}, not {_in_words(other)}"


def _in_words(value: object) -> str:
    if value is None:
        return "none"
    return "given" if isinstance(value, Data) else str(value)
