"""The exported directory before the real Megatron-LM: parsed, validated, placed, and run for one step."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.data.load import load_model, load_plan, load_problem
from planner.data.model_constants import RotaryScaling
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.launchers.directory import export_plan
from planner.search import driver
from tests.megatron_check.expectation import expectation
from tests.planner.launchers import plans, real_megatron
from tests.planner.launchers.wide_plans import wide_case

pytestmark = pytest.mark.slow


def check(python: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the check on one launch directory."""
    nodes = len((directory / "hosts.txt").read_text().splitlines())
    return run_check(python, "--script", str(directory / "launch.sh"), "--nodes", str(nodes), *options)


def run_check(
    python: str, *options: str, older: str | None = None, timeout_s: int = 600
) -> subprocess.CompletedProcess[str]:
    """Run the check with its options, on the newest version or an older one."""
    command = ("-m", "tests.megatron_check.check_megatron_args", *options)
    return real_megatron.run(python, *command, older=older, timeout_s=timeout_s)


def write(directory: Path, problem: Problem, plan: Plan, version: str | None = None) -> Path:
    """Export a plan, and what is expected of it beside."""
    out = export_plan(problem, plan, "megatron-lm", directory / "launch", version=version)
    (directory / "expected.json").write_text(json.dumps(expectation(problem, plan)))
    return out


