"""What splits with a run of layers take at least is no more than any of them takes."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from formulations.layer_partition_data import LayerPartitionData, least_bottleneck, objective_ms, stages_of
from formulations.layer_partition_paths import least_behind_ms, least_of_orders_ms, least_through_ms
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
        if np.isfinite(best).any():
            assert np.isfinite(said[np.isfinite(best)]).all()
            shares.append(said[0].min() / best[0].min())
    assert 0.85 < np.mean(shares) < 1


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


@pytest.mark.parametrize("seed", range(6))
def test_no_split_of_any_order_is_below_what_is_said_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, counts, m = 6, (2, 1, 1), int(rng.integers(1, 10))
    run = np.arange(layers + 1)[None, :] - np.arange(layers + 1)[:, None]
    table = rng.uniform(0.8, 1.2, (4, 4, 3, *run.shape)) * np.array([1.0, 1.5, 2.5])[:, None, None]
    forward, backward = np.where((run > 0) & (run <= 4), table[:2] * run, np.inf)
    reduction, follow = 0.3 * table[2:]
    values = []
    for order in set(permutations((0, 0, 1, 2))):
        of = [array[np.arange(4), order] for array in (forward, backward, reduction, follow)]
        data = LayerPartitionData(m, *of, np.zeros(4), np.zeros(4), 0.0)
        values.append(best_through_ms(data)[0].min())
        assert least_of_orders_ms(m, forward, backward, counts) <= values[-1]
    said = least_of_orders_ms(m, forward, backward, counts)
    assert said == pytest.approx(min(values), rel=0.25)
    assert said + least_behind_ms(np.isfinite(forward), reduction, follow) <= min(values) * (1 + 1e-9)
    assert least_of_orders_ms(m, np.where(run == 4, forward, np.inf), backward, counts) == np.inf
