"""The four calls of the library, and the last check before a plan leaves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.data.load import build_problem
from planner.data.options import Options
from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.errors import InstanceError, PlanRefusedError, SolverError
from planner.search import targets
from tests.planner.stubs import (
    made_up_evaluation,
    made_up_result,
    replace_both,
    replace_referee,
    replace_search,
    two_class_problem,
    two_stage_plan,
    without_plan,
)


def test_public_names_are_importable_from_planner() -> None:
    from planner import export, load_problem, plan, predict

    assert (load_problem, plan, predict, export) == (api.load_problem, api.plan, api.predict, api.export)


def test_plan_carries_its_problem_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two_class_problem()
    replace_both(monkeypatch, made_up_result)
    result = api.plan(problem)
    assert result.plan is not None and result.plan.problem is not None
    assert api.load.resolve_problem(result.plan.problem, "plan") == problem
    assert all(other.plan.problem == result.plan.problem for other in result.runners_up)


def test_plan_does_not_depend_on_workers_or_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_both(monkeypatch, made_up_result)
    slow = api.plan(two_class_problem(), Options(workers=1))
    fast = api.plan(two_class_problem(), Options(workers=2, time_limit_s=1000.0))
    assert slow.plan == fast.plan


def test_options_replace_those_of_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def answer(problem: Problem) -> Result:
        seen.append(problem.options)
        return made_up_result(problem)

    replace_both(monkeypatch, answer)
    api.plan(two_class_problem(), Options(gap=0.25))
    assert seen[0].gap == 0.25


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Time limits that a search is called with [s]."""
    limits: list[float | None] = []

    def answer(problem: Problem) -> Result:
        limits.append(problem.options.time_limit_s)
        return made_up_result(problem)

    replace_both(monkeypatch, answer)
    return limits


def test_time_already_spent_counts_against_the_limit(seen: list[float | None]) -> None:
    api.plan(two_class_problem(), Options(time_limit_s=10.0), elapsed_s=4.0)
    api.plan(two_class_problem(), Options(time_limit_s=1.0), elapsed_s=4.0)
    assert seen[0] is not None and 5.0 < seen[0] <= 6.0
    assert seen[1] is not None and 0 < seen[1] < 0.1


def test_loading_a_search_counts_against_its_limit(
    monkeypatch: pytest.MonkeyPatch, seen: list[float | None]
) -> None:
    load_search = targets.load_search

    def slowly(target: TargetName) -> targets.Search:
        time.sleep(0.1)
        return load_search(target)

    monkeypatch.setattr(targets, "load_search", slowly)
    api.plan(two_class_problem(), Options(time_limit_s=1.0))
    assert seen[0] is not None and seen[0] < 0.85


def test_plan_that_the_referee_refuses_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_search(monkeypatch, lambda problem, on_progress=None: made_up_result(problem))
    broken = made_up_evaluation(violations=("stage 0 needs 92.1 GiB, has 76.8 GiB",))
    replace_referee(monkeypatch, lambda problem, plan: broken)
    with pytest.raises(SolverError, match=r"our bug.*92\.1 GiB"):
        api.plan(two_class_problem())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"evaluation": made_up_evaluation(1.0), "bound_s": None}, "another step time"),
        ({"bound_s": 2.5}, "bound"),
    ],
    ids=["another step time", "bound above the step"],
)
def test_result_that_contradicts_the_referee_is_withheld(
    changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_search(monkeypatch, lambda problem, on_progress=None: made_up_result(problem, **changes))
    replace_referee(monkeypatch, lambda problem, plan: made_up_evaluation(2.0))
    with pytest.raises(SolverError, match=words):
        api.plan(two_class_problem())


def test_problem_without_a_plan_is_a_result_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_both(monkeypatch, lambda problem: without_plan(problem, "infeasible", "12.0 GiB short"))
    result = api.plan(two_class_problem())
    assert result.plan is None and result.reason == "12.0 GiB short"


def test_misspelt_target_is_told_the_nearest_name() -> None:
    with pytest.raises(InstanceError, match="did you mean megatron-lm"):
        api.check_target("megatron-ml")


def test_plan_that_another_target_cannot_express_is_not_exported(tmp_path: Path) -> None:
    problem = two_class_problem()
    with pytest.raises(PlanRefusedError, match="target megatron-bridge has one setting for all"):
        api.export(two_stage_plan(problem), "megatron-bridge", tmp_path / "out", problem=problem)
    assert list(tmp_path.iterdir()) == []


def test_plan_that_breaks_a_rule_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = made_up_evaluation(violations=("layer 7 is on no stage", "another"))
    replace_referee(monkeypatch, lambda problem, plan: broken)
    problem = two_class_problem()
    with pytest.raises(PlanRefusedError, match=r"layer 7 is on no stage \(and 1 more\)"):
        api.export(two_stage_plan(problem), "megatron-lm", tmp_path / "out", problem=problem)
    assert list(tmp_path.iterdir()) == []


def test_export_of_a_result_without_a_plan_says_so(tmp_path: Path) -> None:
    nothing = without_plan(two_class_problem(), "no_solution_found", "too little time")
    with pytest.raises(PlanRefusedError, match="no plan to export"):
        api.export(nothing, "megatron-lm", tmp_path / "out")


def test_export_of_a_plan_that_carries_no_problem_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="name the problem"):
        api.export(two_stage_plan(two_class_problem()), "megatron-lm", tmp_path / "out")


def test_network_that_the_target_cannot_build_is_refused_before_planning() -> None:
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb", model="gemma2-9b", seq_length=4096, global_batch_size=64
    )
    with pytest.raises(InstanceError, match="4 norms in a block"):
        api.plan(problem)
