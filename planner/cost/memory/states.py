"""Memory of parameters: weights, gradients and optimizer state, and what sharding gathers of them."""

from __future__ import annotations

import numpy as np

from planner.cost.kernels.operators import HALF
from planner.cost.memory.activations import INPUT_BYTES
from planner.cost.parameters import ParameterCounts
from planner.cost.prices import Floats
from planner.cost.sizes import Sizes
from planner.data.chip import Precision

WEIGHT_BYTES = 2.0
GRADIENT_BYTES = 4.0
OPTIMIZER_BYTES = 12.0
"""16-bit weights, fp32 gradients, fp32 master weights and two moments (Megatron-LM,
theoretical_memory_usage.py: 18 bytes, or 6 + 12 / dp with the distributed optimizer)."""

NO_PARAMETERS = ParameterCounts()


def rank_parameters(counts: ParameterCounts, sizes: Sizes) -> tuple[Floats, Floats]:
    """Dense parameters and experts' of pieces that a rank holds where nothing is sharded [piece, choice]."""
    s = sizes
    dense = counts.tensor_sharded / s.tp + counts.replicated
    return np.asarray(dense + s.zeros), np.asarray(counts.expert / (s.ep * s.etp))


def nothing(counts: ParameterCounts, sizes: Sizes) -> Floats:
    """Zero for every piece and choice."""
    return np.zeros((np.size(counts.replicated), np.size(sizes.tp)))


def state_bytes(
    counts: ParameterCounts,
    sizes: Sizes,
    dp_mode: str,
    gradient_bytes: float = GRADIENT_BYTES,
    num_ends: int = 2,
    *,
    narrow_shards: bool = False,
) -> Floats:
    """Weights, main gradients and optimizer state of a piece, array [..., choice, state] in bytes.

    Parameters
    ----------
    num_ends
        Pieces at the end of the list that are no layers.
    narrow_shards
        Whether full sharding keeps the 16-bit weights' shards beside the master weights', as Megatron-FSDP
        does (model_weight_buffer and main_weight_buffer of its param_and_grad_buffer.py).
    """
    s = sizes
    dense, expert = rank_parameters(counts, sizes)
    shard, expert_shard = s.gradient_ranks, s.expert_gradient_ranks
    one = s.ones
    some, some_expert = s.sharers(shard), s.sharers(expert_shard)
    by_mode = {
        "ddp": (one, one, one, one, one, one),
        "distopt": (one, one, some, one, one, some_expert),
        "zero2": (one, shard, shard, one, expert_shard, expert_shard),
        "zero3": (some, some, some, some_expert, some_expert, some_expert),
        "fsdp": (some, some, some, some_expert, some_expert, some_expert),
    }
    w, g, o, we, ge, oe = by_mode[dp_mode]
    weights = WEIGHT_BYTES * (dense / w + expert / we)
    if dp_mode == "fsdp":
        # FSDP2 keeps shards in fp32 alone, the optimizer's master weights; the root's pieces, embedding and
        # head, stay gathered.
        weights = weights if narrow_shards else 0.0 * weights
        weights[-num_ends:] += WEIGHT_BYTES * dense[-num_ends:]
    gradients, optimizer = gradient_bytes * (dense / g + expert / ge), dense / o + expert / oe
    states = np.array((weights, gradients, OPTIMIZER_BYTES * optimizer))
    return states.transpose(*range(1, states.ndim), 0)


def narrow_weight_bytes(
    counts: ParameterCounts,
    sizes: Sizes,
    dp_mode: str,
    precision: Precision,
    num_ends: int = 2,
    predictions: ParameterCounts = NO_PARAMETERS,
) -> Floats:
    """Quantised copies of layers' weights, array [piece, choice] in bytes; zero in 16 bits, and where
    parameters are sharded.

    Transformer Engine keeps a weight and its transpose in the narrow format from the first micro-batch of a
    step to the last (transformer_engine/pytorch/module/base.py, get_weight_workspace). Embedding and head
    stay wide; beside the head lie the layers of further predictions.

    Parameters
    ----------
    predictions
        Parameters of multi-token-prediction layers, which all ends but the first hold.
    """
    s = sizes

    def narrow(of: ParameterCounts) -> Floats:
        return np.asarray(of.tensor_sharded / s.tp + of.expert / (s.ep * s.etp) + s.zeros)

    if precision not in INPUT_BYTES or dp_mode in ("zero3", "fsdp"):
        return nothing(counts, sizes)
    whole = narrow(counts)
    whole[-num_ends:] = 0.0
    whole[len(whole) - num_ends + 1 :] = narrow(predictions)
    # Scales by blocks are one for 128 x 128 of a weight.
    return 2 * (1.0 if precision == "fp8_block" else INPUT_BYTES[precision]) * whole


def waiting_bytes(
    counts: ParameterCounts, sizes: Sizes, dp_mode: str, gradient_bytes: float, *, overlap: bool
) -> Floats:
    """Gradients that a rank holds whole at the end of a micro-batch's backward, array [piece, choice].

    Where gradients alone are sharded and their reduction hides behind nothing, the memory of a reduced one is
    not free before its collective is, so that those of all layers come together: with all layers recomputed,
    GPT-3 13B of PaddleNLP on eight chips peaks there. The rank's own share is in its state. Zero elsewhere.
    """
    if dp_mode != "zero2" or overlap:
        return nothing(counts, sizes)
    dense, expert = rank_parameters(counts, sizes)
    whole = min(gradient_bytes, HALF) * (dense + expert)
    return np.where(sizes.gradient_ranks > 1, whole, 0.0)


def gathered_bytes(
    counts: ParameterCounts, sizes: Sizes, dp_mode: str, scattered_gradient_bytes: float
) -> Floats:
    """What a rank holds whole of a piece in the backward where parameters are sharded, array [piece, choice].

    Its 16-bit parameters and those of the piece gathered ahead, its gradient, and the copy of it in the width
    that is scattered (arXiv 2304.11277, sections 3.3 and 4.2; FSDP2, foreach_reduce). Sharded gradients alone
    are whole until they are scattered. Zero elsewhere.
    """
    if dp_mode not in ("zero2", "zero3", "fsdp"):
        return nothing(counts, sizes)
    dense, expert = rank_parameters(counts, sizes)
    whole = dense + expert
    parameters = 0.0 if dp_mode == "zero2" else 2 * WEIGHT_BYTES
    return np.where(sizes.gradient_ranks > 1, (parameters + HALF + scattered_gradient_bytes) * whole, 0.0)
