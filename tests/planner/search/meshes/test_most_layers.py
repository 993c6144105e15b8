"""Pipelines that cannot hold all layers: the most that there can be, and searches that end without a plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.data.problem import Problem
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.most_layers import most_layers
from planner.search.meshes.opener import MeshOpener
from planner.search.meshes.pairs import list_pairs, longest_of
from planner.search.meshes.units import count_units
from planner.search.meshes.walks import MeshWalks
from tests import random_problems
from tests.random_problems import random_problem, with_an_old_class


def opener_of(problem: Problem) -> MeshOpener:
    search = MeshSearch(problem.model_copy(update={"target": "flagscale"}), None)
    opener = search.make_opener()
    opener.longest = longest_of(list_pairs(search.problem, opener.batches, search.bounds))
    return opener


def walks_of(opener: MeshOpener, number: int, lengths: list[int], points: int) -> MeshWalks:
    batch, chips = opener.batches[number], opener.chips_of_class
    places = opener.places.of(number, opener.longest[number])
    return MeshWalks(places, batch, lengths, chips, count_units(batch, chips, points), sends_block=False)


@pytest.mark.parametrize("seed", [0, 2, 3, 9])
def test_no_pipeline_holds_more_than_the_most_layers(seed: int) -> None:
    """All shapes of up to three stages, by their own memory; by that of their places the most is reached."""
    opener = opener_of(random_problem(seed, most_layers=8, num_classes=2 + seed % 2))
    compared = 0
    for number, longest in opener.longest.items():
        batch = opener.batches[number]
        lengths = list(range(1, min(longest, 3) + 1))
        fine, coarse = (most_layers(walks_of(opener, number, lengths, points)) for points in (5000, 3))
        walks = walks_of(opener, number, lengths, 5000)
        for p in lengths:
            reached = -1
            for order in itertools.product(range(len(batch.shapes)), repeat=p):
                taken = [
                    batch.num_chips[[k for k in order if batch.node_class[k] == c]].sum() for c in range(3)
                ]
                if any(used > there for used, there in zip(taken, opener.chips_of_class, strict=False)):
                    continue
                tables = [walks.first, *[walks.inner] * (p - 1)]
                places = walks.place[np.arange(p)[::-1]]
                held = [int(one.most[k, q]) for one, k, q in zip(tables, order, places, strict=True)]
                if min(held) > 0:
                    reached = max(reached, sum(held))
                if opener.is_allowed(number, order):
                    data = opener.meshes.data(number, order)
                    fits = np.isfinite(stage_times_ms(data, least_recompute(data))[:, 1:])
                    if fits.any(axis=1).all():
                        layers = np.where(fits, np.arange(1, fits.shape[1] + 1), 0).max(axis=1)
                        assert int(layers.sum()) <= fine[p - 1]
                        compared += 1
            assert fine[p - 1] == reached
            assert coarse[p - 1] >= reached
    assert compared > 0


def test_a_stage_that_is_barred_holds_nothing() -> None:
    opener = opener_of(random_problem(2, most_layers=8))
    number, p = next((number, 2) for number, longest in opener.longest.items() if longest >= 2)
    walks = walks_of(opener, number, [p], 5000)
    free = int(most_layers(walks)[0])
    assert walks.allowed is not None and free > 0
    walks.allowed[0] = False
    assert most_layers(walks).tolist() == [-1]


def too_small(monkeypatch: pytest.MonkeyPatch) -> Problem:
    """Eight layers on sixteen chips of four classes, which hold just too few of them in any pipeline."""
    made = random_problems._model
    monkeypatch.setattr(
        random_problems, "_model", lambda rng, most: made(rng, most).model_copy(update={"num_layers": 8})
    )
    problem = with_an_old_class(random_problem(5000, num_classes=4), 5000)
    options = problem.options.model_copy(update={"max_pipeline_parallel": 5})
    return problem.model_copy(update={"target": "flagscale", "options": options})


def test_too_little_memory_is_proven_without_going_through_all_pipelines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times closed nothing without a plan: 49 s went by, and the search gave up behind 800 sets."""
    search = MeshSearch(too_small(monkeypatch), None)
    result = search.run()
    assert (result.termination, result.interrupted) == ("infeasible", False)
    assert result.reason is not None and "does not fit" in result.reason
    assert search.opened < 200
    assert not search.frontier.may_hold_plans


def test_a_search_that_gives_up_does_not_say_that_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It called problems with plans infeasible where it had looked at so many sets in vain."""
    problem = random_problem(2, most_layers=8).model_copy(update={"target": "flagscale"})
    assert MeshSearch(problem, None).run().plan is not None
    for name in ("_uniform_plans", "_first_plans"):
        monkeypatch.setattr(MeshSearch, name, lambda *_: None)
    search = MeshSearch(problem, None)
    search.stale_sets = 0
    result = search.run()
    assert (result.plan, result.termination, result.interrupted) == (None, "no_solution_found", False)
    assert result.reason is not None and "not proven" in result.reason
