"""Whole layers along the pipeline: no plan is ever given up, and limits below all plans are found out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from formulations.virtual_classes_merged import alike, merged
from formulations.virtual_selection_data import (
    VirtualChoice,
    choices,
    objective_ms,
    objectives_ms,
    pieces_ms,
    recomputations,
)
from formulations.virtual_selection_tables import fewest_layers
from planner.cost.prices import Bools
from planner.search.virtual import dealings as virtual_dealings
from planner.search.virtual.dealings import DealtPaths
from planner.search.virtual.ways import Spare, WayLists, Ways, compositions, taken_together
from tests.formulations.interleaved_instances import Part, random_part
from tests.formulations.test_virtual_classes import any_recomputation, best_of_part, dealings

REL = 1e-9
MOST = 10**12
Plan = tuple[float, tuple[int, ...], tuple[int, ...]]


def plans_of(part: Part) -> list[Plan]:
    """Steps of all plans of a part [ms], with their orders and the layers of their stages."""
    plans = []
    for order in part.orders():
        data = part.tables.data(part.choice, part.virtual_stages, order)
        fewest, known = fewest_layers(data), {}
        flat = [np.array(one).reshape(fewest.shape) for one in dealings(data.num_layers, fewest.ravel())]
        found = [one for layers in flat for one in choices(data, layers.tolist(), known)]
        totals = [tuple(map(sum, one.layers)) for one in found]
        values = objectives_ms(data, found).tolist() if found else []
        plans += [(value, order, layers) for value, layers in zip(values, totals, strict=True)]
    return plans


def paths(part: Part, limit_ms: float, lists: WayLists, most_rise: float = -1.0) -> DealtPaths | None:
    """Paths of a part, where classes that rise the rate by no more than a part are one."""
    data = part.data(limit_ms)
    ways = lists.of_part((part.choice, part.num_stages, part.virtual_stages), data)
    if ways is not None and (groups := alike(data, most_rise)):
        data, ways = merged(data, groups), taken_together(ways, groups)
    return None if ways is None else DealtPaths(data, ways, MOST)


def closed_above(part: Part, most_rise: float = -1.0) -> tuple[float, float] | None:
    """The best step of a part, and the largest limit that holds none, over it; None without plans."""
    best = best_of_part(part)
    if not np.isfinite(best) or part.sends_block:
        return None
    lists, closed = WayLists(), 0.0
    for share in (3.0, 1.2, 1.0 + REL, 0.999, 0.99, 0.97, 0.9):
        found = paths(part, best * share, lists, most_rise)
        if found is not None and not found.hold():
            assert share < 1, (part, share)
            closed = max(closed, share)
    return best, closed


def test_no_plan_is_given_up_and_many_limits_below_all_are_found_out() -> None:
    found = [one for seed in range(25) if (one := closed_above(random_part(seed)))]
    assert len(found) > 8
    assert sum(closed >= 0.97 for _, closed in found) > len(found) / 2


@pytest.mark.slow
def test_no_plan_of_three_hundred_parts_is_given_up() -> None:
    found = [one for seed in range(100, 400) if (one := closed_above(random_part(seed)))]
    assert len(found) > 60
    assert sum(closed >= 0.97 for _, closed in found) > len(found) / 2


def check_together(seeds: range) -> tuple[int, int]:
    """Parts of which limits are found out with classes as one, too, and ways that are spared."""
    closed = spared = 0
    for seed in seeds:
        part = random_part(seed)
        apart, together = closed_above(part), closed_above(part, np.inf)
        if apart is None or together is None or not alike(part.data(1.2 * apart[0]), np.inf):
            continue
        assert together[1] <= apart[1], seed
        closed += together[1] >= 0.9
        two = [paths(part, 1.1 * apart[0], WayLists(), rise) for rise in (-1.0, np.inf)]
        spared += sum(
            sign * len(way) for sign, one in zip((1, -1), two, strict=True) if one for way in one.ways
        )
    return closed, spared


@pytest.mark.slow
def test_no_plan_is_given_up_where_classes_are_taken_together() -> None:
    closed, spared = check_together(range(25))
    assert closed > 0 and spared > 0


@pytest.mark.slow
def test_no_plan_of_three_hundred_parts_is_given_up_where_classes_are_taken_together() -> None:
    closed, spared = check_together(range(100, 400))
    assert closed > 10 and spared > 100


def test_ways_that_are_nowhere_shorter_than_others_are_left_out() -> None:
    """Of three ways one is shorter but once, one longer throughout, and the last holds other layers."""
    forward = np.array([[2.0, 2.0], [1.0, 3.0], [2.0, 3.0], [9.0, 9.0], [2.0, 2.0]])
    ways = Ways(
        of_class=np.array([0, 1, 1, 1, 1]),
        layers=np.array([4, 4, 4, 5, 4]),
        forward_ms=forward,
        backward_ms=forward,
        follow_ms=np.ones(5),
        reduction_ms=np.ones(5),
    )
    assert taken_together([ways], [(0, 1)])[0].forward_ms.tolist() == forward[[0, 1, 3]].tolist()
    assert len(taken_together([ways], [])[0]) == 4, "other classes are others"
    slower = replace(ways, follow_ms=np.array([2.0, 1.0, 1.0, 1.0, 1.0]))
    assert taken_together([slower], [(0, 1)])[0].follow_ms.tolist() == [1.0, 1.0, 1.0]
    later = replace(ways, reduction_ms=np.array([2.0, 1.0, 1.0, 1.0, 1.0]))
    assert taken_together([later], [(0, 1)])[0].reduction_ms.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_what_is_left_of_the_layers_holds_the_best_plan_and_less_than_before() -> None:
    struck = 0
    for seed in range(45):
        part = random_part(seed)
        if part.sends_block:
            continue
        if not (plans := plans_of(part)):
            continue
        best, order, layers = min(plans)
        found = paths(part, 1.1 * best, WayLists())
        if found is not None and found.hold():
            assert found.fits[list(order), np.arange(len(order)), layers].all(), seed
            assert (found.data.fits | ~found.fits).all()
            struck += int(found.data.fits.sum() - found.fits.sum())
    assert struck > 20


@pytest.mark.slow
def test_windows_and_sums_of_layers_are_what_closes_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without windows (each takes nothing) fewer limits are found out: the rest is what stages hold."""

    def closed() -> list[float]:
        return [one[1] for seed in range(25) if (one := closed_above(random_part(seed)))]

    with_windows = closed()
    monkeypatch.setattr(
        virtual_dealings, "window_ends", lambda s, p, stages, *others: np.zeros(len(stages[0].forward))
    )
    without = closed()
    assert all(one >= other for one, other in zip(with_windows, without, strict=True))
    assert sum(with_windows) > sum(without)


