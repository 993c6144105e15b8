"""Labels say of all splits of all orders what the rows of each say, and no more than any of them takes."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from formulations.layer_partition_groups import GroupCosts
from formulations.layer_partition_labels import LOSS, GroupLabels
from formulations.layer_partition_prices import Path, row_names
from formulations.written_rows import row_coefficients
from tests.formulations.test_layer_partition_groups import LAYERS, best_of, costs_of, made_up

MOST = (2, 2, 2)


def splits(costs: GroupCosts, group: tuple[int, ...]) -> list[Path]:
    """Every split of every order of a group that fits."""
    p, classes, found = costs.num_stages, [c for c, count in enumerate(group) for _ in range(count)], []
    for order in sorted(set(permutations(classes))):
        for cuts in combinations(range(1, LAYERS), p - 1):
            edges = (0, *cuts, LAYERS)
            path = [(s, order[s], edges[s + 1] - edges[s], edges[s + 1]) for s in range(p)]
            if all(at[2] < costs.forward.shape[2] and np.isfinite(costs.forward[at]) for at in path):
                found.append(path)
    return found


def by_rows_ms(costs: GroupCosts, path: Path) -> float:
    """What the rows of a split say, with its sends put in, and what follows."""
    p, m, at = costs.num_stages, costs.num_microbatches, tuple(np.array(path).T)
    send = np.zeros(p) if costs.sends is None else costs.sends[at[:2]] / 2
    forward, backward, rows = costs.forward[at], costs.backward[at], []
    for name in row_names(p, m):
        row, before = row_coefficients(name, p, m, send), slice(0, name.stage)
        if name.family != "flush":
            up = (forward + backward + 2 * send)[before].sum()
            rows.append(up + row.forward @ forward + row.backward @ backward + row.constant)
    return float(max(rows) + costs.reduction[path[0][1:]] + costs.follow[at].max())


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 20))]
)
@pytest.mark.parametrize("block", [False, True])
def test_no_split_of_any_group_is_below_what_labels_say(seed: int, block: bool) -> None:
    table, hop, m = made_up(seed)
    costs = costs_of(table, hop, m, MOST, block=block)
    labels = GroupLabels(costs)
    best = np.array([best_of(table, hop, m, group, block=block) for group in labels.counts])
    for share in (0.8, 0.95, 1.0, 1.3):
        limit = share * float(best.min())
        found = labels.least_ms(limit)
        assert found is not None
        assert (found.least_ms <= np.minimum(limit, best) * (1 + 1e-9)).all()
    assert found.path and found.least_ms.min() > 0.9 * best.min()


@pytest.mark.parametrize("seed", [2, 3, *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 20))])
def test_labels_say_all_that_rows_say_of_each_group(seed: int) -> None:
    table, hop, m = made_up(seed)
    costs = costs_of(table, hop, m, MOST, block=seed % 4 == 3)
    labels = GroupLabels(costs)
    rows = [{tuple(path): by_rows_ms(costs, path) for path in splits(costs, g)} for g in labels.counts]
    least = np.array([min(of_group.values(), default=np.inf) for of_group in rows])
    for limit in (1.5 * float(least.min()), 1.02 * float(least.min()), 0.9 * float(least.min())):
        found = labels.least_ms(limit)
        assert found is not None
        assert (found.least_ms <= np.minimum(least, limit) * (1 + 1e-9)).all()
        assert (found.least_ms >= np.minimum(least, limit) - LOSS * limit * (1 + 1e-9)).all()
        assert bool(found.path) == (least.min() < limit)
        if found.path:
            said = {path: value for of_group in rows for path, value in of_group.items()}
            assert least.min() <= said[tuple(found.path)] <= least.min() + LOSS * limit


def test_nothing_is_said_where_labels_are_too_many() -> None:
    table, hop, m = made_up(1)
    labels = GroupLabels(costs_of(table, hop, m, MOST, block=False))
    assert labels.least_ms(1e3, most_labels=20) is None
    assert labels.least_ms(1e3) is not None