@pytest.mark.parametrize("name", plans.CASES)
def test_megatron_places_and_runs_what_the_plan_says(name: str, megatron_python: str, tmp_path: Path) -> None:
    problem, plan = plans.CASES[name]()
    out = write(tmp_path, problem, plan)
    report_file = tmp_path / "report.json"
    done = check(
        megatron_python,
        out,
        *("--simulate", "stages", "--expect", str(tmp_path / "expected.json"), "--json", str(report_file)),
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    report = json.loads(report_file.read_text())
    assert [result["coordinates"]["pp"] for result in report["simulated"]] == list(range(len(plan.stages)))
    assert all(result["collectives"] for result in report["simulated"])
    assert_hosts_hold_their_stages(out, report)


def test_a_searched_plan_with_virtual_stages_is_accepted_and_reads_back(
    megatron_python: str, tmp_path: Path
) -> None:
    """The search's own plan: uneven chunks on two kinds of chips, one layout string for all nodes."""
    problem = load_problem("llama3-8b-h100-a100-16")
    options = problem.options.model_copy(update={"pin": {"vp": 4}, "max_pipeline_parallel": 2})
    plan = driver.search(problem.model_copy(update={"options": options})).plan
    assert plan is not None and plan.virtual_stages == 4
    out = write(tmp_path, problem, plan)
    expected = ("--simulate", "stages", "--expect", str(tmp_path / "expected.json"))
    done = check(megatron_python, out, *expected)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    read_back = load_plan(out / "plan.yaml")
    assert [stage.chunks for stage in read_back.stages] == [stage.chunks for stage in plan.stages]


@pytest.mark.parametrize(
    ("model", "expert_parallel"),
    plans.HYBRIDS,
)
@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize(("version", "wheel"), [("0.17", "0.17.1"), ("0.18", "0.18.2"), ("0.19", None)])
def test_layers_of_a_hybrid_lie_where_the_plan_says(
    version: str,
    wheel: str | None,
    virtual: bool,
    model: str,
    expert_parallel: int,
    megatron_python: str,
    tmp_path: Path,
) -> None:
    problem, plan = plans.hybrid_layers(virtual, model, expert_parallel)
    if version == "0.17":  # which recomputes no layers of hybrids
        plan = plans.without_recomputation(plan)
    out = write(tmp_path, problem, plan, version)
    options = (
        "--script",
        str(out / "launch.sh"),
        "--nodes",
        "2",
        "--expect",
        str(tmp_path / "expected.json"),
    )
    done = run_check(megatron_python, *options, older=wheel)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def assert_hosts_hold_their_stages(out: Path, report: dict[str, Any]) -> None:
    """Deal the ranks to the lines of hosts.txt as torchrun does: each host gets ranks of its stages."""
    lines = (out / "hosts.txt").read_text().splitlines()
    rank = 0
    for line, count in zip(lines, report["processes_per_node"], strict=True):
        told = {int(stage) for stage in line.split()[2].split(",")}
        assert {place["pp"] for place in report["rank_coords"][rank : rank + count]} == told
        rank += count
    assert rank == report["world_size"]


def test_megatron_reads_what_its_sharding_is_told(megatron_python: str, tmp_path: Path) -> None:
    # Running it needs packages that no other plan does; reading and checking it needs none.
    out = write(tmp_path, *plans.sharded_parameters())
    done = check(megatron_python, out, "--expect", str(tmp_path / "expected.json"))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_megatron_builds_the_models_that_the_plans_counted(megatron_python: str, tmp_path: Path) -> None:
    # Each has something of its own: norms of queries and keys, sinks and windows, squared ReLU,
    # biases of qkv with experts and prediction, heads that are no power of two.
    names = ("qwen3-8b", "gpt-oss-20b", "nemotron-4-340b", "glm-4.5-air", "phi-3-mini")
    options: list[str] = []
    # And what no shipped model has: prediction with a tied head, for which the last stage holds two copies.
    tied = load_model("glm-4.5-air").model_copy(update={"id": "tied", "tied_embeddings": True})
    # One expert a token, shared experts behind a gate, part of each head rotated, and that stretched.
    mixtral = load_model("mixtral-8x7b")
    assert mixtral.moe is not None
    one = {"top_k": 1, "shared_ffn_hidden_size": 1024, "shared_expert_gate": True}
    rotary = {"rotary_fraction": 0.5, "rotary_scaling": RotaryScaling(kind="llama3", factor=4.0)}
    switch = mixtral.model_copy(
        update={
            "id": "switch",
            "moe": mixtral.moe.model_copy(update=one),
            "constants": mixtral.constants.model_copy(update=rotary),
        }
    )
    changed = {"tied": tied, "switch": switch}
    for name, model in {**{name: name for name in names}, **changed}.items():
        problem, plan = plans.two_stages(model)
        out = write(tmp_path / name, problem, plan)
        options += ["--script", str(out / "launch.sh"), "--nodes", str(plan.world_size // 8)]
        options += ["--expect", str(tmp_path / name / "expected.json")]
    done = run_check(megatron_python, *options)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("ACCEPTED") == len(names) + len(changed)


RANDOM_PLANS = {"0.17.1": 30, "0.18.2": 30, "0.19.2": 20}
"""Versions of Megatron core, and random plans of one run."""


@pytest.mark.parametrize("version", RANDOM_PLANS)
def test_megatron_accepts_random_plans_and_places_them_alike(
    version: str, megatron_python: str, tmp_path: Path
) -> None:
    # New plans every time; HETPLAN_SEED repeats a run.
    first, count = int(os.environ.get("HETPLAN_SEED", random.randrange(10**9))), RANDOM_PLANS[version]
    options: list[str] = []
    for seed in range(first, first + count):
        core = version.rpartition(".")[0]
        problem, plan = wide_case(seed, core)
        out = write(tmp_path / f"seed-{seed}", problem, plan, core)
        nodes = len((out / "hosts.txt").read_text().splitlines())
        options += ["--script", str(out / "launch.sh"), "--nodes", str(nodes)]
        options += ["--expect", str(tmp_path / f"seed-{seed}" / "expected.json")]
    print(f"core {version}, seeds {first} to {first + count - 1}")
    older = version if version != "0.19.2" else None
    done = run_check(megatron_python, *options, older=older, timeout_s=1200)
    assert done.returncode == 0, f"HETPLAN_SEED={first}\n{done.stdout}{done.stderr[-2000:]}"
    assert done.stdout.count("ACCEPTED") == count


DAMAGES = {
    "a layer lost": ("t*16L", "t*15L", "must match num_layers"),
    "a batch that does not divide": ("--global-batch-size 8", "--global-batch-size 9", "must be divisible"),
    "a process too few": ("PROCESSES=8", "PROCESSES=7", "14"),
    "an unknown flag": ("--num-layers 32", "--number-of-layers 32", "parser"),
}


def test_directories_damaged_by_hand_are_refused_by_megatron_too(
    megatron_python: str, tmp_path: Path
) -> None:
    options: list[str] = []
    for name, (old, new, _) in DAMAGES.items():
        script = write(tmp_path / name, *plans.uniform()) / "launch.sh"
        text = script.read_text()
        assert old in text
        script.write_text(text.replace(old, new))
        options += ["--script", str(script), "--nodes", "2"]
    # The scripts themselves stop first; their checks are switched off here to hear Megatron.
    done = run_check(megatron_python, *options, "--set", "HETPLAN_SKIP_CHECKS=1")
    assert done.returncode == 1, done.stdout
    for name, (_, _, complaint) in DAMAGES.items():
        said = next(line for line in done.stdout.splitlines() if f"/{name}/" in line)
        assert "REFUSED" in said
        assert complaint in said
