"""Ctrl-C during a search, or during several: the best so far is still printed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from planner.commands import screen


@contextmanager
def noticing_ctrl_c() -> Iterator[list[int]]:
    """Keep a note of Ctrl-C: the search catches it and returns its best plan, as for a time limit."""
    seen: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def announcing(interrupts: list[int], what: str, *, quiet: bool) -> Callable[[object], None]:
    """Says before each of several searches what it is about; after Ctrl-C ends them instead.

    A search that was interrupted returns in the ordinary way, so that the next one has to ask.
    """

    def before(subject: object) -> None:
        if interrupts:
            raise KeyboardInterrupt
        if not quiet:
            screen.note(f"{what} {subject}")

    return before
