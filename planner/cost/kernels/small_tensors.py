"""How many parameter tensors a layer has, for what runs once a tensor: the host's launches, the optimizer.

`tensors.py` lists them with their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.kernels.operators import Matmul
from planner.data.model_spec import (
    TRANSFORMER_LAYERS,
    WITH_ATTENTION,
    WITH_LINEAR_ATTENTION,
    WITH_ONE_MLP,
    LayerKind,
    ModelSpec,
)


def small_tensors(model: ModelSpec, kind: LayerKind) -> int:
    """Norms and biases of a layer, each a tensor of its own."""
    norms = model.norms_per_layer if kind in TRANSFORMER_LAYERS else 1
    vectors = norms * (2 if model.normalization == "layer" else 1)
    if kind in WITH_ATTENTION:
        vectors += {"none": 0, "qkv": 1, "attention": 2, "all": 2}[model.linear_bias]
        vectors += 2 if model.qk_norm else 0
    if kind in WITH_LINEAR_ATTENTION:  # decay, its bias, the convolution, and the norm of its result
        vectors += 4 if model.normalization == "rms" else 5
    if kind in WITH_ONE_MLP and model.linear_bias == "all":
        vectors += 2
    return vectors


def parameter_tensors(model: ModelSpec, kind: LayerKind, products: Sequence[Matmul]) -> int:
    """Tensors of a layer's parameters that the optimizer updates, grouped experts left out."""
    matrices = sum(product.has_weight and not product.grouped for product in products)
    return matrices + small_tensors(model, kind)
