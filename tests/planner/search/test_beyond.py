"""Leading layers may go on beyond the first stage, and nothing is better than what is found."""

from __future__ import annotations

import numpy as np
import pytest

from planner.data.problem import Problem
from planner.search import driver
from planner.simulate.evaluate import evaluate
from tests.oracle_plans import brute_force_by_cut
from tests.random_problems import random_problem


def with_leading_layers(seed: int) -> Problem:
    """Three to five layers, one to three of them dense, in part of the memory of the best plan."""
    problem, rng = random_problem(seed, experts=True), np.random.default_rng(seed)
    num_layers = int(rng.integers(3, 6))
    assert problem.model.moe is not None
    moe = {"first_dense_layers": int(rng.integers(1, min(4, num_layers)))}
    model = {"moe": problem.model.moe.model_copy(update=moe), "num_layers": num_layers, "mtp_num_layers": 0}
    options = {"max_virtual_stages": 1, "gap": 0.0, "forbid": ("stages=mixed",)}

    def given(reserve: float) -> Problem:
        return problem.model_copy(
            update={
                "model": problem.model.model_copy(update=model),
                "options": problem.options.model_copy(update={**options, "memory_reserve_fraction": reserve}),
            }
        )

    evaluation = driver.search(given(0.05)).evaluation
    if evaluation is None:
        return given(0.05)
    full = max(stage.peak_memory_gib / stage.limit_gib for stage in evaluation.stages)
    return given(max(1 - 0.95 * full * float(rng.choice([0.45, 0.6, 0.75, 0.9, 0.98])), 0.0))


def check(seed: int) -> int:
    """Compare with brute force; the layers of the first stage."""
    problem = with_leading_layers(seed)
    best, result = brute_force_by_cut(problem), driver.search(problem)
    if best.what == ():
        assert result.termination == "infeasible", seed
        return problem.model.num_layers
    assert result.plan is not None and result.evaluation is not None, f"seed {seed}: {best}"
    assert evaluate(problem, result.plan).violations == ()
    assert result.evaluation.step_s == pytest.approx(best.step_s, rel=1e-9), f"seed {seed}: {best.what}"
    assert result.termination == "optimal"
    assert result.bound_s is not None and result.bound_s <= best.step_s * (1 + 1e-9)
    first, last = result.plan.stages[0].layers
    return last - first + 1


@pytest.mark.parametrize("seed", [15, 59])
def test_leading_layers_go_on_where_that_is_better(seed: int):
    held = check(seed)
    moe = with_leading_layers(seed).model.moe
    assert moe is not None and held < moe.first_dense_layers


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(28))
def test_models_with_leading_layers_are_planned_as_well_as_by_brute_force(seed: int):
    check(seed)
