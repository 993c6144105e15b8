"""Orders of classes become better by changes of places."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from formulations.layer_partition_data import LayerPartitionData, objective_ms
from planner.search import driver
from planner.search.partition import splits
from planner.search.partition.openings import PartitionOpener
from planner.search.partition.order_moves import climbed
from tests.planner.search.partition.test_openings import interleaved

LAYERS = 8


def data_of(order: tuple[int, ...]) -> LayerPartitionData:
    """Layers of rising length on two classes, one twice as fast; ends of different classes pay for it."""
    until = np.concatenate([[0.0], np.cumsum(np.arange(1, LAYERS + 1) ** 0.5)])
    run = until[None, :] - until[:, None]
    times = np.where(run > 0, run, np.inf) * np.array([1.0, 2.0])[list(order)][:, None, None]
    zero, hops = np.zeros_like(times), np.append(np.where(np.diff(order) != 0, 0.5, 0.1), 0.0)
    constant_ms = 40.0 if order[0] != order[-1] else 0.0
    return LayerPartitionData(6, times, 2 * times, zero, zero, hops, np.zeros(len(order)), constant_ms)


@pytest.mark.parametrize("begin", [(0, 0, 1, 1), (1, 1, 0, 0)])
def test_a_climb_ends_at_the_best_order_that_is_allowed(begin: tuple[int, ...]) -> None:
    cuts = list(combinations(range(1, LAYERS), 3))
    orders = sorted(set(permutations(begin)))
    best = {order: min(objective_ms(data_of(order), cut) for cut in cuts) for order in orders}
    found, at = climbed(data_of, lambda _: True, begin, (2, 4, 6))
    assert objective_ms(data_of(found), at) == pytest.approx(min(best.values()))
    assert best[found] == min(best.values()) < best[begin]
    kept, at = climbed(data_of, lambda order: order == begin, begin, (2, 4, 6))
    assert (kept, at) == (begin, (2, 4, 6))
    looks: list[bool] = []

    def is_up() -> bool:
        looks.append(True)
        return True

    climbed(data_of, lambda _: True, begin, (2, 4, 6), is_up)
    assert len(looks) == 1


def test_the_search_climbs_from_better_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each better plan once, and its order is tried for other degrees."""
    begun: list[tuple[int, tuple[int, ...]]] = []

    def climb(self: PartitionOpener, choice: int, order: tuple[int, ...], _: object) -> tuple[int, ...]:
        begun.append((choice, order))
        return order

    monkeypatch.setattr(PartitionOpener, "_climb", climb)
    search = driver.Search(interleaved(14), None)
    search.run()
    opener = search.opener
    assert isinstance(opener, PartitionOpener) and begun
    assert opener.climbed == {len(order): order for _, order in begun}
    # Of splits far above the best plans no layers are moved.
    moved: list[bool] = []
    monkeypatch.setattr(splits, "improved", lambda data, cuts: moved.append(True) or (cuts, np.inf))
    for far, times in ((splits.FAR, 1), (0.9, 1)):
        monkeypatch.setattr(splits, "FAR", far)
        opener.try_order(*begun[-1])
        assert len(moved) == times
