"""Centres of prices against sampling."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.replicas.aims import Row
from planner.search.replicas.centres import centre
from tests.planner.search.replicas.test_mixes import mixes_of, small_problem


def rows_around(random: np.random.Generator, inside: np.ndarray, number: int) -> np.ndarray:
    """Rows that a point keeps with little room, and most other points do not."""
    rows = random.uniform(0.0, 3.0, (number, len(inside)))
    return rows / (rows @ inside)[:, None] * random.uniform(1.01, 1.3, (number, 1))


@pytest.mark.parametrize("seed", range(5))
def test_no_point_has_more_room_than_the_centre(seed: int) -> None:
    """By the product of what rows and classes leave, at 20,000 points around it."""
    random = np.random.default_rng(seed)
    classes = int(random.integers(2, 7))
    inside, middle = random.dirichlet(np.ones(classes)), random.dirichlet(np.ones(classes))
    rows = rows_around(random, inside, int(random.integers(0, 25)))
    found = centre(rows, inside, middle)
    assert found.min() > 0 and found.sum() == pytest.approx(1.0)
    assert (rows @ found).min(initial=np.inf) > 1

    def room(points: np.ndarray) -> np.ndarray:
        slack = np.hstack([points @ rows.T - 1, points])
        return np.where((slack > 0).all(axis=1), np.log(np.maximum(slack, 1e-300)).sum(axis=1), -np.inf)

    near = found * np.exp(random.normal(0, random.choice([0.01, 0.1, 1.0], (20_000, 1)), (20_000, classes)))
    near /= near.sum(axis=1, keepdims=True)
    assert np.isfinite(room(near)).sum() > 100
    assert room(near).max() <= room(found[None])[0] + 1e-6


def test_a_point_at_the_rim_is_enough_to_begin_with() -> None:
    """A program's corner has numbers that are 0."""
    found = centre(np.array([[2.0, 0.5, 0.5]]), np.array([1.0, 0.0, 0.0]), np.full(3, 1 / 3))
    assert found.min() > 0.05 and found[1] == pytest.approx(found[2])


def test_a_row_through_the_centre_leaves_about_half_of_the_prices() -> None:
    """Of samples that keep all rows so far: the corner that a program gives is beyond nearly none of them."""
    random = np.random.default_rng(1)
    inside = np.array([0.4, 0.3, 0.2, 0.1])
    rows = rows_around(random, inside, 6)
    points = random.dirichlet(np.ones(4), 200_000)
    points = points[(points @ rows.T).min(axis=1) >= 1]
    middle = centre(rows, inside, np.full(4, 0.25))
    for direction in random.normal(0, 1, (50, 4)):
        above = float((points @ direction > middle @ direction).mean())
        assert 0.15 < above < 0.85


def test_prices_amid_rows_keep_them_all_and_none_are_left_where_rows_ask_for_too_much() -> None:
    """Worth the batch in all; by hand, a row that asks of all chips to do twice the batch."""
    mixes = mixes_of(small_problem(0))
    chips, batch = tuple(float(n) for n in mixes.available), float(mixes.batch)
    rows = [Row((chips[0], 0.0), 0.3 * batch), Row((0.0, chips[1]), 0.2 * batch)]
    prices, worth = mixes._middle(0.0, rows)
    assert worth == pytest.approx(0.5 * batch) and float(prices @ mixes.available) == pytest.approx(batch)
    shares = prices * mixes.available / batch
    # (x / 0.3 - 1) x (y / 0.2 - 1) y is greatest there.
    assert shares[0] + shares[1] == pytest.approx(1.0)
    x = np.linspace(0.3001, 0.7999, 5000)
    best = x[np.argmax((x / 0.3 - 1) * x * ((1 - x) / 0.2 - 1) * (1 - x))]
    assert shares[0] == pytest.approx(best, abs=1e-3)
    assert mixes._middle(0.0, [*rows, Row(chips, 2 * batch)])[1] >= batch
    assert mixes._middle(0.0, [])[1] == 0.0


def test_a_corner_that_rounding_put_beyond_a_row_stays_as_it_is() -> None:
    """From there on the way led to prices below nothing."""
    rows, corner = np.array([[1.0, 0.5], [0.2, 3.0]]), np.array([1.0 - 1e-9, 0.0])
    assert centre(rows, corner, np.full(2, 0.5)).tolist() == corner.tolist()
