"""Lower bounds on the step time of many outer choices at once, before any program is solved.

A group is a row of degrees with a number of stages on each class; the order of the classes is open.
Its bound holds for every order, every whole or fractional split of the layers and any recomputation:

    with tau the time of the slowest stage and Sigma the sum over all stages, sends left out,
    T >= (m - p - 1) tau + 2 Sigma     if m >= p + 1
    T >= Sigma + (m - 1) tau / 2       always
    T >= m tau                         always

(proved in `formulations.stage_selection`, tighten_bottleneck). tau cannot be less than what all stages
reach together, Sigma not less than the layers on the fastest stages that tau lets take them; Sigma falls
as tau rises, piecewise linearly and convexly, so the least of the bound over tau is at a breakpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats, Prices


@dataclass(frozen=True)
class BoundData:
    """Times of one row of degrees that bounds need, arrays [choice, node_class] in seconds."""

    num_layers: int
    layer_s: Floats
    """Forward and backward of a layer, nothing recomputed."""
    embedding_s: Floats
    head_s: Floats
    optimizer_s: Floats
    """Optimizer step of a layer."""
    fixed_s: Floats
    """What a stage adds to the step after all have met, optimizer apart."""
    tail_s: Floats
    """Part of the reduction that nothing hides."""


def bound_data(num_layers: int, prices: Prices) -> BoundData:
    """Sums of prices; with layers of several kinds the cheapest stands for all."""

    def both(forward: Floats, backward: Floats) -> Floats:
        total: Floats = forward.sum(axis=-1) + backward.sum(axis=-1)
        return total

    return BoundData(
        num_layers=num_layers,
        layer_s=both(prices.layer_forward_s, prices.layer_backward_s).min(axis=1),
        embedding_s=both(prices.embedding_forward_s, prices.embedding_backward_s),
        head_s=both(prices.head_forward_s, prices.head_backward_s),
        optimizer_s=prices.layer_optimizer_s.min(axis=1),
        fixed_s=prices.step_fixed_s + prices.gather_tail_s,
        tail_s=prices.reduce_tail_s,
    )


def group_bounds(
    data: BoundData,
    choice: NDArray[np.int64],
    num_microbatches: NDArray[np.int64],
    counts: NDArray[np.int64],
    least_bottleneck_s: Floats | None = None,
) -> Floats:
    """Bound on the step time of every group [s].

    Parameters
    ----------
    choice, num_microbatches
        Arrays [group].
    counts
        [group, node_class] stages on each class.
    least_bottleneck_s
        [group] a better bound on the slowest stage, where one is known.
    """
    used = counts > 0
    layer = np.where(used, data.layer_s[choice], np.inf)
    embedding = np.where(used, data.embedding_s[choice] / data.layer_s[choice], np.inf).min(axis=1)
    head = np.where(used, data.head_s[choice] / data.layer_s[choice], np.inf).min(axis=1)
    rate = np.where(used, counts / data.layer_s[choice], 0.0)
    tau = (data.num_layers + embedding + head) / rate.sum(axis=1)
    if least_bottleneck_s is not None:
        tau = np.maximum(tau, least_bottleneck_s)
    ends = _least(used, data.embedding_s[choice]) + _least(used, data.head_s[choice])
    stages = counts.sum(axis=1)
    pipeline = _pipeline_bound(data.num_layers, layer, counts, rate, tau, ends, num_microbatches, stages)
    follow = _least(used, data.fixed_s[choice])
    follow = follow + _least(used, data.optimizer_s[choice]) * data.num_layers / stages
    bound: Floats = pipeline + _least(used, data.tail_s[choice]) + follow
    return bound


def _least(used: NDArray[np.bool_], values: Floats) -> Floats:
    least: Floats = np.where(used, values, np.inf).min(axis=1)
    return least


def _pipeline_bound(
    num_layers: int,
    layer: Floats,
    counts: NDArray[np.int64],
    rate: Floats,
    tau: Floats,
    ends: Floats,
    num_microbatches: NDArray[np.int64],
    stages: NDArray[np.int64],
) -> Floats:
    """Least over tau of the three bounds of the module docstring."""
    order = np.argsort(layer, axis=1, kind="stable")
    layer = np.take_along_axis(layer, order, axis=1)
    layer = np.where(np.isfinite(layer), layer, 0.0)
    counts = np.take_along_axis(counts, order, axis=1)
    rate = np.take_along_axis(rate, order, axis=1)
    # Breakpoint j: the j + 1 fastest classes hold all layers but one for each slower stage.
    spare = num_layers - (stages[:, None] - np.cumsum(counts, axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        breakpoints = np.where(counts > 0, spare / np.cumsum(rate, axis=1), 0.0)
    taus = np.maximum(np.concatenate([tau[:, None], breakpoints], axis=1), tau[:, None])
    held = np.minimum(taus[:, :, None] * rate[:, None, :], num_layers)
    held = np.maximum(held, counts[:, None, :])
    # Fill the fastest classes first, one layer a stage being taken everywhere.
    left = np.broadcast_to((num_layers - stages)[:, None], taus.shape).astype(np.float64)
    total = np.broadcast_to((counts * layer).sum(axis=1)[:, None], taus.shape).copy()
    for c in range(counts.shape[1]):
        more = np.minimum(np.maximum(held[:, :, c] - counts[:, None, c], 0.0), left)
        total += more * layer[:, None, c]
        left = left - more
    total = total + ends[:, None]
    m, p = num_microbatches[:, None], stages[:, None]
    paced = np.where(m >= p + 1, (m - p - 1) * taus + 2 * total, 0.0)
    short = total + (m - 1) / 2 * taus
    least: Floats = np.maximum(np.maximum(paced, short).min(axis=1), num_microbatches * tau)
    return least


def row_bounds(
    data: BoundData,
    choice: NDArray[np.int64],
    num_microbatches: NDArray[np.int64],
    max_stages: NDArray[np.int64],
    most_stages: int,
) -> Floats:
    """Bound over all groups of a row of degrees, array [row]: the fastest stages, as many as allowed."""
    layer = np.where(max_stages > 0, data.layer_s[choice], np.inf)
    order = np.argsort(layer, axis=1, kind="stable")
    layer = np.take_along_axis(layer, order, axis=1)
    stages = np.take_along_axis(max_stages, order, axis=1)
    before = np.cumsum(stages, axis=1) - stages
    taken = np.clip(most_stages - before, 0, stages)
    rate = np.where(taken > 0, taken / layer, 0.0).sum(axis=1)
    tau = data.num_layers / rate
    total = data.num_layers * layer[:, 0]
    bound: Floats = np.maximum(num_microbatches * tau, total + (num_microbatches - 1) / 2 * tau)
    return bound
