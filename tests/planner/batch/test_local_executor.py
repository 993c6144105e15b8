"""Real worker processes: answers of a single run, limits that hold, deaths that cost one job."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from planner import api
from planner.batch.answer import Answer
from planner.batch.executor import Task
from planner.batch.job_spec import Limits
from planner.batch.local_executor import LocalExecutor
from planner.batch.pack import unpacked
from planner.batch.run import Batch
from planner.batch.solving import without_problem
from planner.batch.store import Store
from planner.data import load
from planner.data.options import Options
from planner.data.result import Result
from tests.planner.batch.samples import rows, some_jobs

LONG = "llama3-405b-mixed-10240"
"""Takes far longer than any test."""


def task(name: str = "llama3-8b-h100-8", **limits: float) -> Task:
    text = load.problem_file(load.load_problem(name)).model_dump_json()
    return Task("k", text, replace(Limits(), **limits))


def answer_to(executor: LocalExecutor, asked: Task) -> Answer:
    executor.submit(asked)
    for _ in range(1000):
        if answers := executor.wait(0.5):
            return answers[0]
    raise AssertionError("no answer")


@pytest.fixture(scope="module")
def one_worker() -> Iterator[LocalExecutor]:
    executor = LocalExecutor(1)
    yield executor
    executor.close()


@pytest.mark.slow
def test_answer_is_that_of_a_single_run_and_the_worker_stays(one_worker: LocalExecutor) -> None:
    answers = [answer_to(one_worker, task()) for _ in range(2)]
    alone = without_problem(api.plan("llama3-8b-h100-8"))
    (worker,) = one_worker.process_ids
    for answer in answers:
        assert answer.cause is None and answer.result is not None
        found = Result.model_validate_json(unpacked(answer.result))
        assert found.plan == alone.plan and found.evaluation == alone.evaluation
        assert answer.facts["step_s"] == alone.evaluation.step_s  # type: ignore[union-attr]
    assert one_worker.process_ids == [worker]


@pytest.mark.slow
def test_search_gets_its_time_limit_and_a_deaf_one_is_killed(one_worker: LocalExecutor) -> None:
    cut = answer_to(one_worker, task(LONG, time_limit_s=0.5))
    assert cut.cause is None and cut.facts["interrupted"]
    killed = answer_to(one_worker, task(LONG, timeout_s=0.5))
    assert (killed.cause, killed.facts["message"]) == ("timeout", "killed after 0.5 s")
    assert answer_to(one_worker, task()).cause is None


@pytest.mark.slow
def test_job_beyond_its_memory_fails_alone(one_worker: LocalExecutor) -> None:
    # Sequences dealt as finely as can be make so many layouts that listing them alone takes more.
    problem = load.load_problem(LONG)
    options = problem.options.model_copy(update={"least_context_tokens": 1})
    text = load.problem_file(problem.model_copy(update={"options": options})).model_dump_json()
    refused = answer_to(one_worker, Task("k", text, replace(Limits(), memory_gib=0.25)))
    assert refused.cause in ("memory", "crash") and "0.25 GiB" in refused.facts["message"]
    assert answer_to(one_worker, task(memory_gib=2.0)).cause is None


@pytest.mark.slow
def test_worker_that_is_killed_costs_one_attempt(one_worker: LocalExecutor) -> None:
    answer_to(one_worker, task())
    one_worker.submit(task(LONG))
    os.kill(one_worker.process_ids[0], signal.SIGKILL)
    (answer,) = one_worker.wait(5.0)
    assert answer.cause == "crash" and answer.may_retry and "SIGKILL" in answer.facts["message"]
    assert answer_to(one_worker, task()).cause is None


@pytest.mark.slow
def test_fault_of_ours_is_told_with_its_last_words(one_worker: LocalExecutor) -> None:
    answer = answer_to(one_worker, replace(task(), problem_text="{}"))
    assert answer.cause == "fault" and not answer.may_retry
    assert answer.facts["message"].startswith("our bug: ")
    assert answer_to(one_worker, task()).cause is None


@pytest.mark.slow
def test_workers_use_one_thread_each(one_worker: LocalExecutor) -> None:
    answer_to(one_worker, task())
    (worker,) = one_worker.process_ids
    names = Path(f"/proc/{worker}/task")
    if not names.exists():
        pytest.skip("needs /proc")
    assert len(list(names.iterdir())) == 2  # the one that works, the one that listens for jobs


@pytest.mark.slow
def test_closing_ends_workers_in_the_middle_of_a_job() -> None:
    executor = LocalExecutor(2)
    executor.submit(task(LONG))
    workers = executor.process_ids
    executor.close()
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.slow
def test_batch_on_real_workers_fills_the_store(tmp_path: Path) -> None:
    jobs = some_jobs(tmp_path, 4)
    started_s = time.monotonic()
    with closing(Store(tmp_path / "plans.db")) as store, closing(LocalExecutor(2)) as executor:
        end = Batch(jobs, store).run(executor)
    assert end.done == 4 and end.elapsed_s <= time.monotonic() - started_s
    for (facts,) in rows(tmp_path / "plans.db", "SELECT facts FROM answer"):
        found = json.loads(str(facts))
        assert found["termination"] == "optimal"
        # The trainings lie on one class, where plans with virtual stages compete, closed at their own gap.
        assert found["bound_s"] <= found["step_s"] <= found["bound_s"] / (1 - Options().virtual_gap)
        assert found["plan"].startswith("tp ")
