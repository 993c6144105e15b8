"""Tables by place against the coefficients of whole pipelines: no stage is given more than it costs there.

Nor is a pipeline left unjudged that a split of its layers makes good.
"""

from __future__ import annotations

import numpy as np
import pytest

from formulations.stage_selection_tables import least_recompute, objectives_ms, stage_times_ms
from planner.search.heuristics.local import all_splits
from planner.search.meshes.driver import MeshSearch
from planner.search.meshes.pairs import list_pairs, longest_of
from tests.random_problems import random_problem


@pytest.mark.parametrize("far_gib", [None, 0.3, 0.9])
@pytest.mark.parametrize("seed", [2, 7, 21])
def test_no_place_costs_more_than_the_stage_of_any_pipeline(seed: int, far_gib: float | None) -> None:
    """Communicators depend on the length of the pipeline, places on the stages behind them alone."""
    problem = random_problem(seed, most_layers=6).model_copy(update={"target": "flagscale"})
    changes = {"far_communicator_gib": far_gib, "megatron_groups": True}
    problem = problem.model_copy(update={"stack": problem.stack.model_copy(update=changes)})
    search = MeshSearch(problem, None)
    opener = search.make_opener()
    longest = longest_of(list_pairs(problem, opener.batches, search.bounds))
    rng, compared = np.random.default_rng(seed), 0
    for number, most in longest.items():
        places, batch = opener.places.of(number, most), opener.batches[number]
        for p in range(1, most + 1):
            order = rng.integers(0, len(batch.shapes), p)
            data = opener.meshes.data(number, order.tolist())
            exact = stage_times_ms(data, least_recompute(data))
            for s, k in enumerate(order):
                table = places.inner if s else places.first
                place = table.times_ms[k, min(p - 1 - s, places.num_places - 1)]
                assert (place <= exact[s] * (1 + 1e-12)).all()
                compared += int(np.isfinite(exact[s]).any())
    assert compared > 0


def test_no_split_of_a_pipeline_undercuts_what_it_is_left_unjudged_by() -> None:
    problem = random_problem(7, most_layers=6).model_copy(update={"target": "flagscale"})
    search = MeshSearch(problem, None)
    opener, rng, fitting = search.make_opener(), np.random.default_rng(7), 0
    for number, batch in enumerate(opener.batches):
        for p in range(1, problem.model.num_layers + 1):
            begun = opener.meshes.start(number, rng.integers(0, len(batch.shapes), p).tolist())
            splits = all_splits(problem.model.num_layers, p, 100)
            assert splits is not None
            least_ms = float(objectives_ms(begun.data, begun.recompute, splits).min())
            assert begun.least_step_ms <= least_ms * (1 + 1e-12)
            fitting += np.isfinite(least_ms)
    assert fitting > 0
