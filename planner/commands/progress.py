"""Progress of a search on standard error: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planner.commands import screen
from planner.units import format_percent, format_seconds

if TYPE_CHECKING:
    from planner.search.progress import Progress

LINE_EVERY_S = 3.0
"""Time between two plain lines [s]."""

REDRAW_EVERY_S = 0.1
"""Time between two drawings of the live line [s]."""


def sentence(progress: Progress) -> str:
    """State of the search in one line."""
    parts = [f"{progress.phase} {progress.elapsed_s:.1f} s"]
    if progress.incumbent_s is not None:
        parts.append(f"best {format_seconds(progress.incumbent_s)}")
    if progress.bound_s is not None:
        parts.append(f"bound {format_seconds(progress.bound_s)}")
    if progress.gap is not None:
        parts.append(f"gap {format_percent(progress.gap)}")
    parts.append(f"{progress.opened:,} opened, {progress.remaining:,} left")
    if progress.time_left_s is not None:
        parts.append(f"{progress.time_left_s:.0f} s to limit")
    return " | ".join(parts)


@contextmanager
def reporter(*, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """The callback for a search, for as long as the search runs; None where nobody wants to see it."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.live import Live
    from rich.text import Text

    console = screen.console(stderr=True)
    # Redrawn by the search itself: a drawing thread would compete with the solver for a core.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        last_s = 0.0

        def draw(progress: Progress) -> None:
            nonlocal last_s
            now_s = time.monotonic()
            if now_s - last_s >= REDRAW_EVERY_S:
                last_s = now_s
                line = Text(sentence(progress), no_wrap=True, overflow="ellipsis")
                live.update(line, refresh=True)

        yield draw


def _plain_lines() -> Callable[[Progress], None]:
    """A callback that writes a line every few seconds, the first after that time only."""
    last_s = time.monotonic()

    def write(progress: Progress) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= LINE_EVERY_S:
            last_s = now_s
            screen.note(sentence(progress))

    return write
