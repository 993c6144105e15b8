"""The time limit of several searches together."""

from __future__ import annotations

import time

from planner.data.problem import Problem

LEAST_S = 1e-2
"""Time of a search that starts when the limit has passed: it ends at its first look at the clock [s]."""


class Budget:
    """What is left of a problem's time limit, dealt to the searches that are left.

    Parameters
    ----------
    spent_s
        Time that already counts against the limit [s].
    """

    def __init__(self, problem: Problem, spent_s: float = 0.0) -> None:
        self._limit_s = problem.options.time_limit_s
        self._started_s = time.monotonic() - spent_s

    @property
    def spent_s(self) -> float:
        """Time that counts against the limit so far [s]."""
        return time.monotonic() - self._started_s

    @property
    def left_s(self) -> float | None:
        """Until the limit [s]; None without one."""
        return None if self._limit_s is None else self._limit_s - self.spent_s

    @property
    def is_up(self) -> bool:
        """Whether the limit has passed."""
        return self.left_s is not None and self.left_s <= 0

    def given(self, problem: Problem, searches_left: int = 1) -> Problem:
        """A problem with its share of the time that is left, where others follow."""
        if self.left_s is None:
            return problem
        share_s = max(self.left_s / searches_left, LEAST_S)
        options = problem.options.model_copy(update={"time_limit_s": share_s})
        return problem.model_copy(update={"options": options})
