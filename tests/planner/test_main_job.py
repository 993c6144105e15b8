"""The main job with nothing replaced: real search, real referee, real export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import main

QUICK = ["--gap", "0.05", "--quiet"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON of `hetplan plan` with these arguments."""
    assert main(["plan", *arguments, *QUICK, "--json"]) == code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_mixed_pair_of_nodes_is_planned_proven_and_exported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "launch"
    result = planned(capsys, "llama3-8b-h100-a100-16", "--out", str(out))
    evaluation = result["evaluation"]
    assert evaluation["violations"] == []
    assert result["gap"] == pytest.approx(1 - result["bound_s"] / evaluation["step_s"])
    assert 0 <= result["gap"] <= 0.05
    assert all(stage["peak_memory_gib"] <= stage["limit_gib"] for stage in evaluation["stages"])
    steps = [evaluation["step_s"], *(other["evaluation"]["step_s"] for other in result["runners_up"])]
    assert steps == sorted(steps)

    # The plan file stands alone: it predicts to the same time and exports to the same directory.
    plan_file = str(out / "plan.yaml")
    assert main(["predict", "--plan", plan_file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == evaluation["step_s"]
    again = tmp_path / "again"
    assert main(["export", plan_file, "--out", str(again), "--quiet"]) == 0
    for written in sorted(p for p in out.rglob("*") if p.is_file()):
        assert (again / written.relative_to(out)).read_bytes() == written.read_bytes()


@pytest.mark.slow
def test_same_problem_gives_the_same_plan_whatever_the_workers(capsys: pytest.CaptureFixture[str]) -> None:
    one = planned(capsys, "llama3-8b-h100-8", "--workers", "1")
    two = planned(capsys, "llama3-8b-h100-8", "--workers", "2")
    assert one["plan"] == two["plan"]


def test_model_that_cannot_fit_exits_with_3_and_says_by_how_much(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--cluster", "1x8 h100-sxm-80gb", "--model", "llama3.1-405b"]
    arguments += ["--seq-length", "8192", "--global-batch-size", "8"]
    out = tmp_path / "launch"
    result = planned(capsys, *arguments, "--out", str(out), code=3)
    assert result["plan"] is None and result["termination"] == "infeasible"
    assert "GiB" in result["reason"]
    assert not out.exists()


def test_batch_that_hardly_divides_is_still_planned_or_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A prime batch leaves one replica, or as many as sequences; either way nobody meets a traceback."""
    arguments = ["--cluster", "1x8 h100-sxm-80gb", "--model", "llama3-8b"]
    arguments += ["--seq-length", "8192", "--global-batch-size", "7"]
    result = planned(capsys, *arguments)
    plan = result["plan"]
    assert plan["data_parallel"] * plan["microbatch_size"] * plan["num_microbatches"] == 7


def test_time_limit_that_is_over_before_the_search_ends_the_ordinary_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["plan", "llama3-70b-h100-a100-128", "--time-limit-s", "0.001", "--quiet", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (code, result["termination"]) in {(4, "no_solution_found"), (0, "feasible"), (0, "optimal")}
    assert result["interrupted"]


def broken(plan_file: Path, old: str, new: str) -> Path:
    """A copy of a plan file with one passage changed."""
    text = plan_file.read_text()
    assert text.count(old) >= 1, text
    copy = plan_file.with_name("broken.yaml")
    copy.write_text(text.replace(old, new, 1))
    return copy


def test_plan_corrupted_on_purpose_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "launch"
    result = planned(capsys, "llama3-8b-h100-a100-16", "--out", str(out))
    first, last = result["plan"]["stages"][-1]["layers"]
    corruptions = [
        (f"[{first}, {last}]", f"[{first}, {last - 1}]"),  # a layer lost
        ("num_microbatches: ", "num_microbatches: 1"),  # a batch that does not add up
        ("tensor_parallel: ", "tensor_parallel: 3"),  # heads that do not divide
    ]
    for old, new in corruptions:
        corrupted = broken(out / "plan.yaml", old, new)
        assert main(["predict", "--plan", str(corrupted), "--json"]) in (2, 3), new
        capsys.readouterr()
        elsewhere = tmp_path / "elsewhere"
        assert main(["export", str(corrupted), "--out", str(elsewhere)]) == 2, new
        shown = capsys.readouterr()
        assert shown.err.startswith("hetplan: error: ") and shown.err.count("\n") == 1
        assert not elsewhere.exists()


def test_answer_is_held_against_the_plan_of_today(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    today = planned(capsys, "llama3-8b-h100-8", "--pin", "tp=8", "--out", str(tmp_path / "launch"))
    baseline = ["--baseline", str(tmp_path / "launch" / "plan.yaml")]
    answer = planned(capsys, "llama3-8b-h100-8", *baseline)
    found, steps = answer["baseline"], (today["evaluation"]["step_s"], answer["evaluation"]["step_s"])
    assert (found["a"]["step_s"], found["b"]["step_s"]) == steps
    assert found["step_change"] == steps[1] / steps[0] - 1 < 0
    # Of another batch it is held to the batch that is asked for, not to its own.
    larger = planned(capsys, "llama3-8b-h100-8", *baseline, "--global-batch-size", "256")["baseline"]
    assert not larger["a"]["violations"] and larger["a"]["step_s"] > 1.5 * steps[0]
    assert larger["step_change"] < 0
    # Even where the time is over before the search, the answer is no worse than the plan of today.
    hurried = planned(capsys, "llama3-8b-h100-8", *baseline, "--time-limit-s", "0.001")
    assert hurried["evaluation"]["step_s"] <= steps[0]


def test_plan_of_today_that_does_not_fit_is_named_and_not_the_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    planned(capsys, "llama3-8b-h100-8", "--out", str(tmp_path / "launch"))
    arguments = ["llama3-8b-h100-8", "--baseline", str(tmp_path / "launch" / "plan.yaml")]
    answer = planned(capsys, *arguments, "--memory-reserve", "0.2")
    assert answer["baseline"]["a"]["violations"] and not answer["baseline"]["b"]["violations"]
    assert main(["plan", *arguments, "--memory-reserve", "0.2", *QUICK]) == 0
    assert "breaks a rule: " in capsys.readouterr().out
    assert main(["plan", *arguments, "--target", "all"]) == 2
    assert "--baseline" in capsys.readouterr().err
