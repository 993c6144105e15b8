"""What a long search says of itself while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.search.clock import Clock

PROGRESS_EVERY_S = 0.1
"""Least time between two reports [s]."""


@dataclass(frozen=True)
class Progress:
    """State of a search at one moment."""

    phase: str
    """What it is doing: listing choices, or searching."""
    elapsed_s: float
    """Time since it began [s]."""
    incumbent_s: float | None
    """Step time of the best plan so far [s]."""
    bound_s: float | None
    """No plan is faster than this [s]."""
    gap: float | None
    """(incumbent - bound) / incumbent."""
    opened: int
    """Choices opened so far."""
    remaining: int
    """Choices that neither bound nor answer has closed yet."""
    time_left_s: float | None
    """Time until the limit [s]; None without one."""


class Reporter:
    """Calls `on_progress` now and then."""

    def __init__(self, clock: Clock, on_progress: Callable[[Progress], None] | None) -> None:
        self._clock, self._on_progress = clock, on_progress
        self._last_s = -PROGRESS_EVERY_S

    def report(
        self, phase: str, incumbent_s: float | None, bound_s: float | None, opened: int, left: int
    ) -> None:
        """Say where the search stands, at most once in a while."""
        if self._on_progress is None or self._clock.elapsed_s - self._last_s < PROGRESS_EVERY_S:
            return
        self._last_s = self._clock.elapsed_s
        gap = None
        if incumbent_s is not None and bound_s is not None:
            gap = max(0.0, 1 - bound_s / incumbent_s)
        self._on_progress(
            Progress(phase, self._last_s, incumbent_s, bound_s, gap, opened, left, self._clock.left_s)
        )
