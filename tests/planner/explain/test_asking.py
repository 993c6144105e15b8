"""Questions on several processes: the same answers, and nothing left behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.cli import main
from planner.data.explanation import Explanation
from planner.data.load import build_problem
from planner.data.options import Options
from planner.data.problem import Problem
from planner.explain import asking
from planner.explain import explain as explaining
from planner.explain.budget import Budget
from planner.explain.explain import explain

WITH_ANOTHER = """
import sys
from planner.cli import main
from planner.explain import explain
explain.ALONE_S = 0.0
sys.exit(main(["explain", "llama3-8b-h100-a100-16", "--workers", "2", *sys.argv[1:]]))
"""
"""The command on a problem that is planned soon, and still with another process."""


def small(**options: object) -> Problem:
    """A node of H100, a small model."""
    return build_problem(
        cluster="1x8 h100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=16,
        options=Options(gap=0.5, max_virtual_stages=1, **options),
    )


@pytest.fixture(scope="module")
def of_one_process() -> Explanation:
    """The answer where this process is alone."""
    return explain(small(), workers=1)


@pytest.fixture
def never_alone(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Other processes are started, however soon the plan is found; those that were."""
    seen: list[subprocess.Popen[bytes]] = []

    def started(*args: Any, **fields: Any) -> subprocess.Popen[bytes]:
        seen.append(asking_started(*args, **fields))
        return seen[-1]

    asking_started = asking.started
    monkeypatch.setattr(asking, "started", started)
    monkeypatch.setattr(explaining, "ALONE_S", 0.0)
    return seen


def test_two_processes_give_the_answer_of_one(
    of_one_process: Explanation, never_alone: list[subprocess.Popen[bytes]]
) -> None:
    asked: list[str] = []
    two = explain(small(), workers=2, on_question=asked.append)
    assert len(never_alone) == 1 and never_alone[0].returncode is not None
    assert two.model_dump_json() == of_one_process.model_dump_json() and not two.interrupted
    kinds = [gain.change for gain in two.gains] + [other.kind for other in two.alternatives]
    assert set(kinds) <= set(asked)


def test_a_plan_that_is_found_soon_is_explained_by_one_process(
    of_one_process: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "started", lambda *args, **fields: pytest.fail("a process was started"))
    monkeypatch.setattr(explaining, "ALONE_S", 1e9)
    assert explain(small(), workers=2) == of_one_process


DIES = {
    "when it is ended, never ready": "import time; time.sleep(600)",
    "at its start": "raise SystemExit(1)",
    "at a question": "import os, pickle, sys; pickle.load(sys.stdin.buffer)\n"
    "sys.stdout.buffer.write(pickle.dumps('ready')); sys.stdout.flush()\n"
    "pickle.load(sys.stdin.buffer); os.kill(os.getpid(), 9)",
    "amid an answer": "import os, pickle, sys; pickle.load(sys.stdin.buffer)\n"
    "sys.stdout.buffer.write(pickle.dumps('ready')); sys.stdout.flush()\n"
    "pickle.load(sys.stdin.buffer); sys.stdout.buffer.write(pickle.dumps([1] * 99)[:40]); sys.stdout.flush()",
}

SELDOM = ("at its start", "amid an answer")


@pytest.mark.parametrize(
    "when",
    [pytest.param(when, marks=[pytest.mark.slow] if when in SELDOM else []) for when in DIES],
)
def test_what_another_process_has_died_of_is_asked_here(
    when: str, of_one_process: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*args: object, **fields: object) -> subprocess.Popen[bytes]:
        code = [sys.executable, "-c", DIES[when]]
        return subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    monkeypatch.setattr(asking, "started", dying)
    monkeypatch.setattr(explaining, "ALONE_S", 0.0)
    assert explain(small(), workers=2) == of_one_process


