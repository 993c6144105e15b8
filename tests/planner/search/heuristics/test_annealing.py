"""Annealing values plans as the referee does, keeps the limits of a pair, and repeats with its seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.pricing import price
from planner.search.degrees import DegreeTable, list_degrees
from planner.search.heuristics import annealing
from planner.search.heuristics.annealing import OrderTimes, anneal, order_times
from planner.search.judge import Judge
from planner.search.orders import all_orders
from planner.search.state import Incumbent
from planner.units import MS
from tests.random_problems import random_problem

Plan = tuple[tuple[int, ...], tuple[int, ...]]


def judge_of(seed: int) -> tuple[Judge, DegreeTable]:
    problem = random_problem(seed, most_layers=10, num_classes=3)
    table = list_degrees(problem)
    prices = price(problem, table.degrees)
    return Judge(problem, prices, table, Incumbent(1)), table


def pair_of(judge: Judge, table: DegreeTable) -> tuple[int, int]:
    """A row of degrees that leaves several stages to several classes, and a number of stages."""
    several = (table.max_stages > 0).sum(axis=1) > 1
    choice = int(np.argmax(several * np.minimum(table.max_stages.sum(axis=1), 4)))
    return choice, min(4, int(table.max_stages[choice].sum()), judge.problem.model.num_layers)


def times_of(judge: Judge, table: DegreeTable, choice: int, stages: int) -> OrderTimes:
    return order_times(judge.problem, judge.prices, table, judge.tables, choice, stages)


def some_plan(judge: Judge, table: DegreeTable, choice: int, stages: int) -> Plan | None:
    counts = [0] * table.max_stages.shape[1]
    for c in np.repeat(np.arange(len(counts)), table.max_stages[choice])[:stages]:
        counts[int(c)] += 1
    for order in all_orders(counts):
        start = judge.tables.start(choice, order)
        if start.layers is not None:
            return order, tuple(start.layers.tolist())
    return None


@pytest.mark.parametrize("seed", [502, 503, 506, 507, 508])
def test_a_plan_is_valued_as_the_referee_values_it(seed: int) -> None:
    judge, table = judge_of(seed)
    choice, stages = pair_of(judge, table)
    plan = some_plan(judge, table, choice, stages)
    assert plan is not None and judge.is_allowed(choice, plan[0])
    times = times_of(judge, table, choice, stages)
    value_s = float(times.values_ms(np.array([plan[0]]), np.array([plan[1]]))[0]) * MS
    judge.judge_layers(choice, *plan)
    assert judge.incumbent.step_s == pytest.approx(value_s, rel=1e-9)


def test_annealed_plans_keep_the_limits_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annealing, "COOLING", replace(annealing.COOLING, steps=160))
    judge, table = judge_of(503)
    choice, stages = pair_of(judge, table)
    plan = some_plan(judge, table, choice, stages)
    assert plan is not None
    times = times_of(judge, table, choice, stages)
    most = table.max_stages[choice].tolist()
    fewest = [0] * len(most)
    found = anneal(times, [plan], fewest, most, 1, lambda: False)
    assert found == anneal(times, [plan], fewest, most, 1, lambda: False)
    for order, layers in found:
        assert all(order.count(c) <= room for c, room in enumerate(most))
        assert sum(layers) == judge.problem.model.num_layers and min(layers) >= 0 < min(layers[1:-1])
    values = times.values_ms(
        np.array([order for order, _ in (plan, *found)]), np.array([n for _, n in (plan, *found)])
    )
    assert values[1] <= values[0], "no worse than where it began"


def test_without_time_the_plans_at_hand_come_back() -> None:
    judge, table = judge_of(503)
    choice, stages = pair_of(judge, table)
    plan = some_plan(judge, table, choice, stages)
    assert plan is not None
    times = times_of(judge, table, choice, stages)
    most = table.max_stages[choice].tolist()
    assert anneal(times, [plan], [0] * len(most), most, 0, lambda: True) == [plan]
