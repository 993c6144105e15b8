"""The cost model against published training runs, nothing fitted; the goals it must not fall behind."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.accuracy import score
from planner.calibrate.convert import convert
from planner.calibrate.runs import read_runs
from planner.data.options import Options
from planner.simulate.evaluate import evaluate

RUNS = Path(__file__).parents[4] / "shared/measured/runs.jsonl"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RUNS.exists(), reason="the measured runs are not at hand"),
]


@lru_cache(maxsize=8)
def groups(suite: str) -> dict[str, Any]:
    """Errors by suite, precision and kind of model."""
    # The suite of 2021 also holds three ZeRO-3 runs of DeepSpeed, which overlapped less than the model says.
    where = {"stack": "megatron-2022"} if suite == "sc21-megatron" else {}
    return score(RUNS, suite=suite, where=where)["groups"]


@pytest.mark.parametrize(
    ("suite", "group", "worst_mape"),
    [
        ("korthikanti22", "korthikanti22/fp16/dense", 0.045),
        ("dgxc-benchmarking", "dgxc-benchmarking/bf16/dense", 0.06),
        ("dgxc-benchmarking", "dgxc-benchmarking/bf16/moe", 0.15),
        ("sc21-megatron", "sc21-megatron/fp16/dense", 0.035),
        ("vtrain-multi", "vtrain-multi/bf16/dense", 0.085),
        ("onechip", "onechip/bf16/dense", 0.04),
        ("onechip-moe", "onechip-moe/bf16/moe", 0.05),
        ("llm-foundry", "llm-foundry/bf16/dense", 0.12),
        ("mlperf-training", "mlperf-training/fp8/dense", 0.09),
        ("nemo-docs", "nemo-docs/fp8/dense", 0.065),
        ("megatron-bridge", "megatron-bridge/fp8/dense", 0.05),
        ("megatron-bridge", "megatron-bridge/mxfp8/dense", 0.05),
        ("simumax-b200", "simumax-b200/bf16/dense", 0.08),
    ],
)
def test_unfitted_step_times_stay_within_the_goal(suite: str, group: str, worst_mape: float) -> None:
    assert groups(suite)[group]["step"]["mape"] <= worst_mape


@lru_cache(maxsize=1)
def anchored() -> dict[str, Any]:
    """Errors by suite, every run scaled by others."""
    return score(RUNS, anchor="leave-one-out")["suites"]


@pytest.mark.parametrize(
    ("suite", "worst_mape"),
    [
        ("vtrain-single", 0.07),
        ("simumax-b200", 0.04),
        ("megatron-bridge", 0.085),
        ("nemo-docs", 0.045),
        ("llm-foundry", 0.09),
        ("torchtitan", 0.13),
        ("internevo", 0.05),
        ("sc21-megatron", 0.065),
        ("mlperf-training", 0.08),
        ("mindspeed-llm", 0.16),
    ],
)
def test_anchored_step_times_stay_within_the_goal(suite: str, worst_mape: float) -> None:
    assert anchored()[suite]["step"]["mape"] <= worst_mape


@pytest.mark.parametrize(
    ("suite", "group"),
    [
        ("simumax-b200", "simumax-b200/bf16/dense"),
        ("simumax-b200", "simumax-b200/bf16/moe"),
        ("onechip-moe", "onechip-moe/bf16/moe"),
    ],
)
def test_predicted_memory_stays_within_three_percent(suite: str, group: str) -> None:
    assert groups(suite)[group]["memory"]["mape"] <= 0.03


@pytest.mark.parametrize(("suite", "worst_mape"), [("torchtitan", 0.05), ("sailor-gh200", 0.06)])
def test_memory_of_other_software_stays_within_the_goal(suite: str, worst_mape: float) -> None:
    assert score(RUNS, suite=suite)["suites"][suite]["memory"]["mape"] <= worst_mape


MEASURED_MEMORY = [
    "dlperf-v100",
    "flagperf",
    "flagperf-paddle",
    "onechip-moe",
    "paddlenlp",
    "sailor-gh200",
    "sailor-mit",
    "simumax-b200",
    "torchtitan",
]


@pytest.mark.parametrize("suite", MEASURED_MEMORY)
def test_memory_is_never_far_below_a_measured_peak(suite: str) -> None:
    rows = [row for row in score(RUNS, suite=suite, rows=True)["rows"] if row["measured_memory_gib"]]
    predicted = [row for row in rows if row["predicted_memory_gib"]]
    assert predicted
    assert not [r["id"] for r in predicted if r["predicted_memory_gib"] < 0.97 * r["measured_memory_gib"]]
    if suite in ("simumax-b200", "onechip-moe"):  # the software that launch files start
        fits = 1 - Options().memory_reserve_fraction
        assert all(r["predicted_memory_gib"] >= fits * r["measured_memory_gib"] for r in predicted)


def test_layouts_that_differ_in_who_shares_the_optimizer_are_told_apart() -> None:
    assert score(RUNS, suite="internevo")["ranking"]["internevo"]["regret"] <= 0.02


def test_the_optimizers_step_is_what_its_kernels_take() -> None:
    """Five milliseconds of host work, a guess for Megatron-LM's loop, were added to a plain one: 6 to 58%."""
    lines = (json.loads(line) for line in RUNS.read_text().splitlines())
    measured_s = {line["id"]: line["measured"].get("optimizer_s") for line in lines}
    alone = [run for run in read_runs(RUNS) if run.source == "onechip" and measured_s[run.id]]
    assert len(alone) > 10
    for run in alone:
        candidate = convert(run)
        predicted = evaluate(candidate.problem, candidate.plans[0]).breakdown_s["optimizer"]
        assert predicted == pytest.approx(measured_s[run.id], rel=0.09), run.id
