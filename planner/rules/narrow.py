"""Widths that 8- and 4-bit matrix products ask of the pieces of a model on each rank.

Transformer Engine quantises inputs, weights and gradients of the linear maps of layers, and stops in the
first forward pass where a side of one is no multiple of its blocks: 32 values in MXFP8, else 16.

Source: Transformer Engine 2 (Apache-2.0), transformer_engine/pytorch/tensor/mxfp8_tensor.py and
nvfp4_tensor.py, `make_empty`; transformer_engine/pytorch/utils.py, `assert_dim_for_fp8_exec`, whose products
run backwards along their outputs, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.data.chip import HALF_PRECISIONS, Precision
from planner.data.model_spec import WITH_ATTENTION, WITH_ONE_MLP, ModelSpec

BLOCK: dict[Precision, int] = {"mxfp8": 32}
"""Values of a block in a number format, where they are not as many as in the others."""

USUAL_BLOCK = 16
"""Of all others: 8-bit products take operands of rows of a multiple of 16 values (assert_dim_for_fp8_exec in
transformer_engine/pytorch/utils.py); a block of NVFP4 has as many."""


def block_of(precision: Precision) -> int:
    """What the sides of a product must be multiples of; 1 in 16 bits."""
    return 1 if precision in HALF_PRECISIONS else BLOCK.get(precision, USUAL_BLOCK)


def tensor_widths_fill_blocks(model: ModelSpec, precision: Precision, tp: int) -> str | None:
    """Every side of a map that tensor-parallel ranks share is made of whole blocks on each of them."""
    if precision in HALF_PRECISIONS:
        return None
    return _trouble(precision, "tensor_parallel", tp, tuple(_tensor_widths(model, tp)))


def expert_widths_fill_blocks(model: ModelSpec, precision: Precision, etp: int) -> str | None:
    """The same of what the tensor-parallel ranks of an expert share."""
    if model.moe is None or precision in HALF_PRECISIONS:
        return None
    widths = (("experts are", model.moe.ffn_hidden_size / etp),)
    return _trouble(precision, "expert_tensor_parallel", etp, widths)


def _trouble(
    precision: Precision, degree: str, ranks: int, widths: tuple[tuple[str, float], ...]
) -> str | None:
    block = block_of(precision)
    for name, width in widths:
        if width % block:
            return (
                f"{degree} {ranks}: {name} {width:g} wide on each rank, no multiple of {block}, in which "
                f"{precision} multiplies; change the degree or the precision"
            )
    return None


def _tensor_widths(model: ModelSpec, tp: int) -> Iterator[tuple[str, float]]:
    """What a map is of, and how wide it is on a rank."""
    kinds = set(model.layer_kinds)
    yield "the hidden state is", float(model.hidden_size)
    if kinds & WITH_ATTENTION and model.mla is not None:
        mla, heads = model.mla, model.num_attention_heads / tp
        yield "compressed keys and values are", float(mla.kv_lora_rank)
        yield "compressed keys and values are", float(mla.kv_lora_rank + mla.qk_rope_head_dim)
        yield "compressed queries are", float(mla.q_lora_rank or 0)
        yield "queries are", heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        yield "keys and values are", heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        yield "heads are", heads * mla.v_head_dim
    elif kinds & WITH_ATTENTION:
        heads, groups = model.num_attention_heads / tp, max(model.num_query_groups / tp, 1.0)
        yield "heads are", heads * model.head_dim
        gates = heads if model.output_gate else 0.0
        yield "queries, keys and values are", (heads + gates + 2 * groups) * model.head_dim
    if model.linear_attention is not None:
        yield "the input map of linear attention is", model.linear_attention.input_width / tp
        yield "heads of linear attention are", model.linear_attention.value_width / tp
    if kinds & WITH_ONE_MLP:
        yield "the feed-forward block is", model.ffn_hidden_size / tp
    if model.moe is not None:
        yield "the tokens of routed experts are", float(model.routed_width)
        yield "shared experts are", model.moe.shared_ffn_hidden_size / tp
    if model.hybrid is not None:
        spec = model.hybrid
        inner = spec.mamba_heads * spec.mamba_head_dim / tp
        yield "Mamba's heads are", inner
        yield "Mamba's input map is", 2 * inner + (2 * spec.groups * spec.ssm_state + spec.mamba_heads) / tp
    if model.mtp_num_layers:
        yield "the map of a prediction is", model.hidden_size / tp
