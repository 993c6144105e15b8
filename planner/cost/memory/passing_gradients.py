"""Gradients of weights in 16 bits that autograd makes, that are added to a sum, and that then go.

An embedding's is always made so: its backward returns a dense tensor of the table's shape, when all
activations of the micro-batch are gone (`VocabParallelEmbedding` in core/tensor_parallel/layers.py of
Megatron-LM core 0.19; `_make_backward_post_hook` in core/distributed/distributed_data_parallel.py adds it to
the main gradient and lets go of it). So is any other weight's where matrix products do not add to the sum
themselves. Where gradients are summed in fewer bits than the optimizer works in, its step begins with fp32
copies of its own share, all activations gone (`_copy_model_grads_to_main_grads` in
core/optimizer/distrib_optimizer.py, but for the precision-aware optimizer; DeepSpeed's fp16 optimizer holds
them once more as they are joined: `step` in deepspeed/runtime/fp16/fused_optimizer.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.elementwise import Values, maximum
from planner.cost.kernels.operators import HALF, Matmul
from planner.cost.memory.states import GRADIENT_BYTES, OPTIMIZER_BYTES
from planner.cost.sizes import Sizes
from planner.data.model_spec import ModelSpec
from planner.data.stack import SoftwareStack


def largest_gradient_bytes(products: Sequence[Matmul]) -> Values:
    """The largest of what a layer's backward makes one after the other [bytes]."""
    largest: Values = 0.0
    for product in products:
        if product.has_weight:
            largest = maximum(largest, HALF * product.n * product.k)
    return largest


def embedding_peak_bytes(model: ModelSpec, vocab: Values, sizes: Sizes, width: Values = HALF) -> Values:
    """What the embedding's backward makes: the table's gradient, from that of all ranks' values [bytes].

    Parameters
    ----------
    width
        Bytes of a value of the table's gradient.
    """
    return width * vocab * model.hidden_size / sizes.tp + HALF * sizes.tokens * model.hidden_size


def step_copy_share(stack: SoftwareStack, dp_mode: str) -> float:
    """Bytes of the gradients that an optimizer's step makes, over those of its state.

    Megatron-FSDP's optimizer reads the sums as they are (decoupled gradients).
    """
    if stack.gradient_bytes >= GRADIENT_BYTES or dp_mode == "fsdp":
        return 0.0
    return stack.step_gradient_bytes / OPTIMIZER_BYTES
