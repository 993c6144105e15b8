"""Questions are answered alike by one process and by two, whatever becomes of the second one."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from planner import api
from planner.data.load import build_problem
from planner.search.ahead import Ahead, shared
from planner.search.clock import Clock
from planner.search.virtual import rounds
from planner.search.virtual.rounds import Annealed, Start, VirtualRounds


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.search.beside.threading.active_count", lambda: 1)  # one a test runner has


def never() -> bool:
    return False


def squared(number: int, _: Callable[[], bool]) -> tuple[int, int]:
    return number**2, os.getpid()


def wait_for(ahead: Ahead) -> None:
    """Until another process has answered all."""
    until = time.monotonic() + 20.0
    while not ahead.is_answered:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("number", range(6))
def test_answers_come_in_order_from_any_number_of_processes(number: int) -> None:
    asked, expected = list(range(number)), [one**2 for one in range(number)]
    alone = list(shared(asked, squared, 1, never))
    both = list(shared(asked, squared, 2, never))
    assert [one for one, _ in alone] == [one for one, _ in both] == expected
    assert {process for _, process in alone} <= {os.getpid()}
    assert not multiprocessing.active_children()


def test_questions_that_no_other_process_has_begun_are_answered_here(tmp_path: Path) -> None:
    """A search stood still for 20 s while the other process annealed one part after the other."""
    here, asked, found_here = os.getpid(), list(range(6)), list[int]()

    def answered(number: int, is_unwanted: Callable[[], bool]) -> tuple[int, int]:
        """The other process is held up at its first question until all others are answered here."""
        if os.getpid() == here:
            found_here.append(number)
            if len(found_here) == len(asked) - 1:
                (tmp_path / "answered").touch()
            return number, here
        (tmp_path / "begun").touch()
        until = time.monotonic() + 20.0 * (number == 0)
        while not (tmp_path / "answered").exists() and time.monotonic() < until and not is_unwanted():
            time.sleep(0.01)
        return number, os.getpid()

    ahead = Ahead(asked, answered, 2)
    until = time.monotonic() + 20.0
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    found = ahead.answers(never)
    assert [number for number, _ in found] == asked
    assert [process == here for _, process in found] == [number > 0 for number in asked]
    assert found_here == asked[1:] and not multiprocessing.active_children()


def test_what_was_asked_ahead_is_answered_though_the_copy_dies() -> None:
    here = os.getpid()

    def dies(number: int, _: Callable[[], bool]) -> int:
        if os.getpid() != here:
            os._exit(3)
        return number

    ahead = Ahead([1, 2], dies, 2)
    assert ahead.is_begun
    assert ahead.answers(never) == [1, 2]
    assert list(shared([1, 2, 3], dies, 2, never)) == [1, 2, 3]
    assert not multiprocessing.active_children()


def test_what_is_there_when_time_is_up_counts() -> None:
    """A plan found in time was lost where the search came back to it behind its limit."""
    here = os.getpid()
    ahead = Ahead([1, 2], lambda number, _: (number, os.getpid()), 2)
    wait_for(ahead)
    assert [process == here for _, process in ahead.answers(lambda: True)] == [False, False]


@pytest.mark.parametrize("felt", [False, True])
def test_plans_found_beside_what_outlasts_the_limit_are_judged(felt: bool) -> None:
    """A look at whole layers that took the rest of the time lost them: 405B stayed 0.3% slower."""
    rounds, judged = object.__new__(VirtualRounds), list[list[int]]()
    ahead = Ahead([3, 4], lambda number, _: number, 2)
    wait_for(ahead)
    clock = Clock(0.0, was_felt=felt)
    vars(rounds).update(last=([1, 2], ahead), may_anneal_last=True, clock=clock)
    vars(rounds).update(_judge_annealed=lambda _, found: judged.append(list(found)))
    rounds.end()
    rounds.end()
    assert judged == ([[3, 4]] if felt else [])
    assert not multiprocessing.active_children()


def test_no_process_is_left_where_the_search_is_interrupted() -> None:
    here = os.getpid()

    def interrupted(_: int, is_unwanted: Callable[[], bool]) -> int:
        if os.getpid() == here:
            raise KeyboardInterrupt
        while not is_unwanted():
            time.sleep(0.01)
        return 0

    with pytest.raises(KeyboardInterrupt):
        list(shared([1, 2], interrupted, 2, never))
    assert not multiprocessing.active_children()
    ahead = Ahead([1], interrupted, 2)
    assert multiprocessing.active_children()
    ahead.end()
    assert not multiprocessing.active_children()


def any_part_is_annealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take parts of few orders, too, however near their bound, for a tenth of the steps."""

    def of_any(one: rounds.Round) -> rounds.Round:
        return replace(one, few_orders=0, gap=0.0, steps=one.steps // 10)

    monkeypatch.setattr(rounds, "FAR", 0.0)
    monkeypatch.setattr(rounds, "ROUNDS", tuple(map(of_any, rounds.ROUNDS)))
    for name in ("LAST_ROUND", "ROUND_BESIDE", "ROUND_NEAR"):
        monkeypatch.setattr(rounds, name, of_any(getattr(rounds, name)))


@pytest.mark.slow
def test_annealing_beside_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another process, without, and with one that dies; none is left though the last round is."""
    problem = build_problem(
        cluster="1x2 h100-sxm-80gb, 1x2 a100-sxm-80gb, 1x4 l40s-48gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=16,
    )
    any_part_is_annealed(monkeypatch)
    here, asked, lasts, found = os.getpid(), [0, 0], list[int](), list[Annealed]()
    annealed, begin_last = VirtualRounds._annealed, VirtualRounds._begin_last
    judge = VirtualRounds._judge_annealed

    def watched(search: VirtualRounds, start: Start, is_unwanted: Callable[[], bool]) -> Annealed:
        asked[0] += 1
        if os.getpid() != here and asked[1]:
            os._exit(1)
        part = replace(
            start.part, order=start.part.order[::-1]
        )  # far from the best: chance decides what is found
        return annealed(search, replace(start, part=part, layers=start.layers[::-1]), is_unwanted)

    def begun(search: VirtualRounds, bound_s: float, *, is_sure: bool) -> None:
        was_begun = search.last is not None
        begin_last(search, bound_s, is_sure=is_sure)
        if search.last is not None and not was_begun:
            lasts.append(len(search.last[0]))

    def judged(search: VirtualRounds, starts: list[Start], annealed: Iterable[Annealed]) -> None:
        judge(search, starts, (found.append(one) or one for one in annealed))

    monkeypatch.setattr(VirtualRounds, "_annealed", watched)
    monkeypatch.setattr(VirtualRounds, "_begin_last", begun)
    monkeypatch.setattr(VirtualRounds, "_judge_annealed", judged)
    answers, here_asked = [], []
    for workers, dies in ((1, 0), (None, 0), (None, 1)):
        monkeypatch.setattr("planner.search.beside.cores", lambda: 2)
        wishes = {"max_virtual_stages": None, "gap": 0.03, "pin": {"tp": 1, "dp": 1}}
        options = problem.options.model_copy(update={**wishes, "workers": workers, "time_limit_s": None})
        asked[:] = 0, dies
        found.clear()
        answers.append((api.plan(problem, options).model_dump(exclude={"seconds"}), found.copy()))
        here_asked.append(asked[0])
        assert not multiprocessing.active_children()
    assert answers[0] == answers[1] == answers[2]
    assert here_asked[1] < here_asked[0] == here_asked[2]
    assert lasts == [lasts[0]] * 3 and lasts[0] > 0
