"""Scores against runs: metrics by hand with predictions made up, then the whole with real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from planner.calibrate import accuracy
from planner.calibrate.accuracy import score
from planner.calibrate.predictions import Prediction
from planner.calibrate.table import accuracy_table, split_groups
from planner.errors import InstanceError
from tests.planner.calibrate.rows import row, write

MEASURED = Path(__file__).parents[4] / "shared" / "measured" / "runs.jsonl"


@pytest.fixture
def ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is predicted to take 10 s and 40 GiB."""

    def predict(candidates: Any, kinds: Any) -> tuple[Prediction, ...]:
        return tuple(Prediction(10.0, 40.0, {}, {}, ()) for _ in candidates)

    monkeypatch.setattr(accuracy, "predict_runs", predict)


@pytest.mark.usefixtures("ten_seconds")
def test_errors_are_those_of_the_hand_calculation(tmp_path: Path) -> None:
    path = write(
        tmp_path / "runs.jsonl",
        row(id="a", measured={"step_s": 8.0}),  # +25%
        row(id="b", measured={"step_s": 12.5}),  # -20%
        row(id="c", measured={"step_s": 10.0, "peak_memory_gib": 50.0}),  # 0%, memory -20%
        row(id="d", measured={"failed": True}),
        row(id="e", quality="low"),
    )
    suite = score(path)["suites"]["suite-a"]
    assert suite["skipped"] == {"failed": 1, "quality low": 1}
    assert suite["unanchored"] == 3
    step = suite["step"]
    assert (step["n"], step["worst_id"]) == (3, "a")
    assert step["mape"] == pytest.approx(0.15)
    assert step["bias"] == pytest.approx(0.05 / 3)
    # Sorted absolute errors 0, 0.2, 0.25: the 90th percentile lies 0.8 of the way from the second on.
    assert step["p90"] == pytest.approx(0.2 + 0.8 * 0.05)
    memory = suite["memory"]
    assert (memory["n"], memory["worst_id"]) == (1, "c")
    assert memory["bias"] == pytest.approx(-0.2)


@pytest.mark.usefixtures("ten_seconds")
def test_absent_values_are_null_and_rows_only_where_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", row(id="a", quality="low"), row(id="b"))
    scores = score(path, rows=True)
    assert scores["suites"]["suite-a"]["memory"] == {
        "n": 0,
        "mape": None,
        "bias": None,
        "p90": None,
        "worst_id": None,
    }
    skipped, scored = scores["rows"]
    assert (skipped["id"], skipped["skipped"], skipped["predicted_step_s"]) == ("a", "quality low", None)
    assert (scored["predicted_step_s"], scored["measured_step_s"], scored["skipped"]) == (10.0, 10.0, None)
    assert scored["predicted_memory_gib"] is None and scored["anchor"] is None
    assert score(path)["rows"] == []
    json.dumps(scores, allow_nan=False)


@pytest.mark.usefixtures("ten_seconds")
def test_groups_tell_precision_and_experts_apart(tmp_path: Path) -> None:
    moe = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 14336}
    path = write(
        tmp_path / "runs.jsonl",
        row(workload__precision=None),
        row(workload__precision="fp8"),
        row(model__moe=moe),
        row(workload__precision="tf32"),
    )
    groups = score(path)["groups"]
    assert list(groups) == [
        "suite-a/bf16/dense",
        "suite-a/fp8/dense",
        "suite-a/bf16/moe",
        "suite-a/tf32/dense",
    ]
    assert groups["suite-a/tf32/dense"]["skipped"] == {"precision: tf32 not modelled": 1}


@pytest.mark.usefixtures("ten_seconds")
def test_runs_are_chosen_by_suite_and_by_field(tmp_path: Path) -> None:
    path = write(
        tmp_path / "runs.jsonl",
        row(id="a"),
        row(id="b", source="suite-b"),
        row(id="c", source="suite-b", workload__precision="fp8"),
        row(id="d", source="suite-b", quality="low"),
    )

    def ids(**chosen: Any) -> list[str]:
        return [r["id"] for r in score(path, rows=True, **chosen)["rows"]]

    assert ids(suite="suite-b") == ["b", "c", "d"]
    assert ids(where={"precision": "FP8"}) == ["c"]
    assert ids(suite="suite-b", where={"precision": "bf16", "chip": "h100-sxm-80gb"}) == ["b", "d"]
    low = score(path, where={"quality": "low"})["suites"]["suite-b"]
    assert low["step"]["n"] == 1 and low["skipped"] == {}
    with pytest.raises(InstanceError, match=r"suite-c.*did you mean suite-b"):
        score(path, suite="suite-c")
    with pytest.raises(InstanceError, match="'precission'; did you mean precision"):
        score(path, where={"precission": "bf16"})
    with pytest.raises(InstanceError, match="leave-two-out"):
        score(path, anchor="leave-two-out")


