"""How often Python looks for cycles of dead objects in a program of ours."""

from __future__ import annotations

import gc

COLLECT_EVERY = 100_000
"""Objects made between two looks. A search makes many small objects and no cycles to speak of: at Python's
700 the looks take 6 to 10% of its time and find nothing. A guess between these."""


def collect_rarely() -> None:
    """Look less often from now on; for processes that are ours alone, as it holds for all of a process."""
    gc.set_threshold(COLLECT_EVERY)
