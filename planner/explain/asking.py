"""Ask many questions on several processes: here, and in as many more as are wanted.

This process and a thread for each other one take the questions from one row, so that none waits while
there is work. Answers do not depend on who gives them. What another process cannot answer, as it has died, is
asked here.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from planner.explain.budget import LEAST_S, Budget
from planner.explain.questions import LONGEST_FIRST, Answer, Ask, Grounds, Question
from planner.explain.worker import READY
from planner.processes import started


@dataclass(frozen=True)
class Hands:
    """Who answers, and within which limits."""

    question_s: float
    """Time limit of each question [s]."""
    workers: int
    """Processes at most, this one included."""
    budget: Budget
    """Time limit of all."""
    on_question: Ask
    """Called with each question when its turn comes, by one thread at a time; where it raises
    KeyboardInterrupt, no more are asked."""

    @property
    def limit_s(self) -> float:
        """What a question that begins now may take [s]."""
        left_s = self.budget.left_s
        return self.question_s if left_s is None else max(min(self.question_s, left_s), LEAST_S)


def asked(grounds: Grounds, questions: Sequence[Question], hands: Hands, *, alone: bool) -> list[Answer]:
    """Answers in the order of the questions; without those that a limit or Ctrl-C left open.

    Several processes take the longest questions first. `alone`: no other process is worth its start.
    """
    processes = 1 if alone else min(hands.workers, len(questions))
    row = _Row(questions, hands, longest_first=processes > 1)
    others: list[_Other] = []
    try:
        with suppress(OSError):  # no room for another process: this one does without
            for _ in range(processes - 1):
                others.append(_Other(grounds, row))
        while not row.is_over:
            _here(grounds, row)
            # One that is not ready yet finds nothing left to do; what one dies of is left to us again.
            for other in others:
                if (number := other.number) is not None:
                    hands.on_question(f"still {questions[number].words}")
                    other.join()
    except KeyboardInterrupt:
        pass
    finally:
        for other in others:
            other.end()
    return [row.answers[number] for number in sorted(row.answers)]


def _here(grounds: Grounds, row: _Row) -> None:
    """Answer questions in this process until none is left."""
    while (turn := row.next()) is not None:
        number, limit_s = turn
        row.answers[number] = grounds.answer(row.questions[number], limit_s)


class _Row:
    """The questions that are left, dealt to whoever asks for one."""

    def __init__(self, questions: Sequence[Question], hands: Hands, *, longest_first: bool) -> None:
        self.questions, self.answers = questions, dict[int, Answer]()
        self._hands = hands
        order = sorted(range(len(questions)), key=lambda i: LONGEST_FIRST.index(questions[i].kind))
        self._left = order if longest_first else list(range(len(questions)))
        self._lock, self._ended = threading.Lock(), False

    @property
    def is_over(self) -> bool:
        """Whether no question is left, or no time for one."""
        with self._lock:
            return not self._left or self._hands.budget.is_up

    def next(self, other: _Other | None = None) -> tuple[int, float] | None:
        """Number of the next question and its time limit [s]; None where none is left, or no time.

        Whoever takes it has its number before anybody else may ask.

        Raises
        ------
        KeyboardInterrupt
            Where no more are to be asked.
        """
        with self._lock:
            if self._ended:
                raise KeyboardInterrupt
            if not self._left or self._hands.budget.is_up:
                return None
            try:
                self._hands.on_question(self.questions[self._left[0]].words)
            except KeyboardInterrupt:
                self._ended = True
                raise
            number = self._left.pop(0)
            if other is not None:
                other.number = number
            return number, self._hands.limit_s

    def put_back(self, number: int) -> None:
        """Leave a question to another."""
        with self._lock:
            self._left.insert(0, number)


class _Other(threading.Thread):
    """Another process, and the thread that gives it questions and takes its answers."""

    def __init__(self, grounds: Grounds, row: _Row) -> None:
        super().__init__(daemon=True)
        self._grounds, self._row = grounds, row
        self.number: int | None = None
        """The question that it is at."""
        self._process = started("planner.explain.worker", stderr=subprocess.DEVNULL)
        assert isinstance(self._process.stdout, io.FileIO)
        self._output: io.BufferedReader[io.FileIO] = io.BufferedReader(self._process.stdout)
        self.start()

    def run(self) -> None:
        """Have questions answered until none is left, or the process dies or is ended."""
        try:
            self._tell(self._grounds)
            if self._heard() != READY:
                return
            while (turn := self._row.next(self)) is not None:
                number, limit_s = turn
                self._tell((self._row.questions[number], limit_s))
                self._row.answers[number] = self._heard()
                self.number = None
        except KeyboardInterrupt:
            pass  # no more are to be asked, as the main thread finds out for itself
        except (OSError, EOFError, pickle.UnpicklingError):
            if self.number is not None:
                self._row.put_back(self.number)
                self.number = None

    def _tell(self, message: object) -> None:
        assert self._process.stdin is not None
        rest = memoryview(pickle.dumps(message))
        while rest:
            rest = rest[self._process.stdin.write(rest) or 0 :]

    def _heard(self) -> Any:
        return pickle.load(self._output)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self.join()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.close()
