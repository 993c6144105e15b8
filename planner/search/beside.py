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
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from planner.processes import cores

T = TypeVar("T")
Q = TypeVar("Q")

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

    @property
    def is_answered(self) -> bool:
        """Whether the answer is there, or the process has ended without one."""
        return self._answers.poll()

    def answer(self, is_up: Callable[[], bool]) -> T | None:
        """The answer once it is there; None where time is up before, or the process died or was ended."""
        with suppress(EOFError, OSError):
            while True:
                is_late = is_up()
                if self._answers.poll(0.0 if is_late else LOOK_S):
                    found: T = self._answers.recv()
                    return found
                if is_late:
                    break
        return None

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._answers.close()


class Aside(Generic[Q, T]):
    """A copy that answers one question after the other, each by some answers, and keeps what it made.

    A new question tells it that no further answers to those before are wanted.
    """

    def __init__(self, answering: Callable[[Q, Callable[[], bool]], Iterator[T]]) -> None:
        """`answering` answers a question; what it is called with besides says whether that is not wanted.

        Raises
        ------
        OSError
            Where the system has no room for another process.
        """
        context = multiprocessing.get_context("fork")
        self._line, other = context.Pipe()
        self._found: list[list[T]] = []
        self._process = context.Process(
            target=_answer_each, args=(answering, self._line, other, os.getpid()), daemon=True
        )
        self._process.start()
        other.close()

    def ask(self, question: Q) -> int:
        """Ask; the number of the question."""
        self._found.append([])
        with suppress(OSError):
            self._line.send((len(self._found) - 1, question))
        return len(self._found) - 1

    def answers(self, number: int, least: int, is_up: Callable[[], bool]) -> list[T]:
        """Answers to a question, once there are so many; fewer where time is up or the process died."""
        with suppress(EOFError, OSError):
            while self._line.poll(LOOK_S if len(self._found[number]) < least else 0) or not is_up():
                if self._line.poll():
                    of, found = self._line.recv()
                    self._found[of].append(found)
                elif len(self._found[number]) >= least:
                    break
        return self._found[number]

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._line.close()


def _answer_each(
    answering: Callable[[Q, Callable[[], bool]], Iterator[T]], line: Connection, own: Connection, parent: int
) -> None:
    """Answer in the copy, until the process that asks ends; Ctrl-C is for that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line.close()

    def is_unwanted() -> bool:
        return own.poll() or os.getppid() != parent

    with suppress(EOFError, OSError):
        while True:
            number, question = own.recv()
            for answer in answering(question, is_unwanted):
                own.send((number, answer))
                if is_unwanted():
                    break


def _answer(ask: Callable[[Callable[[], bool]], T], answers: Connection, parent: int) -> None:
    """Answer in the copy; Ctrl-C is for the process that asks, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers.send(ask(lambda: os.getppid() != parent))
