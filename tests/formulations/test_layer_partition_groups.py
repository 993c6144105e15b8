"""What all splits of all orders take at least is no more than any of them takes, for each group."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from formulations.layer_partition_data import LayerPartitionData, objective_ms
from formulations.layer_partition_groups import (
    WIDEST,
    GroupCosts,
    GroupPaths,
    by_length,
    least_slowest_ms,
    taken_together,
    ways_to_use,
)

LAYERS = 6
SEEDS = [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 80))]


def made_up(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Forward, backward, reduction, follow-up of four stages on three classes that differ up to twofold, of
    which some runs do not fit; hops between two classes; micro-batches."""
    rng = np.random.default_rng(seed)
    run = np.arange(LAYERS + 1)[None, :] - np.arange(LAYERS + 1)[:, None]
    table = rng.uniform(0.8, 1.2, (4, 4, 3, *run.shape)) * np.array([1.0, 1.4, 2.0])[:, None, None]
    table[:2] *= np.where((run > 0) & (run <= rng.integers(2, 5)), run, np.inf)
    table[2:] *= 0.3
    return table, rng.uniform(0.0, 0.4, (3, 3)), int(rng.integers(1, 11))


def costs_of(table: np.ndarray, hop: np.ndarray, m: int, most: tuple[int, ...], *, block: bool) -> GroupCosts:
    forward, backward, reduction, follow = by_length(table, LAYERS - 3)
    there, back = np.zeros((2, 4, 3))
    there[:-1], back[1:] = hop.min(axis=1), hop.min(axis=0)
    more = np.zeros((4, 3))
    more[:-1] += hop.max(axis=1) - hop.min(axis=1)
    more[1:] += hop.max(axis=0) - hop.min(axis=0)
    if not block:
        return GroupCosts(m, forward, backward, reduction[0], follow, most, sends=2 * there)
    forward, backward = forward + there[:, :, None, None], backward + back[:, :, None, None]
    return GroupCosts(m, forward, backward, reduction[0], follow, most, slack=more)


def best_of(table: np.ndarray, hop: np.ndarray, m: int, group: tuple[int, ...], *, block: bool) -> float:
    """The least objective of a group, by trying all orders and splits."""
    values, classes = [np.inf], [c for c, count in enumerate(group) for _ in range(count)]
    for order in sorted(set(permutations(classes))):
        forward, backward, reduction, follow = table[:, np.arange(4), order]
        hops = np.append(hop[order[:-1], order[1:]], 0.0)
        if block:
            forward = forward + hops[:, None, None]
            backward = backward + np.append(0.0, hops[:-1])[:, None, None]
            hops = np.zeros(4)
        one = LayerPartitionData(m, forward, backward, reduction, follow, hops, np.zeros(4), 0.0)
        values += [objective_ms(one, cuts) for cuts in combinations(range(1, LAYERS), 3)]
    return min(values)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", [False, True])
def test_no_split_of_any_group_is_below_what_is_said_of_it(seed: int, block: bool) -> None:
    table, hop, m = made_up(seed)
    paths = GroupPaths(costs_of(table, hop, m, (2, 2, 2), block=block))
    best = np.array([best_of(table, hop, m, group, block=block) for group in paths.counts])
    assert np.isfinite(best).any()
    said = paths.least_ms(np.inf)
    assert (said <= best * (1 + 1e-9)).all()
    assert np.array_equal(np.isfinite(said), np.isfinite(best))
    for share in (0.6, 0.9, 1.0, 1.2):
        limit = share * float(best.min())
        said = paths.least_ms(limit)
        assert (said <= np.maximum(limit, best * (1 + 1e-9))).all()
        assert (said <= best * (1 + 1e-9))[best <= limit].all()
    said = paths.least_ms(1.2 * float(best.min()))
    assert said.min() > 0.75 * best.min()
    # Cut short it says less, and nothing that is not so.
    hurried = GroupPaths(paths.costs, is_up=lambda: True).least_ms(1.2 * float(best.min()))
    assert (hurried <= said).all() and np.isfinite(hurried[np.isfinite(said)]).all() and (hurried > 0).all()


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 20))])
@pytest.mark.parametrize("block", [False, True])
def test_no_split_is_below_what_is_said_of_classes_taken_together(seed: int, block: bool) -> None:
    table, hop, m = made_up(seed)
    costs, together = costs_of(table, hop, m, (2, 2, 2), block=block), ((0, 2), (1,))
    paths, (_, groups) = GroupPaths(taken_together(costs, together)), ways_to_use((2, 2, 2), 4)
    apart = GroupPaths(costs)
    best = [best_of(table, hop, m, group, block=block) for group in groups]
    for limit in (share * min(best) for share in (0.8, 1.0, 1.3)):
        said = dict(zip(paths.counts, paths.least_ms(limit).tolist(), strict=True))
        for group, least in zip(groups, best, strict=True):
            known = said[group[0] + group[2], group[1]]
            assert known <= max(limit, least * (1 + 1e-9)) and (limit < least or known <= least * (1 + 1e-9))
        # Where the slowest stage may lie is handed on to the classes apart, whose bounds stay true.
        least = paths.least_ms(limit, WIDEST)
        assert (least <= limit).all()
        closer = apart.least_ms(limit, within_ms=paths.open_ms)
        assert (closer <= np.maximum(limit, np.array(best) * (1 + 1e-9))).all()
        assert (closer <= np.array(best) * (1 + 1e-9))[np.array(best) <= limit].all()
    assert min(said.values()) > 0.4 * min(best)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 12])
