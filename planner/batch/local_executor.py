"""Long-lived worker processes on this machine, each with one thread."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from typing import IO

from planner.batch.answer import Answer, failure
from planner.batch.executor import Task
from planner.batch.worker import ONE_THREAD, READY, decoded_answer, encoded_task
from planner.processes import started

_TAIL_BYTES = 4096
"""How much of what a dead worker said is looked at for its last words."""

_END_S = 5.0
"""Time from the end of a process's output to its exit code [s]."""


class LocalExecutor:
    """Worker processes that start at once, import once, and are replaced when they die.

    Parameters
    ----------
    num_workers
        Processes.
    """

    def __init__(self, num_workers: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._workers = [_Worker(self._selector) for _ in range(num_workers)]

    @property
    def room(self) -> int:
        """Idle workers."""
        return sum(worker.task is None for worker in self._workers)

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that live."""
        return [worker.process.pid for worker in self._workers if worker.process is not None]

    def submit(self, task: Task) -> None:
        """Give a task to an idle worker."""
        next(worker for worker in self._workers if worker.task is None).give(task)

    def wait(self, timeout_s: float) -> list[Answer]:
        """Answers that have come in; tasks past their time are killed."""
        now_s = time.monotonic()
        ends = [worker.kill_at_s for worker in self._workers if worker.kill_at_s is not None]
        until_s = min([now_s + timeout_s, *ends])
        ready = self._selector.select(max(0.0, until_s - now_s))
        answers = [answer for key, _ in ready for answer in key.data.receive()]
        for worker in self._workers:
            if worker.kill_at_s is not None and time.monotonic() >= worker.kill_at_s:
                answers.append(worker.time_out())
        return answers

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
        self._selector.close()


class _Worker:
    """One process, and the task that it is at."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self.task: Task | None = None
        self._begun_s = 0.0
        self._start()

    def _start(self) -> None:
        self._buffer, self._ready = b"", False
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process: subprocess.Popen[bytes] | None = started(
            "planner.batch.worker", stderr=self._said, environment=ONE_THREAD
        )
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ, self)

    @property
    def kill_at_s(self) -> float | None:
        """When its task is killed, on the monotonic clock [s]; None without a task, a limit, or imports."""
        limit_s = self.task.limits.kill_after_s if self.task else None
        return None if limit_s is None or not self._ready else self._begun_s + limit_s

    def give(self, task: Task) -> None:
        """Hand over a task, to a new process where the last one has died."""
        if self.process is None:
            self._start()
        self.task, self._begun_s = task, time.monotonic()
        assert self.process is not None and self.process.stdin is not None
        message = encoded_task(task)
        # Where the pipe is broken the process has died, and the end of its output says so as well.
        with contextlib.suppress(BrokenPipeError):
            while message:
                message = message[self.process.stdin.write(message) or 0 :]

    def receive(self) -> list[Answer]:
        """Read what it has sent: an answer, or none yet."""
        assert self.process is not None and self.process.stdout is not None
        piece = os.read(self.process.stdout.fileno(), 1 << 16)
        if not piece:
            return self._died()
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        answers = []
        for line in lines:
            if line == READY:
                self._ready, self._begun_s = True, time.monotonic()
            else:
                self.task = None
                answers.append(decoded_answer(line))
        if any(answer.cause == "memory" for answer in answers):
            self.kill()  # what it held may still be scattered over its memory: the next job gets a fresh one
        return answers

    def _died(self) -> list[Answer]:
        """Clear up after the process; its task, if it had one, has failed."""
        assert self.process is not None
        task, seconds = self.task, time.monotonic() - self._begun_s
        # It has closed its output, which it does only at its end: the exit code comes within moments.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        code, said = self.kill(), self._last_words()
        if task is None:
            return []
        if code >= 0:
            return [failure(task.key, "fault", f"our bug: {said}", seconds=seconds)]
        name, limit = signal.Signals(-code).name, task.limits.memory_gib
        hint = "; most likely the machine ran out of memory" if name == "SIGKILL" else ""
        if name in ("SIGABRT", "SIGSEGV", "SIGBUS") and limit is not None:
            hint = f"; most likely it needs more than its {limit:g} GiB"
        message = f"the worker was ended by {name}{hint}"
        return [failure(task.key, "crash", message, may_retry=True, seconds=seconds)]

    def _last_words(self) -> str:
        """Last line that a dead process wrote to standard error."""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - _TAIL_BYTES))
        lines = self._said.read().decode(errors="replace").split("\n")
        self._said.close()
        return next((line.strip() for line in reversed(lines) if line.strip()), "the worker ended")

    def time_out(self) -> Answer:
        """Kill the process for the time that its task has taken."""
        assert self.task is not None
        key, limit_s = self.task.key, self.task.limits.kill_after_s
        self.kill()
        return failure(key, "timeout", f"killed after {limit_s:g} s", seconds=limit_s or 0.0)

    def kill(self) -> int:
        """End the process at once; its exit code."""
        self.task = None
        if self.process is None:
            return 0
        assert self.process.stdout is not None and self.process.stdin is not None
        self._selector.unregister(self.process.stdout)
        self.process.kill()
        code = self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
        self.process = None
        return code
