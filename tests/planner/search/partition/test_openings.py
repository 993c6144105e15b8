"""Models whose layers are of several kinds in any order are planned, and nothing is better."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from formulations.layer_partition_data import least_bottleneck, objective_ms
from formulations.layer_partition_groups import by_length
from planner.cost.pricing import price
from planner.data.load import build_problem
from planner.data.problem import Problem
from planner.search import driver
from planner.search.apart import bounds_of
from planner.search.bounds import group_bounds, relaxed_bounds
from planner.search.degrees import list_degrees
from planner.search.items import BoundedGroup, Pair
from planner.search.kinds import layer_kinds
from planner.search.partition import bounds as partition_bounds
from planner.search.partition import openings as partition
from planner.search.partition.bounds import MAX_WAYS, OrderBounds
from planner.search.partition.intervals import Intervals
from planner.search.partition.run_tables import RunTables
from planner.search.partition.whole_layers import WholeLayers, slowest_of_parts
from planner.search.space import Groups
from planner.simulate.evaluate import evaluate
from planner.units import MS
from tests.oracle_plans import brute_force_by_cut
from tests.random_problems import random_problem


def interleaved(seed: int) -> Problem:
    """Dense layers and experts in turn, two to six layers."""
    problem = random_problem(seed, experts=True)
    moe = problem.model.moe
    assert moe is not None
    model = problem.model.model_copy(
        update={
            "moe": moe.model_copy(update={"first_dense_layers": 0, "layer_freq": 2}),
            "num_layers": 3 + seed % 4,
        }
    )
    return problem.model_copy(update={"model": model})


def check(seed: int) -> None:
    problem = interleaved(seed)
    assert layer_kinds(problem.model) is None
    best = brute_force_by_cut(problem)
    result = driver.search(problem)
    if best.what == ():
        assert result.termination == "infeasible", seed
        return
    assert result.plan is not None and result.evaluation is not None, f"seed {seed}: {best}"
    judged = evaluate(problem, result.plan)
    assert judged.violations == ()
    assert judged.step_s == pytest.approx(best.step_s, rel=1e-9), f"seed {seed}: {best.what}"
    assert result.termination == "optimal"
    assert result.bound_s is not None and result.bound_s <= best.step_s * (1 + 1e-9)


@pytest.mark.parametrize("seed", [2, 4, 42])  # the last predicts tokens with a dense layer
def test_interleaved_experts_are_planned_as_well_as_by_brute_force(seed: int):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 26))
def test_interleaved_experts_are_planned_as_well_as_by_brute_force_on_more(seed: int):
    check(seed)


@pytest.mark.parametrize("seed", [4, *(pytest.param(s, marks=pytest.mark.slow) for s in range(10, 21))])
def test_it_is_the_same_where_orders_are_bounded_by_their_first_classes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "FEW_ORDERS", 1)
    check(seed)


def test_the_largest_part_of_a_row_is_the_least_that_it_can_be():
    row = np.random.default_rng(3).uniform(0.0, 1.0, 7)
    for parts, said in enumerate(slowest_of_parts(row), 1):
        cuts = combinations(range(1, len(row)), parts - 1)
        sums = (max(part.sum() for part in np.split(row, cut)) for cut in cuts)
        assert said == pytest.approx(min(sums))


def test_classes_are_taken_together_less_in_each_step(monkeypatch: pytest.MonkeyPatch):
    problem = interleaved(14)
    table = list_degrees(problem)
    orders = OrderBounds(Intervals(problem, price(problem, table.degrees), table))
    choice = int(np.flatnonzero((table.max_stages > 0).all(axis=1) & (table.max_stages.sum(axis=1) > 2))[0])
    # One step where the classes are apart from the first one on, and none that does the same again.
    for steps, expected in ((partition_bounds.STEPS, [2, 2, 2, None]), ((0, 0, MAX_WAYS), [1, 1, 2, None])):
        monkeypatch.setattr(partition_bounds, "STEPS", steps)
        assert [orders.next_step(choice, 2, step) for step in range(len(steps) + 1)] == expected


@pytest.mark.parametrize(
    "seed", [14, *(pytest.param(s, marks=pytest.mark.slow) for s in range(10, 20) if s != 14)]
)
def test_no_split_is_bounded_above_its_objective(seed: int, monkeypatch: pytest.MonkeyPatch):
    """The bound of a group against every order and split of a few rows of degrees."""
    problem = interleaved(seed)
    table = list_degrees(problem)
    plain, rng = price(problem, table.degrees), np.random.default_rng(seed)
    longest_s = plain.layer_backward_s.sum(axis=-1).max() * table.num_microbatches.max()
    prices = replace(plain, tied_sync_s=rng.uniform(0.0, longest_s, plain.tied_sync_s.shape))
    bounds = bounds_of(problem, table, prices)
    intervals, untied = Intervals(problem, prices, table), OrderBounds(Intervals(problem, plain, table))
    whole = WholeLayers(intervals)
    layers = problem.model.num_layers
    # The classes apart, and all of them as one; tables are kept, as in a search.
    every = [(most_ways, OrderBounds(intervals)) for most_ways in (MAX_WAYS, 0)]
    for choice in range(min(len(table), 12)):
        for order in [(0, 0), (0, 1), (1, 0), (1, 1)]:
            counts = np.bincount(order, minlength=2)
            if (counts > table.max_stages[choice]).any():
                continue
            data = intervals.data(choice, order)
            bound_s = group_bounds(
                bounds, np.array([choice]), np.array([data.num_microbatches]), counts[None, :]
            )[0]
            values = [objective_ms(data, (cut,)) * MS for cut in range(1, layers)]
            assert bound_s <= min(values) * (1 + 1e-9)
            row, whole_s = np.array([choice]), np.array([whole.slowest_s(choice, 2)])
            assert whole_s[0] <= least_bottleneck(data)[0] * MS * (1 + 1e-9)
            m, most = table.num_microbatches[row], table.max_stages[row]
            listed_s = relaxed_bounds(bounds, row, m, most, np.array([2]), None, whole_s)[0]
            assert listed_s <= min(values) * (1 + 1e-9)
            for limit_s in (np.inf, 2 * min(values), min(values), 0.9 * min(values)):
                most_s = limit_s if limit_s < min(values) else min(values) * (1 + 1e-9)
                for first in (0, 1, 2):
                    group = BoundedGroup(choice, tuple(counts.tolist()), order[:first])
                    found_s, _ = every[0][1].of_group(group, limit_s)
                    assert found_s <= most_s
                    if first == 2 and limit_s == np.inf:
                        more_s = prices.tied_sync_s[(choice, *order)] - plain.tied_sync_s[(choice, *order)]
                        assert found_s == pytest.approx(untied.of_group(group, limit_s)[0] + more_s)
                for most_ways, of_ways in every:
                    monkeypatch.setattr(partition_bounds, "MAX_WAYS", most_ways)
                    of_all, pair = of_ways.of_all(Pair(choice, 2), limit_s, most_ways)
                    assert of_all <= most_s
                    by_paths = of_ways.by_paths(pair, counts[None], limit_s)
                    assert by_paths[0] <= most_s
                    by_labels, _ = of_ways.by_labels(choice, Groups(counts[None], by_paths), limit_s)
                    assert by_paths[0] <= by_labels[0] <= most_s


def test_classes_whose_hosts_hold_no_two_stages_send_over_the_network():
    """Single chips were once taken to meet within a host, as those of the other class do."""
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb, 3x1 a100-sxm-80gb",
        model="nemotron-h-8b",
        seq_length=2048,
        global_batch_size=64,
    )
    table = list_degrees(problem)
    prices = price(problem, table.degrees)
    intervals, order = Intervals(problem, prices, table), (1, 1, 1, 0)
    choice = int(np.flatnonzero(table.stage_size == 1)[0])
    data, bounds = intervals.data(choice, order), bounds_of(problem, table, prices)
    costs = RunTables(intervals).costs(choice, (1, 3), 4, np.inf, order)
    for s, c in enumerate(order):
        for own, all_runs in ((costs.forward, data.forward_ms), (costs.backward, data.backward_ms)):
            assert own[s, c] == pytest.approx(by_length(all_runs[s]))
    assert bounds.hop_s[choice, 1, 1] > 2 * prices.send_inside_s[choice, 1]
    assert bounds.hop_s[choice, 0, 0] == pytest.approx(prices.send_inside_s[choice, 0])
