"""What stages keep by a deadline: the rows of `planner.search.replicas.holding`, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.replicas.space import Ints

NEVER = -1.0
"""A way down to the last stage that none has [ms]."""


@dataclass(frozen=True)
class Choices:
    """Stages of one place, arrays [choice]; those that another is as good as in all are left out."""

    item: Ints
    layers: Floats
    times: Floats
    hop: Floats
    """Send to one side, one way [ms]."""
    after: Floats
    """What follows the first stage [ms]."""
    worth: Floats
    pace: float
    """Most share of the forward in their time, no more than half."""

    def at(self, rows: NDArray[np.bool_] | Ints) -> Choices:
        """Some of them."""
        times, hop, after = self.times[rows], self.hop[rows], self.after[rows]
        return Choices(self.item[rows], self.layers[rows], times, hop, after, self.worth[rows], self.pace)

    def __len__(self) -> int:
        return len(self.item)


@dataclass(frozen=True)
class Asked:
    """A bracket of the sum of all stages, and what is asked of it."""

    kind: int
    least_m: int
    deadline_ms: float
    low: float
    high: float
    tick_ms: float
    need: float


def first_high(asked: Asked, choices: Choices, behind: int) -> Floats:
    """Longest way down to the last stage with which a first stage keeps the rows."""
    m, deadline_ms = asked.least_m, asked.deadline_ms
    forward, times = choices.pace * choices.times, choices.times
    backward = times - forward
    whole = choices.after + m * times
    windows, more = divmod(m - 1, behind + 1)
    by_window = (deadline_ms - choices.after - more * backward) / (windows + 1) - times
    if m <= behind + 1:
        ahead: Floats = np.where(whole <= deadline_ms, by_window, NEVER)
        return ahead
    rest, once, twice = deadline_ms - whole, behind * forward, behind * (forward + backward)
    flat = behind * backward - once
    by_partial = np.where(rest < flat, once + rest, (rest + twice) / 2)
    both: Floats = np.where(rest < 0, NEVER, np.minimum(by_partial, by_window))
    return both


def inner_range(asked: Asked, choices: Choices, behind: int) -> tuple[Floats, Floats]:
    """Shortest and longest way down to the last stage with which an inner stage keeps the rows."""
    m, deadline_ms, low = asked.least_m, asked.deadline_ms, asked.low
    forward, times = choices.pace * choices.times, choices.times
    backward = times - forward
    whole = low + (m - 1) * times
    windows, more = divmod(m - 1, behind + 1)
    fits = low + more * backward <= deadline_ms
    shortest = whole - deadline_ms
    if m <= behind + 1:
        return shortest, np.where(fits, np.inf, NEVER)
    longest = np.where(whole - behind * forward <= deadline_ms, behind * times - shortest, NEVER)
    if windows:
        longest = np.minimum(longest, (deadline_ms - low - more * backward) / windows - times)
    return shortest, np.where(fits, longest, NEVER)
