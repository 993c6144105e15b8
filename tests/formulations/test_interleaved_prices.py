"""Prices of longest paths: no dealing ends before they say, and the best ones say when the best one ends."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from formulations.interleaved_paths import PathRow, longest_paths, stage_ends
from formulations.interleaved_prices import OrderedLayers, best_weights, mean_weights


def random_layers(rng: np.random.Generator, p: int, v: int) -> OrderedLayers:
    """Stages that differ, some of which recompute."""
    return OrderedLayers(
        forward_ms=rng.uniform(1, 3, p),
        backward_ms=rng.uniform(1, 5, p),
        base_forward_ms=rng.uniform(1, 4, (p, v)),
        base_backward_ms=rng.uniform(1, 6, (p, v)),
        more=rng.integers(0, 4, p).astype(np.float64),
        extra_ms=rng.uniform(0, 3, p) * rng.integers(0, 2, p),
        send_ms=rng.uniform(0, 2, p),
    )


def ends_ms(one: OrderedLayers, layers: np.ndarray, extra_ms: np.ndarray, m: int) -> np.ndarray:
    """End of stage 0 of dealings [dealing, stage, chunk]."""
    forward, backward = (
        np.array(times)
        for times in zip(*(one.dealt(*both) for both in zip(layers, extra_ms, strict=True)), strict=True)
    )
    send = np.tile(one.send_ms, (len(layers), 1))
    ends: np.ndarray = stage_ends(forward, backward, send, m)[:, 0]
    return ends


def random_dealings(rng: np.random.Generator, total: np.ndarray, v: int, number: int) -> np.ndarray:
    """Shares of each stage's total on its chunks, some in whole, [dealing, stage, chunk]."""
    shares = rng.dirichlet(np.full(v, 0.5), size=(number, len(total)))
    shares[: number // 2] = np.eye(v)[rng.integers(v, size=(number // 2, len(total)))]
    dealt: np.ndarray = shares * total[:, None]
    return dealt


@pytest.mark.parametrize(("p", "v", "groups"), [(2, 2, 1), (2, 3, 3), (3, 2, 2), (4, 3, 2)])
def test_no_dealing_ends_before_any_weights_say(p: int, v: int, groups: int) -> None:
    rng, near = np.random.default_rng(p + v), 0.0
    for _ in range(20):
        one, m = random_layers(rng, p, v), p * groups
        layers, extra = (random_dealings(rng, total, v, 60) for total in (one.more, one.extra_ms))
        ends = ends_ms(one, layers, extra, m)
        rows: list[PathRow] = []
        for both in zip(layers[:4], extra[:4], strict=True):
            rows += longest_paths(*one.dealt(*both), one.send_ms, m, [0])
        for weights in (np.eye(4)[0], rng.random(4), rng.dirichlet(np.full(4, 0.3))):
            found = mean_weights(rows, weights.tolist())
            assert found.bound_ms(one) <= ends.min() * (1 + 1e-12)
        limit = 1.5 * ends.min()
        best = best_weights(one, m, rows, limit).weights.bound_ms(one)
        assert best <= ends.min() * (1 + 1e-12)
        near = max(near, best / ends.min())
    assert near > 0.95


@pytest.mark.slow
def test_best_weights_reach_the_end_of_the_best_dealing_in_fractions() -> None:
    rng = np.random.default_rng(8)
    share = np.linspace(0, 1, 81)
    reached = 0
    for _ in range(12):
        one = random_layers(rng, 2, 2)
        one.extra_ms[:] = 0.0
        parts = np.array(list(product(share, repeat=2)))
        layers = np.stack([parts, 1 - parts], axis=2) * one.more[:, None]
        least = ends_ms(one, layers, np.zeros_like(layers), 6).min()
        rows: list[PathRow] = []
        for near in (0.98, 0.995):
            weights = best_weights(one, 6, rows, near * least).weights
            assert weights.bound_ms(one) >= near * least * (1 - 1e-3)
            reached += weights.bound_ms(one) >= near * least
        even = best_weights(one, 6, rows[:0], 1.5 * least)
        assert even.weights.bound_ms(one) <= least * (1 + 1e-12)
    assert reached > 20


def test_rows_that_hold_the_answer_stand_last() -> None:
    one = random_layers(np.random.default_rng(4), 3, 2)
    rows: list[PathRow] = []
    limit = float(stage_ends(*(times[None] for times in one.evenly()), one.send_ms[None], 6)[0, 0])
    found = best_weights(one, 6, rows, 0.999 * limit)
    again = best_weights(one, 6, rows, 0.999 * limit)
    assert again.rounds <= found.rounds
    assert mean_weights(rows[-1:], [2.0]).bound_ms(one) == pytest.approx(
        mean_weights(rows[-1:], [1.0]).bound_ms(one)
    )


def test_known_rows_enter_once_the_answer_violates_them() -> None:
    """Those that are needed stand first here, behind more that are not than a program begins with."""
    rng, spared = np.random.default_rng(9), 0
    for _ in range(6):
        one, m = random_layers(rng, 4, 3), 12
        others = [
            row
            for both in zip(*(random_dealings(rng, t, 3, 20) for t in (one.more, one.extra_ms)), strict=True)
            for row in longest_paths(*one.dealt(*both), one.send_ms, m, [0])
        ]
        rows: list[PathRow] = []
        limit = float(stage_ends(*(times[None] for times in one.evenly()), one.send_ms[None], m)[0, 0])
        for _ in range(6):  # down to where no dealing ends before, and weights hardly say more
            limit = min(limit, best_weights(one, m, [], limit).weights.bound_ms(one) * (1 + 1e-4))
        found = best_weights(one, m, rows, limit)
        again = best_weights(one, m, known := rows + others, limit)
        assert again.weights.bound_ms(one) >= found.weights.bound_ms(one) * (1 - 2e-4)
        assert again.rounds <= 2 and len(known) <= len(rows) + len(others) + 2
        spared += found.rounds - again.rounds
    assert spared > 6
