"""Small jobs, an executor that answers at once without any search, and a store read from outside."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

from planner.batch.answer import Answer
from planner.batch.executor import Task
from planner.batch.jobs_file import Job, read_jobs
from planner.batch.pack import packed

SMALL = "{model: llama3-8b, cluster: dgx-h100-8, seq_length: 4096, global_batch_size: %d}"
"""A job of a fifth of a second."""


def jobs_text(*, jobs: Sequence[str] = (), grid: str = "", defaults: str = "") -> str:
    """A jobs file."""
    lines = ["schema: hetplan/jobs/v1"]
    lines += [f"defaults: {defaults}"] if defaults else []
    lines += ["jobs:", *(f"  - {job}" for job in jobs)] if jobs else []
    lines += [f"grid: {grid}"] if grid else []
    return "\n".join(lines) + "\n"


def write_jobs(folder: Path, text: str) -> Path:
    """The file of a text."""
    path = folder / "jobs.yaml"
    path.write_text(text)
    return path


def some_jobs(folder: Path, number: int) -> tuple[Job, ...]:
    """Jobs that differ in their batch."""
    batches = ", ".join(str(8 * (i + 1)) for i in range(number))
    grid = f"{{problem: llama3-8b-h100-8, global_batch_size: [{batches}]}}"
    return read_jobs(write_jobs(folder, jobs_text(grid=grid)))


def sound_answer(task: Task) -> Answer:
    """A made-up answer whose step time is that of the key, so that rows can be told apart."""
    facts = {"termination": "optimal", "step_s": 1 + int(task.key[:4], 16) / 1e5, "bound_s": 1.0, "gap": 0.0}
    return Answer(task.key, None, facts, packed("{}"))


def with_result(task: Task) -> Answer:
    """The same with a plan that can be read."""
    return replace(sound_answer(task), result=_result())


@cache
def _result() -> bytes:
    """The packed result of a small search."""
    from planner import api
    from planner.batch.solving import without_problem

    problem = api.load_problem("llama3-8b-h100-8")
    options = problem.options.model_copy(update={"gap": 0.2, "virtual_gap": 0.2, "max_virtual_stages": 1})
    return packed(without_problem(api.plan(problem, options)).model_dump_json())


class InstantExecutor:
    """Answers each task with `answer`, one at a time, and remembers all that it was given."""

    def __init__(self, answer: Callable[[Task], Answer] = sound_answer, room: int = 2) -> None:
        self._answer, self._most = answer, room
        self._tasks: list[Task] = []
        self.given: list[Task] = []

    @property
    def room(self) -> int:
        return self._most - len(self._tasks)

    def submit(self, task: Task) -> None:
        assert self.room > 0
        self._tasks.append(task)
        self.given.append(task)

    def wait(self, timeout_s: float) -> list[Answer]:
        return [self._answer(self._tasks.pop(0))]

    def close(self) -> None:
        self._tasks.clear()


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """What a store holds, seen by somebody who does not know our code."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return db.execute(sql).fetchall()
