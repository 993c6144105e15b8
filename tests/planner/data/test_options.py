"""What a user may pin, forbid or keep idle, and how a slip is answered."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from planner.data.load import load_problem, problem_file, resolve_problem
from planner.data.options import Options
from planner.data.problem import ProblemFile
from planner.errors import InstanceError


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"pin": {"tpp": 8}}, "cannot be pinned"),
        ({"pin": {"tp": 0}}, "at least 1"),
        ({"pin": {"sp": 2}}, "0 or 1"),
        ({"forbid": ("recompute",)}, "NAME=VALUE"),
        ({"forbid": ("recompute=some",)}, "selective, full"),
        ({"forbid": ("tp=x",)}, "whole number"),
    ],
)
def test_a_wish_that_means_nothing_is_refused(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Options(**wishes)


def test_wishes_that_mean_something_are_taken() -> None:
    options = Options(pin={"tp": 8, "sp": 0}, forbid=("recompute=full", "cp=2"))
    assert options.pin == {"tp": 8, "sp": 0}


@pytest.mark.parametrize(
    ("spare", "message"), [(["v100"], "no class is named"), (["h100", "a100"], "every class")]
)
def test_only_some_classes_of_the_cluster_can_be_spared(spare: list[str], message: str) -> None:
    fields = problem_file(load_problem("llama3-8b-h100-a100-16")).model_dump(mode="json")
    fields["options"]["spare"] = spare
    with pytest.raises(InstanceError, match=message):
        resolve_problem(ProblemFile.model_validate(fields), "p.yaml")
