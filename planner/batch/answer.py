"""An answer to a job: what a worker found, or why it found nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Cause = Literal["input", "timeout", "memory", "crash", "fault"]


@dataclass(frozen=True)
class Answer:
    """What is known of a question once it has been worked on.

    Parameters
    ----------
    key
        Hash of the question.
    cause
        None where it was answered (that there is no plan is an answer as well); else what went wrong:
        `input` the problem is refused, `timeout` and `memory` a limit of the job, `crash` the process
        died, `fault` a bug of ours or of a solver.
    facts
        termination, step_s, bound_s, gap, plan in words, message ...
    result
        Compressed JSON of the result.
    may_retry
        Whether another attempt may end otherwise.
    """

    key: str
    cause: Cause | None
    facts: dict[str, Any] = field(default_factory=dict)
    result: bytes | None = None
    may_retry: bool = False
    attempts: int = 1

    @property
    def status(self) -> str:
        """`done` or `failed`."""
        return "done" if self.cause is None else "failed"


def failure(key: str, cause: Cause, message: str, *, may_retry: bool = False, seconds: float = 0.0) -> Answer:
    """An answer without one."""
    facts = {"message": message, "seconds": seconds}
    return Answer(key, cause, facts, may_retry=may_retry)
