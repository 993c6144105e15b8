"""Bounds of coarse parts with virtual stages never exceed a plan in them, whatever its order and dealing."""

from __future__ import annotations

import numpy as np
import pytest

from formulations.virtual_selection_data import VirtualSelectionData, choices, objectives_ms
from formulations.virtual_selection_tables import fewest_layers
from planner.cost.pricing import price
from planner.data.problem import Problem
from planner.search.bound_data import bound_data
from planner.search.degrees import list_degrees
from planner.search.empty import most_without_layers
from planner.search.kinds import layer_kinds
from planner.search.virtual.assignment import most_layers
from planner.search.virtual.capacity import HALVINGS, WALKS, Capacity
from planner.search.virtual.space import VirtualSpace
from planner.search.virtual.tables import VirtualTables
from planner.units import MS
from tests.random_problems import random_interleaved_problem, with_heavy_leading_layers

SEEDS = [*range(24), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 160))]


def random_dealings(
    data: VirtualSelectionData, rng: np.random.Generator, number: int
) -> list[list[list[int]]]:
    """Some ways to deal the layers to the chunks, some near to even ones; none where they are too few."""
    fewest = fewest_layers(data)
    spare = data.num_layers - int(fewest.sum())
    if spare < 0:
        return []
    found = []
    for _ in range(number):
        weight = rng.uniform(0.5, 1.0, fewest.size) ** float(rng.choice([0.2, 3.0]))
        found.append((fewest + rng.multinomial(spare, weight / weight.sum()).reshape(fewest.shape)).tolist())
    return found


def spaces(problem: Problem) -> tuple[VirtualSpace, VirtualTables] | None:
    """The coarse parts of a problem, and what its plans cost; None where it has no degrees."""
    table, kinds = list_degrees(problem), layer_kinds(problem.model)
    if not len(table):
        return None
    assert kinds is not None
    prices, blocks = price(problem, table.degrees), not problem.stack.p2p_overlap
    bare, num_layers = most_without_layers(problem), problem.model.num_layers
    bounds = bound_data(num_layers, kinds, prices, sends_block=blocks, num_empty=bare)
    return VirtualSpace(problem, prices, table, bounds), VirtualTables(problem, prices, table)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_undercuts_the_bounds_of_its_parts(seed: int) -> None:
    """Pairs over all numbers of virtual stages, and parts of one number, bound every order and dealing."""
    problem = random_interleaved_problem(seed, experts=seed % 2 == 1)
    if seed % 4 == 1:
        problem = with_heavy_leading_layers(problem)
    if (both := spaces(problem)) is None:
        pytest.skip("no legal degrees")
    space, tables = both
    rng = np.random.default_rng(seed)
    pairs = space.pairs()
    for i in rng.permutation(len(pairs))[:8]:
        pair_s, pair = pairs[i]
        for v, part_s in space.bounds_of(pair).items():
            assert pair_s <= part_s * (1 + 1e-9)
            room = np.repeat(np.arange(len(problem.cluster.classes)), space.table.max_stages[pair.choice])
            for _ in range(3):
                order = [int(c) for c in rng.permutation(room)[: pair.stages]]
                data = tables.data(pair.choice, v, order)
                dealt = random_dealings(data, rng, 8)
                found = [choice for layers in dealt for choice in choices(data, layers)]
                if found:
                    assert part_s <= float(objectives_ms(data, found).min()) * MS * (1 + 1e-9)


@pytest.mark.parametrize("least_kept_ms", [0.5, 1.0, 1.01, 1.3, 1.99, 3.0])
def test_what_is_kept_at_once_is_asked_once(least_kept_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mostly nothing is raised, which took as many looks as an interval is halved."""
    asked: list[float] = []

    def keeps(capacity: Capacity, limit_ms: float) -> bool:
        asked.append(limit_ms)
        return limit_ms >= least_kept_ms

    monkeypatch.setattr(Capacity, "_may_keep_below", keeps)
    found = object.__new__(Capacity).raised_ms(1.0, 2.0)
    assert 1.0 <= found <= max(least_kept_ms, 1.0)
    assert found == 1.0 or found >= min(least_kept_ms, 2.0) - 2 / 2**HALVINGS
    assert len(asked) == (1 if least_kept_ms <= 1.01 else HALVINGS + 1)


@pytest.mark.parametrize("seed", range(8))
def test_a_walk_of_prices_ends_once_it_has_said_enough(seed: int) -> None:
    """Its answer is the same: below what is asked where the whole walk is, and never below that."""
    random = np.random.default_rng(seed)
    classes, stages = 3 + seed % 2, 12
    most = random.integers(1, 8, classes)
    most[0] = max(most[0], stages - most[1:].sum())
    layers = random.integers(0, 9, (5, classes, stages)).astype(float)
    whole = most_layers(layers, np.zeros_like(most), most, WALKS)
    for more in (-3.0, -1e-6, 1e-6, 3.0):
        for row in range(len(layers)):
            asked = whole[row] + more
            found = most_layers(layers[row], np.zeros_like(most), most, WALKS, np.array(asked))
            assert found >= whole[row] - 1e-9 and (found < asked) == (more > 0)
