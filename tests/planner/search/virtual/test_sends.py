"""Least sends outside a window: the least over all orders of the classes."""

from __future__ import annotations

from itertools import product

import numpy as np

from planner.search.virtual.sends import LeastSends
from planner.search.virtual.sums import LayerSums

STAGES, CLASSES = 5, 3


def test_sends_are_the_least_of_all_orders_with_such_a_window() -> None:
    rng, met = np.random.default_rng(2), 0
    fewest, most = np.array([1, 1, 0]), np.array([3, 2, 2])
    sums = LayerSums(fewest, most, STAGES, 0)
    counted = [
        [tuple(counts) for counts in product(*(range(k + 1) for k in most.tolist())) if sum(counts) == t]
        for t in range(STAGES + 1)
    ]
    for _ in range(5):
        hop = rng.random((CLASSES, CLASSES))
        allowed = [np.flatnonzero(rng.random(CLASSES) < 0.8) for _ in range(STAGES)]
        least = LeastSends(sums, allowed, hop)
        orders = [
            order
            for order in product(*(one.tolist() for one in allowed))
            if all(
                low <= order.count(c) <= high for c, (low, high) in enumerate(zip(fewest, most, strict=True))
            )
        ]
        for s, end in ((0, 1), (1, 3), (2, 3), (4, 5), (0, 5), (0, 3), (3, 5)):
            best: dict[tuple[tuple[int, ...], tuple[int, ...]], np.ndarray] = {}
            for order in orders:
                send = hop[list(order), np.roll(order, -1)]
                before, inner = send[:s].sum(), send[end - 1 : -1].sum()
                values = np.array([before, inner + send[-1] + before, inner])
                key = tuple(order[:s].count(c) for c in range(CLASSES)), order[s:end]
                best[key] = np.minimum(best.get(key, values), values)
            for (counts, window), values in best.items():
                behind = tuple(k + window.count(c) for c, k in enumerate(counts))
                at, to = np.array([counted[s].index(counts)]), np.array([counted[end].index(behind)])
                found = least.around(s, at, end, to, window[0], window[-1])
                assert np.allclose([found.before[0], found.around[0], found.inner[0]], values)
                met += 1
    assert met > 100
