"""Weights of rows bound every split of every order, and the best ones say most of them."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from formulations.layer_partition_data import LayerPartitionData, objective_ms, stages_of
from formulations.layer_partition_groups import GroupCosts, by_length
from formulations.layer_partition_prices import PricedOrders, Weights, shortest_path

LAYERS = 6


def made_up(seed: int) -> tuple[GroupCosts, np.ndarray]:
    """Four stages on three classes whose times differ up to fourfold; not every run fits.

    By lengths, and forward, backward, reduction of stage 0 and follow-up by first layer and end.
    """
    rng = np.random.default_rng(seed)
    run = np.arange(LAYERS + 1)[None, :] - np.arange(LAYERS + 1)[:, None]
    table = rng.uniform(0.7, 1.3, (4, 4, 3, *run.shape)) * np.array([1.0, 1.5, 2.5])[:, None, None]
    forward, backward = np.where((run > 0) & (run <= 4), table[:2] * np.maximum(run, 0), np.inf)
    table[2, 1:] = 0.0
    table = np.stack([forward, backward, table[2], 0.5 * table[3]])
    lengths = by_length(table, 4)
    return GroupCosts(int(rng.integers(1, 12)), *lengths[:2], lengths[2, 0], lengths[3], (2, 1, 1)), table


def best_of_all_ms(m: int, table: np.ndarray, low_ms: float = 0.0, high_ms: float = np.inf) -> float:
    """The least objective over all orders and splits whose slowest stage lies between two times."""
    values = [np.inf]
    for order in set(permutations((0, 0, 1, 2))):
        one = LayerPartitionData(m, *table[:, np.arange(4), order], np.zeros(4), np.zeros(4), 0.0)
        times = one.forward_ms + one.backward_ms
        for cuts in combinations(range(1, LAYERS), 3):
            slowest = max(times[s, a, e] for s, (a, e) in enumerate(stages_of(cuts, LAYERS)))
            if low_ms <= slowest <= high_ms:
                values.append(objective_ms(one, cuts))
    return min(values)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 60))]
)
def test_no_split_of_any_order_is_below_what_weights_say(seed: int) -> None:
    (costs, table), rng = made_up(seed), np.random.default_rng(seed)
    m = costs.num_microbatches
    priced, least_ms = PricedOrders(costs), best_of_all_ms(m, table)
    for _ in range(20):
        weights = Weights(rng.dirichlet(np.full(len(priced.forward), 0.1)), rng.dirichlet(np.full(4, 0.1)))
        assert priced.shortest(weights)[0] <= least_ms * (1 + 1e-9)
    found = [priced.best(share * least_ms) for share in (0.8, 0.85, 0.9, 0.95, 0.99)]
    found_ms, best = max(found, key=lambda one: one[0])
    assert 0.8 * least_ms <= found_ms <= least_ms * (1 + 1e-9)
    assert found_ms == priced.shortest(best)[0]
    even = Weights(*(np.full(k, 1 / k) for k in (len(best.rows), 4)))
    assert priced.shortest(even)[0] < found_ms
    assert priced.best(0.9 * found_ms, best)[0] == found_ms  # they are asked first


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 40))]
)
def test_pieces_of_the_slowest_stage_have_bounds_of_their_own(seed: int) -> None:
    costs, table = made_up(seed)
    m = costs.num_microbatches
    priced, least_ms = PricedOrders(costs), best_of_all_ms(m, table)
    slowest = np.unique(priced.times[np.isfinite(priced.times)])
    together = []
    for low_ms, high_ms in zip(slowest[:-1:40], slowest[40::40], strict=False):
        inside_ms = best_of_all_ms(m, table, low_ms, high_ms)
        for share in (0.9, 1.0, 1.3):
            value_ms, _ = priced.best(share * least_ms, None, low_ms, high_ms)
            assert value_ms <= inside_ms * (1 + 1e-9)
        most_ms, _ = priced.best(10 * least_ms, None, low_ms, high_ms, to_the_end=True)
        assert value_ms <= most_ms * (1 + 1e-3) <= inside_ms * (1 + 2e-3)
    for share in (0.8, 0.9, 0.95, 1.0, 1.1):
        value_ms, _ = priced.best_in_pieces(share * least_ms, float(slowest[0]), float(slowest[-1]))
        assert value_ms <= max(share, 1 + 1e-9) * least_ms
        together.append(value_ms / least_ms)
    assert max(together) > 0.9


def test_the_likeliest_split_that_was_met_promises_what_it_takes_at_least() -> None:
    costs, table = made_up(3)
    priced = PricedOrders(costs)
    priced.best(0.99 * best_of_all_ms(costs.num_microbatches, table))
    promised_ms, path = priced.promised
    order, cuts = tuple(c for _, c, _, _ in path), tuple(end for _, _, _, end in path[:-1])
    one = LayerPartitionData(
        costs.num_microbatches, *table[:, np.arange(4), order], np.zeros(4), np.zeros(4), 0.0
    )
    assert 0.8 * objective_ms(one, cuts) <= promised_ms <= objective_ms(one, cuts) * (1 + 1e-9)


def test_a_shortest_path_is_that_of_all_orders_and_splits() -> None:
    costs, table = made_up(3)
    slow = table[0] > np.median(table[0][np.isfinite(table[0])])
    sums, with_slow = {}, {}
    for order in set(permutations((0, 0, 1, 2))):
        for cuts in combinations(range(1, LAYERS), 3):
            runs = [(s, order[s], a, e) for s, (a, e) in enumerate(stages_of(cuts, LAYERS))]
            sums[order, cuts] = sum(table[0][at] for at in runs)
            if any(slow[at] for at in runs):
                with_slow[order, cuts] = sums[order, cuts]
    for among, runs in ((sums, None), (with_slow, by_length(np.where(slow, 1.0, np.nan), 4) == 1.0)):
        value, path = shortest_path(costs.forward, costs, runs)
        order, cuts = min(among, key=lambda at: among[at])
        assert value == pytest.approx(among[order, cuts])
        assert path == [(s, order[s], e - a, e) for s, (a, e) in enumerate(stages_of(cuts, LAYERS))]
    assert min(with_slow.values()) > min(sums.values())
    assert shortest_path(np.full_like(costs.forward, np.inf), costs) == (np.inf, [])
