"""Multi-token-prediction layers on a stage of their own, before the one with the loss.

The stage with the predictions holds their layers and a copy of the embedding, and hands on the hidden
states of the model and of each of its n predictions; the last stage holds the head, which maps all of them
to logits, one loss after the other (megatron-core 0.19.2, core/models/gpt/gpt_model.py, `_postprocess`). The
ordinary prices put both into one piece, the head H(n). With H(0), that of the same model without predictions:

    last stage            (1 + n) H(0) in every micro-batch; parameters of H(0); logits of H(n)
    stage of predictions  H(n) - (1 + n) H(0) in every micro-batch; parameters of H(n) - H(0)
    hop between them      1 + n activations

With virtual stages the sends of earlier chunks to and from the last stage count as long. A tied
embedding is then held by three stages, whose ring takes 2 (3 - 1) / 3 instead of 2 (2 - 1) / 2 of its size,
and whose communicator is one of three; with a head of its own the last stage has no part in either
(`get_embedding_ranks` of pretrain_gpt.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from planner.cost.memory.pricing import fixed_bytes
from planner.cost.prices import Degrees, Floats, Prices
from planner.cost.pricing import price
from planner.cost.sizes import Sizes
from planner.data.plan import Plan
from planner.data.problem import Problem

HOLDERS_OF_TIED = 3.0
"""Stages that hold a tied embedding: the first, that of predictions and the last."""

RING_OF_THREE = 4 / 3
"""Wire bytes of an all-reduce among three ranks over those among two."""

_WITHOUT_CHOICE = ("limit_bytes",)
"""Arrays of the prices whose first axis is not the choice of degrees."""


def prices_with_prediction_stage(
    problem: Problem, plan: Plan, degrees: Degrees, prices: Prices
) -> tuple[Prices, list[int]]:
    """Prices of three rows, and the row of every stage: ordinary ones, the last, that of predictions.

    Parameters
    ----------
    prices
        Those of the plan's one choice of degrees.
    """
    stage = plan.prediction_stage
    assert stage is not None and len(degrees) == 1
    ordinary, last, own = prices_of_kinds(problem, degrees, prices)
    if plan.stages[stage].recompute == "selective":
        own = replace(own, head_backward_s=own.head_backward_s + prices.predictions_selective_s)
    choices = [{stage: 2, len(plan.stages) - 1: 1}.get(s, 0) for s in range(len(plan.stages))]
    # The extra backward of selective recomputation is in the rows.
    return replace(stacked((ordinary, last, own)), num_predictions=0), choices


def prices_of_kinds(problem: Problem, degrees: Degrees, prices: Prices) -> tuple[Prices, Prices, Prices]:
    """Prices of ordinary stages, of the last one and of that of predictions, for each row of degrees.

    What the stage of predictions recomputes beside its layers is not among them.
    """
    without = problem.model_copy(update={"model": problem.model.model_copy(update={"mtp_num_layers": 0})})
    head, n = price(without, degrees), problem.model.mtp_num_layers
    tied = problem.model.tied_embeddings
    ring, sizes = RING_OF_THREE if tied else 1.0, Sizes.of(problem, degrees)
    outside = fixed_bytes(problem, sizes, len(degrees), degrees.dp_mode, HOLDERS_OF_TIED if tied else 2.0)
    prices = replace(prices, fixed_bytes=outside)
    last: dict[str, Floats] = {"tied_sync_s": ring * prices.tied_sync_s}
    own: dict[str, Floats] = {"tied_sync_s": ring * prices.tied_sync_s}
    if not tied:
        last["fixed_bytes"] = outside[..., [0] * outside.shape[-1]]
    for name in ("head_forward_s", "head_backward_s", "head_activation_bytes"):
        last[name] = (1 + n) * getattr(head, name)
        own[name] = np.maximum(getattr(prices, name) - last[name], 0.0)
    for name in ("head_reduce_s", "head_gather_s", "head_optimizer_s", "head_state_bytes"):
        last[name] = getattr(head, name)
        own[name] = np.maximum(getattr(prices, name) - last[name], 0.0)
    # No logits; the passing buffers of a prediction's backward are those of its layer.
    own["head_peak_bytes"] = prices.layer_working_bytes[:, list(prices.prediction_kinds)].max(axis=(1, -1))
    for changes in (last, own):
        changes["pipeline_buffer_bytes"] = (1 + n) * prices.pipeline_buffer_bytes
    for name in ("send_s", "send_inside_s"):
        last[name] = (1 + n) * getattr(prices, name)  # a hop takes the longer of its two sides
    return prices, replace(prices, **last), replace(prices, **own)  # type: ignore[arg-type]


def stacked(parts: Sequence[Prices]) -> Prices:
    """Prices of all rows of some, one after the other; what has no row is that of the first."""
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Prices)
        if isinstance(getattr(parts[0], field.name), np.ndarray) and field.name not in _WITHOUT_CHOICE
    }
    return replace(parts[0], **joined)  # type: ignore[arg-type]
