"""The time of a search, and what its limit has to do with the answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

LEAST_SHARE_S = 1e-3
"""Least time limit of a search that gets a share of one [s]: it ends at its first look at the clock."""


@dataclass
class Clock:
    """Time since the search began, and until its limit."""

    limit_s: float | None
    started: float = field(default_factory=time.monotonic)
    late_s: float | None = None
    """When it is late [s]; None for half of the limit."""
    was_felt: bool = False
    """Whether its limit changed the course of the search, which another run may then not repeat."""
    is_unwanted: Callable[[], bool] | None = None
    """Whether no one waits for the answer any more."""

    @property
    def elapsed_s(self) -> float:
        """Since the start [s]."""
        return time.monotonic() - self.started

    @property
    def left_s(self) -> float | None:
        """Until the limit [s]; None without one."""
        return None if self.limit_s is None else self.limit_s - self.elapsed_s

    @property
    def is_late(self) -> bool:
        """Whether half of the limit has passed, or what was set in its place."""
        if self.limit_s is None:
            return False
        return self.elapsed_s > (self.limit_s / 2 if self.late_s is None else self.late_s)

    def stop(self) -> None:
        """Let no time be left."""
        self.limit_s = self.elapsed_s

    def go_on(self, seconds: float) -> None:
        """Begin anew with another limit, late as it is."""
        self.started, self.limit_s, self.late_s = time.monotonic(), seconds, 0.0

    @property
    def is_up(self) -> bool:
        """Whether the limit has passed."""
        return self.is_up_behind(0.0)

    def is_up_behind(self, next_s: float) -> bool:
        """Whether the limit passes with what comes next, of so much time [s]."""
        left = self.left_s
        is_up = (left is not None and left <= next_s) or (self.is_unwanted is not None and self.is_unwanted())
        self.was_felt |= is_up
        return is_up
