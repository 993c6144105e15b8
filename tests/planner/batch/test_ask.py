"""Answers other than the best plan: those of the same calls made one by one."""

from __future__ import annotations

import pytest

from planner import api
from planner.batch.answer import Answer
from planner.batch.ask import Ask, change_in_words, robustness_in_words
from planner.batch.executor import Task
from planner.batch.job_spec import Limits
from planner.batch.pack import unpacked
from planner.batch.solving import solve, without_problem
from planner.data import load
from planner.data.changes import with_cluster, with_named_hosts, with_nodes
from planner.data.explanation import Change, Robustness, RobustPlan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.explain.least_change import least_change
from planner.explain.robust import most_robust
from tests.planner.stubs import replace_both, two_class_problem, without_plan


def asked(problem: Problem, ask: Ask) -> Answer:
    return solve(Task("k", load.problem_file(problem).model_dump_json(), Limits(), ask.model_dump_json()))


def kept(answer: Answer) -> Result:
    assert answer.cause is None and answer.result is not None
    return Result.model_validate_json(unpacked(answer.result)).model_copy(update={"seconds": 0.0})


@pytest.mark.slow
def test_most_robust_plan_is_that_of_a_single_run() -> None:
    problem = load.load_problem("llama3-8b-h100-a100-16")
    answer = asked(problem, Ask(kind="robust", draws=3))
    alone, robustness = most_robust(problem, api.plan(problem), 3)
    assert kept(answer) == without_problem(alone).model_copy(update={"seconds": 0.0})
    nominal = next(plan for plan in robustness.plans if plan.nominal)
    assert answer.facts["best_fraction"] == nominal.best_fraction
    assert answer.facts["robustness"] == robustness.model_dump(mode="json")


@pytest.mark.slow
def test_least_change_is_that_of_a_single_run() -> None:
    named = with_named_hosts(load.load_problem("llama3-8b-h100-a100-16"))
    smaller = with_nodes(named.cluster, 1, 0)
    assert smaller is not None
    problem = with_cluster(named, smaller)
    answer = asked(problem, Ask(kind="least_change", base=load.problem_file(named), within=0.1))
    before = api.plan(named).plan
    assert before is not None
    alone, change = least_change(problem, before, api.plan(problem), 0.1)
    assert kept(answer) == without_problem(alone).model_copy(update={"seconds": 0.0})
    assert answer.facts["change"] == change.model_dump(mode="json")
    assert answer.facts["message"] == change_in_words(change)


@pytest.mark.parametrize("kind", ["robust", "least_change"])
def test_problem_without_a_plan_is_answered_as_such(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    replace_both(monkeypatch, lambda problem: without_plan(problem, "infeasible", "12 GiB short"))
    problem = two_class_problem()
    answer = asked(problem, Ask(kind=kind, base=load.problem_file(problem)))  # type: ignore[arg-type]
    assert answer.cause is None
    assert (answer.facts["termination"], answer.facts["message"]) == ("infeasible", "12 GiB short")


def test_words_say_what_is_kept_and_what_it_costs() -> None:
    change = Change(
        within=0.05,
        behind_best=0.026,
        degrees_changed=("pp",),
        keeps_classes=False,
        loaded_fraction=0.0727,
        best_loaded_fraction=0.5,
        layers_loaded=6,
        words="pp 15 (not 4)",
    )
    assert change_in_words(change) == (
        "changes pp; hosts load 7.3% of their weights (for the best plan 50.0%); 2.6% behind the best"
    )
    update = {"degrees_changed": (), "loaded_fraction": 0.0, "behind_best": 0.0}
    assert change_in_words(change.model_copy(update=update)) == (
        "keeps all degrees; no weights move; as fast as the best"
    )


def test_words_say_how_often_the_plan_stays_best() -> None:
    first, second = (
        RobustPlan(
            words="",
            chosen=not nominal,
            nominal=nominal,
            step_s=1.0,
            worst_step_s=1.1,
            fits_fraction=0.5 if nominal else 1.0,
            best_fraction=0.25,
            mean_loss=0.001,
            worst_loss=0.02,
        )
        for nominal in (False, True)
    )
    assert robustness_in_words(Robustness(draws=20, plans=(first, second))) == (
        "of 20 draws the plan as it stands fits in 50.0% and stays best in 25.0%; where it fits it is up to "
        "2.0% (0.1% on average) slower than the best; this plan stands up best: it fits in 100.0%"
    )