def test_without_room_for_another_process_this_one_answers(
    of_one_process: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **fields: object) -> subprocess.Popen[bytes]:
        raise OSError("no room")

    monkeypatch.setattr(asking, "started", full)
    monkeypatch.setattr(explaining, "ALONE_S", 0.0)
    assert explain(small(), workers=2) == of_one_process


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_the_answers_so_far(workers: int, never_alone: list[subprocess.Popen[bytes]]) -> None:
    count = 0

    def fifth(question: str) -> None:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt

    found = explain(small(), workers=workers, on_question=fifth)
    assert found.interrupted and found.step_s is not None
    # The plan and its stages were questions, too; another process may have been at one of the other two.
    assert 2 - (workers - 1) <= len(found.gains) + len(found.alternatives) <= 2
    assert all(process.returncode is not None for process in never_alone)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_time_limit_holds_for_all_questions_together(
    workers: int, never_alone: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def until_the_third(question: str) -> None:
        asked.append(question)
        if len(asked) == 3:
            monkeypatch.setattr(Budget, "left_s", 0.0)

    found = explain(small(time_limit_s=100.0), workers=workers, on_question=until_the_third)
    assert [words for words in asked if not words.startswith("still ")][:2] == [
        "the best plan",
        "what binds each stage",
    ]
    assert found.interrupted and found.step_s is not None and found.stages
    assert len(found.gains) + len(found.alternatives) == 1


def test_the_time_limit_holds_where_there_is_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "llama3-8b-h100-a100-16", "--json", "--time-limit-s", "0.001"]
    assert main(command) == 4
    assert '"infeasible": false' in capsys.readouterr().out
    assert main([*command, "--pin", "tp=8", "--pin", "dp=16"]) == 3
    printed = capsys.readouterr().out
    assert '"infeasible": true' in printed and '"interrupted": true' in printed


def test_a_plan_is_explained_with_the_wishes_of_the_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["plan", "llama3-8b-h100-a100-16", "--gap", "0.5", "--quiet", "--out", str(tmp_path / "out")]
    assert main(plan) == 0
    path = str(tmp_path / "out" / "plan.yaml")
    # That the problem came from the plan file made the flags of no effect, without a word.
    assert main(["explain", "--plan", path, "--seq-length", "100000", "--quiet"]) != 0
    assert main(["explain", "--plan", path, "--model", "llama3-8b"]) == 2
    assert "the problem inside the plan" in capsys.readouterr().err


def test_workers_below_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "llama3-8b-h100-a100-16", "--workers", "0"]) == 2
    assert "--workers" in capsys.readouterr().err


def children_of(parent: int) -> set[int]:
    """Processes that a process has started and that live."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(ppid) == parent and state != "Z":
            found.add(int(path.parent.name))
    return found


def gone(pids: set[int], within_s: float = 5.0) -> bool:
    """Whether processes end in time."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        alive = [pid for pid in pids if Path(f"/proc/{pid}/stat").exists()]
        states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in alive]
        if all(state == "Z" for state in states):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def explaining_with_another() -> Iterator[tuple[subprocess.Popen[str], set[int]]]:
    """The command amid its questions, and the processes that it has started."""
    command = subprocess.Popen(
        [sys.executable, "-c", WITH_ANOTHER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert command.stderr is not None
    for line in command.stderr:
        if "another" in line:  # of the questions, which come after the best plan
            break
    others = children_of(command.pid)
    yield command, others
    command.kill()
    command.communicate()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGKILL))],
)
def test_no_process_outlives_the_command(
    number: signal.Signals, explaining_with_another: tuple[subprocess.Popen[str], set[int]]
) -> None:
    command, others = explaining_with_another
    assert len(others) == 1
    started_s = time.monotonic()
    os.killpg(command.pid, number) if number == signal.SIGINT else command.send_signal(number)
    printed, said = command.communicate(timeout=20.0)
    assert gone(others)
    if number == signal.SIGINT:
        assert command.returncode == 130 and time.monotonic() - started_s < 10.0
        assert "interrupted" in said and "step time" in printed and "Traceback" not in said
