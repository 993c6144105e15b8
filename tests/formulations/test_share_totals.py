"""The most that pipelines gain beside one of each share, against all partitions of small batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from formulations.share_totals import most_beside


def partitions(total: int, most: int) -> Iterator[tuple[int, ...]]:
    """Falling numbers of 1 or more that are a total together."""
    if total == 0:
        yield ()
    for first in range(min(total, most), 0, -1):
        for others in partitions(total - first, first):
            yield first, *others


@pytest.mark.parametrize("seed", range(10))
def test_the_others_gain_what_the_best_partition_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    batch = int(random.integers(2, 12))
    gains = np.where(random.random(batch + 1) < 0.3, -np.inf, random.normal(size=batch + 1))
    best = np.full(batch + 1, -np.inf)
    for parts in partitions(batch, batch):
        for n in set(parts) if len(parts) > 1 else ():
            best[n] = max(best[n], sum(gains[list(parts)]))
    totals = gains + most_beside(gains)
    assert totals[1:batch] == pytest.approx(best[1:batch])


def test_one_pipeline_alone_is_no_mix() -> None:
    assert most_beside(np.array([0.0, -np.inf, -np.inf, 5.0])).max() == -np.inf