def test_windows_of_all_stages_are_the_plans_below_the_limit() -> None:
    """Where windows have grown to the whole pipeline, those that are left are the plans below the limit."""
    left = 0
    for seed in range(14):
        part = random_part(seed)
        if part.sends_block:
            continue
        limit_ms = 1.05 * (closed_above(part) or (0.0, 0.0))[0]
        found = paths(part, limit_ms, WayLists()) if limit_ms else None
        if found is None or not found.hold():
            continue
        assert found.width == part.num_stages
        plans = set()
        for row in found.windows[0].ways:
            ways = list(zip(found.ways, row.tolist(), strict=True))
            order = tuple(int(one.of_class[i]) for one, i in ways)
            data = part.tables.data(part.choice, part.virtual_stages, order)
            base = data.base_ms()[0]
            layers = [
                np.rint((one.forward_ms[i] - base[s]) / data.stage.forward_ms[s]).astype(int).tolist()
                for s, (one, i) in enumerate(ways)
            ]
            assert sum(map(sum, layers)) == data.num_layers
            plans.add((order, tuple(map(tuple, layers))))
        expected = set()
        for order in part.orders():
            data = part.tables.data(part.choice, part.virtual_stages, order)
            fewest = fewest_layers(data)
            for dealt in dealings(data.num_layers, fewest.ravel()):
                layers = np.array(dealt).reshape(fewest.shape).tolist()
                if any(objective_ms(data, one) <= limit_ms for one in choices(data, layers)):
                    expected.add((tuple(order), tuple(map(tuple, layers))))
        assert expected <= plans, seed
        left += len(expected)
    assert left > 10


def test_no_recomputation_beyond_that_of_its_way_ends_a_stage_sooner() -> None:
    """What a way reduces, and its last backward on chunk 0, against all that the stage may recompute."""
    near = 0
    for seed in range(40):
        part = random_part(seed)
        data = part.data(1e9)
        ways = WayLists().of_part((part.choice, part.num_stages, part.virtual_stages), data)
        for s, one in enumerate(ways or []):
            for i, c in enumerate(one.of_class.tolist()):
                stages = data.classes[c]
                forward = stages.base_ms()[0][s]
                layers = (one.forward_ms[i] - forward) / stages.stage.forward_ms[s]
                counts = tuple(round(n) for n in layers.tolist())
                for kind, number in any_recomputation(stages, list(counts)):
                    p = part.num_stages
                    pieces = pieces_ms(stages, [VirtualChoice((counts,) * p, (kind,) * p, (number,) * p)])
                    backward, rest = pieces.backward[0, s], float(pieces.reduction[0, s])
                    if (backward >= one.backward_ms[i] - REL).all():
                        later = backward[0] + rest - one.backward_ms[i, 0] - one.reduction_ms[i]
                        assert later >= -REL, (seed, s, c, counts, kind)
                        near += later <= REL and rest > 1.01 * stages.stage.reduce_tail_ms[s]
    assert near > 5


def test_ways_are_all_dealings_that_fit() -> None:
    listed = 0
    for seed in range(12):
        part = random_part(seed)
        data = part.data(1e9)
        ways = WayLists().of_part((part.choice, part.num_stages, part.virtual_stages), data)
        if ways is None:
            continue
        fewest = fewest_layers(data.sample)
        for s, one in enumerate(ways):
            expected = sum(
                len(recomputations(data.classes[c], s, dealt))
                for c, n in np.argwhere(data.fits[:, s]).tolist()
                for dealt in dealings(n, fewest[s])
            )
            assert len(one) == expected
            listed += expected
    assert listed > 100
    assert list(compositions(3, (1, 0))) == [(1, 2), (2, 1), (3, 0)]
    assert list(compositions(0, (1,))) == []


