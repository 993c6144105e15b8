"""Limits that pass before a search has listed its choices: what is at hand comes back, in time."""

from __future__ import annotations

import numpy as np
import pytest

from planner.data.load import load_problem
from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.search import driver, pair_bounds, targets
from planner.search.clock import Clock
from planner.search.meshes import driver as meshes
from planner.search.openings import Opener
from planner.search.replicas import driver as replicas
from planner.search.space import Pairs


def with_limit(seconds: float | None, **wishes: object) -> Problem:
    problem = load_problem("llama3-8b-h100-8")
    options = problem.options.model_copy(update={"time_limit_s": seconds, **wishes})
    return problem.model_copy(update={"options": options})


def test_a_share_too_short_for_a_plan_is_doubled_for_the_next_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 10,240 chips even shares of four seconds ended without a plan, though one of two finds one."""
    shares: list[float | None] = []

    def cut(problem: Problem, *_: object) -> Result:
        shares.append(problem.options.time_limit_s)
        return Result.without_plan(problem.name, "no_solution_found", "cut", problem.options.solver, "0")

    monkeypatch.setattr(targets, "search_target", cut)
    monkeypatch.setattr(Clock, "elapsed_s", 0.0)
    targets.search_all(with_limit(8.0))
    assert shares == [2.0, 4.0, 8.0, 8.0]


@pytest.mark.parametrize("target", ["megatron-lm", "flagscale", "unrestricted"])
def test_plans_at_hand_are_all_that_is_known_where_the_limit_has_passed(
    target: TargetName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices were listed all the same: up to twice the limit on large clusters."""

    known = driver.search(with_limit(None, gap=0.5, max_virtual_stages=1))
    assert known.plan is not None and known.evaluation is not None

    def listed(*_: object) -> None:
        raise AssertionError("choices are listed though the limit has passed")

    monkeypatch.setattr(driver.Search, "list_parts", listed)
    monkeypatch.setattr(meshes, "list_pairs", listed)
    monkeypatch.setattr(replicas, "Mixing", listed)
    asked = with_limit(1e-9).model_copy(update={"target": target})
    result = targets.search_target(asked, seeds=[known.plan])
    assert result.evaluation is not None and result.evaluation.step_s == known.evaluation.step_s
    assert (result.termination, result.interrupted) == ("feasible", True)
    if target == "unrestricted":  # the work of all chips is known without a list
        assert result.bound_s is not None and 0 < result.bound_s < result.evaluation.step_s
    else:
        assert (result.bound_s, result.gap) == (None, None)


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_pairs_are_bounded_better_while_there_is_time(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them were, which took three seconds on 10,240 chips where the limit had left no plan."""
    search = driver.Search(with_limit(None), None)
    search.list_parts()
    opener, pairs = search.opener, search.pairs
    assert isinstance(opener, Opener) and len(pairs.bound_s) > 40
    monkeypatch.setattr(pair_bounds, "AT_ONCE", 20)
    whole = pair_bounds.closer_pairs(opener, pairs)
    left = iter([False] * looks)
    monkeypatch.setattr(Clock, "is_up", property(lambda clock: next(left, True)))
    found = pair_bounds.closer_pairs(opener, pairs)
    assert (np.diff(found.bound_s) >= 0).all()

    def by_pair(of: Pairs) -> dict[tuple[int, int], float]:
        return dict(zip(zip(of.choice.tolist(), of.stages.tolist(), strict=True), of.bound_s, strict=True))

    before, after, closest = by_pair(pairs), by_pair(found), by_pair(whole)
    # The least ones first, no other.
    first = sorted(before, key=before.__getitem__)[: 20 * looks]
    edge = max((before[pair] for pair in first), default=0.0)
    assert any(closest[pair] > before[pair] for pair in first) == (looks > 0)
    for pair, bound_s in before.items():
        assert after[pair] in ((closest[pair],) if bound_s < edge else (bound_s, closest[pair]))
        assert bound_s <= edge or after[pair] == bound_s
