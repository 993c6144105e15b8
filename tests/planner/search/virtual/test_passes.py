"""Least passes over stages outside a window: the least over all pipelines that hold all layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from formulations.interleaved_windows import Passes, passes
from planner.search.virtual import passes as virtual_passes
from planner.search.virtual.passes import LeastPasses
from planner.search.virtual.sums import LayerSums
from planner.search.virtual.ways import Ways

STAGES, LAYERS, CHUNKS = 4, 9, 2


def as_one(found: Passes) -> np.ndarray:
    """All passes, [pass, window]."""
    after = np.broadcast_to(found.after, (1, found.forward.shape[1]))
    return np.concatenate([found.forward, found.backward, after, found.first, found.last, found.both])


def random_ways(rng: np.random.Generator) -> Ways:
    """A few ways of one stage."""
    number = 4
    return Ways(
        of_class=rng.integers(2, size=number),
        layers=rng.integers(1, 5, size=number),
        forward_ms=1 + rng.random((number, CHUNKS)),
        backward_ms=1 + rng.random((number, CHUNKS)),
        follow_ms=np.zeros(number),
        reduction_ms=np.zeros(number),
    )


@pytest.mark.parametrize("with_sends", [False, True])
def test_passes_are_no_longer_than_those_of_any_plan_and_as_long_as_one(with_sends: bool) -> None:
    rng, met, near = np.random.default_rng(5), 0, 0
    for _ in range(6):
        hop = 3 * rng.random((2, 2)) * with_sends
        fewest, most = np.array([1, 0]), np.array([3, 2])
        ways = [random_ways(rng) for _ in range(STAGES)]
        least = LeastPasses(LayerSums(fewest, most, STAGES, LAYERS), ways, hop)
        for s, width in ((0, 1), (1, 1), (1, 2), (3, 1), (0, 4), (2, 2)):
            window = slice(s, s + width)
            best: dict[tuple[tuple[int, ...], int], np.ndarray] = {}
            for picks in product(range(4), repeat=STAGES):
                chosen = [one.only(np.array([i])) for one, i in zip(ways, picks, strict=True)]
                classes = [int(one.of_class[0]) for one in chosen]
                counts, layers = np.bincount(classes, minlength=2), [int(one.layers[0]) for one in chosen]
                if sum(layers) != LAYERS or (counts < fewest).any() or (counts > most).any():
                    continue
                forward, backward = (
                    np.concatenate([getattr(one, name) for one in chosen])
                    for name in ("forward_ms", "backward_ms")
                )
                one = passes(s, s + width - 1, forward, backward, hop[classes, np.roll(classes, -1)])
                values = as_one(one)[:, 0]
                key = tuple(classes[window]), sum(layers[window])
                best[key] = np.minimum(best.get(key, values), values)
            for (classes_of, held), values in best.items():
                found = least.of_windows(s, np.array([classes_of]), np.array([held]))
                alone = as_one(found)[:, 0]
                # A window of the same classes in another order may leave others more.
                assert (alone <= values + 1e-12).all()
                # Works and sends are the least of different plans, of which the numbers of classes agree.
                if len(set(classes_of)) == 1:
                    assert with_sends or np.allclose(alone, values)
                    near += int((alone >= 0.9 * values).all())
                    met += 1
    assert met > 30 and near > met / 2


def test_reductions_of_the_stages_before_end_no_sooner_than_those_of_any_plan() -> None:
    """A window of the second or third stage: what comes after its last backward."""
    rng, shares = np.random.default_rng(8), []
    for _ in range(12):
        hop = rng.random((2, 2))
        fewest, most = np.array([1, 0]), np.array([3, 2])
        ways = [replace(random_ways(rng), reduction_ms=6 * rng.random(4)) for _ in range(STAGES)]
        least = LeastPasses(LayerSums(fewest, most, STAGES, LAYERS), ways, hop)
        for s in (1, 2):
            best: dict[tuple[int, int], np.ndarray] = {}
            for picks in product(range(4), repeat=STAGES):
                chosen = [one.only(np.array([i])) for one, i in zip(ways, picks, strict=True)]
                classes = [int(one.of_class[0]) for one in chosen]
                counts = np.bincount(classes, minlength=2)
                if sum(int(one.layers[0]) for one in chosen) != LAYERS or (counts < fewest).any():
                    continue
                if (counts > most).any():
                    continue
                after = 0.0
                for i, one in enumerate(chosen[:s]):
                    last = float(one.backward_ms[0, 0])
                    after = hop[classes[i], classes[i + 1]] + last + max(float(one.reduction_ms[0]), after)
                key = classes[s], int(chosen[s].layers[0])
                forward, backward = (
                    np.concatenate([getattr(one, name) for one in chosen])
                    for name in ("forward_ms", "backward_ms")
                )
                before = passes(s, s, forward, backward, hop[classes, np.roll(classes, -1)])
                ends = after + np.append(0.0, before.last[:, 0] - before.after)
                ends = np.append(ends, ends + before.first[-1])
                best[key] = np.minimum(best.get(key, np.inf), ends)
            for (c, n), ends in best.items():
                one = least.of_windows(s, np.array([[c]]), np.array([n]))
                found = np.concatenate([one.after, one.last[:, 0], one.both[:, 0]])
                assert (found <= ends * (1 + 1e-12)).all()
                shares.append(found / ends)
    assert len(shares) > 30 and (np.mean(shares, axis=0) > 0.9).all() and np.max(shares) > 0.999


def test_windows_that_no_plan_has_have_no_pass() -> None:
    rng = np.random.default_rng(6)
    ways = [random_ways(rng) for _ in range(STAGES)]
    least = LeastPasses(LayerSums(np.array([0, 0]), np.array([4, 4]), STAGES, LAYERS), ways, np.ones((2, 2)))
    found = least.of_windows(1, np.array([[0], [0]]), np.array([LAYERS, LAYERS + 5]))
    assert np.isinf(found.forward).all()
    assert np.isinf(found.after).all()


def test_many_windows_at_once_have_the_passes_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    ways = [random_ways(rng) for _ in range(STAGES)]
    least = LeastPasses(LayerSums(np.array([0, 0]), np.array([4, 4]), STAGES, LAYERS), ways, np.ones((2, 2)))
    classes, layers = rng.integers(2, size=(40, 2)), rng.integers(2, 9, size=40)

    alone = [as_one(least.of_windows(1, *one)) for one in zip(classes[:, None], layers[:, None], strict=True)]
    assert np.isfinite(alone).any() and len(np.unique(alone, axis=0)) > 5
    assert np.array_equal(as_one(least.of_windows(1, classes, layers)), np.concatenate(alone, axis=1))
    monkeypatch.setattr(virtual_passes, "MOST_KEYS", 0)
    assert np.array_equal(as_one(least.of_windows(1, classes, layers)), np.concatenate(alone, axis=1))
