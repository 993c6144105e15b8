"""Files of measured runs: what is read and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.calibrate.accuracy import score
from planner.calibrate.runs import Run, read_runs
from planner.errors import InstanceError
from tests.planner.calibrate.rows import row, write


def test_blank_lines_and_unknown_keys_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", row(id="a", invented_key=1))
    path.write_text("\n" + path.read_text() + "\n\n")
    assert [run.id for run in read_runs(path)] == ["a"]


def test_malformed_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "runs.jsonl", row(), row())
    path.write_text(path.read_text() + "{not json\n")
    with pytest.raises(InstanceError, match=r"runs\.jsonl: line 3: is no JSON"):
        read_runs(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan__tensor_parallel": 0}, "line 1: plan.tensor_parallel: must be >= 1, got 0"),
        ({"model__num_layers": 10**9}, "line 1: model.num_layers: must be <= 10000"),
        ({"plan__tensor_parallel": "two"}, "line 1: plan.tensor_parallel"),
        ({"measured__step_s": -1.0}, "line 1: measured.step_s"),
        ({"measured__step_s": float("nan")}, "line 1: measured.step_s"),
        ({"memory_kind": "resident"}, "line 1: memory_kind"),
        ({"cluster": {"groups": []}}, "line 1: cluster.groups: must have at least 1 entry"),
        ({"model": None}, "line 1: model: must be a table of keys, got null"),
    ],
)
def test_wrong_value_is_named_by_line_and_field(tmp_path: Path, changes: dict, message: str) -> None:
    path = write(tmp_path / "runs.jsonl", row(**changes))
    with pytest.raises(InstanceError) as error:
        read_runs(path)
    assert message in str(error.value)


def test_line_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("[1, 2]\n")
    with pytest.raises(InstanceError, match="line 1: is a JSON list, expected an object"):
        read_runs(path)


def test_number_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"id": ' + "9" * 5000 + "}\n")
    with pytest.raises(InstanceError, match="line 1: holds a number of more than 4300 digits"):
        read_runs(path)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(InstanceError, match="holds no run"):
        read_runs(path)


def test_missing_file_directory_and_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="no such file"):
        read_runs(tmp_path / "absent.jsonl")
    with pytest.raises(InstanceError, match="is a directory; give a JSON-lines file of runs"):
        read_runs(tmp_path)
    with pytest.raises(InstanceError, match="is no regular file"):  # it filled the memory of the machine
        read_runs("/dev/zero")
    binary = tmp_path / "runs.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InstanceError, match="is no text: zero byte at offset 2"):
        read_runs(binary)


@pytest.mark.parametrize(
    "changes",
    [
        {"software": None},
        {"quality": None},
        {"plan__shard_of_one_rank_only": None},
        {"measured": {"step_s": 1.0, "failed": None}},
        {"model__moe": {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 8, "first_dense_layers": None}},
        {"plan__stages": [{"num_layers": 32, "embedding": None, "head": None}]},
    ],
)
def test_null_says_what_an_absent_key_says(tmp_path: Path, changes: dict) -> None:
    (read,) = read_runs(write(tmp_path / "runs.jsonl", row(**changes)))

    def without_nulls(value: Any) -> Any:
        if isinstance(value, list):
            return [without_nulls(v) for v in value]
        if isinstance(value, dict):
            return {k: without_nulls(v) for k, v in value.items() if v is not None}
        return value

    assert read == Run.model_validate(without_nulls(row(**changes)))


def test_run_whose_source_leaves_a_size_out_does_not_cost_the_others(tmp_path: Path) -> None:
    unknown = row(id="b", model__num_attention_heads=None, workload__seq_length=None)
    path = write(tmp_path / "runs.jsonl", row(id="a"), unknown)
    assert [run.unstated for run in read_runs(path)] == [
        (),
        ("model.num_attention_heads", "workload.seq_length"),
    ]
    first, second = score(path, rows=True)["rows"]
    assert first["predicted_step_s"] > 0 and first["skipped"] is None
    assert second["skipped"] == "not stated: model.num_attention_heads, workload.seq_length"
    groups = {"groups": [{"chip": None, "num_chips": 16, "chips_per_node": 8}]}
    (row_of_no_chip,) = score(write(path, row(cluster=groups)), rows=True)["rows"]
    assert row_of_no_chip["skipped"] == "not stated: cluster.groups.0.chip"
