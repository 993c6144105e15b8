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

from planner.cost.elementwise import Values, maximum, where
from planner.cost.kernels.operators import Matmul
from planner.cost.kernels.small_tensors import small_tensors
from planner.cost.kernels.softmax import more_launches
from planner.cost.sizes import Sizes
from planner.data.model_spec import (
    WITH_ATTENTION,
    WITH_EXPERTS,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)
from planner.data.stack import SoftwareStack

ATTENTION_LAUNCHES = 20.0
"""Norm, cast and product of queries, keys and values; positions; attention; output map; residual."""

LATENT_LAUNCHES = 12.0
"""More with latent attention: down-projections with their norms, splits and joins of heads."""

LINEAR_ATTENTION_LAUNCHES = 28.0
"""Those of a gated delta net: norm and input map (3), convolution (2), queries and keys copied, normalised
and repeated (4), other copies (4), decay and strength (3), the rule (6), norm, gate and order of its result
(3), output map and residual (3); counted from the code."""

PLAIN_ROTARY_LAUNCHES = 26.0
"""More where latent attention turns queries and keys by plain operators: even and odd values joined, cosine
and sine of the angles scaled and cast, two products, negated and joined halves, sum and join (13 for each;
models/common/embeddings/rope_utils.py of Megatron-LM core 0.12)."""

DROP_LAUNCHES = 6.0
"""More of a router that drops tokens: the best of each expert, their mask and what it leaves of the scores
(transformer/moe/moe_utils.py, topk_softmax_with_capacity)."""

MLP_LAUNCHES = 11.0
"""Norm, casts, two products, activation, residual."""

ROUTER_LAUNCHES, BIASED_ROUTER_LAUNCHES = 26.0, 47.0
"""Scores, choice and auxiliary loss: operators that run in one forward of a router of Megatron-LM core 0.17
(views left out), by softmax, and with sigmoid, biases and groups of experts as DeepSeek-V3 has them."""

FUSED_ROUTER_SHARE = 31 / 72
"""Of a router's kernels, those that --moe-router-fusion leaves (NVIDIA/Megatron-LM, docs/discussions,
deepseek-v3-gb200-optimization.md, section 2.1.4)."""

COUNT_LAUNCHES = 12.0
"""Counts of the tokens of each expert and their exchange; one kernel of DeepEP and HybridEP."""

EXCHANGE_LAUNCHES = 18.0
"""Sorting both ways (11), exchanges (4), activation with weights, norm and residual (3). Of the sorting those
libraries need half, as they do not send a token's copies in order."""

HALF_OF_SORTING = 5.0

NODE_LAUNCHES = (32.0, 94.0)
"""Where exchanges run behind another micro-batch's computation, a layer is five nodes a pass: attention,
router, dispatch, experts and combination. Each waits for an event, changes streams, detaches its inputs and
marks what other streams read; in the backward Python starts the automatic differentiation for each, and
gradients of attention's and experts' weights are two pieces more (ScheduleNode in Megatron-LM core 0.15,
pipeline_parallel/utils.py; models/common/model_chunk_schedule_plan.py). Their lines count 5 and 14.5
launches, but take more than six times as long: Qwen3-235B-A22B in 16 bits on 64 B200 takes 17.2 s with the
overlap, for its host, and 16.0 s without (NVIDIA-NeMo/Megatron-Bridge, pull request 1760)."""

REPLAY_LAUNCHES = 2.0
"""Of a layer's captured modules: their graph, and what hands its inputs over (guess)."""

ROUTING_BACKWARD_LAUNCHES = 45.0
"""Most of routing in a backward (counted likewise: 43 by softmax, 47): choosing has no gradient."""

LAUNCH_US = 29.0
"""What one launch of the count stands for: the floor of a dense layer, 0.9 ms, over 31 [us]."""

EXPERT_LAUNCHES, MODULE_LAUNCHES = (0.7, 0.7), (MLP_LAUNCHES - 3.0, 2.0)
"""For each local expert, in a forward and what its backward has more: a cast and a product of both maps,
launched from a loop in C++ at some 5 us each (guess); as a module of its own, an MLP's but norm and sum."""

SINGLE_PRODUCT_US, CAST_US = 33.0, 10.0
"""Host time of a single expert's product in a loop over them [us]: 0.267 ms for 8 of 128 tokens, which take
the chip far less (NVIDIA/TransformerEngine, pull request 3134; its host is not named and taken for an x86
one; of a Grace, 12 us would be left, waiting steps 14% shorter). Of a cast kernel: 10 (pull request 1016)."""

