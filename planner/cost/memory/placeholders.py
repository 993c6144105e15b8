"""Placeholders of weight gradients that the matrix products add to the sum themselves.

Autograd wants a gradient for every weight even where the product has added it to the fp32 sum already
(`--gradient-accumulation-fusion`). Transformer Engine hands it an empty 16-bit tensor of the weight's shape,
one for each shape, which it never frees: `get_dummy_wgrad` in transformer_engine/pytorch/module/base.py
(2.x), called by all its maps and, for the head, by core/tensor_parallel/layers.py of Megatron-LM core 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.cost.elementwise import Values
from planner.cost.kernels.operators import HALF, Matmul
from planner.cost.kernels.work import Piece
from planner.cost.prices import Floats


def placeholder_bytes(products: Sequence[Matmul]) -> Values:
    """16-bit tensors of the weights' shapes, each shape once [bytes].

    Only Transformer Engine's maps count, which are those that may run in fewer bits: the router's weight is
    small and has a gradient of its own.
    """
    maps = [product for product in products if product.has_weight and product.narrow]
    if not maps:
        return 0.0
    if isinstance(maps[0].n * maps[0].k, float):  # all are of one choice then
        return sum([HALF * n * k for n, k in {(of.n, of.k): None for of in maps}])
    total: Values = 0.0
    for i, a in enumerate(maps):
        is_new: Values = 1.0
        for b in maps[:i]:
            is_new = is_new * ((a.n != b.n) | (a.k != b.k))
        total = total + HALF * is_new * a.n * a.k
    return total


def layer_placeholders(pieces: Mapping[str, Piece], kinds: Sequence[str], rows: int) -> Floats:
    """What a stage with layers of a kind holds for its layers, array [choice, kind] in bytes.

    Layers of several kinds stand side by side in every stage, but for the dense ones that lead a model of
    experts.
    """
    found = np.empty((rows, len(kinds)))
    for k, kind in enumerate(kinds):
        beside = [other for other in kinds if other == kind or not (other == "dense" and "moe" in kinds)]
        found[:, k] = placeholder_bytes([product for name in beside for product in pieces[name].matmuls])
    return found


def head_placeholders(pieces: Mapping[str, Piece]) -> Values:
    """For the vocabulary head, and for the map of two states to one of further predictions [bytes]."""
    head = pieces["head"].matmuls[0]
    merge = placeholder_bytes(pieces["merge"].matmuls) if "merge" in pieces else 0.0
    return HALF * head.n * head.k + merge
