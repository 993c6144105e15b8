"""What follows the pipeline in every plan below a limit: never more than in any of them."""

from __future__ import annotations

import numpy as np
import pytest

from formulations.virtual_selection_data import choices, objective_ms
from formulations.virtual_selection_tables import fewest_layers
from planner.search.virtual.follow import below
from planner.search.virtual.prefixes import Prefixes
from tests.formulations.interleaved_instances import Part, random_part
from tests.formulations.test_virtual_classes import dealings


def check(part: Part) -> tuple[int, int]:
    """Limits at which no plan below adds less, and those at which the least is more than any stage's own."""
    follows = part.classes.times.follow_ms
    plans: list[tuple[float, float, tuple[int, ...], list[int]]] = []
    for order in part.orders():
        data = part.tables.data(part.choice, part.virtual_stages, order)
        fewest = fewest_layers(data)
        for dealt in dealings(data.num_layers, fewest.ravel()):
            layers = np.array(dealt).reshape(fewest.shape)
            totals = layers.sum(axis=1).tolist()
            follow = max(float(follows[c, s, n]) for s, (c, n) in enumerate(zip(order, totals, strict=True)))
            plans += [
                (objective_ms(data, one), follow, order, totals) for one in choices(data, layers.tolist())
            ]
    if not plans:
        return 0, 0
    best, met, raised = min(plans)[0], 0, 0
    for limit in (best * (1 + 1e-9), 1.05 * best, 1.3 * best, 3 * best):
        fits, follow_ms = below(part.capacity, Prefixes(part.capacity.places), limit)
        some = [one for one in plans if one[0] <= limit]
        assert all(follow_ms <= one[1] * (1 + 1e-9) for one in some), limit
        for _, _, order, totals in some:
            assert all(fits[c, s, n] for s, (c, n) in enumerate(zip(order, totals, strict=True)))
        met += 1
        raised += follow_ms > float(follows[fits].min())
    return met, raised


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(100, 250), marks=pytest.mark.slow)])
def test_no_plan_below_a_limit_adds_less_than_the_least_nor_holds_what_does_not_fit(seeds: range) -> None:
    found = [check(random_part(seed)) for seed in seeds]
    assert sum(met for met, _ in found) > len(seeds) and sum(raised for _, raised in found) > 5
