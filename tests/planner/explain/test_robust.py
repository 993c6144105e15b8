"""Draws stay within the bands, repeat for a seed, and the least worst case wins."""

from __future__ import annotations

import pytest

from planner import api
from planner.cost.bands import error_band
from planner.data.load import build_problem
from planner.data.options import Options
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError
from planner.explain import robust
from planner.explain.robust import LINK_BAND, MEMORY_BAND, draws, most_robust
from planner.simulate.evaluate import evaluate


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A node of H100 and a node of A100, searched coarsely."""
    return build_problem(
        cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=32,
        options=Options(gap=0.1),
    )


@pytest.fixture(scope="module")
def best(problem: Problem) -> Result:
    return api.plan(problem)


def test_draws_stay_within_their_bands_and_repeat_for_a_seed(problem: Problem) -> None:
    drawn = list(draws(problem, 30, seed=1))
    assert drawn == list(draws(problem, 30, seed=1)) and drawn != list(draws(problem, 30, seed=2))
    bandwidth, latency_s, _ = problem.cluster.link_between(0, 1)
    for changed in drawn:
        for c, node_class in enumerate(problem.cluster.classes):
            band = error_band(problem.chips[node_class.chip], problem.stack, problem.model)
            assert abs(changed.stack.time_factor[node_class.chip] - 1) <= band
            share = changed.usable_memory_bytes(c) / problem.usable_memory_bytes(c)
            assert 1 / (1 + MEMORY_BAND) - 1e-12 <= share <= 1
        rate, latency, _ = changed.cluster.link_between(0, 1)
        assert abs(rate / bandwidth - 1) <= LINK_BAND and latency == latency_s


def test_a_slower_chip_makes_the_step_slower(problem: Problem, best: Result) -> None:
    assert best.plan is not None and best.evaluation is not None
    (changed,) = draws(problem, 1, seed=3)
    slower = {chip: 1.5 for chip in changed.stack.time_factor}
    stack = problem.stack.model_copy(update={"time_factor": slower})
    step_s = evaluate(problem.model_copy(update={"stack": stack}), best.plan).step_s
    assert step_s > 1.3 * best.evaluation.step_s


def test_the_plan_with_the_least_worst_case_comes_first(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = api.plan(problem, Options(gap=0.1, top=4, max_virtual_stages=1))
    assert result.plan is not None and len(result.runners_up) >= 2
    # Brute force over the same candidates; the draws find no others here.
    monkeypatch.setattr(robust, "api", _OnlyTheGivenPlans())
    changed, table = most_robust(problem, result, 5)
    candidates = [result.plan, *(other.plan for other in result.runners_up)]
    drawn = list(draws(robust.with_named_hosts(problem), 5))
    worst = [max(evaluate(one, plan).step_s for one in drawn) for plan in candidates]
    assert changed.plan == candidates[worst.index(min(worst))]
    assert table.plans[0].chosen and table.plans[0].worst_step_s == pytest.approx(min(worst))
    assert sum(plan.best_fraction for plan in table.plans) >= 1 - 1e-12
    assert all(plan.worst_loss is not None and plan.worst_loss >= 0 for plan in table.plans)


class _OnlyTheGivenPlans:
    """The calls of the product, with a search that finds nothing."""

    predict = staticmethod(api.predict)

    @staticmethod
    def plan(problem: Problem, options: Options) -> object:
        impossible = options.model_copy(update={"pin": {"tp": 7}})
        return api.plan(problem, impossible)


def test_no_draws_are_refused(problem: Problem, best: Result) -> None:
    with pytest.raises(InstanceError, match="at least 1"):
        most_robust(problem, best, 0)


def test_no_draw_is_planned_when_the_time_is_up(problem: Problem, best: Result) -> None:
    limited = problem.model_copy(update={"options": Options(gap=0.1, time_limit_s=5.0)})
    planned: list[str] = []
    _, table = most_robust(limited, best, 3, spent_s=6.0, on_draw=planned.append)
    assert planned == [] and table.draws == 3 and table.plans[0].chosen
