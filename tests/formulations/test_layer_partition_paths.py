"""What splits with a run of layers take at least is no more than any of them takes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from formulations.layer_partition_data import LayerPartitionData, least_bottleneck, objective_ms, stages_of
from formulations.layer_partition_paths import least_ms, least_through_ms
from tests.formulations.test_layer_partition import partition_data, random_data


def best_through_ms(data: LayerPartitionData) -> np.ndarray:
    """The least objective of the splits with each run, [stage, first, end], by trying all."""
    least = np.full(data.forward_ms.shape, np.inf)
    for cuts in combinations(range(1, data.num_layers), data.num_stages - 1):
        value = objective_ms(data, cuts)
        for s, (first, end) in enumerate(stages_of(cuts, data.num_layers)):
            least[s, first, end] = min(least[s, first, end], value)
    return least


@pytest.mark.parametrize("first", [0, *(pytest.param(20 * k, marks=pytest.mark.slow) for k in range(1, 10))])
def test_no_split_is_below_what_is_said_of_any_of_its_runs(first: int) -> None:
    shares = []
    for seed in range(first, first + 20):
        data = random_data(seed)
        said, best = least_through_ms(data), best_through_ms(data)
        assert (said <= best * (1 + 1e-9)).all(), seed
        assert least_ms(data) <= said[0].min() * (1 + 1e-9)
        if np.isfinite(best).any():
            assert np.isfinite(said[np.isfinite(best)]).all()
            shares.append((said[0].min() / best[0].min(), least_ms(data) / best[0].min()))
    assert np.min(np.mean(shares, axis=0)) > 0.85 and np.max(np.mean(shares, axis=0)) < 1


def test_it_says_all_of_even_stages_and_more_than_the_slowest_stage() -> None:
    even = partition_data(np.ones(8), np.ones(4), 6)
    assert least_through_ms(even)[0, 0, 2] == pytest.approx(objective_ms(even, (2, 4, 6)))
    uneven = partition_data(np.ones(8), np.array([1.0, 1.0, 1.0, 2.0]), 6)
    slowest_ms = uneven.num_microbatches * least_bottleneck(uneven)[0]
    assert least_through_ms(uneven)[0].min() == pytest.approx(best_through_ms(uneven)[0].min())
    assert best_through_ms(uneven)[0].min() > 1.1 * slowest_ms


def test_a_run_that_no_split_has_is_infinite() -> None:
    said = least_through_ms(partition_data(np.ones(8), np.ones(4), 6, most=2.5))
    assert np.isfinite(said[1, 2, 4]) and np.isinf(said[1, 2, 3]) and np.isinf(said[0, 1, 2])
