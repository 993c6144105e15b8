"""Questions of a search that are fixed before any is answered, so that another process may answer some.

An answer depends on its question alone: what comes of a search is the same with another process and without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from planner.search.beside import Beside, may_have_others

Q = TypeVar("Q")
A = TypeVar("A")

Answering = Callable[[Q, Callable[[], bool]], A]
"""Answers a question; what it is called with besides says whether the answer is no longer wanted."""


class Ahead(Generic[Q, A]):
    """Questions whose answers are wanted later: begun at once where there may be another process."""

    def __init__(self, questions: Sequence[Q], answering: Answering[Q, A], workers: int | None) -> None:
        self._questions, self._answering = questions, answering
        self._beside: Beside[list[A]] | None = None
        if questions and may_have_others(workers):
            with suppress(OSError):  # no room for another process
                self._beside = Beside(self._all)

    @property
    def is_begun(self) -> bool:
        """Whether another process answers."""
        return self._beside is not None

    @property
    def is_answered(self) -> bool:
        """Whether another process has answered all."""
        return self._beside is not None and self._beside.is_answered

    def answers(self, is_up: Callable[[], bool]) -> list[A]:
        """All answers, in the order of the questions; those that no other process gave are found here."""
        try:
            found = self._beside.answer(is_up) if self._beside else None
        finally:
            self.end()
        return self._all(_never) if found is None else found

    def end(self) -> None:
        """End the other process, whatever it does."""
        if self._beside is not None:
            self._beside.end()
            self._beside = None

    def _all(self, is_unwanted: Callable[[], bool]) -> list[A]:
        return [self._answering(one, is_unwanted) for one in self._questions]


def shared(
    questions: Sequence[Q], answering: Answering[Q, A], workers: int | None, is_up: Callable[[], bool]
) -> Iterator[A]:
    """Answers to questions, in their order; every second one by another process where there may be one.

    Alone each is found when its turn comes.
    """
    others = Ahead(questions[1::2], answering, workers)
    if not others.is_begun:
        yield from (answering(one, _never) for one in questions)
        return
    try:
        found = [answering(one, _never) for one in questions[::2]]
        for i, answer in enumerate(others.answers(is_up)):
            found.insert(2 * i + 1, answer)
    finally:
        others.end()
    yield from found


def _never() -> bool:
    return False
