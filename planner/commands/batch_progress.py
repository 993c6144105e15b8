"""Progress of a batch on standard error: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planner.commands import screen
from planner.commands.progress import LINE_EVERY_S, REDRAW_EVERY_S
from planner.units import format_seconds

if TYPE_CHECKING:
    from planner.batch.run import BatchProgress


def sentence(progress: BatchProgress) -> str:
    """State of a batch in one line."""
    parts = [f"{progress.done:,} of {progress.total:,} done, {progress.running} running"]
    if progress.elsewhere:
        parts[0] += f", {progress.elsewhere} in another process"
    parts.append(f"{progress.failed} failed")
    if progress.solved_now:
        parts.append(rate(progress.rate_per_s))
    if progress.time_left_s is not None and progress.left:
        parts.append(f"{duration(progress.time_left_s)} left")
    if progress.best is not None:
        parts.append(f"best {format_seconds(progress.best.step_s)} a step ({progress.best.name})")
    return " | ".join(parts)


def rate(per_s: float) -> str:
    """Jobs a second, or a minute where they are slow."""
    return f"{per_s:.1f} jobs/s" if per_s >= 1 else f"{60 * per_s:.1f} jobs/min"


def duration(seconds: float) -> str:
    """A time span as a reader says it: `45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def reporter(*, quiet: bool) -> Iterator[Callable[[BatchProgress], None] | None]:
    """The callback for a batch, for as long as it runs; None where nobody wants to see it."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _now_and_then(LINE_EVERY_S, lambda progress: screen.note(sentence(progress)))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=screen.console(stderr=True), auto_refresh=False, transient=True) as live:

        def draw(progress: BatchProgress) -> None:
            live.update(Text(sentence(progress), no_wrap=True, overflow="ellipsis"), refresh=True)

        yield _now_and_then(REDRAW_EVERY_S, draw)


def _now_and_then(every_s: float, show: Callable[[BatchProgress], None]) -> Callable[[BatchProgress], None]:
    """A callback that shows the state at most once in a while."""
    last_s = time.monotonic()

    def report(progress: BatchProgress) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= every_s:
            last_s = now_s
            show(progress)

    return report
