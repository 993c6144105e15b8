"""A question that a copy of this process answers while this one goes on with other work.

What comes of a search is the same with and without: the copy is asked what would be asked here later, and
its answer counts only where the question is still that one. Where the system cannot fork, or this process may
have no others, the question is asked here when its turn comes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from planner.processes import cores

T = TypeVar("T")

LOOK_S = 0.05
"""How often the clock is looked at while the answer is waited for [s]."""


def may_have_others(workers: int | None) -> bool:
    """Whether a search on so many processes, None for as many as are worth it, may have another one.

    Not beside other threads: a copy takes over the locks that they hold, and waits for them for ever.
    """
    wanted = workers > 1 if workers is not None else cores() > 1
    can = "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon
    return wanted and can and threading.active_count() == 1


class Beside(Generic[T]):
    """One question, from the start of its process to its end."""

    def __init__(self, ask: Callable[[Callable[[], bool]], T]) -> None:
        """`ask` answers; what it is called with says whether the answer is still wanted.

        Raises
        ------
        OSError
            Where the system has no room for another process.
        """
        context = multiprocessing.get_context("fork")
        self._answers, answers = context.Pipe(duplex=False)
        self._process = context.Process(target=_answer, args=(ask, answers, os.getpid()), daemon=True)
        self._process.start()
        answers.close()

    def answer(self, is_up: Callable[[], bool]) -> T | None:
        """The answer once it is there; None where time is up before, or the process died or was ended."""
        with suppress(EOFError, OSError):
            while not is_up():
                if self._answers.poll(LOOK_S):
                    found: T = self._answers.recv()
                    return found
        return None

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._answers.close()


def _answer(ask: Callable[[Callable[[], bool]], T], answers: Connection, parent: int) -> None:
    """Answer in the copy; Ctrl-C is for the process that asks, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers.send(ask(lambda: os.getppid() != parent))
