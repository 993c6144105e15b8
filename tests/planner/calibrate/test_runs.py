"""Files of measured runs: what is read and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibrate.runs import read_runs
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
