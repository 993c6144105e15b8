"""Weights of rows bound every split of every order, and the best ones say most of them."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from formulations.layer_partition_data import LayerPartitionData, objective_ms, stages_of
from formulations.layer_partition_prices import OrderCosts, PricedOrders, Weights, shortest_path

LAYERS = 6


def made_up(seed: int) -> OrderCosts:
    """Four stages on three classes whose times differ up to fourfold; not every run fits."""
    rng = np.random.default_rng(seed)
    run = np.arange(LAYERS + 1)[None, :] - np.arange(LAYERS + 1)[:, None]
    table = rng.uniform(0.7, 1.3, (4, 4, 3, *run.shape)) * np.array([1.0, 1.5, 2.5])[:, None, None]
    forward, backward = np.where((run > 0) & (run <= 4), table[:2] * np.maximum(run, 0), np.inf)
    return OrderCosts(int(rng.integers(1, 12)), forward, backward, table[2, 0], 0.5 * table[3], (2, 1, 1))


def best_of_all_ms(costs: OrderCosts) -> float:
    """The least objective over all orders and splits; only the first stage has a reduction."""
    values = []
    for order in set(permutations((0, 0, 1, 2))):
        forward, backward, follow = (
            array[np.arange(4), order] for array in (costs.forward, costs.backward, costs.follow)
        )
        reduction = np.zeros_like(forward)
        reduction[0] = costs.reduction[order[0]]
        one = LayerPartitionData(
            costs.num_microbatches, forward, backward, reduction, follow, np.zeros(4), np.zeros(4), 0.0
        )
        values += [objective_ms(one, cuts) for cuts in combinations(range(1, LAYERS), 3)]
    return min(values)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 60))]
)
def test_no_split_of_any_order_is_below_what_weights_say(seed: int) -> None:
    costs, rng = made_up(seed), np.random.default_rng(seed)
    priced, least_ms = PricedOrders(costs), best_of_all_ms(costs)
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


def test_a_shortest_path_is_that_of_all_orders_and_splits() -> None:
    costs = made_up(3).forward
    sums = {
        (order, cuts): sum(costs[s, order[s], a, e] for s, (a, e) in enumerate(stages_of(cuts, LAYERS)))
        for order in set(permutations((0, 0, 1, 2)))
        for cuts in combinations(range(1, LAYERS), 3)
    }
    value, path = shortest_path(costs, (2, 1, 1))
    order, cuts = min(sums, key=lambda at: sums[at])
    assert value == pytest.approx(sums[order, cuts])
    assert path == [(s, order[s], a, e) for s, (a, e) in enumerate(stages_of(cuts, LAYERS))]
    assert shortest_path(np.full_like(costs, np.inf), (2, 1, 1)) == (np.inf, [])
