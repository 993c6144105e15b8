"""Layers of several kinds counted in units, for bounds of many outer choices at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.bound_data import BoundData, bound_data
from planner.search.empty import most_without_layers
from planner.search.kinds import LayerKinds


def partition_bound_data(problem: Problem, prices: Prices) -> BoundData:
    """What `bounds` needs, every layer counted in units of at least one.

    A layer of kind k counts as w[k] >= 1 units, and a unit takes on a class the least over the kinds of the
    time of a layer over its units: so a stage holds at least one, and takes at least its units times that.
    Any w will do; taken is the one of `_units` by which all chips need the longest for all layers.
    """
    times = prices.layer_forward_s.sum(axis=-1) + prices.layer_backward_s.sum(axis=-1)
    kinds = [prices.kinds.index(kind) for kind in problem.model.kind_of_layer]
    chips = np.array([node_class.num_chips for node_class in problem.cluster.classes], dtype=np.float64)
    units = _units(times)
    # [way, choice, class] and [way, choice].
    unit_s = (times[None] / units[..., None]).min(axis=2)
    total = units[:, :, kinds].sum(axis=2)
    best = (total / (chips / unit_s).sum(axis=2)).argmax(axis=0)
    rows = np.arange(len(times))
    plain = bound_data(
        problem.model.num_layers,
        LayerKinds(0, 0, 0),
        prices,
        sends_block=not problem.stack.p2p_overlap,
        num_empty=most_without_layers(problem),
    )
    return replace(
        plain,
        num_layers=total[best, rows],
        slack_layers=np.zeros(len(rows)),
        layer_s=unit_s[best, rows],
        optimizer_s=(prices.layer_optimizer_s / units[best, rows][..., None]).min(axis=1),
    )


def _units(times: Floats) -> Floats:
    """Ways to count layers in units, at least one each: [way, choice, kind] from times [choice, kind, class].

    By the times on each class, over the least there; and by the least of that over all classes, which is no
    less than what a slow class makes of each kind.
    """
    over_least = times / times.min(axis=1, keepdims=True)
    return np.concatenate([np.moveaxis(over_least, 2, 0), over_least.min(axis=2)[None]])
