"""Kills at random moments, of the whole program and of its workers: zero answers lost, zero doubled."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.batch.rows import read_rows
from tests.planner.batch.samples import jobs_text, rows, write_jobs

KILLS = int(os.environ.get("HETPLAN_TEST_KILLS", "3"))
"""Kills of one trial; set more of them for a long one."""
JOBS = max(20, 4 * KILLS)
"""Enough that every kill meets work under way; each takes some tenths of a second."""
FEW_JOBS = 8
"""Enough that something is left to do when two are answered."""
GRID = "{{problem: llama3-70b-h100-a100-128, gap: 0.01, max_vp: 1, global_batch_size: {batches}}}"
MANY_JOBS = 24
MANY = (
    "{problem: llama3-8b-h100-a100-16, gap: 0.2, top: 10, "
    f"global_batch_size: {[8 * (i + 1) for i in range(MANY_JOBS)]}}}"
)
"""Quick questions with long answers: together more than a small disk holds."""
COMMAND = (sys.executable, "-m", "planner.cli", "batch")


def start(
    folder: Path, *, workers: int = 2, retries: int = 1, number: int = FEW_JOBS
) -> subprocess.Popen[bytes]:
    """A batch of so many jobs in a process group of its own, as a shell would start it."""
    grid = GRID.format(batches=[64 * (i + 4) for i in range(number)])
    jobs = write_jobs(folder, jobs_text(grid=grid, defaults=f"{{retries: {retries}}}"))
    command = (*COMMAND, str(jobs), "--store", str(folder / "plans.db"), "--workers", str(workers))
    return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)


def finish(process: subprocess.Popen[bytes]) -> str:
    """What a batch says until its end."""
    _, said = process.communicate(timeout=120 + JOBS)
    return said.decode()


def children(process: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def answered(store: Path) -> dict[object, object]:
    """Every answer that an outsider finds in the store, with how often it was worked on."""
    if not store.exists() or not rows(store, "SELECT 1 FROM sqlite_master WHERE name = 'answer'"):
        return {}
    return dict(rows(store, "SELECT key, attempts || facts FROM answer"))  # type: ignore[arg-type]


def check_whole(store: Path, attempts: int = 1, number: int = FEW_JOBS) -> None:
    """Each job answered once, all sound, nothing left behind."""
    found = read_rows(store)
    assert len(found) == number == len(answered(store))
    assert {row["status"] for row in found} == {"done"}
    assert max(row["attempts"] for row in found) <= attempts
    assert [row["termination"] for row in found] == ["optimal"] * number
    assert rows(store, "SELECT * FROM claim") == []
    assert sorted(p.name for p in store.parent.iterdir()) == ["jobs.yaml", "plans.db"]


@pytest.mark.slow
def test_batch_killed_at_random_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    store = tmp_path / "plans.db"
    kept: dict[object, object] = {}
    for _ in range(KILLS):
        process = start(tmp_path, number=JOBS)
        time.sleep(moments.uniform(0.1, 3.5))
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        now = answered(store)
        assert kept.items() <= now.items(), "an answer was lost or made again"
        kept = now
    finish(start(tmp_path, number=JOBS))
    assert kept.items() <= answered(store).items()
    check_whole(store, number=JOBS)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_killed_at_random_moments_cost_attempts_and_no_answers(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    process = start(tmp_path, retries=100, number=4 * KILLS)
    while not children(process.pid):
        time.sleep(0.05)
    time.sleep(1.5)  # imports
    killed = 0
    while process.poll() is None and killed < KILLS:
        workers = children(process.pid)
        if workers:
            os.kill(moments.choice(workers), signal.SIGKILL)
            killed += 1
        time.sleep(moments.uniform(0.05, 0.5) if killed < KILLS else 0.0)
    said = finish(process)
    print(f"{killed} workers killed")
    assert process.returncode == 0, said
    check_whole(tmp_path / "plans.db", attempts=killed + 1, number=4 * KILLS)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_workers_end_with_their_batch(tmp_path: Path) -> None:
    process = start(tmp_path)
    while not (workers := children(process.pid)):
        time.sleep(0.05)
    time.sleep(1.0)
    process.kill()
    process.wait()
    deadline_s = time.monotonic() + 10
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_answered_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path)
    store = tmp_path / "plans.db"
    while len(answered(store)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said = finish(process)
    assert process.returncode == 130 and "interrupted; run the same command to go on" in said
    kept = answered(store)
    assert len(kept) >= 2
    assert rows(store, "SELECT * FROM claim") == []
    finish(start(tmp_path))
    assert kept.items() <= answered(store).items()
    check_whole(store)


@pytest.mark.slow
def test_two_programs_on_one_store_share_the_work_and_both_end(tmp_path: Path) -> None:
    both = [start(tmp_path, workers=1) for _ in range(2)]
    said = [finish(process) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(f"{FEW_JOBS} of {FEW_JOBS} done" in words for words in said)
    check_whole(tmp_path / "plans.db")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 400 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=400k", "tmpfs", disk):
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def mounted(*wishes: object) -> bool:
    """Whether `mount` did it."""
    tool = shutil.which("mount")
    return tool is not None and subprocess.run([tool, *map(str, wishes)], capture_output=True).returncode == 0


@pytest.mark.slow
def test_full_and_read_only_disk_end_the_program_with_a_reason_and_lose_nothing(small_disk: Path) -> None:
    store, jobs = small_disk / "plans.db", write_jobs(small_disk.parent, jobs_text(grid=MANY))
    command = [*COMMAND, str(jobs), "--store", str(store), "--workers", "1"]

    def run() -> tuple[int, str]:
        process = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return process.returncode, process.stderr

    code, said = run()
    assert code == 2 and "what is in it is safe: make room, then run the same batch again" in said
    kept = answered(store)
    assert 0 < len(kept) < MANY_JOBS
    assert mounted("-o", "remount,ro", small_disk)
    code, said = run()
    assert code == 2 and "give a folder that you may write" in said
    assert len(read_rows(store)) == MANY_JOBS  # reading asks no right to write
    assert mounted("-o", "remount,rw,size=16m", small_disk)
    code, said = run()
    assert code == 0 and f"{MANY_JOBS} of {MANY_JOBS} done" in said
    assert kept.items() <= answered(store).items()
    assert {row["attempts"] for row in read_rows(store)} == {1}


@pytest.mark.slow
def test_one_of_two_programs_is_killed_and_the_other_takes_over_its_work(tmp_path: Path) -> None:
    store = tmp_path / "plans.db"
    first, second = (start(tmp_path, workers=1) for _ in range(2))
    while not answered(store):
        assert first.poll() is None
        time.sleep(0.05)
    kept = answered(store)
    first.kill()
    first.communicate()
    said = finish(second)
    assert second.returncode == 0, said
    assert kept.items() <= answered(store).items()
    check_whole(store)


@pytest.mark.slow
def test_rows_are_those_of_single_runs_of_the_program(tmp_path: Path) -> None:
    """Whole results, as `--json` prints them; a worker shares tables between questions, a run has none."""
    cluster = "1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb"
    asked = [(cluster, 32), (cluster, 48), ("2x8 h100-sxm-80gb", 32), ("2x8 h100-sxm-80gb", 48)]
    entries = [
        f"{{name: job {i}, model: llama2-7b, cluster: '{nodes}', seq_length: 4096, gap: 0.05,"
        f" global_batch_size: {batch}}}"
        for i, (nodes, batch) in enumerate(asked)
    ]
    jobs, store = write_jobs(tmp_path, jobs_text(jobs=entries)), str(tmp_path / "plans.db")
    assert json_of("batch", str(jobs), "--store", store, "--workers", "1") is None
    for i, (nodes, batch) in enumerate(asked):
        of_batch = json_of("results", store, "--result", f"job {i}")
        alone = json_of(
            *("plan", "--model", "llama2-7b", "--cluster", nodes, "--seq-length", "4096"),
            *("--global-batch-size", str(batch), "--gap", "0.05", "--json", "--quiet"),
        )
        assert without_time_and_name(of_batch) == without_time_and_name(alone)


def json_of(*command: str) -> Any:
    """What a command of the program prints, None where that is nothing."""
    run = subprocess.run([*COMMAND[:3], *command], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout) if run.stdout.strip() else None


def without_time_and_name(result: dict[str, Any]) -> dict[str, Any]:
    """A result without how long it took and what its problem is called."""
    plans = [result["plan"], *(other["plan"] for other in result.get("runners_up", []))]
    for plan in plans:
        if plan.get("problem"):
            plan["problem"]["name"] = None
    return {key: value for key, value in result.items() if key not in ("seconds", "problem")}
