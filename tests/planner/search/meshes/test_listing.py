"""Pipelines that may keep a limit, listed and bounded many at once, against each pipeline by itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from formulations.stage_selection_data import objective_ms
from formulations.stage_selection_tables import least_recompute, with_least_recompute
from planner.cost.communication.resharding import mesh_hops_s
from planner.cost.prices import Floats
from planner.search.items import Lengths
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.ends import list_ends, matter
from planner.search.meshes.listers import CREDIT, list_pipelines
from planner.search.meshes.listing import Lister
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.pairs import list_pairs, longest_of
from planner.search.meshes.places import Ints
from planner.search.meshes.shapes import can_be_placed
from planner.search.state import Frontier
from planner.units import MS
from tests.random_problems import random_problem, with_deferred_sends, with_unlike_adapters

Order = tuple[int, ...]


def opener_of(seed: int) -> MeshOpener:
    """What searches a small problem, its longest pipelines known; sends block if the seed is odd."""
    problem = random_problem(seed, most_layers=4, num_classes=2)
    problem = with_deferred_sends(problem) if seed % 2 else with_unlike_adapters(problem)
    search = MeshSearch(problem.model_copy(update={"target": "flagscale"}), None)
    opener = search.make_opener()
    opener.longest = longest_of(list_pairs(search.problem, opener.batches, search.bounds))
    return opener


def placed_orders(opener: MeshOpener) -> Iterator[tuple[int, int, list[Order]]]:
    """Batch, number of stages, and all pipelines of these that lie on the hosts."""
    for number, longest in list(opener.longest.items())[:4]:
        batch = opener.batches[number]
        for p in range(1, min(longest, 3) + 1):
            every = itertools.product(range(len(batch.shapes)), repeat=p)
            yield number, p, [order for order in every if can_be_placed(opener.problem, batch, order)]


def listed_by(lister: Lister, p: int) -> dict[Order, float]:
    """Bounds of the pipelines that a list has."""
    listed = lister.list(p)
    assert listed is not None
    orders, bounds = (values.tolist() for values in listed)
    assert len({tuple(order) for order in orders}) == len(orders)
    return {tuple(order): bound for order, bound in zip(orders, bounds, strict=True)}


def least_ms(opener: MeshOpener, number: int, order: Order) -> float:
    """The least step of any split [ms], by all rows of the pipeline; infinite where none fits."""
    data = opener.meshes.data(number, order)
    table, most, found = least_recompute(data), data.num_layers, float("inf")
    for layers in itertools.product(range(1, most + 1), repeat=len(order)):
        choice = with_least_recompute(table, layers) if sum(layers) == most else None
        if choice is not None:
            found = min(found, objective_ms(data, choice))
    return found


def worked_off_ms(opener: MeshOpener, number: int, order: Order) -> float:
    """The least time in which every stage works its layers off, by the tables of places [ms]."""
    batch, places = opener.batches[number], opener.places.of(number, opener.longest[number])
    p, blocks = len(order), not opener.problem.stack.p2p_overlap
    hops = mesh_hops_s(opener.problem, opener.prices, [batch.shapes[k] for k in order]) / MS * blocks
    hops[-1] = 0.0
    spent = []
    for s, k in enumerate(order):
        stages, q = places.inner if s else places.first, min(p - 1 - s, places.num_places - 1)
        took = batch.num_microbatches * (stages.times_ms[k, q] + hops[s] + hops[s - 1])
        took += stages.follow_ms[k, q] + stages.reduce_ms[k, q] * (s == 0)
        spent.append(took + places.constant_ms[min(p - 1, 1)])
    splits = itertools.product(range(1, len(spent[0])), repeat=p)
    whole = (split for split in splits if sum(split) == len(spent[0]) - 1)
    return min((max(of[n] for of, n in zip(spent, split, strict=True)) for split in whole), default=np.inf)


@pytest.mark.parametrize("seed", [4, 7, 13, 17])
def test_all_pipelines_that_work_their_layers_off_in_time_are_listed(seed: int) -> None:
    """And no others, whatever the limit and the ends."""
    opener, kept, left_out = opener_of(seed), 0, 0
    for number, p, placed in placed_orders(opener):
        batch, places = opener.batches[number], opener.places.of(number, opener.longest[number])
        if matter(opener.problem):
            t = batch.tensor_parallel
            placed = [order for order in placed if not (t[list(order)] % t[order[0]]).any()]
        took = {order: worked_off_ms(opener, number, order) for order in placed[:400]}
        finite = sorted(one for one in took.values() if np.isfinite(one))
        for limit in (*finite[:: 1 + len(finite) // 4], *finite[-1:]):
            for ends in (None, *list_ends([batch], None)):
                lister = Lister(opener.problem, opener.prices, batch, places, limit, ends)
                listed = listed_by(lister, p)
                for order in took:
                    allowed = ends is None or ends.of_stages(batch, p)[range(p), order].all()
                    assert (order in listed) == (allowed and took[order] <= limit * (1 + 1e-9))
                assert set(listed) <= set(placed)
                kept, left_out = kept + len(listed), left_out + len(placed) - len(listed)
    assert kept > 0 and left_out > 0


@pytest.mark.parametrize("seed", [2, 7])
def test_no_pipeline_is_bounded_beyond_its_best_split(seed: int) -> None:
    opener, compared = opener_of(seed), 0
    for number, p, placed in placed_orders(opener):
        steps = {order: least_ms(opener, number, order) for order in placed[:: 1 + len(placed) // 40]}
        limit = max((step for step in steps.values() if np.isfinite(step)), default=1.0)
        places = opener.places.of(number, opener.longest[number])
        lister = Lister(opener.problem, opener.prices, opener.batches[number], places, limit)
        for order, bound in listed_by(lister, p).items():
            assert bound <= steps.get(order, np.inf) * (1 + 1e-9)
            compared += order in steps and np.isfinite(bound)
    assert compared > 0


def test_hops_are_those_of_the_program() -> None:
    """Inside a host and between hosts."""
    opener, compared = opener_of(4), 0
    for number, p, placed in placed_orders(opener):
        batch, places = opener.batches[number], opener.places.of(number, opener.longest[number])
        lister = Lister(opener.problem, opener.prices, batch, places, 1 / MS)
        for order in placed[::4] if p == 3 else ():
            shapes = [batch.shapes[k] for k in order]
            whole = mesh_hops_s(opener.problem, opener.prices, shapes)[:-1] / MS
            assert lister._hops(np.array([order]))[0, :-1] == pytest.approx(whole)
            compared += 1
    assert compared > 0


def test_lists_that_fail_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a search was tried anew: one of 128 chips, which walks close, took 1.6 times as long."""
    opener, tried, has_many = opener_of(3), list[int](), True

    def listed(lister: Lister, p: int) -> tuple[Ints, Floats] | None:
        tried.append(p)
        return None if has_many else (np.zeros((1, p), dtype=np.int64), np.full(1, 1e6))

    monkeypatch.setattr(Lister, "list", listed)
    monkeypatch.setattr(Frontier, "cutoff_s", 1e3)
    part = Lengths(opener.num_wide, (1,), (0.0,))
    members = sum(member in opener.longest for member in opener.families[part.choice])

    def are_listed() -> list[bool]:
        return list_pipelines(opener, part, np.array(part.stages), np.array(part.bounds_s)).tolist()

    assert are_listed() == [False] and len(tried) == 1
    has_many = False
    assert are_listed() == [True] and len(tried) == 1 + members
    has_many, tried[:] = True, []
    for _ in range(10):
        assert are_listed() == [False]
    # One had failed before, one could be listed.
    assert len(tried) == CREDIT - 1 + 1
