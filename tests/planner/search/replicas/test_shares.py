"""Bounds by whole pipelines against brute force over small mixes."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.replicas import shares as shares_module
from planner.search.replicas.shares import Shares
from planner.units import MS
from tests.planner.search.replicas.test_mixes import all_pipelines, best_pair_s, mixes_of, small_problem

FEW_BOXES, MOST_BOXES = 2000, 6000
"""Boxes up to which times are looked at that are too late for any to close them, and others. Each box that is
looked at may be bounded wrongly; with more of them the same ones are cut finer."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", (0, 2, 3))
def test_no_pair_of_whole_pipelines_is_done_before_the_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to times far beyond the best pair and just beyond it, and whenever the search is cut short."""
    problem = small_problem(seed)
    best_s = best_pair_s(problem)
    mixes = mixes_of(problem)
    fractional_s = mixes.improve(2 * best_s)
    for most_s, most_boxes in ((best_s * (1 + 1e-6), MOST_BOXES), (2 * best_s, FEW_BOXES)):
        monkeypatch.setattr(shares_module, "MOST_BOXES", most_boxes)
        for looks in (5, 40, 100_000):
            left = iter(range(looks))
            shares = Shares(mixes.pricing, lambda left=left: next(left, None) is None)  # type: ignore[misc]
            most_ms = most_s / MS - mixes.exchange_ms
            bound_ms = shares.improve(mixes.best_price, mixes.bound_ms, most_ms)
            assert mixes.bound_ms <= bound_ms <= (best_s * (1 + 1e-9)) / MS - mixes.exchange_ms
    assert mixes.improve_whole(2 * best_s) >= fractional_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", (4, 12))
def test_whole_pipelines_are_done_later_than_fractions(seed: int) -> None:
    mixes = mixes_of(small_problem(seed))
    fractional_s = mixes.improve(1.0)
    most_s = 1.004 * fractional_s
    most_ms = most_s / MS - mixes.exchange_ms
    whole_ms = Shares(mixes.pricing).improve(mixes.best_price, mixes.bound_ms, most_ms)
    assert (whole_ms + mixes.exchange_ms) * MS > fractional_s * 1.003
    assert mixes.improve_whole(most_s) > fractional_s * 1.003


@pytest.mark.slow
@pytest.mark.parametrize("seed", (0, 4))
def test_no_pipeline_gains_more_than_its_share_is_said_to(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At random prices and deadlines, with the boxes refined as a search refines them."""
    monkeypatch.setattr(shares_module, "MOST_BOXES", FEW_BOXES)
    random = np.random.default_rng(seed)
    problem = small_problem(seed)
    mixes, pipelines = mixes_of(problem), all_pipelines(problem)
    batch = problem.workload.global_batch_size
    ends_ms = np.array([timed.ends_s[-1] / MS for timed in pipelines])
    compared = 0
    for _ in range(4):
        price = random.uniform(0.1, 1.0, 2)
        price *= batch / float(price @ mixes.available)
        deadline_ms = float(random.uniform(0.3, 1.0) * np.median(ends_ms))
        shares = Shares(mixes.pricing)
        shares.improve(price, deadline_ms * 0.999, deadline_ms)
        for leaves in shares.leaves:
            gain, share, _ = leaves.gains(np.arange(len(leaves.worth)), deadline_ms)
            most = np.full(batch + 1, -np.inf)
            np.maximum.at(most, share, gain)
            for timed in pipelines:
                sequences = timed.plan.data_parallel * timed.plan.microbatch_size
                for m, end_s in enumerate(timed.ends_s, 1):
                    n = m * sequences
                    if n < batch and (end_s + timed.tail_s + timed.beyond_s) / MS <= deadline_ms:
                        compared += 1
                        assert n - float(leaves.price @ np.array(timed.chips)) <= most[n] + 1e-9 * batch
    assert compared > 100
