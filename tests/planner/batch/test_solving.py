"""One question in this process: every way that it can end is an answer."""

from __future__ import annotations

from typing import Any

import pytest

from planner.batch.executor import Task
from planner.batch.job_spec import Limits
from planner.batch.solving import facts_of, plan_in_words, solve
from planner.data import load
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError, SolverError
from tests.planner.stubs import made_up_result, replace_both, replace_search, two_class_problem, without_plan


def text() -> str:
    return load.problem_file(two_class_problem()).model_dump_json()


def raising(error: Exception) -> Any:
    def search(problem: Problem, on_progress: Any = None) -> Result:
        raise error

    return search


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (InstanceError("no such layer", "model"), "input", "model: no such layer"),
        (SolverError("the solver is lost"), "fault", "the solver is lost"),
        (MemoryError(), "memory", "needs more memory than its 3 GiB"),
    ],
)
def test_what_goes_wrong_is_a_failure_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, error: Exception, cause: str, words: str
) -> None:
    replace_search(monkeypatch, raising(error))
    found = solve(Task("k", text(), Limits(memory_gib=3)))
    assert (found.cause, found.facts["message"], found.result) == (cause, words, None)


def test_running_out_of_memory_without_a_limit_blames_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_search(monkeypatch, raising(MemoryError()))
    assert solve(Task("k", text(), Limits())).facts["message"] == "needs more memory than this machine has"


def test_bug_of_ours_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_search(monkeypatch, raising(KeyError("oops")))
    with pytest.raises(KeyError):
        solve(Task("k", text(), Limits()))


def test_that_there_is_no_plan_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_both(monkeypatch, lambda problem: without_plan(problem, "infeasible", "12 GiB short"))
    found = solve(Task("k", text(), Limits()))
    assert found.cause is None
    assert (found.facts["termination"], found.facts["message"]) == ("infeasible", "12 GiB short")


def test_limits_of_the_job_reach_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Problem] = []

    def answer(problem: Problem) -> Result:
        seen.append(problem)
        return made_up_result(problem)

    replace_both(monkeypatch, answer)
    solve(Task("k", text(), Limits(time_limit_s=7.0)))
    assert seen[0].options.time_limit_s == pytest.approx(7.0, abs=1.0)
    assert seen[0].options.workers == 1


def test_bound_that_says_nothing_is_absent() -> None:
    assert facts_of(made_up_result(two_class_problem(), bound_s=float("inf")))["bound_s"] is None


def test_plan_in_words_names_degrees_chips_and_layers() -> None:
    assert plan_in_words(made_up_result(two_class_problem())) == (
        "tp 4, dp 2, pp 2; micro-batch 1; 1 stage a100-sxm-80gb, 1 stage h100-sxm-80gb; layers 12, 20; "
        "recompute full 3/12, none"
    )
