"""How unevenly experts may be loaded before a plan no longer fits."""

from __future__ import annotations

import pytest

from planner.cli import main
from planner.data.load import load_problem
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.simulate.evaluate import evaluate
from planner.simulate.uneven_experts import most_expert_imbalance
from tests.planner.launchers import plans


def loaded(problem: Problem, imbalance: float) -> Problem:
    workload = problem.workload.model_copy(update={"expert_imbalance": imbalance})
    return problem.model_copy(update={"workload": workload})


def with_memory(problem: Problem, plan: Plan, share: float) -> Problem:
    """As much memory on all chips as the plan takes, and a share of that more."""
    peak = max(stage.peak_memory_gib for stage in evaluate(problem, plan).stages)
    gib = peak * (1 + share) / (1 - problem.options.memory_reserve_fraction)
    classes = tuple(one.model_copy(update={"memory_gib": gib}) for one in problem.cluster.classes)
    return problem.model_copy(update={"cluster": problem.cluster.model_copy(update={"classes": classes})})


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1])
def test_a_plan_fits_as_far_as_is_said_and_no_farther(share: float) -> None:
    problem, plan = plans.experts()
    problem = with_memory(problem, plan, share)
    most = most_expert_imbalance(problem, plan)
    assert most is not None and (most > 1.0) == (share > 0)
    assert evaluate(loaded(problem, most), plan).violations == ()
    assert "needs" in evaluate(loaded(problem, most + 0.011), plan).violations[0]
    # Asked for part of it, a plan bears as much in all.
    if share:
        assert most_expert_imbalance(loaded(problem, 1.01), plan) == pytest.approx(most, abs=0.0101)
    assert most_expert_imbalance(loaded(problem, most + 0.011), plan) is None


def test_no_rank_gets_more_than_all_tokens_of_its_group() -> None:
    problem, plan = plans.experts()
    assert problem.model.moe is not None
    most = most_expert_imbalance(with_memory(problem, plan, 50.0), plan)
    assert most == min(plan.expert_parallel, problem.model.moe.num_experts / problem.model.moe.top_k)


def test_where_the_load_has_no_part_nothing_is_said() -> None:
    problem, plan = plans.experts()
    capacity = problem.model.moe.model_copy(update={"capacity_factor": 1.2})  # type: ignore[union-attr]
    model = problem.model.model_copy(update={"moe": capacity})
    assert most_expert_imbalance(problem.model_copy(update={"model": model}), plan) is None
    assert most_expert_imbalance(*plans.uniform()) is None


def test_the_command_plans_for_an_uneven_load(capsys: pytest.CaptureFixture[str]) -> None:
    problem = load_problem("mixtral-8x7b-h100-64")
    command = ["plan", problem.name, "--gap", "0.3", "--max-vp", "1", "--quiet"]
    assert main([*command, "--expert-imbalance", "1.5"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "planned for 1.5 times an even share on the busiest rank; memory holds up to" in told
    assert main([*command, "--expert-imbalance", "0.5"]) == 2
    assert "--expert-imbalance: must be >= 1" in capsys.readouterr().err