NARROW_TENSOR_US, NARROW_OPERANDS_US, GRADIENT_US = 15.0, 12.0, 12.0
"""Host time around the kernels of products, counted from the code of Transformer Engine 2.9 at 1 to 2 us
for a line of Python or a tensor made (guess): a tensor of few bits, that is four views of a buffer, an
object and its keeping for the backward (pytorch/csrc/extensions/cast.cpp, bulk_allocate_mxfp8_tensors;
tensor/storage); both such operands of a product taken apart again (csrc/extensions/gemm.cpp); a weight's
placeholder of a gradient and the hook of its reduction (module/grouped_linear.py; Megatron-LM core,
distributed/distributed_data_parallel.py). With them the count gives 561 and 636 TFLOP/s for two steps of
NVIDIA's tuning of DeepSeek-V3 on GB200 that wait for the host, which reached 540 and 611 (the guide named
below)."""

SCALE_LAUNCHES_US = 2.0 * CAST_US
"""Before a narrow product: both operands' MXFP8 scales are put in its order, or for one scale a tensor their
largest values are found."""

NARROW_MAP_US = CAST_US + NARROW_TENSOR_US + SCALE_LAUNCHES_US + NARROW_OPERANDS_US
"""Host time that a map of few bits adds to a pass, whose weights are of few bits already."""

NARROW_WGRAD_US = SCALE_LAUNCHES_US + NARROW_OPERANDS_US
"""What the second product of its backward adds to that, as the gradient is cast once."""

UP_PROJECTION_LAUNCHES = 12.0
"""Both up-projections of latent attention with positions, splits and joins of heads."""

SHARED_LAUNCHES, SCAN_BACKWARD_LAUNCHES = 12.0, 13.0
"""Shared experts with their gather and sum; more in the backward of a Mamba mixer, which makes states anew:
40 in all (mamba_ssm, ops/triton/ssd_combined.py)."""

DENSE_LAUNCHES = ATTENTION_LAUNCHES + MLP_LAUNCHES


def launches(
    model: ModelSpec, kind: LayerKind, stack: SoftwareStack, sizes: Sizes, narrow: bool = False
) -> Values:
    """Launches of one forward of a layer over those of a dense layer, array [choice].

    Parameters
    ----------
    narrow
        Whether products read fewer than 16 bits, so that operands are cast first.
    """
    return _launched(forward_modules(model, kind, stack, sizes, narrow), stack, sizes)


def backward_launches(
    model: ModelSpec,
    kind: LayerKind,
    stack: SoftwareStack,
    sizes: Sizes,
    products: Sequence[Matmul],
    narrow: bool = False,
) -> Values:
    """Launches of one backward of a layer over those of a dense layer's forward, array [choice].

    Parameters
    ----------
    products
        Its products, those of core attention apart.
    narrow
        Whether they read fewer than 16 bits.
    """
    modules = forward_modules(model, kind, stack, sizes, narrow)
    for product in products:
        if not product.grouped:
            added = 0 if stack.gradient_accumulation_fusion else int(product.has_weight)
            wgrad = NARROW_WGRAD_US / LAUNCH_US if narrow and product.narrow else 0.0
            modules[module_of(product.name)] += 1.0 + added + wgrad
    first = next(name for name in ("attn", "mlp", "moe_router") if name in modules)
    modules[first] += float(small_tensors(model, kind))
    if kind in WITH_ATTENTION and not stack.flash_attention:
        modules["attn"] += 2.0
    modules[first] += SCAN_BACKWARD_LAUNCHES if kind == "mamba" else 0.0
    if kind in WITH_EXPERTS and model.moe is not None:
        chosen = maximum(_routing_launches(model, stack, sizes) - ROUTING_BACKWARD_LAUNCHES, 0.0)
        modules["moe_router"] -= chosen
        local = maximum(model.moe.num_experts / sizes.ep, 1.0)
        modules["experts"] += _expert_launches(stack, narrow)[1] * local
        modules["experts"] += _nodes(stack, sizes, NODE_LAUNCHES[1] - NODE_LAUNCHES[0])
    return _launched(modules, stack, sizes)


def _launched(modules: Modules, stack: SoftwareStack, sizes: Sizes) -> Values:
    """What the host launches of these modules, over the launches of a dense layer."""
    captured = [name for name in modules if name in stack.captured_modules]
    count = sum(modules[name] for name in modules if name not in captured)
    return (count + (REPLAY_LAUNCHES if captured else 0.0)) * sizes.ones / DENSE_LAUNCHES


Modules = dict[str, Values]
"""Launches by module, in the words of Megatron-LM's --cuda-graph-modules, and `experts`: exchange of tokens,
their sorting and the routed experts, which no graph of a layer holds."""


def forward_modules(
    model: ModelSpec, kind: LayerKind, stack: SoftwareStack, sizes: Sizes, narrow: bool
) -> Modules:
    """Launches of the modules of one forward of a layer."""
    modules: Modules = {}
    if kind in WITH_LINEAR_ATTENTION:
        modules["attn"] = LINEAR_ATTENTION_LAUNCHES
    if kind in WITH_ATTENTION or kind == "mamba":
        modules["attn"] = ATTENTION_LAUNCHES + _latent_launches(model, stack)
    if kind in WITH_ATTENTION:
        modules["attn"] += more_launches(model, stack, sizes)
    if kind in WITH_ONE_MLP:
        modules["mlp"] = MLP_LAUNCHES
    if kind in WITH_EXPERTS:
        modules |= _moe_modules(model, stack, sizes, narrow)
    if narrow:
        maps = {"attn": _attention_maps(model), "mlp": 2.0}
        for name in maps.keys() & modules.keys():
            modules[name] += maps[name] * NARROW_MAP_US / LAUNCH_US
    return modules


