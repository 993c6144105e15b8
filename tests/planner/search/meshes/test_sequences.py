"""Pipelines that are listed one by one where they are few."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from formulations.stage_selection_tables import least_recompute, stage_times_ms
from planner.search.items import Prefix
from planner.search.meshes import sequences
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.pairs import list_pairs, longest_of
from planner.search.meshes.sequences import any_order, list_sequences, parts_beside
from planner.search.meshes.shapes import can_be_placed
from tests import random_problems
from tests.random_problems import random_problem, with_an_old_class


@pytest.mark.parametrize("seed", [2, 13])
def test_all_pipelines_that_hold_the_model_are_listed(seed: int) -> None:
    """Of a whole length, and of parts of it; with each of them its layers fit, or may by the least memory."""
    problem = random_problem(seed, most_layers=8, num_classes=2 + seed % 2)
    search = MeshSearch(problem.model_copy(update={"target": "flagscale"}), None)
    opener = search.make_opener()
    rng, compared = np.random.default_rng(seed), 0
    for number, longest in longest_of(list_pairs(search.problem, opener.batches, search.bounds)).items():
        batch, places = opener.batches[number], opener.places.of(number, longest)
        shapes = range(len(batch.shapes))
        for p in range(1, min(longest, 3) + 1):
            first = int(rng.integers(len(batch.shapes)))
            parts = [Prefix(number, p, ()), Prefix(number, p, (), (first,))]
            if p > 1:
                parts.append(Prefix(number, p, (first,), (int(rng.integers(len(batch.shapes))),)))
            for part in parts:
                listed = list_sequences(search.problem, batch, places, part, 10**6)
                assert listed is not None and len(set(listed)) == len(listed)
                start = len(part.shapes)
                whole = {
                    order
                    for order in itertools.product(shapes, repeat=p)
                    if order[:start] == part.shapes and order[start] not in part.banned
                }
                assert set(listed) <= whole
                for order in sorted(whole - set(listed))[:: 1 + len(whole) // 200]:
                    if can_be_placed(search.problem, batch, order):
                        data = opener.meshes.data(number, order)
                        fits = np.isfinite(stage_times_ms(data, least_recompute(data)))
                        most = np.where(fits, np.arange(fits.shape[1]), 0).max(axis=1)
                        assert most.min() < 1 or most.sum() < problem.model.num_layers
                compared += len(listed)
                assert not listed or list_sequences(search.problem, batch, places, part, 0) is None
    assert compared > 0


def test_a_pipeline_and_the_parts_beside_it_are_all_of_a_part() -> None:
    search = MeshSearch(random_problem(2, most_layers=8).model_copy(update={"target": "flagscale"}), None)
    opener = search.make_opener()
    number = max(range(len(opener.batches)), key=lambda one: len(opener.batches[one].shapes))
    batch = opener.batches[number]
    part = Prefix(number, 3, (), (0,))

    def pipelines(part: Prefix) -> set[tuple[int, ...]]:
        start = len(part.shapes)
        return {
            order
            for order in itertools.product(range(len(batch.shapes)), repeat=part.stages)
            if order[:start] == part.shapes and (start == part.stages or order[start] not in part.banned)
        }

    order = any_order(batch, part)
    pieces = [pipelines(child) for child in parts_beside(search.problem, batch, part, order)]
    assert sum(map(len, pieces)) == len(set().union(*pieces))
    left = pipelines(part) - set().union(*pieces) - {order}
    assert not any(can_be_placed(search.problem, batch, one) for one in left)


def test_pipelines_of_a_few_chips_are_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of them took 17 s to bound, and 15 s found a plan a tenth slower than the best."""
    made = random_problems._model
    monkeypatch.setattr(
        random_problems, "_model", lambda rng, most: made(rng, most).model_copy(update={"num_layers": 8})
    )
    problem = with_an_old_class(random_problem(5006, num_classes=4), 5006)
    problem = problem.model_copy(update={"target": "flagscale"})
    search = MeshSearch(problem, None)
    result = search.run()
    assert result.termination == "optimal" and result.evaluation is not None
    assert result.gap == pytest.approx(0.0, abs=1e-8)
    assert search.opened < 100


def test_the_answer_does_not_depend_on_which_batches_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3, most_layers=4).model_copy(update={"target": "flagscale"})
    steps = []
    for most in (0, 20, 1000):
        monkeypatch.setattr(sequences, "MOST_LISTED", most)
        result = MeshSearch(problem, None).run()
        assert result.termination == "optimal" and result.evaluation is not None
        steps.append(result.evaluation.step_s)
    assert steps == pytest.approx([steps[0]] * 3, rel=1e-9)
