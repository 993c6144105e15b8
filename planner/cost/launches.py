"""How long the host needs to launch a piece, in layers of a dense transformer.

The stack states the floor of a dense layer. Other layers launch in proportion to their kernels, counted by
hand from one forward of Megatron-LM core with Transformer Engine, nothing captured in CUDA graphs
(attention.py, multi_latent_attention.py, mlp.py, moe/router.py, moe/token_dispatcher.py, moe/experts.py).
That a launch of one module costs as much as one of another, or of a backward, is a guess.

A backward launches once what its forward did, each product a second time (dgrad and wgrad), and a sum for
every gradient that is added by a kernel of its own: 49 launches for the 31 of a layer of GPT with biases,
scores in memory and no fused accumulation; 37 for one of Llama with flash attention and fused accumulation.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.elementwise import Values, maximum
from planner.cost.operators import Matmul
from planner.cost.sizes import Sizes
from planner.cost.softmax import more_launches
from planner.data.model_spec import LayerKind, ModelSpec
from planner.data.stack import SoftwareStack

ATTENTION_LAUNCHES = 20.0
"""Norm, cast and product of queries, keys and values; positions; attention; output map; residual."""

LATENT_LAUNCHES = 12.0
"""More with latent attention: down-projections with their norms, splits and joins of heads."""

MLP_LAUNCHES = 11.0
"""Norm, casts, two products, activation, residual."""

ROUTER_LAUNCHES, BIASED_ROUTER_LAUNCHES = 26.0, 47.0
"""Scores, choice and auxiliary loss: operators that run in one forward of a router of Megatron-LM core 0.17
(views left out), by softmax, and with sigmoid, biases and groups of experts as DeepSeek-V3 has them."""

FUSED_ROUTER_SHARE = 31 / 72
"""Of a router's kernels, those that --moe-router-fusion leaves (NVIDIA/Megatron-LM, docs/discussions,
deepseek-v3-gb200-optimization.md, section 2.1.4)."""

DISPATCH_LAUNCHES = 30.0
"""Counts and their exchange (12), sorting both ways (11), exchanges (4), activation with weights, norm and
residual (3)."""

ROUTING_BACKWARD_LAUNCHES = 45.0
"""Most of routing in a backward (counted likewise: 43 by softmax, 47): choosing has no gradient."""

LAUNCH_US = 29.0
"""What one launch of the count stands for: the floor of a dense layer, 0.9 ms, over 31 [us]."""

EXPERT_LAUNCHES = (0.7, 0.7)
"""For each local expert, in a forward and what its backward has more: a cast and a product of both maps,
launched from a loop in C++ at some 5 us each (guess)."""

SINGLE_PRODUCT_US, CAST_US = 33.0, 10.0
"""Host time of a single expert's product in a loop over them [us]: 0.267 ms for 8 products of 128 tokens,
which take the chip far less (NVIDIA/TransformerEngine, pull request 3134; it does not name the host). Of a
cast kernel: 10 us (pull request 1016)."""

SHARED_LAUNCHES = 12.0
"""Shared experts with their gather and sum."""

DENSE_LAUNCHES = ATTENTION_LAUNCHES + MLP_LAUNCHES

HEAD_LAUNCHES = 1.0
"""Launches of final norm, head and loss over those of a dense layer (guess: some thirty kernels each)."""


def launches(
    model: ModelSpec, kind: LayerKind, stack: SoftwareStack, sizes: Sizes, narrow: bool = False
) -> Values:
    """Launches of one forward of a layer over those of a dense layer, array [choice].

    Parameters
    ----------
    narrow
        Whether products read fewer than 16 bits, so that operands are cast first.
    """
    count = sizes.zeros
    if kind != "mlp":
        count = count + ATTENTION_LAUNCHES + (LATENT_LAUNCHES if model.mla is not None else 0.0)
    if kind in ("dense", "moe", "attention"):
        count = count + more_launches(model, stack, sizes)
    if kind in ("dense", "mlp"):
        count = count + MLP_LAUNCHES
    if kind == "moe":
        count = count + moe_launches(model, stack, sizes, narrow)
    return count / DENSE_LAUNCHES


def backward_launches(
    model: ModelSpec,
    kind: LayerKind,
    stack: SoftwareStack,
    sizes: Sizes,
    forward: Values,
    products: Sequence[Matmul],
    narrow: bool = False,
) -> Values:
    """Launches of one backward of a layer over those of a dense layer's forward, array [choice].

    Parameters
    ----------
    forward
        Those of its forward (`launches`).
    products
        Its products, those of core attention apart.
    narrow
        Whether they read fewer than 16 bits.
    """
    single = [product for product in products if not product.grouped]
    count = len(single) + small_tensors(model, kind)
    if kind in ("dense", "moe", "attention") and not stack.flash_attention:
        count += 2
    if not stack.gradient_accumulation_fusion:
        count += sum(product.has_weight for product in single)
    more = count * sizes.ones
    if kind == "moe" and model.moe is not None:
        chosen = max(routing_launches(model, stack) - ROUTING_BACKWARD_LAUNCHES, 0.0)
        of_experts = _expert_launches(stack, narrow)[1] * maximum(model.moe.num_experts / sizes.ep, 1.0)
        more = more + of_experts - chosen
    return forward + more / DENSE_LAUNCHES


def small_tensors(model: ModelSpec, kind: LayerKind) -> int:
    """Norms and biases of a layer, each a tensor of its own."""
    norms = model.norms_per_layer if kind in ("dense", "moe") else 1
    vectors = norms * (2 if model.normalization == "layer" else 1)
    if kind in ("dense", "moe", "attention"):
        vectors += {"none": 0, "qkv": 1, "attention": 2, "all": 2}[model.linear_bias]
        vectors += 2 if model.qk_norm else 0
    if kind in ("dense", "mlp") and model.linear_bias == "all":
        vectors += 2
    return vectors


def parameter_tensors(model: ModelSpec, kind: LayerKind, products: Sequence[Matmul]) -> int:
    """Tensors of a layer's parameters that the optimizer updates, grouped experts left out."""
    matrices = sum(product.has_weight and not product.grouped for product in products)
    return matrices + small_tensors(model, kind)


def routing_launches(model: ModelSpec, stack: SoftwareStack) -> float:
    """Launches of a router and of the way of tokens to experts and back."""
    assert model.moe is not None
    router = BIASED_ROUTER_LAUNCHES if model.moe.router_bias else ROUTER_LAUNCHES
    return DISPATCH_LAUNCHES + router * (FUSED_ROUTER_SHARE if stack.moe_router_fusion else 1.0)


def _expert_launches(stack: SoftwareStack, narrow: bool) -> tuple[float, float]:
    """Launches of a forward of one local expert, and those that its backward adds to them.

    Single products are two maps, dgrad and wgrad of each in the backward; what each pass reads is cast once.
    """
    if not stack.experts_as_single_products:
        return EXPERT_LAUNCHES
    casts = 2 * CAST_US if narrow else 0.0
    return (2 * SINGLE_PRODUCT_US + casts) / LAUNCH_US, 2 * SINGLE_PRODUCT_US / LAUNCH_US


def moe_launches(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, narrow: bool = False) -> Values:
    """Launches of router, exchanges, experts and shared experts, array [choice]."""
    moe = model.moe
    assert moe is not None
    experts = _expert_launches(stack, narrow)[0] * maximum(moe.num_experts / sizes.ep, 1.0)
    shared = SHARED_LAUNCHES if moe.shared_ffn_hidden_size else 0.0
    launched: Values = routing_launches(model, stack) + experts + shared
    return launched
