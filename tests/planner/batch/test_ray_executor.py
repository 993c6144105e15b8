"""The same batch on a real local Ray: same answers, same store, a killed worker costs one attempt."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from planner.batch.answer import Answer
from planner.batch.executor import Task
from planner.batch.job_spec import Limits
from planner.batch.local_executor import LocalExecutor
from planner.batch.ray_executor import QUEUED_PER_CORE, RayExecutor
from planner.batch.run import Batch
from planner.batch.store import Store
from planner.cli import main
from planner.data import load
from planner.errors import InstanceError
from tests.planner.batch.samples import jobs_text, rows, some_jobs, write_jobs

WORKERS = 2

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra `cluster`")


def test_missing_ray_is_said_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InstanceError, match=r"Ray is not installed; `pip install 'hetplan\[cluster\]'`"):
        RayExecutor(2, None)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--executor", "rai"], "unknown executor 'rai'; did you mean ray"),
        (["--address", "auto"], "--address: needs --executor ray"),
        (["--workers", "0"], "--workers: must be at least 1, got 0"),
    ],
)
def test_wrong_executor_is_refused_before_any_work(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = write_jobs(tmp_path, jobs_text(jobs=["{problem: llama3-8b-h100-8}"]))
    assert main(["batch", str(jobs), "--store", str(tmp_path / "plans.db"), *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "plans.db").exists()


@pytest.fixture(scope="module")
def ray_executor() -> Iterator[RayExecutor]:
    executor = RayExecutor(WORKERS, None)
    yield executor
    executor.close()


@needs_ray
@pytest.mark.slow
def test_answers_are_those_of_local_workers_though_a_worker_is_killed(
    tmp_path: Path, ray_executor: RayExecutor
) -> None:
    jobs = some_jobs(tmp_path, 6)
    killed: list[int] = []
    killer = threading.Thread(target=_kill_one_worker, args=(killed,), daemon=True)
    with closing(Store(tmp_path / "ray.db")) as store:
        killer.start()
        assert Batch(jobs, store).run(ray_executor).done == 6
    assert killed
    with closing(Store(tmp_path / "local.db")) as store, closing(LocalExecutor(2)) as local:
        Batch(jobs, store).run(local)
    sql = (
        "SELECT key, status, json_extract(facts, '$.step_s', '$.bound_s', '$.plan') FROM answer ORDER BY key"
    )
    assert rows(tmp_path / "ray.db", sql) == rows(tmp_path / "local.db", sql)


def _kill_one_worker(killed: list[int]) -> None:
    """Kill a worker of Ray that is at one of our tasks."""
    for _ in range(600):
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if command.startswith(b"ray::_solve") and _is_below(int(parent), os.getpid()):
                os.kill(int(folder.name), signal.SIGKILL)
                killed.append(int(folder.name))
                return
        time.sleep(0.05)


def _is_below(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


@needs_ray
@pytest.mark.slow
def test_task_past_its_time_is_killed(ray_executor: RayExecutor) -> None:
    ray_executor.submit(Task("k", endless(), Limits(timeout_s=2.0)))
    answers = waited_for(ray_executor, 1)
    assert [(answer.cause, answer.facts["message"]) for answer in answers] == [
        ("timeout", "killed after 2 s")
    ]
    assert ray_executor.room == WORKERS * QUEUED_PER_CORE


def endless() -> str:
    """A question that takes far longer than any test."""
    problem = load.load_problem("llama3-405b-mixed-10240")
    exact = problem.options.model_copy(update={"gap": 0.0, "virtual_gap": 0.0})
    return load.problem_file(problem.model_copy(update={"options": exact})).model_dump_json()


@needs_ray
@pytest.mark.slow
def test_time_in_the_queue_of_a_busy_cluster_does_not_count(ray_executor: RayExecutor) -> None:
    """The quick question waits longer than it may take; it was once called late for that."""
    for number in range(WORKERS):
        ray_executor.submit(Task(f"long {number}", endless(), Limits(timeout_s=4.5)))
    problem = load.load_problem("llama3-8b-h100-8")
    wide = problem.options.model_copy(update={"gap": 0.5, "virtual_gap": 0.5})
    text = load.problem_file(problem.model_copy(update={"options": wide})).model_dump_json()
    ray_executor.submit(Task("quick", text, Limits(timeout_s=4.0)))  # for a busy machine, too
    answers = {answer.key: answer for answer in waited_for(ray_executor, WORKERS + 1)}
    assert answers.pop("quick").cause is None
    assert {answer.cause for answer in answers.values()} == {"timeout"}


@needs_ray
@pytest.mark.slow
def test_no_more_tasks_are_handed_over_than_the_cluster_has_room_for(
    tmp_path: Path, ray_executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backpressure: of many jobs only a few lie with Ray at a time; none is lost or doubled."""
    jobs, most = some_jobs(tmp_path, 12), []
    submit = ray_executor.submit

    def noting(task: Task) -> None:
        submit(task)
        most.append(len(ray_executor._tasks))

    monkeypatch.setattr(ray_executor, "submit", noting)
    with closing(Store(tmp_path / "ray.db")) as store:
        assert Batch(jobs, store).run(ray_executor).done == 12
    assert len(most) == 12 and max(most) == WORKERS * QUEUED_PER_CORE
    assert rows(tmp_path / "ray.db", "SELECT count(*), max(attempts) FROM answer") == [(12, 1)]


@needs_ray
@pytest.mark.slow
def test_machine_with_another_program_is_named_and_gives_no_answer(
    ray_executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.batch.ray_executor.revision", lambda: "another")
    text = load.problem_file(load.load_problem("llama3-8b-h100-8")).model_dump_json()
    ray_executor.submit(Task("k", text, Limits()))
    (answer,) = waited_for(ray_executor, 1)
    assert answer.cause == "fault" and "runs another hetplan" in answer.facts["message"]


def waited_for(executor: RayExecutor, number: int) -> list[Answer]:
    """So many answers."""
    answers: list[Answer] = []
    for _ in range(120):
        answers += executor.wait(0.5)
        if len(answers) >= number:
            break
    return answers
