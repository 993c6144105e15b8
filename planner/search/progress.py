"""What a long search says of itself while it runs."""

from __future__ import annotations

from dataclasses import dataclass


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
