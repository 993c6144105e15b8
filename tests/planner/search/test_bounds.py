"""Bounds of coarse parts never exceed the objective of any plan in them, nor that the referee's step time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from formulations.stage_selection_data import exposed_reduction_ms, objective_ms
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
from planner.search.kinds import kinds_of
from planner.search.orders import all_orders, block_orders, count_orders, likely_orders
from planner.search.pair_bounds import closer_bounds, exposed_of, follow_of_layers_s, least_pace_s
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
    kinds = kinds_of(problem)
    assert kinds is not None
    exposed = exposed_of(problem.model.num_layers, kinds, prices)
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
        given = data, exposed, one, microbatches
        closer_s = closer_bounds(*given, table.max_stages[one], np.array([stages]))[0]
        group_closer_s = closer_bounds(*given, counts[None, :], np.array([stages]))[0]
        assert pair_s <= closer_s <= group_closer_s * (1 + 1e-9)
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
        for bound_s in (pair_s, group_s, order_s, dual_s, group_closer_s):
            assert bound_s <= values_s.min() * (1 + 1e-9)


def test_no_stage_takes_less_than_a_closer_bound_has_it_take() -> None:
    """Pace, own work with its reduction, and what follows, each by itself; some are nearly exact."""
    exact = sum(exact_parts_of_closer_bounds(seed) for seed in range(8))
    assert (exact > 2).all(), exact


def test_stages_between_others_wait_for_two_hops_those_at_the_ends_for_one() -> None:
    # Three stages hold 5 layers of 1 s in 2.25 s, two at either end; the sixth needs 2.5 s between them.
    one = np.ones((1, 1), dtype=np.int64)
    found = [float(least_pace_s(1.0 * one, 0.25 * one, n, 3 * one, 3 * one[0])[0]) for n in (5, 6)]
    assert found == pytest.approx([2.25, 2.5], rel=1e-3)


def exact_parts_of_closer_bounds(seed: int) -> np.ndarray:
    """How many of each kind are exact for a problem; none exceeds what the slowest stage takes."""
    rng = np.random.default_rng(seed)
    problem = random_problem(300 + seed, most_layers=8)
    if seed % 2:
        problem = with_heavy_leading_layers(random_problem(316 + seed, most_layers=8, experts=True))
    stack = problem.stack.model_copy(update={"p2p_overlap": seed % 4 == 3})
    problem = problem.model_copy(update={"stack": stack})
    table = list_degrees(problem)
    prices = price(problem, table.degrees)
    times = 10.0 ** rng.uniform(-1, 3, (len(prices.kinds), 1))
    slower = {name: 10.0 ** (seed / 4) * getattr(prices, name) for name in ("send_s", "send_inside_s")}
    slower |= {name: times * getattr(prices, name) for name in ("layer_reduce_s", "layer_gather_s")}
    work = ("forward", 1), ("backward", 1), ("reduce", -1), ("gather", -1), ("optimizer", -1)
    for end in ("embedding", "head", "head_beside_embedding"):
        names = [(f"{end}_{task}_s", most) for task, most in work if hasattr(prices, f"{end}_{task}_s")]
        slower |= {name: 10.0 ** rng.uniform(-4, most) * getattr(prices, name) for name, most in names}
    prices = replace(prices, hidden_fraction=float(rng.choice([0.5, 1.0])), **slower)
    data, tables, kinds = bounds_of(problem, table, prices), Tables(problem, prices, table), kinds_of(problem)
    assert kinds is not None
    exposed = exposed_of(problem.model.num_layers, kinds, prices)
    exact = np.zeros(3)
    for choice in rng.integers(len(table), size=80).tolist():
        stages = int(rng.integers(1, min(4, most_stages(problem), int(table.max_stages[choice].sum())) + 1))
        c = int(rng.choice(np.flatnonzero(table.max_stages[choice])))
        if table.max_stages[choice][c] < stages:
            continue
        of = tables.data(choice, (c,) * stages)
        bare = ends_without_layers(problem, stages).astype(np.int64)
        splits = all_splits(of.num_layers + int(bare.sum()), stages, 10_000)
        assert splits is not None
        splits = splits - bare
        extra = least_recompute(of).extra_ms[np.arange(stages), splits]
        forward = of.forward_ms * splits + of.base_forward_ms
        backward = of.backward_ms * splits + of.base_backward_ms + extra
        fits = np.isfinite(backward).all(axis=1)
        if not fits.any():
            continue
        reduction = exposed_reduction_ms(of, splits, np.where(np.isfinite(backward), backward, 0.0))
        gathering = of.gather_ms * splits + of.base_gather_ms - of.hidden_fraction * forward
        follow = of.optimizer_ms * splits + of.base_optimizer_ms - float(prices.step_fixed_s[choice, c]) / MS
        follow = follow + np.maximum(gathering, 0.0)
        both, m = forward + backward, of.num_microbatches
        best = [of_all[fits].max(axis=1).min() for of_all in (both, m * both + reduction, follow)]
        one, room, p = np.array([choice]), np.full((1, 1), stages), np.array([stages])
        hop = np.minimum(data.hop_s.min(axis=1), data.hop_s.min(axis=2))[one][:, [c]] * data.sends_block
        layer, reduce_s = data.layer_s[one][:, [c]], exposed.reduce_s[one][:, [c]]
        bounds = [
            least_pace_s(layer, hop, exposed.num_layers, room, p)[0],
            least_pace_s(m * layer + reduce_s, m * hop, exposed.num_layers, room, p)[0],
            follow_of_layers_s(exposed, one, exposed.follow_s[one, c], p)[0],
        ]
        assert (np.array(bounds) / MS <= np.array(best) * (1 + 1e-9)).all()
        exact += np.array(bounds) / MS >= np.array(best) * 0.98
    return exact


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
