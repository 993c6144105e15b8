"""Lower bounds on the step time of outer choices with virtual stages, many at once.

For v > 1 chunks a stage, with t[s] the time of a micro-batch on all chunks of s, tau the largest of them and
Sigma their sum, every order of classes and every dealing of layers to chunks has, as
`formulations.interleaved_rows` proves,

    (work)    T >= m tau
    (dealt)   T >= (m/p) Sigma + 1/(p v) sum_s (p-1-s) t[s] + sum_s (v-1 + 2 (p-1-s)/p) c[s]

and where no class alone has all the stages a slow hop between two of them, which `interleaved_rows` (hop)
bounds: with the mean of its two rows

    (hop)     T >= A (t[s] + t[s+1]) + 2 floor(M v / 3) c,  A = p + (M - 2) / 3,  M = m - 2 p

so that with R the layers a second of all stages and rho those of the two slowest, l the fastest layer,
L <= (R - rho) T / m + (T - 2 floor(M v / 3) c) / (A l), solved for T. The ring of stages then has two such
hops at least, which (dealt) counts.

As t[s] <= tau, sum_s (p-1-s) t[s] >= p (p-1) tau / 2 - (p-1) (p tau - Sigma) = (p-1) (Sigma - p tau / 2).
(work) rises with tau and (dealt) falls, so the least of the larger one lies where they cross. Where sends
block, they lengthen the stages instead of delaying: c is 0 and Sigma holds 2 (p v - 1) of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.bound_data import BoundData

BISECTIONS = 20
"""Halvings of the interval of tau; its ends give a valid bound after any number of them."""


def virtual_bounds(
    data: BoundData,
    choice: NDArray[np.int64],
    num_microbatches: NDArray[np.int64],
    counts: NDArray[np.int64],
    fewest: NDArray[np.int64],
    most: NDArray[np.int64],
    *,
    sends_block: bool,
    empty_ends: NDArray[np.bool_] | bool = False,
    any_class: NDArray[np.bool_] | None = None,
    crosses: NDArray[np.bool_] | None = None,
) -> Floats:
    """Bound of every group over all numbers of virtual stages from `fewest` to `most` [s].

    Parameters
    ----------
    choice, num_microbatches, fewest, most
        Arrays [group].
    counts
        [group, node_class] stages on each class.
    empty_ends
        [group] whether the first and the last virtual stage may be without a layer.
    any_class
        [group, node_class] classes that may take part, where `counts` stands for all groups of them; it then
        has the fastest classes first.
    crosses
        [group] whether some hop surely leads from one class to another.
    """
    used = counts > 0
    taking_part = used if any_class is None else any_class
    layer = np.where(used, data.layer_s[choice], np.inf)
    rate = np.where(used, counts / data.layer_s[choice], 0.0)
    stages = counts.sum(axis=1)
    num_layers = data.num_layers[choice]
    hop = np.where(taking_part[:, :, None] & taking_part[:, None, :], data.hop_s[choice], np.inf)
    least_hop = np.where(stages > 1, hop.min(axis=(1, 2)), 0.0)
    passes = least_hop * (stages * fewest - 1)
    ends = _least(taking_part, data.embedding_s[choice]) + _least(taking_part, data.head_s[choice])
    blocked = 2 * passes if sends_block else np.zeros_like(passes)
    slowest = np.where(taking_part, data.layer_s[choice], 0.0).max(axis=1)
    tau = (num_layers + (ends + blocked) / slowest) / rate.sum(axis=1)
    slack = data.slack_layers[choice] * np.where(np.isfinite(layer), layer, 0.0).max(axis=1)
    least = np.minimum(fewest, num_layers / stages)
    total = _Total(layer, counts, num_layers, least, 2 * np.asarray(empty_ends), slack)
    delays = np.zeros_like(passes)
    if not sends_block:
        delays = least_hop * ((fewest - 1) * stages + stages - 1)
        if crosses is not None:
            cross = _least_cross(data, choice, taking_part)
            delays = delays + np.where(crosses, 2 * (fewest - 1) * np.maximum(cross - least_hop, 0.0), 0.0)

    def dealt(bottleneck: Floats) -> Floats:
        sigma = total.least(bottleneck) + ends + blocked
        fill = (stages - 1) * np.maximum(sigma - stages * bottleneck / 2, 0.0) / (stages * most)
        found: Floats = num_microbatches / stages * sigma + fill + delays
        return found

    low, high = tau, np.maximum(4 * tau, dealt(tau) / num_microbatches)
    settled = num_microbatches * tau >= dealt(tau)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = num_microbatches * middle >= dealt(middle)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    pipeline = np.where(settled, num_microbatches * tau, np.maximum(num_microbatches * low, dealt(high)))
    if not sends_block and crosses is not None:
        slow = _slow_hop(data, choice, num_microbatches, taking_part, rate, stages, fewest, cross)
        pipeline = np.where(crosses, np.maximum(pipeline, slow), pipeline)
    bound: Floats = pipeline + after_pipeline_s(data, choice, taking_part, stages)
    return bound


def after_pipeline_s(
    data: BoundData, choice: NDArray[np.int64], used: NDArray[np.bool_], stages: NDArray[np.int64]
) -> Floats:
    """Least time of what follows the pipeline: tail of the reduction, optimizer, all else [group], in s."""
    optimizer = _least(used, data.optimizer_s[choice]) * data.num_layers[choice] / stages
    after: Floats = _least(used, data.tail_s[choice]) + _least(used, data.fixed_s[choice]) + optimizer
    return after


def _least_cross(data: BoundData, choice: NDArray[np.int64], taking_part: NDArray[np.bool_]) -> Floats:
    """Quickest hop between two different classes [group]; 0 where there is but one."""
    pair = taking_part[:, :, None] & taking_part[:, None, :] & ~np.eye(taking_part.shape[1], dtype=np.bool_)
    cross = np.where(pair, data.hop_s[choice], np.inf).min(axis=(1, 2))
    least: Floats = np.where(np.isfinite(cross), cross, 0.0)
    return least


def _slow_hop(
    data: BoundData,
    choice: NDArray[np.int64],
    num_microbatches: NDArray[np.int64],
    taking_part: NDArray[np.bool_],
    rate: Floats,
    stages: NDArray[np.int64],
    fewest: NDArray[np.int64],
    cross: Floats,
) -> Floats:
    """(hop) for the quickest hop between two classes, as if there were one in every group [group]."""
    looped = num_microbatches - 2 * stages
    layer = data.layer_s[choice]
    slowest = np.where(taking_part, layer, 0.0).max(axis=1)
    held = (stages + np.maximum(looped - 2, 0) / 3) * _least(taking_part, layer)
    left = np.maximum(rate.sum(axis=1) - 2 / slowest, 0.0)
    sends = 2 * (np.maximum(looped, 0) * fewest // 3) * cross
    bound: Floats = (data.num_layers[choice] + sends / held) / (left / num_microbatches + 1 / held)
    result: Floats = np.where(looped > 0, np.maximum(bound, sends), 0.0)
    return result


class _Total:
    """Least sum of the layers' times over all stages, none slower than a bottleneck; arrays [group]."""

    def __init__(
        self,
        layer: Floats,
        counts: NDArray[np.int64],
        num_layers: Floats,
        fewest: Floats,
        num_empty: NDArray[np.int64],
        slack: Floats,
    ) -> None:
        order = np.argsort(layer, axis=1, kind="stable")
        sorted_layer = np.take_along_axis(layer, order, axis=1)
        self.layer = np.where(np.isfinite(sorted_layer), sorted_layer, 0.0)
        self.counts = np.take_along_axis(counts, order, axis=1)
        self.num_layers, self.slack = num_layers, slack
        # Whichever class has the virtual stages that may be empty: each is given room for all of them.
        self.held = np.maximum(self.counts * fewest[:, None] - num_empty[..., None], 0.0)

    def least(self, bottleneck: Floats) -> Floats:
        """The fastest classes take all they can, the others their fewest layers."""
        held = self.held
        total = (held * self.layer).sum(axis=1)
        left = np.maximum(self.num_layers - held.sum(axis=1), 0.0)
        for c in range(self.counts.shape[1]):
            layer = np.where(self.layer[:, c] > 0, self.layer[:, c], 1.0)
            room = np.maximum(self.counts[:, c] * bottleneck / layer - held[:, c], 0.0)
            more = np.minimum(room, left)
            total = total + more * self.layer[:, c]
            left = left - more
        result: Floats = np.maximum(total - self.slack, 0.0)
        return result


def _least(used: NDArray[np.bool_], values: Floats) -> Floats:
    least: Floats = np.where(used, values, np.inf).min(axis=1)
    return least
