"""Rooms asked in a process of their own while plans of FlagScale are searched.

Where chips are few, whether rooms close the cutoff (`Mixes.close_by_rooms`) is what follows on that search,
and takes about as long. Where that search finds a better plan they are asked for its cutoff instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.search.beside import Beside, may_have_others
from planner.search.replicas.mixes import Mixes

LEAST_ROOMS = 1000
"""Rooms from which another process is worth its start. A guess."""

Told = list[tuple[float, float]]
"""A time that is closed and one that rooms leave open, by choice of what pipelines share [ms]."""


class RoomsBeside:
    """Whether rooms close one time, asked beside."""

    def __init__(self, mixes: Mixes, most_s: float) -> None:
        """Ask for a time [s].

        Raises
        ------
        OSError
            Where the system has no room for another process.
        """
        self.mixes, self.most_s = mixes, most_s
        self._beside = Beside(self._told)

    def ask(self, most_s: float) -> None:
        """Ask for another time [s], in place of the one before.

        Raises
        ------
        OSError
            Where the system has no room for another process.
        """
        if most_s != self.most_s:
            self._beside.end()
            self.most_s = most_s
            self._beside = Beside(self._told)

    def take(self, most_s: float, is_up: Callable[[], bool]) -> None:
        """Take over what was found, where it was asked for this time [s]."""
        told = self._beside.answer(is_up) if most_s == self.most_s else None
        if told is not None:
            for part, (bound_ms, open_ms) in zip(self.mixes.that_share(), told, strict=True):
                part.bound_ms, part.open_ms = bound_ms, open_ms

    def end(self) -> None:
        """End the other process."""
        self._beside.end()

    def _told(self, is_up: Callable[[], bool]) -> Told:
        """What rooms tell, in the other process."""
        parts = self.mixes.that_share()
        for part in parts:
            part.is_up = is_up
        self.mixes.close_by_rooms(self.most_s)
        return [(part.bound_ms, part.open_ms) for part in parts]


def are_worth_a_process(mixes: Mixes, workers: int | None) -> bool:
    """Whether rooms come next, are many, and may have another process."""
    rooms = int(np.prod(mixes.chains.available + 1))
    return mixes.are_few and not mixes.columns and rooms >= LEAST_ROOMS and may_have_others(workers)
