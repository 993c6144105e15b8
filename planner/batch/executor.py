"""What a batch asks of whoever runs its jobs: local processes, or a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.batch.answer import Answer
from planner.batch.job_spec import Limits


@dataclass(frozen=True)
class Task:
    """A job on its way to a worker."""

    key: str
    problem_text: str
    limits: Limits
    ask_text: str | None = None
    """What is asked beside the best plan, as JSON."""


class Executor(Protocol):
    """Runs tasks, as many at a time as it has room for."""

    @property
    def room(self) -> int:
        """How many more tasks it takes now."""
        ...

    def submit(self, task: Task) -> None:
        """Take a task; only where there is room."""
        ...

    def wait(self, timeout_s: float) -> list[Answer]:
        """Answers that have come in, waiting for the first one no longer than this [s].

        Every task gives exactly one answer; where its worker died or was killed, a failure.
        """
        ...

    def close(self) -> None:
        """End all workers, whatever they do."""
        ...
