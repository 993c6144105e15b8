"""Pipelines in whole rooms against brute force over all mixes of two and more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from formulations.room_totals import most_together


def brute_force(most: np.ndarray) -> float:
    """By all multisets of two or more rooms that the chips hold."""
    rooms = [room for room in np.ndindex(*most.shape) if any(room) and np.isfinite(most[room])]
    best = -np.inf
    for number in range(2, sum(most.shape)):
        for mix in itertools.combinations_with_replacement(rooms, number):
            if all(sum(taken) < have for taken, have in zip(zip(*mix, strict=True), most.shape, strict=True)):
                best = max(best, sum(float(most[room]) for room in mix))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_rooms_hold_what_brute_force_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    most = np.where(random.random((4, 3)) < 0.5, random.integers(1, 20, (4, 3)).astype(float), -np.inf)
    assert most_together(most) == brute_force(most)


def test_one_pipeline_alone_is_no_mix() -> None:
    """By hand: all chips are one room; with half of them each, two pipelines run twice as much."""
    most = np.full(5, -np.inf)
    most[4] = 9.0
    assert most_together(most) == -np.inf
    most[2] = 3.0
    assert most_together(most) == 6.0
    most[1] = 2.0
    # Four of one chip beat two of two chips.
    assert most_together(most) == 8.0


def test_chips_that_stay_idle_cost_nothing() -> None:
    most = np.full((3, 3), -np.inf)
    most[1, 0] = 4.0
    most[0, 1] = 1.0
    assert most_together(most) == 10.0
    most[0, 1] = -np.inf
    assert most_together(most) == 8.0
