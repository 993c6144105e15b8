"""Rows weighed together bound every plan, whatever the weights, and their slope is that of the bound."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import numpy as np
import pytest

from planner.cost.prices import Floats
from planner.cost.pricing import price
from planner.data.load import build_problem
from planner.search.degrees import list_degrees
from planner.search.tables import Tables
from planner.search.walks import relaxer as relaxing
from planner.search.walks.cheapest import Walk, Walks
from planner.search.walks.mixed_rows import MixedRows, relax_by_rows
from planner.search.walks.part import Limits
from planner.search.walks.relaxation import Relaxed, part_value
from planner.search.walks.relaxer import Relaxer
from planner.units import MS
from tests.planner.search.walks.test_relaxer import REL, best_of_order_s, has_hosts
from tests.random_problems import random_problem

PLAN_S = 5.7118
"""Just above the step of the best plan found in minutes."""


def test_weighed_rows_exceed_no_plan_and_follow_their_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaxing, "kinds_of_walks", lambda *given: (Walks, Walks))
    rng = np.random.default_rng(7)
    compared = 0

    def checked(first: Relaxed, walks: Walks, fewest: Any, most: Any, allowed: Any, *rest: Any) -> Relaxed:
        nonlocal compared
        rows, brackets = MixedRows(walks), first.brackets
        weights = rows.legal(rng.random((len(brackets.mu), len(rows.exists))) ** 20)
        keeps_slope(rows, first, allowed, weights, rng)
        for mu in (0.0, brackets.mu, 2 * brackets.mu):
            price = np.zeros((len(brackets.mu), len(most)))
            given = mu * np.ones(len(price)), price
            ends = brackets.low_ms, brackets.high_ms
            walk = walks.shortest(*given, *ends, allowed[None], rows.costs(weights))
            value = part_value(walk, *given, walks.num_layers, fewest, most)
            assert value.min() <= least_s / MS * (1 + REL)
        compared += 1
        return relax_by_rows(first, walks, fewest, most, allowed, *rest)

    monkeypatch.setattr(relaxing, "relax_by_rows", checked)
    for seed in range(520, 526):
        problem = random_problem(seed, most_layers=12, num_classes=2 + seed % 2)
        table = list_degrees(problem)
        if not len(table) or problem.model.num_layers < 4:
            continue
        tables = Tables(problem, price(problem, table.degrees), table)
        relaxer = Relaxer(problem, tables.prices, table, tables)
        for choice in rng.integers(len(table), size=8).tolist():
            most = tuple(int(k) for k in table.max_stages[choice])
            stages = min(sum(most), problem.model.num_layers)
            orders = [o for o in islice(product(range(len(most)), repeat=stages), 200)]
            orders = [o for o in orders if all(o.count(c) <= k for c, k in enumerate(most))]
            orders = [o for o in orders if has_hosts(problem, int(table.stage_size[choice]), o)]
            of_orders = [best_of_order_s(tables, choice, o, rng) for o in orders[:20]]
            least_s = min(of_orders, default=np.inf)
            if not np.isfinite(least_s):
                continue
            best = orders[int(np.argmin(of_orders))]
            counts = tuple(best.count(c) for c in range(len(most)))
            for first in ((), best[:1], best):
                group = Limits(counts, counts, prefix=first)
                bound = relaxer.bound(choice, group, stages, 1.05 * least_s, fine=True)
                assert bound.bound_s <= least_s * (1 + REL)
    assert compared >= 40


def keeps_slope(rows: MixedRows, part: Relaxed, allowed: Any, here: Floats, rng: np.random.Generator) -> None:
    """The walk found at some weights, priced by its rows, is no shorter than the shortest at others."""
    brackets, no_price = part.brackets, np.zeros((len(here), allowed.shape[1]))

    def shortest(weights: Floats) -> Walk:
        ends = brackets.low_ms, brackets.high_ms
        return rows.walks.shortest(brackets.mu, no_price, *ends, allowed[None], rows.costs(weights))

    walk = shortest(here)
    reached = np.isfinite(walk.length)
    of_walk = rows.of_walk(walk)
    for share in (1e-9, 0.01, 1.0):
        there = rows.legal(here + share * rng.random(here.shape))
        line = walk.length + ((there - here) * of_walk).sum(axis=1)
        length = shortest(there).length
        assert (length <= line + 1e-7 * np.abs(line))[reached].all()
        if share < 1e-6:
            assert length[reached] == pytest.approx(line[reached], rel=1e-6)
        back = length + ((here - there) * rows.of_walk(shortest(there))).sum(axis=1)
        assert (walk.length <= back + 1e-7 * np.abs(line))[reached].all()


def test_a_group_with_more_stages_than_micro_batches_is_bounded_closely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row at a time held it 8% below the best plan found."""
    problem = build_problem(
        cluster="4x8 trainium1-32gb, 16x4 l40s-48gb", model="qwen3-32b", seq_length=4096, global_batch_size=32
    )
    table = list_degrees(problem)
    degrees = table.degrees
    rows = (degrees.tensor_parallel == 2) & (degrees.data_parallel == 4) & (degrees.microbatch_size == 1)
    choice = int(np.flatnonzero(rows & (table.num_microbatches == 8))[0])
    tables = Tables(problem, price(problem, degrees), table)
    relaxer = Relaxer(problem, tables.prices, table, tables)

    def bound_s() -> float:
        return relaxer.bound(choice, Limits((4, 8), (4, 8)), 12, PLAN_S, fine=True).bound_s

    weighed_s = bound_s()

    def by_each_row(
        first: Relaxed, walks: Walks, fewest: Any, most: Any, allowed: Any, *rest: Any
    ) -> Relaxed:
        rows, brackets = MixedRows(walks), first.brackets
        ends, price = (brackets.low_ms, brackets.high_ms), np.zeros((len(brackets.mu), len(most)))
        for k in np.flatnonzero(rows.exists).tolist():
            costs = rows.costs(np.eye(len(rows.exists))[[k] * len(price)])
            values = []
            for mu in np.linspace(0.2, 3, 15)[:, None] * brackets.mu:
                walk = walks.shortest(mu, price, *ends, allowed[None], costs)
                values.append(part_value(walk, mu, price, walks.num_layers, fewest, most))
            assert np.max(values, axis=0).min() <= PLAN_S / MS
        return first

    monkeypatch.setattr(relaxing, "relax_by_rows", by_each_row)
    assert 1.05 * bound_s() <= weighed_s <= PLAN_S
