"""The plan of every shipped problem, searched here, before the real Megatron-LM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.api import plan
from planner.data import load
from tests.planner.launchers.test_megatron_accepts import check, write

pytestmark = pytest.mark.slow

MOST_CHIPS = 256
"""Above this, running the script as every node takes half a minute; the first and last of each kind do."""


@pytest.mark.parametrize("name", load.names("problems"))
def test_megatron_places_what_the_search_planned(name: str, megatron_python: str, tmp_path: Path) -> None:
    problem = load.load_problem(name)
    # A good plan serves as well as the best one here.
    options = problem.options.model_copy(update={"gap": 0.15, "time_limit_s": 10.0})
    result = plan(problem, options)
    assert result.plan is not None, result.reason
    out = write(tmp_path, problem, result.plan)
    report = tmp_path / "report.json"
    few = ("--few",) if problem.cluster.num_chips > MOST_CHIPS else ()
    expected = ("--expect", str(tmp_path / "expected.json"))
    done = check(megatron_python, out, *expected, "--json", str(report), *few)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert json.loads(report.read_text())["world_size"] == result.plan.world_size