def test_it_says_all_of_even_stages(m: int) -> None:
    """Whichever is said to be the slowest, those in front too, which run all forwards first."""
    run = np.arange(9)[None, :] - np.arange(9)[:, None]
    forward = np.where(run > 0, np.maximum(run, 0.0), np.inf)[None, None].repeat(4, axis=0)
    zero, group = np.zeros_like(forward), (4,)
    costs = GroupCosts(
        m, *by_length(np.stack([forward, 2 * forward, zero]))[:2], by_length(zero)[0], by_length(zero), group
    )
    said = GroupPaths(costs).least_ms(1e3)[0]
    data = LayerPartitionData(
        m, forward[:, 0], 2 * forward[:, 0], zero[:, 0], zero[:, 0], np.zeros(4), np.zeros(4), 0.0
    )
    even = objective_ms(data, (2, 4, 6))
    assert even == pytest.approx((m + 3) * 6)
    assert said == pytest.approx(even)


@pytest.mark.parametrize("m", [5, 6, 7, 9])
def test_it_says_all_of_a_first_stage_that_never_waits(m: int) -> None:
    """What lies behind it takes as long as the forwards that it runs meanwhile, or it is alone."""
    run = np.where(np.arange(5)[None, :] - np.arange(5)[:, None] == 1, 1.0, np.inf)
    for share, layers in ((np.array([1.0, 1 / 3, 1 / 3, 1 / 3]), 4), (np.ones(1), 1)):
        once = (share[:, None, None] * run[: layers + 1, : layers + 1])[:, None]
        zero, p = np.zeros_like(once), len(share)
        tables = by_length(np.stack([once, 2 * once, zero]))
        costs = GroupCosts(m, *tables[:2], tables[2, 0], tables[2], (p,))
        of_order = once[:, 0], 2 * once[:, 0], zero[:, 0], zero[:, 0], np.zeros(p), np.zeros(p), 0.0
        assert objective_ms(LayerPartitionData(m, *of_order), tuple(range(1, p))) == pytest.approx(3 * m)
        assert GroupPaths(costs).least_ms(1e3)[0] == pytest.approx(3 * m)


def test_it_knows_the_least_slowest_stage_of_each_group() -> None:
    table, hop, m = made_up(1)
    costs = costs_of(table, np.zeros_like(hop), m, (2, 2, 2), block=True)
    times, (_, groups) = table[0] + table[1], ways_to_use((2, 2, 2), 4)
    assert len(groups) == 6
    for group, said in zip(groups, least_slowest_ms(costs), strict=True):
        classes = [c for c, count in enumerate(group) for _ in range(count)]
        slowest = [
            max(
                times[s, c, a, e]
                for s, (c, a, e) in enumerate(zip(order, (0, *cuts), (*cuts, LAYERS), strict=True))
            )
            for order in set(permutations(classes))
            for cuts in combinations(range(1, LAYERS), 3)
        ]
        assert said == pytest.approx(min(slowest))
