"""Questions of a search that are fixed before any is answered, so that another process may answer some.

An answer depends on its question alone: what comes of a search is the same with another process and without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from planner.search.beside import Aside, may_have_others

Q = TypeVar("Q")
A = TypeVar("A")

Answering = Callable[[Q, Callable[[], bool]], A]
"""Answers a question; what it is called with besides says whether the answer is no longer wanted."""

TICKET_BYTES = 2
MOST_TICKETS = 4096
"""Questions beyond which no other process is begun: so many tickets surely find room in a pipe."""


class Tickets:
    """Numbers of questions, each of which one process draws: that which answers it.

    They lie in a pipe: a process that dies takes no more with it than the one it has drawn.
    """

    def __init__(self, number: int) -> None:
        self._drawing, filling = os.pipe()
        os.write(filling, b"".join(i.to_bytes(TICKET_BYTES, "big") for i in range(number)))
        os.close(filling)

    def draw(self) -> int | None:
        """The next number; None where all are drawn."""
        ticket = os.read(self._drawing, TICKET_BYTES)
        return int.from_bytes(ticket, "big") if ticket else None

    def end(self) -> None:
        """Give the pipe back."""
        os.close(self._drawing)


class Ahead(Generic[Q, A]):
    """Questions whose answers are wanted later: begun at once where there may be another process.

    Once they are wanted this one answers those that the other has not begun.
    """

    def __init__(self, questions: Sequence[Q], answering: Answering[Q, A], workers: int | None) -> None:
        self._questions, self._answering = questions, answering
        self._found: dict[int, A] = {}
        self._aside: Aside[None, tuple[int, A]] | None = None
        if 0 < len(questions) <= MOST_TICKETS and may_have_others(workers):
            self._tickets = Tickets(len(questions))
            try:
                self._aside = Aside(self._drawn)
                self._aside.ask(None)
            except OSError:  # no room for another process
                self._tickets.end()

    @property
    def is_begun(self) -> bool:
        """Whether another process answers."""
        return self._aside is not None

    @property
    def is_answered(self) -> bool:
        """Whether another process has answered all."""
        return self._aside is not None and len(self._aside.answers(0, 0, _always)) == len(self._questions)

    def answers(self, is_up: Callable[[], bool]) -> list[A]:
        """All answers, in the order of the questions; those that no other process gave are found here."""
        try:
            if self._aside is not None:
                self._share(self._aside, is_up)
        finally:
            self.end()
        return [
            self._found[i] if i in self._found else self._answering(question, _never)
            for i, question in enumerate(self._questions)
        ]

    def _share(self, aside: Aside[None, tuple[int, A]], is_up: Callable[[], bool]) -> None:
        """Answer what is left here while the other process goes on, and take what it has found."""
        drawn = self._drawn(None, _never)
        while not is_up() and (one := next(drawn, None)) is not None:
            self._found[one[0]] = one[1]
        self._found |= aside.answers(0, len(self._questions) - len(self._found), is_up)

    def end(self) -> None:
        """End the other process, whatever it does."""
        if self._aside is not None:
            self._aside.end()
            self._aside = None
            self._tickets.end()

    def _drawn(self, _: None, is_unwanted: Callable[[], bool]) -> Iterator[tuple[int, A]]:
        """Questions that no other process has begun, with their answers."""
        while (i := self._tickets.draw()) is not None:
            yield i, self._answering(self._questions[i], is_unwanted)


def shared(
    questions: Sequence[Q], answering: Answering[Q, A], workers: int | None, is_up: Callable[[], bool]
) -> Iterator[A]:
    """Answers to questions, in their order; some by another process where there may be one.

    Alone each is found when its turn comes.
    """
    others = Ahead(questions, answering, workers if len(questions) > 1 else 1)
    if not others.is_begun:
        yield from (answering(one, _never) for one in questions)
        return
    yield from others.answers(is_up)


def _never() -> bool:
    return False


def _always() -> bool:
    return True
