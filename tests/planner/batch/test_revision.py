"""A changed program asks anew: its sources, its data and its solvers are part of every key."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.batch import key, revision
from planner.data.load import load_problem


def tree(folder: Path) -> Path:
    (folder / "search" / "__pycache__").mkdir(parents=True)
    (folder / "search" / "driver.py").write_text("GAP = 1\n")
    (folder / "search" / "__pycache__" / "driver.pyc").write_bytes(b"1")
    (folder / "rates.csv").write_text("1\n")
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "search" / "driver.py").write_text("GAP = 2\n"),
        lambda folder: (folder / "rates.csv").write_text("2\n"),
        lambda folder: (folder / "search" / "driver.py").rename(folder / "search" / "other.py"),
        lambda folder: (folder / "search" / "more.py").write_text(""),
    ],
)
def test_changed_added_or_renamed_file_is_another_program(tmp_path: Path, change: object) -> None:
    folder = tree(tmp_path)
    before = revision.digest({"planner": folder})
    assert revision.digest({"planner": folder}) == before
    change(folder)  # type: ignore[operator]
    assert revision.digest({"planner": folder}) != before


def test_compiled_files_do_not_count(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    before = revision.digest({"planner": folder})
    (folder / "search" / "__pycache__" / "driver.pyc").write_bytes(b"2")
    assert revision.digest({"planner": folder}) == before


def test_another_solver_is_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = revision.digest({})
    monkeypatch.setattr(revision.metadata, "version", lambda library: "0.0")
    assert revision.digest({}) != before


def test_search_prices_tables_and_formulations_are_among_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    add = revision._add

    def noting(found: object, folder: object, name: str) -> None:
        seen.extend(f"{name}/{entry.name}" for entry in folder.iterdir())  # type: ignore[attr-defined]
        add(found, folder, name)  # type: ignore[arg-type]

    monkeypatch.setattr(revision, "_add", noting)
    revision.revision.__wrapped__()
    for path in (
        "planner/search/driver.py",
        "planner/cost/prices.py",
        "planner/simulate/step.py",
        "planner.instances/tables/kernels.npz",
        "formulations/stage_selection.py",
    ):
        assert path in seen


def test_question_to_another_program_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load_problem("llama3-8b-h100-8")
    before = key.job_key(problem), key.refused_key("what")
    monkeypatch.setattr(key, "revision", lambda: "another")
    after = key.job_key(problem), key.refused_key("what")
    assert before[0] != after[0] and before[1] != after[1]
