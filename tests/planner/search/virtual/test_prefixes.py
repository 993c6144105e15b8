"""Paths through the numbers of stages by class: never less than what any order and dealing holds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from formulations.virtual_selection_data import choices, objectives_ms
from formulations.virtual_selection_tables import fewest_layers
from planner.search.virtual.prefixes import Places, Prefixes
from tests.formulations.interleaved_instances import Part, random_part
from tests.formulations.test_virtual_classes import dealings

REL = 1e-9


def places_by_hand() -> Places:
    """Two stages of each class; a layer takes 10 a step on class 0, 18 on class 1, chunk 0 takes 3 and 6."""
    least = np.full((2, 4, 9), np.inf)
    least[0, :, 1:] = 10.0 * np.arange(1, 9)
    least[1, :, 1:] = 18.0 * np.arange(1, 9)
    first = np.repeat([[3.0], [6.0]], 4, axis=1)
    hops, two = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([2, 2])
    return Places(least, first, hops, two, two, np.zeros_like(least))


def test_what_comes_before_a_stage_is_what_one_order_puts_there() -> None:
    # Three layers on each stage of class 0 and one on each of class 1 take 30 and 18: the second stage of
    # class 0 has at least 3 before it, which the limit must leave; the others stand behind.
    prefixes = Prefixes(places_by_hand())
    assert prefixes.holds(33.0) and not prefixes.holds(32.9)
    assert prefixes.bound_ms(20.0, 40.0) == pytest.approx(33.0, abs=0.2)
    fits = prefixes.fits(33.0)
    assert fits[0, :2, 3].all() and fits[1, 2:, 1].all()
    assert not fits[1, :2].any() and not fits[0, 2:].any() and not fits[0, :, 2].any()


def random_places(rng: np.random.Generator) -> Places:
    classes, stages, layers = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(4, 12))
    least = np.cumsum(rng.random((classes, stages, layers + 1)), axis=2)
    least[rng.random(least.shape) < 0.2] = np.inf
    most = rng.integers(0, stages + 1, classes)
    most[0] = max(most[0], stages - most[1:].sum())
    fewest = np.minimum(rng.integers(0, 2, classes), most)
    hops = rng.random((classes, classes)) * 0.2
    first, follow = rng.random((classes, stages)) * 0.5, rng.random(least.shape)
    return Places(least, first, hops, fewest, most, follow)


def brute_force(places: Places, limit: float) -> np.ndarray:
    """Numbers of layers that some order holds below the limit, [class, stage, n]."""
    classes, stages, width = places.least_ms.shape
    used = np.zeros(places.least_ms.shape, dtype=bool)
    for order in itertools.product(range(classes), repeat=stages):
        counts = np.bincount(order, minlength=classes)
        if (counts < places.fewest).any() or (counts > places.most).any():
            continue
        wait, may = 0.0, []
        for s, c in enumerate(order):
            may.append(np.flatnonzero(places.least_ms[c, s] + wait <= limit).tolist())
            wait += places.first_ms[c, s] + 2 * places.hop_ms[c, order[(s + 1) % stages]]
        for layers in itertools.product(*may):
            if sum(layers) == width - 1:
                used[order, range(stages), layers] = True
    return used


def test_no_order_holds_what_paths_leave_out() -> None:
    rng, held, left_out = np.random.default_rng(3), 0, 0
    for _ in range(150):
        places = random_places(rng)
        prefixes = Prefixes(places)
        for limit in (2.0, 3.0, 4.0):
            used, fits = brute_force(places, limit), prefixes.fits(limit)
            assert not (used & ~fits).any()
            assert prefixes.holds(limit) or not used.any()
            held += bool(used.any())
            left_out += not prefixes.holds(limit)
            assert prefixes.bound_ms(0.5, limit) <= limit
            assert used.any() <= prefixes.holds(limit)
    assert held > 40 and left_out > 40


def check_part(part: Part) -> bool:
    """Bounds and numbers of layers of a part against all its plans; whether any plan fits."""
    prefixes, values, plans = Prefixes(part.capacity.places), [], []
    for order in part.orders():
        data = part.tables.data(part.choice, part.virtual_stages, order)
        fewest = fewest_layers(data)
        flat = [np.array(one).reshape(fewest.shape) for one in dealings(data.num_layers, fewest.ravel())]
        found = [choice for layers in flat for choice in choices(data, layers.tolist())]
        if found:
            values += objectives_ms(data, found).tolist()
            plans += [(order, np.array(choice.layers).sum(axis=1)) for choice in found]
    if not plans:
        return False
    best = min(values)
    assert prefixes.bound_ms(0.0, 2 * best) <= best * (1 + REL)
    for limit in (best * (1 + REL), 1.05 * best, 1.3 * best):
        fits = prefixes.fits(limit)
        assert prefixes.holds(limit)
        for value, (order, layers) in zip(values, plans, strict=True):
            if value <= limit:
                assert fits[list(order), range(len(order)), layers].all(), (part, order, layers)
    return True


def test_every_plan_below_a_limit_is_among_what_fits() -> None:
    assert sum(check_part(random_part(seed)) for seed in range(12)) > 4


@pytest.mark.slow
def test_plans_of_two_hundred_parts_are_among_what_fits() -> None:
    assert sum(check_part(random_part(seed)) for seed in range(1000, 1200)) > 60


def test_too_many_numbers_of_stages_are_left_alone() -> None:
    least = np.zeros((5, 16, 3))
    sixteen = np.full(5, 16)
    many = Prefixes(Places(least, least[:, :, 0], np.zeros((5, 5)), np.zeros(5, int), sixteen, least))
    assert not many.is_small and many.holds(-1.0) and many.fits(-1.0).all()
    assert many.bound_ms(1.0, 2.0) < 1.1


def test_what_follows_the_pipeline_in_every_plan_counts_on_all_stages() -> None:
    fewer = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        places = random_places(rng)
        limit, follow = float(rng.uniform(1.0, 6.0)), float(rng.uniform(0.5, 1.5))
        longer = replace(places, least_ms=places.least_ms + np.maximum(follow - places.follow_ms, 0.0))
        found = Prefixes(places).fits(limit, follow)
        assert np.array_equal(found, Prefixes(longer).fits(limit)), seed
        fewer += int(found.sum() < Prefixes(places).fits(limit).sum())
    assert fewer > 10
