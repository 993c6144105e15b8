"""Plans spoilt in one way each are refused before Megatron sees them, and are told what is wrong."""

from __future__ import annotations

import pytest

from planner.errors import PlanRefusedError
from planner.launchers.directory import files_of
from tests.planner.launchers.random_plans import random_case
from tests.planner.launchers.spoilt_plans import SPOILT


@pytest.mark.parametrize("way", SPOILT)
def test_a_spoilt_plan_is_refused_with_the_reason(way: str) -> None:
    make, spoil, complaint = SPOILT[way]
    problem, plan = make()
    spoilt = spoil(plan)
    assert spoilt != plan
    with pytest.raises(PlanRefusedError, match=complaint):
        files_of(problem, spoilt, "megatron-lm")


def test_random_plans_are_legal_and_the_same_for_the_same_seed() -> None:
    for seed in range(5):
        problem, plan = random_case(seed)
        assert plan == random_case(seed)[1]
        assert "launch.sh" in files_of(problem, plan, "megatron-lm")
