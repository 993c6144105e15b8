"""Kernels bound by memory that a layer runs, each of which takes some microseconds beside its bytes.

A kernel waits for the one before it, fills the chip and drains it again, however little it moves: residual
sums over 100 to 1,200 MB took 3.5 us on one H100, and 2.3 us on one H200, beyond what they took in proportion
to their bytes (`instances/tables/README.md`). That other chips take as long is a guess. Products, attention
and collectives were timed whole, so that theirs are in their tables.

Operators of routers and of the loss are those that ran in one forward and backward of Megatron-LM core 0.19,
views left out; other kernels were counted by hand from its code and that of Transformer Engine 2.9.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.elementwise import Values, maximum, where
from planner.cost.kernels.attention_traffic import copies_heads
from planner.cost.kernels.launches import FUSED_ROUTER_SHARE, module_of
from planner.cost.kernels.operators import Matmul
from planner.cost.kernels.small_tensors import small_tensors
from planner.cost.kernels.sorting import pads_apart
from planner.cost.sizes import Sizes
from planner.data.chip import HALF_PRECISIONS, Precision
from planner.data.model_spec import (
    TRANSFORMER_LAYERS,
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)
from planner.data.stack import SoftwareStack

KERNEL_S, CAPTURED_S = 2.9e-6, 1.2e-6
"""What a kernel takes beside its bytes [s]: the mean of both chips, and in a CUDA graph, where 2,000 sums of
1,024 values took 1.1 to 1.3 us each (pytorch/pytorch, issue 161104; it does not name the chip)."""

Kernels = tuple[Values, Values]
"""Kernels of a forward and of a backward."""

FUSED_NORM, FP32_NORM, PLAIN_NORM = (1.0, 2.0), (2.0, 3.0), (8.0, 16.0)
"""A norm and its backward, which sums the weight's gradient in a second kernel; with casts around it; by
plain operators (`PLAIN_RMS_NORM_BYTES` in norms.py)."""

ROTARY, PLAIN_ROTARY = 2.0, 10.0
"""Positions of queries and keys, each way: one kernel for each, or halves negated, joined, two products and a
sum."""

LATENT, PLAIN_LATENT_ROTARY = (4.0, 6.0), 26.0
"""Latent attention: norms of both latent vectors, queries turned in place, keys and values written."""

LINEAR_ATTENTION, MAMBA = (20.0, 24.0), (8.0, 26.0)
"""Gated delta nets without products and their rule (`launches.py`), whose backward is a guess, and Mamba
mixers without products of their scan: convolution, decays and their sums, states passed on, norm; the
backward makes these and the products of states anew (mamba_ssm, ops/triton/ssd_combined.py)."""

ROUTER, BIASED_ROUTER = (26.0, 16.0), (46.0, 31.0)
"""Operators of a router without its product: by softmax with an auxiliary loss, and with sigmoid, biases,
groups of experts and a loss by sequences as DeepSeek-V3 has them."""

DROPPING = (4.0, 1.0)
"""More of a router that drops tokens over capacity."""

COUNTING, COUNTING_CAPACITY = 6.0, 2.0
"""Counts of each expert's tokens, here and on other ranks; where all experts get as many, their list."""

SORTING, PLAIN_SORTING = (6.0, 3.0), (10.0, 5.0)
"""Places of rows (3), permutation and return in fused kernels, which clear (1); or by plain operators."""

SORTING_AGAIN = (4.0, 2.0)
"""Chunks of tokens sorted by local experts, and back: places and copy."""

PADDING = (2.0, 2.0)
"""Rows of all experts padded before narrow products, and cut behind them (`PADDING_BYTES` in sorting.py)."""

SHARED = (2.0, 2.0)
"""Shared experts' activation, and their sum with the routed ones'."""

TENSOR_CAST = 4.0
"""To cast an operand with one scale from its own values: the largest value is cleared and found, the scale
made, the operand cast (pytorch/csrc/quantizer.cpp, Float8CurrentScalingQuantizer)."""

LOSS, FUSED_LOSS, PLAIN_LOSS = (27.0, 12.0), (13.0, 5.0), (4.0, 4.0)
"""The loss with its mask, its sum and what is logged: of a vocabulary that ranks may divide, by Transformer
Engine's two kernels, and PyTorch's."""

