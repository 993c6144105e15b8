"""Classes taken together: the bound never exceeds that of the classes apart, nor the best plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from formulations import virtual_classes
from formulations.options import SolveOptions
from formulations.virtual_classes_data import VirtualClassesData
from formulations.virtual_classes_merged import alike, merged
from tests.formulations.interleaved_instances import Part, random_part
from tests.formulations.test_virtual_classes import best_of_part


def bound_ms(data: VirtualClassesData, *, integral: bool, whole_chunks: bool = False) -> float:
    """Bound of a program solved to the end, without rows (path), which only relaxations look for."""
    options = SolveOptions(gap=1e-9)
    found = virtual_classes.solve(data, options, integral=integral, whole_chunks=whole_chunks, rounds=0)
    return found.bound_ms


def check(part: Part) -> bool:
    """Classes as one, chunks whole or not, against the classes apart and brute force; whether it differs."""
    best = best_of_part(part)
    if not np.isfinite(best):
        return False
    data = part.data(1.2 * best)
    groups = alike(data, np.inf)
    together = merged(data, groups)
    relaxed, one_class, apart = (
        bound_ms(one, integral=whole) for one, whole in ((together, False), (together, True), (data, True))
    )
    whole_together, whole = (bound_ms(one, integral=True, whole_chunks=True) for one in (together, data))
    tolerance = 1 + 1e-6
    assert relaxed <= one_class * tolerance, part
    assert one_class <= min(apart, whole_together) * tolerance, part
    assert max(apart, whole_together) <= whole * tolerance, part
    assert whole <= best * tolerance, part
    with_paths = virtual_classes.solve(
        data, SolveOptions(gap=1e-9), integral=True, whole_chunks=True, rounds=12
    )
    assert whole <= with_paths.bound_ms * tolerance and with_paths.bound_ms <= best * tolerance, part
    return bool(groups) and one_class < apart * (1 - 1e-6)


@pytest.mark.slow
def test_classes_taken_together_bound_every_order_of_them() -> None:
    assert sum(check(random_part(seed)) for seed in range(24)) >= 3


@pytest.mark.slow
def test_classes_taken_together_bound_two_hundred_parts() -> None:
    assert sum(check(random_part(seed)) for seed in range(100, 300)) >= 20


def two_classes() -> VirtualClassesData:
    """A part of two classes that differ."""
    for seed in range(100):
        data = random_part(seed).data(1e9)
        if len(data.classes) == 2 and alike(data, np.inf):
            return data
    raise AssertionError("unreachable")


def test_only_classes_that_are_much_alike_are_taken_together() -> None:
    data = two_classes()
    one, other = data.classes
    stage = data.classes[one].stage
    same = replace(data, classes={**data.classes, other: data.classes[one]})
    slower = replace(data.classes[one], stage=replace(stage, forward_ms=stage.forward_ms * 1.1))
    near = replace(data, classes={**data.classes, other: slower})
    assert alike(same, 0.0) == [(one, other)]
    assert alike(near, 0.1) == [(one, other)] and alike(near, 1e-4) == []
    assert alike(same, -1.0) == [], "the switch"


def test_classes_whose_layers_hold_other_memory_stay_apart() -> None:
    data = two_classes()
    one, other = data.classes
    heavier = replace(data.classes[one], kept_gib=data.classes[one].kept_gib * 2)
    assert alike(replace(data, classes={**data.classes, other: heavier}), np.inf) == []
