"""What no plan has is left out of what pipelines hold, and nothing else: against all pipelines one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planner.cost.prices import Floats
from planner.search.meshes.brackets import EXCESS, FOLLOW, PACE, SLOWEST, Brackets
from planner.search.meshes.holding import Holding
from planner.search.meshes.walks import MeshWalks
from planner.search.meshes.ways import most_covering
from planner.search.meshes.windows import leave_out, windows_of
from tests.planner.search.meshes.test_holding import events_ms, opener_of, rows_ms, walks_of
from tests.random_problems import random_problem, with_deferred_sends

TICKS, BRACKETS = 200, 4


def pipelines_of(walks: MeshWalks, lengths: list[int], shapes: list[int]) -> list[tuple[int, Floats, float]]:
    """Layers, shares and step of all pipelines of some shapes [ms]."""
    found = []
    for p in lengths:
        for order in itertools.product(shapes, repeat=p):
            for layers in itertools.product(range(1, walks.num_layers + 1), repeat=p):
                rows, follows, _ = rows_ms(walks, order, layers)
                if np.isfinite(rows).all():
                    end, _ = events_ms(walks, order, layers)
                    taken = walks.shares.taken[list(order)].sum(axis=0).astype(np.float64)
                    found.append((sum(layers), taken, end + max(follows)))
    return found


@pytest.mark.parametrize(
    ("seed", "deferred"),
    [
        (6, True),
        (7, False),
        *(pytest.param(s, s % 2 == 0, marks=pytest.mark.slow) for s in (8, 9, 10, 11, 13, 14, 16)),
    ],
)
def test_only_what_no_plan_has_is_left_out(seed: int, deferred: bool) -> None:
    """What holds enough at some prices is held at others, also in parts of a row and in other ticks."""
    problem = random_problem(seed, most_layers=4).model_copy(update={"target": "flagscale"})
    opener = opener_of(with_deferred_sends(problem) if deferred else problem)
    rng, checked = np.random.default_rng(seed), 0
    for number in rng.permutation(list(opener.longest))[:3].tolist():
        lengths = list(range(1, min(opener.longest[number], 3) + 1))
        walks = walks_of(opener, number, lengths)
        shapes = rng.permutation(len(walks.batch.shapes))[:3].tolist()
        walks.allowed = np.isin(np.arange(len(walks.batch.shapes)), shapes)[None].repeat(len(lengths), axis=0)
        pipelines = pipelines_of(walks, lengths, shapes)
        if len(pipelines) < 2:
            continue
        limit = float(np.quantile([step for _, _, step in pipelines], 0.7))
        within = [(layers, taken) for layers, taken, step in pipelines if step <= limit]
        edges = np.linspace(0.0, limit, BRACKETS + 1)
        holding = Holding(walks, limit, Brackets.of_sums(edges[:-1], edges[1:]), limit / TICKS)
        first, then = rng.random((2, len(walks.shares.room))) / 4
        worth = np.array([layers - taken @ first for layers, taken in within])
        enough = float(np.quantile(worth, rng.choice([0.6, 0.97])))
        after = max(
            layers - float(taken @ then)
            for (layers, taken), one in zip(within, worth.tolist(), strict=True)
            if one >= enough
        )
        every, is_open = BRACKETS * [then], np.ones((len(lengths), BRACKETS), dtype=np.bool_)
        before = float(holding.held(np.array(every)).max())
        price = np.array(BRACKETS * [first])
        holding.held(price)
        leave_out(holding, price, is_open, enough - 1e-9 + float(first @ walks.shares.room))
        left = float(holding.held(np.array(every)).max())
        assert after - 1e-9 <= left <= before + 1e-9
        measure = rng.choice([FOLLOW, SLOWEST, EXCESS, PACE], size=BRACKETS)
        cut = holding.brackets.cut(measure, rng.random(BRACKETS) * limit / 3)
        windows = windows_of(holding).repeated(2)
        for ticks in (TICKS, 1.6 * TICKS, 0.7 * TICKS):
            parts = Holding(walks, limit, cut, limit / ticks, windows=windows)
            assert after - 1e-9 <= float(parts.held(np.array(2 * every)).max()), ticks
        # Where only one length is open no other is held.
        is_open[np.arange(len(lengths)) != rng.integers(len(lengths))] = False
        holding.held(price)
        leave_out(holding, price, is_open, -1e9)
        kept = is_open[:, 0]
        assert np.isneginf(holding.held(price)[~kept]).all()
        # What holds the most is left alone, and nothing where that is not enough.
        most, room = float(holding.held(price)[kept].max()), float(first @ walks.shares.room)
        leave_out(holding, price, is_open, most + room - 1e-9)
        assert float(holding.held(price)[kept].max()) == most
        leave_out(holding, price, is_open, most + room + 1e-9)
        assert holding.num_ways == 0 and np.isneginf(holding.held(price)).all()
        checked += 1
    assert checked > 0


def test_ticks_of_windows_hold_those_of_any_pipeline() -> None:
    """The last stages of a pipeline, counted in one tick and in another."""
    rng = np.random.default_rng(1)
    for _ in range(2000):
        whole, tick, other = rng.random(int(rng.integers(0, 6))), *(rng.random(2) / 5 + 0.01)
        count, new, q = (whole // tick).sum(), (whole // other).sum(), len(whole)
        assert count * tick / other - q <= new <= (count + q) * tick / other


def test_the_largest_worth_of_spans_that_hold_a_point() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.integers(37, size=(2, 60, 3))
    worth = rng.random((60, 3))
    found = most_covering(worth, low, high, 37)
    for row, point in np.ndindex(3, 37):
        holds = (low[:, row] <= point) & (point <= high[:, row])
        assert found[row, point] == worth[holds, row].max(initial=-np.inf)
    assert np.isneginf(most_covering(worth, high + 40, high, 37)).all()