def _latent_launches(model: ModelSpec, stack: SoftwareStack) -> float:
    if model.mla is None:
        return 0.0
    return LATENT_LAUNCHES + (0.0 if stack.fused_latent_rotary else PLAIN_ROTARY_LAUNCHES)


def _attention_maps(model: ModelSpec) -> float:
    """Products with weights of an attention; latent attention has down- and up-projections and the output."""
    if model.mla is None:
        return 2.0
    return 4.0 if model.mla.q_lora_rank is None else 5.0


def module_of(product: str) -> str:
    """Module that a product with this name belongs to."""
    if product.startswith("fc"):
        return "mlp"
    return "moe_router" if product.startswith(("router", "latent", "shared")) else "attn"


def _routing_launches(model: ModelSpec, stack: SoftwareStack, sizes: Sizes) -> Values:
    """Launches of a router and of the way of tokens to experts and back."""
    counting, exchange = _dispatch_launches(stack, sizes)
    return _router_launches(model, stack) + counting + exchange


def _router_launches(model: ModelSpec, stack: SoftwareStack) -> float:
    assert model.moe is not None
    router = BIASED_ROUTER_LAUNCHES if model.moe.router_bias else ROUTER_LAUNCHES
    drops = not stack.waits_for_token_counts or model.moe.capacity_factor is not None
    return router * (FUSED_ROUTER_SHARE if stack.moe_router_fusion else 1.0) + DROP_LAUNCHES * drops


def _dispatch_launches(stack: SoftwareStack, sizes: Sizes) -> tuple[Values, Values]:
    """Launches of counting the tokens of each expert, and of their exchange.

    A dispatcher that sends a token once to each rank needs several ranks to send to: the flex dispatcher of
    Megatron-LM refuses to run without (`MoEFlexTokenDispatcher`, transformer/moe/token_dispatcher.py).
    """
    if stack.moe_dispatcher != "deduplicating":
        return COUNT_LAUNCHES, EXCHANGE_LAUNCHES
    sends = sizes.ep * sizes.etp > 1
    return where(sends, 1.0, COUNT_LAUNCHES), EXCHANGE_LAUNCHES - where(sends, HALF_OF_SORTING, 0.0)


def _expert_launches(stack: SoftwareStack, narrow: bool) -> tuple[float, float]:
    """Launches of a forward of one local expert, and those that its backward adds to them.

    Single products are two maps, dgrad and wgrad of each in the backward; what each pass reads is cast once.
    """
    if stack.experts_apart or not stack.experts_as_single_products:
        return MODULE_LAUNCHES if stack.experts_apart else EXPERT_LAUNCHES
    cast = CAST_US + NARROW_TENSOR_US if narrow else 0.0
    product = SINGLE_PRODUCT_US + (NARROW_OPERANDS_US if narrow else 0.0)
    return 2 * (cast + product) / LAUNCH_US, 2 * (product + GRADIENT_US) / LAUNCH_US


def moe_launches(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, narrow: bool = False) -> Values:
    """Launches of router, exchanges, experts and shared experts, array [choice]."""
    return DENSE_LAUNCHES * _launched(_moe_modules(model, stack, sizes, narrow), stack, sizes)


def routed_launches(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, narrow: bool = False) -> Values:
    """Those of them that the host can begin only when it knows how many tokens each expert gets, over the
    launches of a dense layer."""
    return _moe_modules(model, stack, sizes, narrow)["experts"] / DENSE_LAUNCHES


def _nodes(stack: SoftwareStack, sizes: Sizes, count: float) -> Values:
    """Launches of a layer's nodes, where exchanges among expert-parallel ranks run behind computation."""
    return where(sizes.ep > 1, count, 0.0) if stack.ep_overlap else 0.0


def _moe_modules(model: ModelSpec, stack: SoftwareStack, sizes: Sizes, narrow: bool) -> Modules:
    moe = model.moe
    assert moe is not None
    counting, exchange = _dispatch_launches(stack, sizes)
    local = maximum(moe.num_experts / sizes.ep, 1.0)
    nodes = _nodes(stack, sizes, NODE_LAUNCHES[0])
    shared = SHARED_LAUNCHES if moe.shared_ffn_hidden_size else 0.0
    if shared and narrow:
        shared += 2 * NARROW_MAP_US / LAUNCH_US
    return {
        "moe_router": _router_launches(model, stack) + shared,
        "moe_preprocess": counting,
        "experts": exchange + nodes + _expert_launches(stack, narrow)[0] * local,
    }
