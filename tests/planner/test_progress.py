"""The line that a long search shows of itself."""

from __future__ import annotations

import pytest

from planner.commands import progress
from planner.search.progress import Progress

STATE = Progress("searching", 83.2, 43.09, 42.7, 0.0091, 1234, 56, 516.8)


def test_line_tells_all_that_is_known() -> None:
    assert progress.sentence(STATE) == (
        "searching 83.2 s | best 43.09 s | bound 42.70 s | gap 0.9% | 1,234 opened, 56 left | 517 s to limit"
    )


def test_line_without_a_plan_leaves_out_what_is_unknown() -> None:
    line = progress.sentence(Progress("listing choices", 0.1, None, None, None, 0, 0, None))
    assert line == "listing choices 0.1 s | 0 opened, 0 left"


def test_plain_lines_come_every_few_seconds_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    with progress.reporter(quiet=False) as report:
        assert report is not None
        for now_s in (100.1, 103.5, 103.6, 106.0, 107.0):  # noqa: B007 (read by the clock above)
            report(STATE)
    assert capsys.readouterr().err.count("hetplan: searching") == 2


def test_quiet_search_is_given_nothing_to_call() -> None:
    with progress.reporter(quiet=True) as report:
        assert report is None
