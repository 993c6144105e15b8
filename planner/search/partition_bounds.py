"""Bounds of coarse parts of the space for models whose layers are of several kinds in any order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from formulations.layer_partition_paths import least_behind_ms, least_of_orders_ms
from formulations.layer_partition_prices import OrderCosts, PricedOrders, Weights
from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.bound_data import BoundData, bound_data
from planner.search.empty import most_without_layers
from planner.search.intervals import Intervals
from planner.search.items import BoundedGroup
from planner.search.kinds import LayerKinds
from planner.units import MS

MAX_WAYS = 2_000_000
"""Ways to have used up stages of a group by class, times layers squared, up to which all its orders are
bounded at once. A guess."""


WeightsOf = dict[tuple[int, tuple[int, ...]], Weights]
"""Weights by row of degrees and stages on each class."""


def partition_bound_data(problem: Problem, prices: Prices) -> BoundData:
    """What `bounds` needs, every layer counted in lightest layers.

    A lightest layer takes on each class what the lightest kind takes there. A layer of kind k counts as
    the least, over the classes, of its time over that: at least one, so that a stage holds at least one,
    and takes at least its count times the lightest layer's time.
    """
    times = prices.layer_forward_s.sum(axis=-1) + prices.layer_backward_s.sum(axis=-1)
    lightest = times.min(axis=1)
    share = (times / lightest[:, None, :]).min(axis=2)
    kinds = [prices.kinds.index(kind) for kind in problem.model.kind_of_layer]
    plain = bound_data(
        problem.model.num_layers,
        LayerKinds(0, 0, 0),
        prices,
        sends_block=not problem.stack.p2p_overlap,
        num_empty=most_without_layers(problem),
    )
    return replace(
        plain,
        num_layers=share[:, kinds].sum(axis=1),
        slack_layers=np.zeros(len(share)),
        layer_s=lightest,
        optimizer_s=(prices.layer_optimizer_s / share[:, :, None]).min(axis=1),
    )


def is_bounded_whole(group: BoundedGroup, num_layers: int) -> bool:
    """Whether all orders of a group are bounded at once."""
    return prod(count + 1 for count in group.counts) * num_layers**2 <= MAX_WAYS


def orders_bound_s(intervals: Intervals, group: BoundedGroup, limit_s: float, known: WeightsOf) -> float:
    """Bound of all orders of a group at once [s]: 0 where they are too many, inf where nothing fits.

    By paths alone, then by weights of rows until they reach a limit [s]; `known` keeps the weights of groups.
    """
    cuts = len(intervals.kind_of_layer) + 1
    if not is_bounded_whole(group, cuts - 1):
        return 0.0
    stages = sum(group.counts)
    forward, backward, reduction, follow = np.full((4, stages, len(group.counts), cuts, cuts), np.inf)
    for s, c in product(range(stages), np.flatnonzero(group.counts)):
        if s < len(group.first) and c != group.first[s]:
            continue
        table = intervals.of_stage(group.choice, [int(c)] * stages, s)
        forward[s, c], backward[s, c] = table.forward_ms, table.backward_ms
        reduction[s, c], follow[s, c] = table.reduction_ms, table.follow_ms
    m = int(intervals.table.num_microbatches[group.choice])
    least_ms = least_of_orders_ms(m, forward, backward, group.counts)
    if np.isinf(least_ms):
        return least_ms
    least_ms += least_behind_ms(np.isfinite(forward), reduction, follow)
    if least_ms * MS < limit_s < np.inf:
        key = group.choice, group.counts
        priced = PricedOrders(OrderCosts(m, forward, backward, reduction[0], follow, group.counts))
        value_ms, known[key] = priced.best(limit_s / MS, known.get(key))
        least_ms = max(least_ms, value_ms)
    return least_ms * MS