LOOK_UP, LOOK_UP_OF_SHARE = (2.0, 11.0), (6.0, 1.0)
"""Rows of the embedding and their order; backward the whole gradient cleared, its rows sorted and added
(about nine kernels) and added to the sum. More where ranks divide the vocabulary: masks of others' rows."""

ROW_CASTS = (4.0, 6.0)
"""torchao's casts of a product's operands with a scale a row: two kernels each; input and weight, then the
gradient both ways and the weight once more (`ROW_CAST_BYTES` in casts.py)."""

Seconds = tuple[Values, Values]
"""Of a forward and of a backward."""

BLOCKS = ("attn", "mlp", "moe_router")
"""Modules that begin with a norm."""


def layer_starts_s(
    model: ModelSpec,
    kind: LayerKind,
    stack: SoftwareStack,
    sizes: Sizes,
    products: Sequence[Matmul],
    precision: Precision,
) -> Seconds:
    """What kernels bound by memory take beside their bytes in a layer's forward and backward, core attention
    left out [s].

    Parameters
    ----------
    products
        Its products, those of core attention apart.
    """
    forward: Values = 0.0
    backward: Values = 0.0
    for module, parts in _modules(model, kind, stack, sizes, products, precision).items():
        captured = module in stack.captured_modules or not stack.host_layer_floor_ms
        each = CAPTURED_S if captured else KERNEL_S
        forward = forward + each * sum(part[0] for part in parts)
        backward = backward + each * sum(part[1] for part in parts)
    return forward, backward


