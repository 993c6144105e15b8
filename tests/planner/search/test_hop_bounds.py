"""What hops between classes take at least, against all orders of a few stages."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np

from planner.search.bounds import group_bounds, relaxed_bounds
from planner.search.hop_bounds import joining_hop_s, least_sends
from planner.search.space import _counts
from tests.planner.search.test_bounds_by_rows import made_up


def test_no_order_has_shorter_hops_than_those_that_join_its_classes() -> None:
    """Of all orders within limits the longest hop, and the sum of all, are no less, and often as long."""
    rng, met, slow = np.random.default_rng(5), 0, 0
    for _ in range(150):
        num, stages = int(rng.integers(2, 5)), int(rng.integers(2, 6))
        most = rng.integers(0, stages + 1, num)
        fewest = np.minimum(most, rng.integers(0, 2, num) * rng.integers(0, 2, num))
        hop_s = rng.choice([1.0, 2.0, 5.0, 9.0], (num, num))
        np.fill_diagonal(hop_s, 0.5)
        longest, sums = [], []
        for order in product(range(num), repeat=stages):
            counts = np.bincount(order, minlength=num)
            if (counts <= most).all() and (counts >= fewest).all():
                hops = [hop_s[one, other] for one, other in pairwise(order)]
                between = [hop_s[one, other] for one, other in pairwise(order) if one != other]
                longest.append(max(between, default=0.0))
                sums.append(sum(hops))
        if not longest:
            continue
        one = np.array([stages])
        joined_s = float(joining_hop_s(hop_s[None], most[None], one, fewest[None] > 0)[0])
        least_s, sum_s = least_sends(hop_s[None], (fewest[None], most[None]), most[None] > 0, one)
        assert joined_s <= least_s[0] <= min(longest)
        assert sum_s[0] <= min(sums) + 1e-9
        met += joined_s == min(longest)
        slow += joined_s > hop_s[np.ix_(most > 0, most > 0)].min()
    assert met >= 126 and slow >= 70


def test_a_part_is_bounded_by_no_more_than_any_of_its_groups() -> None:
    """With limits beside the fastest stages that they allow, as parts with mixed stages have them."""
    better = 0
    for seed in range(400):
        data, rng = made_up(seed).bounds, np.random.default_rng(seed)
        num, stages = data.layer_s.shape[1], int(rng.integers(1, 7))
        most = rng.integers(0, stages + 1, num)
        fewest = np.minimum(rng.integers(0, 2, num), most)
        if not fewest.sum() <= stages <= most.sum() or stages > data.num_layers[0]:
            continue
        groups = _counts(fewest, most, stages)
        fastest, left = np.zeros(num, dtype=np.int64), stages
        for c in np.argsort(data.layer_s[0], kind="stable"):
            fastest[c] = min(left, most[c])
            left -= fastest[c]
        m, zero = int(rng.integers(1, 12)), np.zeros(len(groups), dtype=np.int64)
        least_s = group_bounds(data, zero, zero + m, groups).min()
        given = data, zero[:1], zero[:1] + m, fastest[None], np.array([stages]), most[None] > 0
        bound_s = relaxed_bounds(*given, limits=(fewest[None], most[None]))[0]
        assert bound_s <= least_s * (1 + 1e-9)
        better += bound_s > relaxed_bounds(*given)[0] * (1 + 1e-6)
    assert better >= 5
