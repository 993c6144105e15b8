"""A copy of the process answers beside it, is ended with it, and is done without where there can be none."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator

import pytest

from planner.search import beside
from planner.search.beside import Aside, Beside, may_have_others


def never() -> bool:
    return False


def runs(process: int) -> bool:
    """Whether it is there, and not only waited for."""
    with open(f"/proc/{process}/stat") as file:
        return file.read().split()[2] != "Z"


def until_unwanted(is_unwanted: Callable[[], bool]) -> int:
    while not is_unwanted():
        time.sleep(0.01)
    return 1


def test_a_copy_answers_with_what_was_there_when_it_began() -> None:
    known = [1, 2]
    asked = Beside(lambda _: (sum(known), os.getpid()))
    known.append(3)
    total, process = asked.answer(never) or (0, 0)
    asked.end()
    assert total == 3 and process not in (0, os.getpid())


def test_no_answer_where_time_is_up_or_the_copy_dies() -> None:
    asked = Beside(until_unwanted)
    assert asked.answer(lambda: True) is None
    asked.end()
    dies = Beside(lambda _: os._exit(3))
    assert dies.answer(never) is None
    dies.end()


def test_the_end_ends_the_copy() -> None:
    asked = Beside(until_unwanted)
    (copy,) = multiprocessing.active_children()
    assert copy.is_alive()
    asked.end()
    assert not copy.is_alive()
    assert asked.answer(never) is None
    asked.end()


def test_one_copy_answers_question_after_question_with_what_it_keeps() -> None:
    seen: list[int] = []

    def answering(question: int, _: Callable[[], bool]) -> Iterator[tuple[int, int]]:
        for part in range(2):
            seen.append(question)
            yield part, len(seen)

    asked = Aside(answering)
    first = asked.ask(7)
    assert asked.answers(first, 2, never) == [(0, 1), (1, 2)]
    second = asked.ask(8)
    assert asked.answers(second, 2, never) == [(0, 3), (1, 4)] and seen == []
    assert asked.answers(first, 2, never) == [(0, 1), (1, 2)]
    asked.end()
    assert asked.answers(second, 2, never) == [(0, 3), (1, 4)]


def test_a_copy_leaves_a_question_for_the_next_one() -> None:
    def answering(question: int, is_unwanted: Callable[[], bool]) -> Iterator[int]:
        yield question
        if question == 1:
            yield until_unwanted(is_unwanted)
        yield -question

    asked = Aside(answering)
    first = asked.ask(1)
    assert asked.answers(first, 1, never) == [1]
    second = asked.ask(2)
    assert asked.answers(second, 2, never) == [2, -2]
    assert asked.answers(first, 0, never) in ([1], [1, 1])
    dies = asked.ask(3)
    asked._process.kill()
    assert asked.answers(dies, 3, never) in ([], [3], [3, -3])
    asked.end()


def waits(question: int, is_unwanted: Callable[[], bool]) -> Iterator[int]:
    yield until_unwanted(is_unwanted)


def busy() -> Beside[int]:
    return Beside(until_unwanted)


def busy_aside() -> Aside[int, int]:
    asked = Aside(waits)
    asked.ask(1)
    return asked


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
@pytest.mark.parametrize("make", [busy, busy_aside, lambda: Aside(waits)])
def test_a_copy_whose_asker_is_killed_ends_by_itself(
    make: Callable[[], Beside[int] | Aside[int, int]],
) -> None:
    reading, writing = os.pipe()

    def ask_and_die() -> None:
        asked = make()
        os.write(writing, str(asked._process.pid).encode())
        os._exit(0)

    asker = multiprocessing.get_context("fork").Process(target=ask_and_die)
    asker.start()
    copy = int(os.read(reading, 20))
    asker.join()
    for _ in range(500):
        try:
            if not runs(copy):
                break
        except FileNotFoundError:
            break
        time.sleep(0.01)
    else:
        pytest.fail("it runs on")


def test_one_process_is_kept_to_where_asked_for_or_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside.threading, "active_count", lambda: 1)
    monkeypatch.setattr(beside, "cores", lambda: 2)
    assert may_have_others(None) and may_have_others(2) and not may_have_others(1)
    monkeypatch.setattr(beside, "cores", lambda: 1)
    assert not may_have_others(None) and may_have_others(2)
    monkeypatch.setattr(beside.threading, "active_count", lambda: 2)
    assert not may_have_others(2)
    monkeypatch.setattr(beside.threading, "active_count", lambda: 1)
    monkeypatch.setitem(multiprocessing.process.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert not may_have_others(2)
