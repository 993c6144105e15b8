"""Sums of layers by numbers of stages of each class: those of all pipelines, and no others."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planner.search.virtual.sums import LayerSums, Sums, joined, meet


def bits(sums: Sums) -> list[set[int]]:
    """Sums by numbers of stages."""
    return [
        {64 * w + b for w, word in enumerate(row) for b in range(64) if int(word) >> b & 1} for row in sums
    ]


@pytest.mark.parametrize("num_layers", [5, 64, 130])
def test_sums_from_either_end_meet_where_pipelines_have_all_layers(num_layers: int) -> None:
    rng = np.random.default_rng(num_layers)
    p, fewest, most = 4, np.array([1, 0]), np.array([2, 3])
    sums = LayerSums(fewest, most, p, num_layers)
    of_class = rng.integers(2, size=(p, 3))
    layers = rng.integers(num_layers // 2 + 1, size=(p, 3))
    behind, reached = sums.nothing[None], []
    for s in range(p):
        reached.append(sums.behind(s, behind.repeat(3, axis=0), of_class[s], layers[s]))
        behind = joined(reached[s], np.zeros(3, dtype=np.int64), 1)
    ahead, leads = sums.all[None].repeat(3, axis=0), []
    for s in range(p - 1, -1, -1):
        leads.append(meet(reached[s], ahead))
        back = sums.before(s, ahead, of_class[s], layers[s])
        ahead = joined(back, np.zeros(3, dtype=np.int64), 1).repeat(3, axis=0)
    expected = np.zeros((p, 3), dtype=np.bool_)
    for picks in product(range(3), repeat=p):
        counts = np.bincount([of_class[s, i] for s, i in enumerate(picks)], minlength=2)
        held = sum(int(layers[s, i]) for s, i in enumerate(picks))
        if held == num_layers and (counts >= fewest).all() and (counts <= most).all():
            expected[np.arange(p), list(picks)] = True
    assert (np.array(leads[::-1]) == expected).all()


def test_sums_pass_from_word_to_word() -> None:
    sums = LayerSums(np.array([0]), np.array([3]), 3, 200)
    zero = np.zeros(1, dtype=np.int64)
    at = sums.nothing[None]
    for s, n in enumerate((60, 70, 70)):
        at = sums.behind(s, at, zero, np.array([n]))
    assert bits(at[0]) == [{200}]
    assert meet(at, sums.all[None]).all()
    for s, n in zip((2, 1, 0), (70, 70, 60), strict=True):
        at = sums.before(s, at, zero, np.array([n]))
    assert bits(at[0]) == [{0}]
