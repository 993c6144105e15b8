"""The line that a batch shows while it runs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from planner.batch.jobs_file import read_jobs
from planner.batch.run import Batch, BatchProgress, Best
from planner.batch.store import Store
from planner.commands.batch_progress import duration, rate, sentence
from tests.planner.batch.samples import InstantExecutor, jobs_text, write_jobs

MIDWAY = BatchProgress(
    total=1200, done=300, failed=2, running=2, elsewhere=0, left=898, solved_now=300, elapsed_s=150.0,
    best=Best("small", 1.25),
)  # fmt: skip


def test_line_says_counts_rate_time_left_and_best() -> None:
    assert sentence(MIDWAY) == (
        "300 of 1,200 done, 2 running | 2 failed | 2.0 jobs/s | 7 min left | best 1.25 s a step (small)"
    )
    assert "2 running, 3 in another process" in sentence(replace(MIDWAY, elsewhere=3))


def test_nothing_is_promised_before_the_first_answer() -> None:
    early = replace(MIDWAY, done=0, failed=0, solved_now=0, best=None)
    assert sentence(early) == "0 of 1,200 done, 2 running | 0 failed"


@pytest.mark.parametrize(
    ("seconds", "words"), [(45, "45 s"), (89.6, "90 s"), (600, "10 min"), (12_000, "3 h 20 min")]
)
def test_time_spans_are_worded_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_slow_jobs_are_counted_by_the_minute() -> None:
    assert (rate(2.5), rate(0.05)) == ("2.5 jobs/s", "3.0 jobs/min")


def test_jobs_that_ask_the_same_all_count_as_done(tmp_path: Path) -> None:
    text = jobs_text(jobs=["{problem: llama3-8b-h100-8}"] * 3 + ["{problem: nowhere}"])
    jobs = read_jobs(write_jobs(tmp_path, text))
    with closing(Store(tmp_path / "plans.db")) as store:
        end = Batch(jobs, store).run(InstantExecutor())
    assert (end.total, end.done, end.failed, end.left, end.solved_now) == (4, 3, 1, 0, 2)