def test_what_takes_too_much_is_left_as_it_is() -> None:
    part = next(one for one in map(random_part, range(25)) if closed_above(one) is not None)
    data = part.data(1e9)
    ways = WayLists().of_part((part.choice, part.num_stages, part.virtual_stages), data)
    assert ways is not None
    found = DealtPaths(data, ways, 0)
    assert found.hold()
    assert found.width == 0
    assert found.pieces == 0, "what is not looked at once used up the effort of all"
    assert (found.data.fits | ~found.fits).all()


def test_pipelines_too_large_for_paths_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left of their layers was asked for all the same, and ended the search with an error."""
    part = next(one for one in map(random_part, range(25)) if closed_above(one) is not None)
    data = part.data(1e9)
    ways = WayLists().of_part((part.choice, part.num_stages, part.virtual_stages), data)
    assert ways is not None
    for name in ("MOST_COUNTS", "MOST_OF_STAGE"):
        with monkeypatch.context() as changed:
            changed.setattr(virtual_dealings, name, 0)
            found = DealtPaths(data, ways, MOST)
            assert found.hold() and found.width == 0
            assert (found.data.fits | ~found.fits).all()


def test_layers_are_counted_from_either_end_of_what_stages_hold() -> None:
    """Plans are the same paths; a way of more layers than all stages have beside their fewest is in none."""
    counted = set()
    for seed in range(25):
        part = random_part(seed)
        data = part.data(1e9)
        ways = WayLists().of_part((part.choice, part.num_stages, part.virtual_stages), data)
        if ways is None:
            continue
        for num_layers in range(sum(int(one.layers.max()) for one in ways) + 2):
            spare = Spare(ways, num_layers)
            layers = [spare.layers(s, one.layers) for s, one in enumerate(spare.ways)]
            fewest = sum(int(one.layers.min()) for one in ways)
            most = sum(int(one.layers.max()) for one in ways)
            assert spare.fit == (fewest <= num_layers <= most)
            if not spare.fit:
                continue
            counted.add((spare.num_layers == num_layers - fewest, spare.num_layers == most - num_layers))
            for s, one in enumerate(ways):
                rest = fewest - int(one.layers.min()), most - int(one.layers.max())
                can = one.layers[(rest[0] + one.layers <= num_layers) & (rest[1] + one.layers >= num_layers)]
                assert set(can.tolist()) <= set(layers[s].tolist()) <= set(one.layers.tolist())
            picks = [int(np.argmin(one.layers)) for one in spare.ways]
            of_all = sum(int(one.layers[i]) for one, i in zip(spare.ways, picks, strict=True))
            real = sum(int(one[i]) for one, i in zip(layers, picks, strict=True))
            assert (of_all == spare.num_layers) == (real == num_layers)
    assert len(counted) > 1


@pytest.mark.slow
def test_no_time_leaves_a_limit_open_that_is_closed_otherwise_and_blocks_change_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ways of thousands of windows once took a second beyond the time limit of a search."""
    closed = 0
    for seed in range(25):
        part = random_part(seed)
        found = closed_above(part)
        if found is None or not 0 < found[1] < 1:
            continue
        data = part.data(found[0] * found[1])
        ways = WayLists().of_part((part.choice, part.num_stages, part.virtual_stages), data)
        assert ways is not None
        late = DealtPaths(data, ways, MOST, lambda: True)
        assert late.hold() and late.width == 0
        assert not DealtPaths(data, ways, MOST).hold()
        with monkeypatch.context() as changed:
            changed.setattr(virtual_dealings, "BLOCK", 1)  # a window at a time
            assert not DealtPaths(data, ways, MOST).hold()
        closed += 1
    assert closed > 5


def test_windows_that_another_process_looks_at_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.search.beside.threading.active_count", lambda: 1)  # one a test runner has
    monkeypatch.setattr(virtual_dealings, "BLOCK", 48)
    monkeypatch.setattr(virtual_dealings, "BLOCKS_SHARED", 3)
    begun = list[int | None]()
    ahead = virtual_dealings.shared

    def spied(asked: range, *given: Any) -> Iterator[Bools | None]:
        begun.append(given[1])
        return ahead(asked, *given)

    monkeypatch.setattr(virtual_dealings, "shared", spied)
    part = random_part(6)
    data = part.data(1.1 * best_of_part(part))
    ways = WayLists().of_part((part.choice, part.num_stages, part.virtual_stages), data)
    assert ways is not None
    alone, both = DealtPaths(data, ways, MOST), DealtPaths(data, ways, MOST, workers=2)
    assert alone.hold() and both.hold() and alone.width == part.num_stages
    for one, other in zip(alone.windows, both.windows, strict=True):
        assert len(one) and np.array_equal(one.ways, other.ways)
    assert begun.count(2) > 1 and begun.count(1) > 1
