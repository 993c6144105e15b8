"""Bound the parts of a round on several processes; what comes of a round depends on none but its parts.

Rounds are of a fixed size, all their parts meet the same cutoff, and their bounds are taken in order, so that
the answer is the same on any number of workers. Processes are forked once a search turns out to be long: they
share its tables. Where the system cannot fork, the search goes on alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from planner.search.walks.part import Limits
from planner.search.walks.relaxer import PartBound, Relaxer

ROUND = 8
"""Parts of a round."""
ROUNDS_ALONE = 3
"""Rounds before other processes are worth their start."""
LOOK_S = 0.5
"""How often a process looks whether the search still runs [s]. A guess."""


@dataclass(frozen=True)
class Task:
    """A part to bound (`Relaxer.bound`, coarsely)."""

    choice: int
    limits: Limits
    stages: int
    cutoff_s: float


class Workers:
    """Bounds rounds of parts, alone or on several processes."""

    def __init__(self, relaxer: Relaxer, number: int) -> None:
        self.relaxer, self.number = relaxer, number
        self.rounds = 0
        self._pool: ProcessPoolExecutor | None = None

    def bounds(self, tasks: Sequence[Task]) -> list[PartBound]:
        """Bounds of the parts, in their order."""
        self.rounds += 1
        many = self.number > 1 and self.rounds > ROUNDS_ALONE and len(tasks) > 1
        if not many or "fork" not in multiprocessing.get_all_start_methods():
            return [_bound(self.relaxer, task) for task in tasks]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.number,
                multiprocessing.get_context("fork"),
                initializer=_begin,
                initargs=(self.relaxer, os.getpid()),
            )
        return list(self._pool.map(_bound_here, tasks))

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _bound(relaxer: Relaxer, task: Task) -> PartBound:
    return relaxer.bound(task.choice, task.limits, task.stages, task.cutoff_s, fine=False)


_of_this_process: list[Relaxer] = []
"""The relaxer of a forked process."""


def _begin(relaxer: Relaxer, parent: int) -> None:
    """Leave Ctrl-C to the search itself, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _of_this_process.append(relaxer)


def _end_with(parent: int) -> None:
    """End this process once the search is gone: one that is killed ends no other, and work is waited for."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os._exit(1)


def _bound_here(task: Task) -> PartBound:
    return _bound(_of_this_process[0], task)
