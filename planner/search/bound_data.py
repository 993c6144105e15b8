"""Times of the rows of degrees, summed from their prices, that bounds of many outer choices need."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.kinds import LayerKinds


@dataclass(frozen=True)
class BoundData:
    """Times of one row of degrees that bounds need, arrays [choice, node_class] in seconds."""

    num_layers: Floats
    """[choice] layers, leading ones of another kind counted by their time in layers of the main kind."""
    slack_layers: Floats
    """[choice] how many such layers a stage of leading ones alone may be short of one."""
    layer_s: Floats
    """Forward and backward of a layer, nothing recomputed."""
    longer_fraction: Floats
    """Least share of the longer of their two passes in the time of any layers."""
    embedding_s: Floats
    head_s: Floats
    optimizer_s: Floats
    """Optimizer step of a layer, counted as in `num_layers`."""
    fixed_s: Floats
    """What a stage adds to the step after all have met, optimizer apart."""
    tail_s: Floats
    """Part of the reduction that nothing hides."""
    hop_s: Floats
    """[choice, node_class, node_class] least time of a hop between two classes, or within one."""
    sends_block: bool
    """Whether a send lengthens the passes of its sender instead of delaying the receiver."""
    num_empty: NDArray[np.int64]
    """[choice] how many stages of a pipeline of several may be without a layer."""


def bound_data(
    num_layers: int, kinds: LayerKinds, prices: Prices, *, sends_block: bool, num_empty: int = 0
) -> BoundData:
    """Sums of prices; a leading layer of another kind counts as the least share of one on any class."""

    def both(forward: Floats, backward: Floats) -> Floats:
        total: Floats = forward.sum(axis=-1) + backward.sum(axis=-1)
        return total

    hop_s = prices.send_s.copy()
    forward, backward = prices.layer_forward_s.sum(axis=-1), prices.layer_backward_s.sum(axis=-1)
    share = forward / np.where(forward + backward > 0, forward + backward, 1.0)
    longer = np.maximum(share.min(axis=1), 1 - share.max(axis=1))
    diagonal = np.arange(hop_s.shape[1])
    hop_s[:, diagonal, diagonal] = np.minimum(
        hop_s[:, diagonal, diagonal], np.minimum(prices.send_inside_s, hop_s.min(axis=(1, 2))[:, None])
    )
    layers, optimizer = both(prices.layer_forward_s, prices.layer_backward_s), prices.layer_optimizer_s
    ratio = (layers[:, kinds.lead] / layers[:, kinds.main]).min(axis=1)
    return BoundData(
        num_layers=num_layers - kinds.num_lead * (1 - ratio),
        slack_layers=kinds.num_lead * np.maximum(1 - ratio, 0.0),
        layer_s=layers[:, kinds.main],
        longer_fraction=longer,
        embedding_s=both(prices.embedding_forward_s, prices.embedding_backward_s),
        head_s=both(prices.head_forward_s, prices.head_backward_s),
        optimizer_s=np.minimum(optimizer[:, kinds.main], optimizer[:, kinds.lead] / ratio[:, None]),
        fixed_s=prices.step_fixed_s + prices.gather_tail_s,
        tail_s=prices.reduce_tail_s,
        hop_s=hop_s,
        sends_block=sends_block,
        num_empty=np.full(len(ratio), num_empty),
    )


def with_hops_of_hosts(
    data: BoundData, problem: Problem, prices: Prices, stage_size: NDArray[np.int64]
) -> BoundData:
    """Hops within a class over the network where no host of it holds two stages.

    None takes longer than a hop between the class and another one, either way: however stages of the class
    meet those of others, sums of hops stay below all that they may be.

    Parameters
    ----------
    stage_size
        [choice] chips of a stage; where prices have more rows, they begin anew.
    """
    per_node = np.array([node_class.chips_per_node for node_class in problem.cluster.classes])
    share = np.resize(2 * stage_size[:, None] <= per_node, prices.send_inside_s.shape)
    hop_s, diagonal = data.hop_s.copy(), np.arange(len(per_node))
    to_others = np.minimum(prices.send_s.min(axis=2), prices.send_s.min(axis=1))
    inside_s = np.where(share, prices.send_inside_s, np.inf)
    hop_s[:, diagonal, diagonal] = np.minimum(to_others, inside_s)
    return replace(data, hop_s=hop_s)
