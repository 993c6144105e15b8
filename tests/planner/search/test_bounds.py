"""Bounds of coarse parts never exceed the objective of any plan in them, nor that the referee's step time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from formulations.stage_selection_data import objective_ms
from formulations.stage_selection_tables import least_recompute, objectives_ms, with_least_recompute
from planner.cost.pricing import price
from planner.data.load import build_problem
from planner.data.problem import Problem
from planner.search.apart import bounds_of
from planner.search.bounds import group_bounds, relaxed_bounds
from planner.search.degrees import list_degrees
from planner.search.empty import ends_without_layers, most_stages
from planner.search.heuristics.local import all_splits
from planner.search.hop_bounds import slow_hop_bounds
from planner.search.judge import Judge
from planner.search.orders import all_orders, block_orders, count_orders, likely_orders
from planner.search.space import list_groups
from planner.search.state import Incumbent
from planner.search.tables import Tables
from planner.simulate.pipeline import makespan_1f1b
from planner.units import MS
from tests.random_problems import random_problem, with_heavy_leading_layers

SEEDS = [*range(300, 312), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(312, 350))]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_undercuts_the_bounds_of_its_parts(seed: int) -> None:
    """Pair, group, group with memory, order: each bounds every split of every order inside it."""
    check_bounds(random_problem(seed, most_layers=12), seed)


@pytest.mark.parametrize("seed", [316, 320, 323, 328, *SEEDS[30:]])
def test_no_plan_undercuts_the_bounds_of_its_parts_with_leading_layers(seed: int) -> None:
    # Long leading layers once counted as several in the optimizer's step, which takes them no longer.
    check_bounds(with_heavy_leading_layers(random_problem(seed, most_layers=9, experts=True)), seed)


def check_bounds(problem: Problem, seed: int) -> None:
    """Assert that the bounds of some parts are none above the plans in them."""
    table = list_degrees(problem)
    if not len(table):
        pytest.skip("no legal degrees")
    prices = price(problem, table.degrees)
    data = bounds_of(problem, table, prices)
    tables = Tables(problem, prices, table)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        choice = int(rng.integers(len(table)))
        most = min(most_stages(problem), int(table.max_stages[choice].sum()))
        stages = int(rng.integers(1, most + 1))
        groups = list_groups(table, data, choice, stages, 0.0)
        counts = groups.counts[int(rng.integers(len(groups)))]
        one = np.array([choice])
        microbatches = table.num_microbatches[one]
        pair_s = relaxed_bounds(data, one, microbatches, table.max_stages[one], np.array([stages]))[0]
        group_s = group_bounds(data, one, microbatches, counts[None, :])[0]
        orders = list(all_orders([int(count) for count in counts]))
        order = orders[int(rng.integers(len(orders)))]
        order_tau_s = tables.order_bottleneck_s(choice, order)
        assert pair_s <= group_s * (1 + 1e-9)
        if not np.isfinite(order_tau_s):
            continue
        coefficients = tables.data(choice, order)
        more = ends_without_layers(problem, stages).astype(np.int64)
        end = problem.model.num_layers + int(more.sum())
        splits = np.array(
            [
                np.diff([0, *sorted(rng.choice(np.arange(1, end), stages - 1, False)), end]) - more
                for _ in range(40)
            ]
        )
        values_s = objectives_ms(coefficients, least_recompute(coefficients), splits) * MS
        sends = np.array([tables.hops_s(choice, order).sum()])
        order_s = group_bounds(data, one, microbatches, counts[None, :], np.array([order_tau_s]), sends)[0]
        dual_s = tables.order_bounds_s(choice, [order])[0]
        for bound_s in (pair_s, group_s, order_s, dual_s):
            assert bound_s <= values_s.min() * (1 + 1e-9)


def test_orders_are_counted_and_listed_once() -> None:
    orders = list(all_orders((2, 1, 2)))
    assert len(orders) == len(set(orders)) == count_orders((2, 1, 2)) == 30
    assert set(block_orders((2, 0, 2))) == {(0, 0, 2, 2), (2, 2, 0, 0)}
    wrapped = [(0, 1, 1, 0, 0), (0, 0, 1, 1, 0), (1, 0, 0, 0, 1)]
    for tied_s, more in ((0.1, wrapped), (1.0, [])):
        listed = likely_orders((3, 2), np.array([[tied_s, 1.0], [1.0, 1.0]]))
        assert sorted(listed) == sorted([(0, 0, 0, 1, 1), (1, 1, 0, 0, 0), *more])


@pytest.mark.parametrize("blocks", [False, True])
def test_the_objective_of_a_plan_is_no_more_than_the_referee_says_and_as_much_with_one_micro_batch(
    blocks: bool,
) -> None:
    """Once a stage behind the first that reduces in one bucket was taken to have several."""
    problem = build_problem(
        cluster="2x8 a100-sxm-80gb, 2x8 h100-sxm-80gb",
        model="mixtral-8x7b",
        seq_length=2048,
        global_batch_size=16,
    )
    stack = problem.stack.model_copy(update={"p2p_overlap": not blocks})
    problem = problem.model_copy(update={"stack": stack})
    table, num_layers = list_degrees(problem), problem.model.num_layers
    prices, rng = price(problem, table.degrees), np.random.default_rng(1)
    plans = equal = in_one_bucket = 0
    for choice in np.repeat(np.flatnonzero(table.degrees.data_parallel > 1), 2).tolist():
        judge = Judge(problem, prices, table, Incumbent(1))
        room = np.repeat(np.arange(table.max_stages.shape[1]), table.max_stages[choice])
        stages = min(len(room), int(rng.integers(2, 6)))
        order = tuple(int(c) for c in rng.choice(room, stages, replace=False))
        cuts = sorted(rng.choice(np.arange(1, num_layers), stages - 1, replace=False))
        layers = tuple(int(n) for n in np.diff([0, *cuts, num_layers]))
        data = judge.tables.data(choice, order)
        chosen = with_least_recompute(least_recompute(data), layers)
        if stages < 2 or not judge.is_allowed(choice, order) or chosen is None:
            continue
        judge.judge_layers(choice, order, layers)
        step_s, value_s = judge.incumbent.step_s, objective_ms(data, chosen) * MS
        if step_s is None:
            continue
        assert value_s <= step_s * (1 + 1e-9)
        plans += 1
        if data.num_microbatches == 1:
            assert value_s == pytest.approx(step_s, rel=1e-9)
            equal += 1
        zero = np.zeros(stages)
        in_buckets = replace(data, bucket_ms=zero, base_bucket_ms=zero)
        in_one_bucket += objective_ms(in_buckets, chosen) * MS < value_s * (1 - 1e-6)
    assert plans >= 60 and equal >= 10 and in_one_bucket >= 10


def test_no_split_is_done_before_the_bound_of_its_slow_hop() -> None:
    # With as many micro-batches as stages the two stages at the hop need not wait for each other twice.
    rng, close = np.random.default_rng(3), 0
    for _ in range(200):
        p = int(rng.integers(2, 5))
        m, before, send_s = (
            p + int(rng.integers(0, 6)),
            int(rng.integers(1, p)),
            float(rng.choice([0.5, 50.0])),
        )
        splits = all_splits(int(rng.integers(p, 9)), p, 1000)
        assert splits is not None
        layer_s, counts = rng.uniform(1.0, 3.0, (1, 2)), np.array([[before, p - before]])
        of_stage = np.repeat(layer_s[0], counts[0])
        forward_s = of_stage * rng.uniform(0.2, 0.5)
        sends_s = np.where(np.arange(p) == before - 1, send_s, 0.0)
        least_s = min(
            makespan_1f1b(layers * forward_s, layers * (of_stage - forward_s), sends_s, m)
            for layers in splits
        )
        bound_s = slow_hop_bounds(
            splits[:1].sum(axis=1).astype(float),
            layer_s,
            counts > 0,
            counts / layer_s,
            np.array([send_s]),
            np.array([m]),
            np.array([p]),
        )[0]
        assert bound_s <= least_s * (1 + 1e-9)
        close += bound_s > 0.7 * least_s
    assert close > 20
