"""Cutting planes in boxes: the top of random concave functions, and how high they may still be."""

from __future__ import annotations

import numpy as np
import pulp
import pytest

from formulations import solvers
from formulations.box_planes import BoxPlanes, Floats
from formulations.options import SolveOptions

LOOKS = 80


def random_planes(seed: int, size: int) -> tuple[Floats, Floats]:
    """Slopes and heights of the planes of a function that falls off in every direction."""
    random = np.random.default_rng(seed)
    slopes = np.concatenate([random.normal(size=(30, size)), np.eye(size), -np.eye(size)])
    return slopes, np.concatenate([random.uniform(1, 3, 30), np.full(2 * size, 4.0)])


def top_of(slopes: Floats, heights: Floats, whole: tuple[int, ...]) -> float:
    """The same by a program over all planes at once."""
    model = pulp.LpProblem("top", pulp.LpMinimize)
    t = pulp.LpVariable("t")
    x = [pulp.LpVariable(f"x_{i}", None if i == 0 else 0.0, None) for i in range(slopes.shape[1])]
    model += -t
    for j, (slope, height) in enumerate(zip(slopes.tolist(), heights.tolist(), strict=True)):
        model += t - pulp.lpSum(g * one for g, one in zip(slope, x, strict=True)) <= height, f"plane_{j}"
    model += pulp.lpSum(x[k] for k in whole) <= 1, "whole"
    objective = solvers.solve(model, SolveOptions(gap=0.0)).objective
    assert objective is not None
    return -objective


@pytest.mark.parametrize("seed", range(4))
def test_looks_rise_to_the_top_and_never_promise_less(seed: int) -> None:
    slopes, heights = random_planes(seed, 5)
    planes, whole = BoxPlanes(np.ones(5), np.full(5, np.inf), ((2, 3),)), (2, 3)
    top, point = top_of(slopes, heights, whole), np.array([2.0, 3.0, 0.5, 0.5, 4.0])
    for _ in range(LOOKS):
        values = slopes @ point + heights
        lowest = int(np.argmin(values))
        point = planes.next_point(point, float(values[lowest]), slopes[lowest])
        assert (point[1:] >= 0).all() and point[2] + point[3] <= 1 + 1e-9
        assert planes.rise >= -1e-9
    assert planes.best == pytest.approx(top, rel=1e-6)
    assert planes.rise == pytest.approx(0.0, abs=1e-6)