def end_starts_s(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> tuple[Seconds, Seconds]:
    """The same of the embedding, and of final norm and loss [s]."""
    each = KERNEL_S if stack.host_layer_floor_ms else CAPTURED_S
    divided = sizes.tp > 1
    embedding = [where(divided, one + more, one) for one, more in zip(LOOK_UP, LOOK_UP_OF_SHARE, strict=True)]
    loss = PLAIN_LOSS
    if stack.megatron_groups:
        loss = FUSED_LOSS if stack.fused_cross_entropy else LOSS
    norm = _norm(model, stack)
    return (
        (each * embedding[0], each * embedding[1]),
        (each * (norm[0] + loss[0]), each * (norm[1] + loss[1])),
    )


def _modules(
    model: ModelSpec,
    kind: LayerKind,
    stack: SoftwareStack,
    sizes: Sizes,
    products: Sequence[Matmul],
    precision: Precision,
) -> dict[str, list[Kernels]]:
    """Kernels by module, in the words of `launches.py`."""
    own: dict[str, list[Kernels]] = {}
    blocks = [_block(model, stack)] * (model.norms_per_layer if kind in TRANSFORMER_LAYERS else 1)
    if kind in WITH_ATTENTION or kind in WITH_LINEAR_ATTENTION or kind == "mamba":
        mixer = MAMBA if kind == "mamba" else LINEAR_ATTENTION
        own["attn"] = [_attention(model, stack) if kind in WITH_ATTENTION else mixer]
    if kind in WITH_ONE_MLP:
        own["mlp"] = [_activation(model, stack)]
    elif kind in WITH_EXPERTS:
        own |= _experts(model, stack, sizes)
    for name, block in zip((x for x in own if x in BLOCKS), blocks, strict=False):
        own[name].append(block)
    own[next(x for x in own if x in BLOCKS)].append((0.0, float(small_tensors(model, kind))))
    if precision not in HALF_PRECISIONS:
        for product in (x for x in products if x.has_weight and x.narrow):
            module = "experts" if product.grouped else module_of(product.name)
            own[module].append(_casts(product, precision, stack))
        if "experts" in own:
            apart = pads_apart(stack, sizes)
            own["experts"].append((apart * PADDING[0], apart * PADDING[1]))
    return own


def _norm(model: ModelSpec, stack: SoftwareStack) -> tuple[float, float]:
    if stack.plain_modules and model.normalization == "rms":
        return PLAIN_NORM
    return FP32_NORM if stack.norms_read_fp32 else FUSED_NORM


def _block(model: ModelSpec, stack: SoftwareStack) -> Kernels:
    """A norm and the residual sum with dropout and bias."""
    norm = _norm(model, stack)
    dropout = 1.0 if stack.has_dropout(model) else 0.0
    apart = 0.0 if stack.fused_pointwise else dropout
    biases = 0.0 if stack.biases_in_products or model.linear_bias == "none" else 1.0
    return norm[0] + 1.0 + apart + biases, norm[1] + 1.0 + dropout + biases


def _attention(model: ModelSpec, stack: SoftwareStack) -> Kernels:
    if model.mla is not None:
        turned = 0.0 if stack.fused_latent_rotary else PLAIN_LATENT_ROTARY
        return LATENT[0] + turned, LATENT[1] + turned
    forward = backward = 0.0
    if copies_heads(model, stack):  # values, grouped queries; the gradients of all are joined
        forward, backward = 1.0 + (model.num_query_groups < model.num_attention_heads), 1.0
    if model.position_embedding == "rope":
        turned = ROTARY if stack.fused_pointwise and not stack.plain_modules else PLAIN_ROTARY
        forward, backward = forward + turned, backward + turned
    if model.qk_norm:
        forward, backward = forward + 2 * FUSED_NORM[0], backward + 2 * FUSED_NORM[1]
    return forward, backward


def _activation(model: ModelSpec, stack: SoftwareStack) -> Kernels:
    plain = model.gated_mlp and not stack.fused_pointwise
    return (2.0, 3.0) if plain else (1.0, 1.0)


def _experts(model: ModelSpec, stack: SoftwareStack, s: Sizes) -> dict[str, list[Kernels]]:
    moe = model.moe
    assert moe is not None
    router = BIASED_ROUTER if moe.router_bias else ROUTER
    share = FUSED_ROUTER_SHARE if stack.moe_router_fusion else 1.0
    routing: list[Kernels] = [(share * router[0], share * router[1])]
    if not stack.waits_for_token_counts or moe.capacity_factor is not None:
        routing.append(DROPPING)
    if moe.shared_ffn_hidden_size:
        routing.append(SHARED)
    padded = moe.pad_to_capacity or not stack.waits_for_token_counts
    counting: Values = COUNTING_CAPACITY if padded else COUNTING
    again = where((moe.num_experts > s.ep) & (s.ep * s.etp > 1), 1.0, 0.0)
    if stack.moe_dispatcher == "deduplicating":
        # One kernel counts, and tokens are sorted where they arrive alone.
        sends = s.ep * s.etp > 1
        counting, again = where(sends, 1.0, counting), where(sends, 0.0, again)
    sorting = SORTING if stack.moe_permute_fusion else PLAIN_SORTING
    activation: Kernels = _activation(model, stack)
    if stack.experts_apart:
        local = maximum(moe.num_experts / s.ep, 1.0)
        joined = where(moe.num_experts > s.ep, 1.0, 0.0)
        activation = (local * activation[0] + joined, local * activation[1] + joined)
    return {
        "moe_router": routing,
        "moe_preprocess": [(counting, 0.0)],
        "experts": [
            sorting,
            (again * SORTING_AGAIN[0], again * SORTING_AGAIN[1]),
            activation,
        ],
    }


def _casts(product: Matmul, precision: Precision, stack: SoftwareStack) -> Kernels:
    """Casts of one product's input, and of its output's gradient; one by one for each expert, but by a kernel
    for all with a scale a tensor from earlier steps (pytorch/csrc/extensions/cast.cpp, split_quantize).

    Scales of MXFP8 and NVFP4 are put in order for every product, those of all experts at once (gemm.cpp).
    """
    each = product.count if product.grouped else 1.0
    if stack.row_scales:
        return ROW_CASTS[0] * each, ROW_CASTS[1] * each
    if precision == "fp8" and stack.current_scaling:
        cast = TENSOR_CAST * each
        return (0.0 if product.input_again else cast), cast
    if precision == "fp8":
        kernels = each if stack.experts_apart else 1.0
        return 0.0 if product.after_norm or product.input_again else kernels, kernels
    if precision == "fp8_block":
        return each, each
    cast = 3.0 if precision == "nvfp4" else each  # largest value, rows, columns; those of all experts at once
    return cast + 2.0, cast + 4.0
