"""Bytes of a store overwritten at random: what is damaged is named, the rest kept, nothing ever wrong."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from planner.batch.executor import Task
from planner.batch.repair import repair
from planner.batch.rows import read_answer, read_rows
from planner.batch.run import Batch
from planner.batch.store import Store
from planner.cli import main
from planner.errors import InstanceError
from tests.planner.batch.samples import InstantExecutor, rows, some_jobs, with_result

JOBS = 12
TRIALS = [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 40))]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    with closing(Store(folder / "plans.db")) as store:
        Batch(some_jobs(folder, JOBS), store).run(InstantExecutor(with_result))
    return folder / "plans.db"


def told(store: Path) -> dict[str, object]:
    return {row["name"]: (row["status"], row["step_s"], row["plan"]) for row in read_rows(store)}


def spoil(store: Path, seed: int) -> None:
    """Overwrite one to 4,096 bytes in a row."""
    rng, raw = random.Random(seed), bytearray(store.read_bytes())
    number = rng.choice([1, 4, 64, 512, 4096])
    at = rng.randrange(len(raw) - number)
    raw[at : at + number] = rng.randbytes(number)
    store.write_bytes(raw)


@pytest.mark.parametrize("seed", TRIALS)
def test_damage_is_named_and_costs_no_more_than_what_it_hit(tmp_path: Path, sound: Path, seed: int) -> None:
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, JOBS)
    store.write_bytes(sound.read_bytes())
    spoil(store, seed)
    truth = told(sound)
    try:
        seen = told(store)
    except InstanceError as refused:
        assert "plans.db" in str(refused)
    else:
        # A job whose own row is broken bears no sound name; all others are told as they are.
        assert all(seen[name] == truth[name] for name in truth if name in seen and told_apart(seen[name]))
    for job in jobs:
        try:
            read_answer(store, job.name)
        except InstanceError as refused:
            assert "plans.db" in str(refused)
    solved = InstantExecutor(with_result)
    try:
        opened = Store(store)
    except InstanceError as refused:
        assert "plans.db" in str(refused)
        repair(store)
        opened = Store(store)
    with closing(opened):
        opened.drop_damaged()
        Batch(jobs, opened).run(solved)
    assert told(store) == truth
    assert {task.key for task in solved.given} <= {job.key for job in jobs}
    assert rows(store, "SELECT count(*), count(DISTINCT key) FROM answer") == [(JOBS, JOBS)]


def told_apart(row: object) -> bool:
    """Whether a row is given as sound and answered."""
    return isinstance(row, tuple) and row[0] not in ("damaged", "queued")


def test_damaged_row_is_named_by_every_command(
    tmp_path: Path, sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "plans.db"
    store.write_bytes(sound.read_bytes())
    name = next(iter(told(store)))
    key = f"(SELECT key FROM job WHERE name = '{name}')"
    rows(store, f"UPDATE answer SET facts = replace(facts, '1.', '9.') WHERE key = {key}")
    assert told(store)[name] == ("damaged", None, None)
    with pytest.raises(InstanceError, match="is damaged in the store; run its batch again"):
        read_answer(store, name)
    assert main(["results", str(store), "--result", name]) == 2
    assert "is damaged in the store" in capsys.readouterr().err
    assert main(["results", str(store)]) == 0
    assert "damaged" in capsys.readouterr().out


def test_damaged_job_of_another_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, 2)

    def executor(*_: object) -> InstantExecutor:
        return InstantExecutor(with_result)

    monkeypatch.setattr("planner.commands.batch.make_executor", executor)
    assert main(["batch", str(tmp_path / "jobs.yaml"), "--store", str(store)]) == 0
    rows(store, f"UPDATE job SET limits = '{{}}' WHERE name = '{jobs[1].name}'")
    some_jobs(tmp_path, 1)
    capsys.readouterr()
    assert main(["batch", str(tmp_path / "jobs.yaml"), "--store", str(store)]) == 0
    said = capsys.readouterr().err
    assert "1 jobs of other files were damaged; ask them again" in said and jobs[1].name in said


def test_wrong_bytes_in_text_are_no_fault_of_ours(tmp_path: Path, sound: Path) -> None:
    """Text that is no UTF-8 once ended the batch with a message about columns of SQLite."""
    store, jobs = tmp_path / "plans.db", some_jobs(tmp_path, JOBS)
    store.write_bytes(sound.read_bytes())
    rows(store, "UPDATE answer SET facts = CAST(x'7bff7d' AS TEXT) WHERE rowid = 3")
    given: list[Task] = []
    with closing(Store(store)) as opened:
        assert opened.drop_damaged().answers == 1
        executor = InstantExecutor(with_result)
        Batch(jobs, opened).run(executor)
        given = executor.given
    assert len(given) == 1 and told(store) == told(sound)
