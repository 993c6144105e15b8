"""The best plans known of the shipped problems, and that the search does not fall behind them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarks.best_known import in_full, in_short, known, known_step_s
from planner.data.load import load_problem
from planner.search import driver
from planner.search.progress import Progress

ENTRIES = known()
QUICK = "llama3-8b-h100-a100-16"
LIMIT_S = 8.0
"""What closes within 15 s closes within 6.5 s on two cores."""
ENOUGH_S = 4.0
"""Time from which on a search ends with the step time that is known: what is left is its gap."""


@pytest.mark.parametrize(
    ("name", "virtual_stages", "is_mixed"),
    [
        (QUICK, 1, False),
        (QUICK, None, False),
        pytest.param("qwen2.5-72b-h100-h200-b200-512", 1, True, marks=pytest.mark.slow),
    ],
)
def test_an_entry_gives_the_plan_that_it_was_made_of(
    name: str, virtual_stages: int | None, is_mixed: bool
) -> None:
    problem = load_problem(name)
    wishes = {"max_virtual_stages": virtual_stages, "gap": 0.01}
    problem = problem.model_copy(update={"options": problem.options.model_copy(update=wishes)})
    result = driver.search(problem)
    assert result.plan is not None
    assert (result.plan.virtual_stages > 1) == (virtual_stages is None)
    assert any(stage.replicas for stage in result.plan.stages) == is_mixed
    assert in_full(problem, in_short(result.plan)) == result.plan.model_copy(update={"problem": None})


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_known_plans_still_fit_and_lie_above_their_bound(name: str) -> None:
    entry = ENTRIES[name]
    assert entry["step_s"] >= entry["bound_s"] * (1 - 1e-6)
    assert known_step_s(load_problem(name), entry) < float("inf")
    said = re.search(r"to a gap of ([0-9.]+)%", entry["how"])
    assert said and float(said[1]) == pytest.approx(100 * (1 - entry["bound_s"] / entry["step_s"]), abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_no_shipped_problem_gets_worse_than_its_best_known(name: str) -> None:
    """Within the gap that the search states; and its bound never passes a plan that is known."""
    problem = load_problem(name)
    wishes = {"time_limit_s": LIMIT_S, "gap": 0.01}
    problem = problem.model_copy(update={"options": problem.options.model_copy(update=wishes)})
    best_s = known_step_s(problem, ENTRIES[name])

    def enough(progress: Progress) -> None:
        assert (progress.bound_s or 0.0) <= best_s * (1 + 1e-9)
        if progress.elapsed_s > ENOUGH_S and (progress.incumbent_s or np.inf) <= best_s * (1 + 1e-9):
            raise KeyboardInterrupt

    result = driver.search(problem, enough)
    assert result.evaluation is not None and result.bound_s is not None and result.gap is not None
    assert result.bound_s <= best_s * (1 + 1e-9)
    assert result.evaluation.step_s <= best_s / (1 - result.gap) * (1 + 1e-9)
    if not result.interrupted:
        assert result.whole_bound_s is not None
        assert result.whole_bound_s >= result.evaluation.step_s * (1 - 0.01 - 1e-9)
