"""Orders with whole layers by prices: no plan is ever given up, and limits below all plans are found out."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from planner.search.virtual import orders as virtual_orders
from planner.search.virtual.capacity import VirtualLimits
from planner.search.virtual.orders import PricedOrders, combinations
from tests.formulations.interleaved_instances import Part, random_part
from tests.planner.search.virtual.test_dealings import Plan, plans_of

REL = 1e-9
SEEDS = range(40)


@lru_cache
def parts(seeds: range) -> list[tuple[Part, list[Plan]]]:
    """Parts with plans, with the stages of each class that one of their orders has."""
    found = []
    for seed in seeds:
        part = random_part(seed)
        orders = part.orders()
        if part.sends_block or not orders:
            continue
        order = orders[seed % len(orders)]
        counts = tuple(order.count(c) for c in range(len(part.limits.most)))
        part = replace(part, limits=VirtualLimits(counts, counts, part.limits.prefix))
        if plans := plans_of(part):
            found.append((part, plans))
    return found


def check(part: Part, plans: list[Plan]) -> float:
    """No bound exceeds the best plan; the largest limit, over it, below which no plan is left."""
    best, closed = min(plan[0] for plan in plans), 0.0
    for share in (1.5, 1.1, 1.0 + REL, 0.999, 0.99, 0.95, 0.9):
        data = part.data(best * share)
        some = combinations(data)
        assert some is not None
        priced = PricedOrders(data, some)
        assert priced.run(1 << 30) <= max(min(best, data.cutoff_ms), 0.0) * (1 + 1e-9)
        left = {
            (tuple(o), tuple(n))
            for o, n in zip(priced.open.order.tolist(), priced.open.layers.tolist(), strict=True)
        }
        below = {plan[1:] for plan in plans if plan[0] <= best * share}
        assert below <= left, (part, share)
        for bound_ms, one in priced.by_order():
            assert bound_ms <= data.cutoff_ms * (1 + 1e-9)
            assert (one.fits.any(axis=2).sum(axis=0) == 1).all()
        if not left:
            closed = max(closed, share)
    return closed


def test_no_plan_is_given_up_and_many_limits_below_all_are_found_out() -> None:
    closed = [check(*one) for one in parts(SEEDS)]
    assert len(closed) > 5
    assert sum(share >= 0.9 for share in closed) > len(closed) / 2


@pytest.mark.slow
def test_no_plan_of_three_hundred_parts_is_given_up() -> None:
    closed = [check(*one) for one in parts(range(100, 400))]
    assert len(closed) > 40
    assert sum(share >= 0.9 for share in closed) > len(closed) / 2


def test_all_orders_with_whole_layers_that_fit_are_listed() -> None:
    met = 0
    for part, plans in parts(SEEDS):
        some = combinations(part.data(1e9))
        assert some is not None
        listed = [
            (tuple(o), tuple(n)) for o, n in zip(some.order.tolist(), some.layers.tolist(), strict=True)
        ]
        assert len(set(listed)) == len(listed)
        assert {plan[1:] for plan in plans} <= set(listed)
        assert all(sum(n) == part.data(1e9).sample.num_layers for _, n in listed)
        met += len(listed)
    assert met > 30


def test_parts_of_too_many_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    part, _ = parts(SEEDS)[0]
    monkeypatch.setattr(virtual_orders, "MOST_COMBINATIONS", 0)
    assert combinations(part.data(1e9)) is None
    monkeypatch.setattr(virtual_orders, "MOST_ORDERS", 0)
    assert combinations(part.data(1e9)) is None


def test_what_was_not_looked_at_in_time_has_no_bound() -> None:
    part, plans = parts(SEEDS)[0]
    data = part.data(min(plan[0] for plan in plans))
    some = combinations(data)
    assert some is not None
    priced = PricedOrders(data, some, is_up=lambda: True)
    assert priced.run(1 << 30) == -np.inf
    assert len(priced.open) == len(some)


def test_where_many_are_left_it_stops_with_a_bound_on_all() -> None:
    stopped = 0
    for part, plans in parts(SEEDS):
        best = min(plan[0] for plan in plans)
        data = part.data(1.3 * best)
        some = combinations(data)
        assert some is not None
        whole, early = PricedOrders(data, some), PricedOrders(data, some)
        whole.run(1 << 30)
        assert early.run(0) <= best * (1 + 1e-9)
        assert len(early.open) >= len(whole.open)
        stopped += early.rounds < whole.rounds
    assert stopped > 5
