"""Tables, capacity and program over classes: never above what the best dealing of any order reaches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from formulations import virtual_classes
from formulations.interleaved_paths import PathRow
from formulations.options import SolveOptions
from formulations.virtual_classes_data import most_saved
from formulations.virtual_selection_data import (
    VirtualChoice,
    VirtualSelectionData,
    Ways,
    choices,
    objectives_ms,
    pieces_ms,
    recomputations,
)
from formulations.virtual_selection_tables import (
    dealt_table,
    fewest_layers,
    least_reduction_ms,
    reduction_ms,
    step_by_layers,
)
from planner.search.virtual.capacity import VirtualLimits, most_layers
from tests.formulations.interleaved_instances import Part, random_interleaved, random_part
from tests.formulations.test_virtual_selection import awkward

REL = 1e-9


def dealings(total: int, fewest: np.ndarray) -> Iterator[list[int]]:
    """Every way to deal layers to chunks that hold their fewest."""
    left, chunks = total - int(fewest.sum()), len(fewest)
    for cuts in itertools.combinations(range(left + chunks - 1), chunks - 1):
        more = np.diff([-1, *cuts, left + chunks - 1]) - 1
        yield (fewest + more).tolist()


def best_of_order(data: VirtualSelectionData) -> float:
    """The least objective over all dealings of an order [ms]; inf where none fits."""
    fewest = fewest_layers(data)
    flat = [np.array(one).reshape(fewest.shape) for one in dealings(data.num_layers, fewest.ravel())]
    ways: Ways = {}
    found = [choice for layers in flat for choice in choices(data, layers.tolist(), ways)]
    return float(objectives_ms(data, found).min()) if found else float("inf")


@cache
def best_of_part(part: Part) -> float:
    """The same over all orders of a part; many tests ask for those of the same parts."""
    orders = part.orders()
    values = [best_of_order(part.tables.data(part.choice, part.virtual_stages, order)) for order in orders]
    return min(values, default=float("inf"))


def check_table(data: VirtualSelectionData) -> int:
    """No dealing of any stage recomputes less than the table; how many entries the best dealing reaches.

    Of a plan: where the other stages have their fewest layers at least.
    """
    table, reached = dealt_table(data), 0
    base = data.base_ms()[1].sum(axis=1)
    least = fewest_layers(data).sum(axis=1)
    assert np.isinf(table.times_ms[:, data.num_layers - int(least.sum() - least.max()) + 1 :]).all()
    for s, fewest in enumerate(fewest_layers(data)):
        for n in range(int(fewest.sum()), data.num_layers - int(least.sum() - least[s]) + 1):
            ways = [way for counts in dealings(n, fewest) for way in recomputations(data, s, counts)]
            best = min((sum(way.extra_ms) for way in ways), default=float("inf"))
            extra = float(table.backward_ms[s, n] - data.stage.backward_ms[s] * n - base[s])
            assert extra <= best + 1e-9, (s, n)
            reached += extra >= best - 1e-9
    return reached


def test_no_dealing_recomputes_less_than_the_table() -> None:
    assert sum(check_table(random_interleaved(seed)) for seed in range(20)) > 100


@pytest.mark.slow
def test_recomputation_saves_no_more_in_its_time_than_the_rate_says() -> None:
    """Of every stage, dealing and moment, by either kind of recomputation; equal to it somewhere."""
    shares = []
    for seed, room in itertools.product(range(100, 124), (1.0, 0.8, 0.6)):
        data = awkward(seed)
        kinds = ("full",) if seed % 4 else data.kinds
        data = replace(data, limit_gib=room * data.limit_gib, kinds=kinds)
        kept, some, whole = data.lead_kept_gib
        for s, fewest in enumerate(fewest_layers(data)):
            lead = int(data.stage.lead[s])
            main = float(data.kept_gib[s] - data.kept_full_gib[s])
            part = float(data.kept_gib[s] - data.kept_selective_gib[s])
            for counts in dealings(int(fewest.sum()) + 1, fewest):
                n = np.array(counts, dtype=np.float64)
                for way, held in itertools.product(recomputations(data, s, counts), data.moments[s]):
                    if way.kind == "none":
                        continue
                    full, first = way.kind == "full", min(way.layers, lead)
                    layers = way.layers * (n > 0) if full else n
                    saved = (main if full else part) * float(layers @ held)
                    saved += held[0] * (
                        first * (kept - whole - main) if full else lead * (kept - some - part)
                    )
                    most = most_saved(data, s, held) * sum(way.extra_ms)
                    assert saved <= most * (1 + 1e-9) + 1e-12
                    shares.append(saved / most if most else 1.0)
    assert len(shares) > 40 and max(shares) > 0.99


def any_recomputation(data: VirtualSelectionData, counts: list[int]) -> list[tuple[str, int]]:
    """All that a stage may recompute, needed or not."""
    found = [("none", 0)] + [("selective", 0)] * ("selective" in data.kinds)
    most = min(n for n in counts if n) if any(counts) and "full" in data.kinds else 0
    return found + [("full", layers) for layers in range(1, most + 1)]


def test_no_recomputation_leaves_less_to_reduce_than_the_tables_say() -> None:
    """Of every stage and dealing, by what fits and by what is more than it takes; some are as little."""
    near = 0
    for seed in range(30):
        part = random_part(seed)
        for c, data in part.classes.data.items():
            table = part.classes.tables[c]
            own, least = reduction_ms(data, table), least_reduction_ms(data, table)
            fewest, m = fewest_layers(data), data.stage.num_microbatches
            for s, n in np.argwhere(np.isfinite(table.backward_ms)).tolist():
                for counts in dealings(n, fewest[s]):
                    needed = recomputations(data, s, counts)
                    for kind, layers in any_recomputation(data, counts) if needed else ():
                        one = VirtualChoice(
                            (tuple(counts),) * len(fewest), (kind,) * len(fewest), (layers,) * len(fewest)
                        )
                        pieces = pieces_ms(data, [one])
                        rest, backward = pieces.reduction[0, s], float(pieces.backward[0, s].sum())
                        assert rest >= least[s, n] * (1 - REL) - REL, (seed, c, s, counts, kind)
                        if backward >= float(table.backward_ms[s, n]) * (1 - REL):
                            with_own = m * float(table.backward_ms[s, n]) + own[s, n]
                            assert m * backward + rest >= with_own * (1 - REL), (seed, c, s, counts, kind)
                        near += (
                            rest <= least[s, n] * (1 + 1e-6)
                            and least[s, n] > 1.01 * data.stage.reduce_tail_ms[s]
                        )
    assert near > 0


def check_part(part: Part) -> bool:
    """Bounds of all orders of a part against brute force; whether any of its plans fits."""
    best = best_of_part(part)
    if not np.isfinite(best):
        return False
    assert part.capacity.holds(best * (1 + REL)), part
    assert part.capacity.bound_ms(0.0, 2 * best) <= best * (1 + REL), part
    for limit in (best * (1 + REL), 1.1 * best, 1.5 * best, 3 * best):
        assert part.capacity.raised_ms(0.0, limit) <= best * (1 + REL), (part, limit)
    rows: tuple[PathRow, ...] = ()
    for cutoff in (10 * best, 1.3 * best, best * (1 + REL)):
        data = part.data(cutoff)
        without = virtual_classes.solve(data, SolveOptions(), integral=False, rounds=0)
        relaxed = virtual_classes.solve(data, SolveOptions(), integral=False, rows=rows)
        rows = relaxed.rows
        whole = virtual_classes.solve(data, SolveOptions(), integral=True, rows=rows)
        assert without.bound_ms * (1 - 1e-6) <= relaxed.bound_ms <= best * (1 + 1e-6), (part, cutoff)
        assert whole.bound_ms <= best * (1 + 1e-6), (part, cutoff)
    return True


def test_bounds_of_a_part_hold_for_every_order_and_dealing() -> None:
    assert sum(check_part(random_part(seed)) for seed in range(6)) > 2


@pytest.mark.slow
def test_bounds_of_three_hundred_parts_hold() -> None:
    assert sum(check_part(random_part(seed)) for seed in range(100, 400)) > 80


def with_counts_of_an_order(seed: int) -> Part | None:
    """A part in which each class has the stages that it has in one of its orders; None without orders."""
    part = random_part(seed)
    if not (orders := part.orders()):
        return None
    order = orders[seed % len(orders)]
    counts = tuple(order.count(c) for c in range(len(part.limits.most)))
    return replace(part, limits=VirtualLimits(counts, counts, part.limits.prefix))


@pytest.mark.parametrize(
    "seeds", [range(4), *(pytest.param(one, marks=pytest.mark.slow) for one in (range(14), range(100, 300)))]
)
def test_bounds_of_parts_with_so_many_stages_of_each_class_hold(seeds: range) -> None:
    found = [part for seed in seeds if (part := with_counts_of_an_order(seed)) is not None]
    checked = [part for part in found if check_part(part)]
    assert sum(min(part.limits.fewest) > 0 for part in checked) > len(seeds) / 8


@pytest.mark.slow
def test_paths_cut_off_dealings_that_cost_between_the_two_ends() -> None:
    """Relaxations once dealt layers so that no stage waited at its ends, as if the rest cost nothing."""
    gains = []
    for seed in range(12):
        part = random_part(seed)
        data = part.data(1e9)
        if data.fits.any(axis=(0, 2)).all():
            without, with_paths = (
                virtual_classes.solve(data, SolveOptions(), integral=False, rounds=rounds)
                for rounds in (0, virtual_classes.MAX_ROUNDS)
            )
            if np.isfinite(without.bound_ms):
                gains.append(with_paths.bound_ms / without.bound_ms)
    assert min(gains) > 1 - 1e-6 and max(gains) > 1.001


@pytest.mark.slow
def test_a_stage_takes_no_less_than_its_layers_say() -> None:
    for seed in range(15):
        data = random_interleaved(seed)
        values, fewest = step_by_layers(data, dealt_table(data)), fewest_layers(data)
        for layers in itertools.islice(dealings(data.num_layers, fewest.ravel()), 40):
            dealt = np.array(layers).reshape(fewest.shape)
            found = list(choices(data, dealt.tolist()))
            if found:
                least = values[np.arange(data.num_stages), dealt.sum(axis=1)].max()
                assert least <= objectives_ms(data, found).min() * (1 + REL)


def test_most_layers_is_no_less_than_the_best_assignment() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        classes, stages = int(rng.integers(1, 4)), int(rng.integers(2, 6))
        layers = rng.integers(0, 20, (classes, stages)).astype(float)
        most = rng.integers(1, stages + 1, classes)
        fewest = rng.integers(0, 2, classes)
        totals = [
            layers[list(order), np.arange(stages)].sum()
            for order in itertools.product(range(classes), repeat=stages)
            if all(
                low <= order.count(c) <= high for c, (low, high) in enumerate(zip(fewest, most, strict=True))
            )
        ]
        found = most_layers(np.stack([layers, layers + 1]), fewest, most)
        walked = float(most_layers(layers, fewest, most, 20))
        assert walked <= found[0]
        if totals:
            assert found[0] >= max(totals)
            assert walked >= max(totals) * (1 - REL)
        if classes == 2:
            expected = max(totals, default=-np.inf)
            assert found.tolist() == [expected, expected + stages]