@pytest.mark.usefixtures("ten_seconds")
def test_anchored_prediction_is_scaled_by_the_factor_of_others(tmp_path: Path) -> None:
    path = write(
        tmp_path / "runs.jsonl",
        row(id="a", measured={"step_s": 11.0}),
        row(id="b", measured={"step_s": 12.0}, plan__tensor_parallel=4, plan__data_parallel=1),
        row(
            id="c",
            measured={"step_s": 20.0},
            source="suite-c",
            software="MindSpeed",
            cluster__groups=[{"chip": "ascend-910b-64gb", "num_chips": 16, "chips_per_node": 8}],
        ),
    )
    scores = score(path, anchor="leave-one-out", rows=True)
    first, second, alone = scores["rows"]
    assert (first["predicted_step_s"], first["anchor"]) == (pytest.approx(12.0), pytest.approx(1.2))
    assert second["predicted_step_s"] == pytest.approx(11.0)
    assert (alone["predicted_step_s"], alone["anchor"]) == (10.0, None)
    assert scores["suites"]["suite-a"]["unanchored"] == 0
    assert scores["suites"]["suite-c"]["unanchored"] == 1
    # The anchors come from the whole file, whatever is filtered.
    (only,) = score(path, anchor="leave-one-out", where={"id": "a"}, rows=True)["rows"]
    assert only == first


@pytest.mark.usefixtures("ten_seconds")
def test_table_names_suites_errors_and_reasons(tmp_path: Path) -> None:
    path = write(
        tmp_path / "runs.jsonl",
        row(id="a", measured={"step_s": 8.0}),
        row(id="b", plan__microbatch_size=None),
    )
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(accuracy_table(score(path, rows=True)))
    text = console.export_text()
    for word in ("suite-a", "25.0%", "+25.0%", "microbatch_size", "8.00 s"):
        assert word in text


def test_recompute_that_nobody_states_is_the_fastest_that_fits(tmp_path: Path) -> None:
    alone = {"groups": [{"chip": "h100-sxm-80gb", "num_chips": 8, "chips_per_node": 8}]}
    path = write(
        tmp_path / "runs.jsonl",
        row(id="roomy", plan__recompute=None),
        # All of the layers on each chip pair: without recomputation the activations do not fit.
        row(
            id="tight",
            cluster=alone,
            plan__recompute=None,
            plan__pipeline_parallel=1,
            plan__data_parallel=4,
            plan__microbatch_size=8,
        ),
    )
    roomy, tight = score(path, rows=True)["rows"]
    assert "recompute none: the fastest setting that fits" in roomy["assumptions"]
    assert any("recompute full" in assumption for assumption in tight["assumptions"])


def test_memory_is_counted_as_the_measured_figure_counts(tmp_path: Path) -> None:
    measured = {"step_s": 10.0, "peak_memory_gib": 40.0}
    path = write(
        tmp_path / "runs.jsonl",
        *(
            row(id=kind or "unstated", measured=measured, memory_kind=kind)
            for kind in ("allocated", "reserved", "device", None)
        ),
    )
    allocated, reserved, device, unstated = (
        r["predicted_memory_gib"] for r in score(path, rows=True)["rows"]
    )
    assert allocated < reserved < device == unstated


def test_a_memory_figure_that_is_read_otherwise_than_stated_says_so(tmp_path: Path) -> None:
    changes = {"memory_kind": "allocated", "measured": {"step_s": 10.0, "peak_memory_gib": 40.0}}
    runs = (row(id="as stated", **changes), row(id="2023", software="PaddleNLP 0b246a6", **changes))
    found = score(write(tmp_path / "runs.jsonl", *runs), rows=True)["rows"]
    said = ["reserved, not allocated" in " ".join(r["assumptions"]) for r in found]
    assert said == [False, True]


def test_one_chip_alone_has_no_communication(tmp_path: Path) -> None:
    moe = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 4096, "local_experts": 2}
    changes = {
        "cluster": {"groups": [{"chip": "h100-sxm-80gb", "num_chips": 1, "chips_per_node": 1}]},
        "model__moe": moe,
        "plan__tensor_parallel": 1,
        "plan__pipeline_parallel": 1,
        "plan__data_parallel": 1,
        "plan__dp_mode": "ddp",
        "plan__expert_parallel": 4,
        "plan__shard_of_one_rank_only": True,
    }
    path = write(tmp_path / "runs.jsonl", row(id="shard", **changes))
    (scored,) = score(path, rows=True)["rows"]
    assert scored["skipped"] is None and scored["predicted_step_s"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.exists(), reason="the measured runs are not here")
@pytest.mark.parametrize("anchor", ["none", "leave-one-out"])
def test_every_measured_run_is_scored_or_skipped_with_a_reason(anchor: str) -> None:
    scores = score(MEASURED, anchor=anchor, rows=True)
    assert len(scores["rows"]) == sum(1 for line in MEASURED.read_text().splitlines() if line.strip())
    for scored in scores["rows"]:
        assert bool(scored["skipped"]) != bool(scored["predicted_step_s"] or scored["predicted_memory_gib"])
    json.dumps(scores, allow_nan=False)


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.exists(), reason="the measured runs are not here")
def test_suites_stay_within_the_errors_that_are_promised() -> None:
    scores = score(MEASURED)
    assert scores["suites"]["korthikanti22"]["step"]["mape"] <= 0.15
    assert scores["suites"]["simumax-b200"]["memory"]["mape"] <= 0.10
    assert scores["groups"]["dgxc-benchmarking/bf16/dense"]["step"]["mape"] <= 0.15


def test_groups_are_listed_where_a_suite_has_several() -> None:
    summary = {"step": {"n": 2, "mape": 0.1, "bias": 0.0, "p90": 0.1, "worst_id": "x"}}
    groups = {name: summary for name in ("a/bf16/dense", "a/fp8/moe", "b/bf16/dense")}
    assert list(split_groups(groups)) == ["a/bf16/dense", "a/fp8/moe"]
