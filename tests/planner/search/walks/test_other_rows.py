"""Rows that walks go by, for one split of one order: none exceeds the pipeline run event by event."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.walks.chain import build_chain, count_nothing
from planner.search.walks.cheapest import Walks
from planner.search.walks.other_rows import LateWalks, OneSidedWalks, WeighedWalks
from planner.search.walks.tables import StageTables
from planner.simulate.pipeline import stage_ends_s


def row_and_step_ms(kind: type[Walks], rng: np.random.Generator) -> tuple[float, float]:
    """What a walk says of a layer a stage whose slowest stage is known, and the end of the last reduction."""
    p, m = int(rng.integers(1, 6)), int(rng.integers(1, 13))
    hop_ms = float(rng.choice([0.0, rng.uniform(0.0, 2.0)]))
    forward, backward = rng.uniform(1.0, 4.0, (2, p))
    reduce = rng.uniform(0.0, float(rng.choice([1.0, 4.0 * p])), p)
    # A layer on every stage: no other number fits.
    by_layers = np.zeros((5, 1, p, p + 1))
    by_layers[0] = np.inf
    by_layers[:, 0, :, 1] = forward + backward, np.maximum(forward, backward), backward, 0.0 * reduce, reduce
    chain = build_chain(np.full((1, 1), hop_ms), np.zeros(1), 8, (8,), 0, sends_block=False)
    slowest = np.array([(forward + backward).max()])
    most, zero = np.array([p]), np.zeros(1)
    given = StageTables(*by_layers), m, slowest, zero, most
    walks = kind(chain, count_nothing(p, chain), *given, sends_block=False)
    allowed = np.ones((1, p, 1), dtype=np.bool_)
    walk = walks.shortest(zero, np.zeros((1, 1)), slowest, slowest, allowed)
    hops = np.full((1, p), hop_ms)
    hops[0, -1] = 0.0
    ends = stage_ends_s(forward[None, :, None], backward[None, :, None], hops, m)
    return float(walk.length[0]), float((ends.reshape(p) + reduce).max())


@pytest.mark.parametrize("kind", [Walks, OneSidedWalks, WeighedWalks, LateWalks])
def test_no_row_of_a_split_exceeds_the_end_of_its_reductions(kind: type[Walks]) -> None:
    rng = np.random.default_rng(0)
    found = np.array([row_and_step_ms(kind, rng) for _ in range(300)])
    assert (found[:, 0] <= found[:, 1] * (1 + 1e-9)).all()
    assert (found[:, 0] > 0.98 * found[:, 1]).sum() > 8
