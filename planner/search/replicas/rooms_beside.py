"""Mixes chosen, then rooms asked, in a process of their own while plans of FlagScale are searched.

Where chips are few, whether rooms close the cutoff (`Mixes.close_by_rooms`) is what follows on that search,
and takes about as long. Where that search finds a better plan they are asked for its cutoff instead: the
process goes on with the tables that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np

from planner.search.beside import Aside, may_have_others
from planner.search.replicas.mixes import Mixes

C = TypeVar("C")

LEAST_ROOMS = 1000
"""Rooms from which another process is worth its start. A guess."""

Told = tuple[int, bool]
"""A choice of what pipelines share, and whether rooms close it."""


class RoomsBeside(Generic[C]):
    """What is chosen at first, and whether rooms close one time, asked beside."""

    def __init__(self, mixes: Mixes, choose: Callable[[], C]) -> None:
        """`choose` chooses mixes.

        Raises
        ------
        OSError
            Where the system has no room for another process.
        """
        self.mixes, self._choose, self.most_s = mixes, choose, 0.0
        self._aside: Aside[float | None, C | Told] = Aside(self._answer)
        self._choice: int | None = self._aside.ask(None)
        self._rooms = 0

    def ask(self, most_s: float) -> None:
        """Ask for a time [s], in place of the one before."""
        if most_s != self.most_s:
            self.most_s = most_s
            self._rooms = self._aside.ask(most_s)

    def chosen(self, is_up: Callable[[], bool]) -> C | None:
        """What was chosen, once; None where time is up before, or the process died."""
        number, self._choice = self._choice, None
        found = [] if number is None else self._aside.answers(number, 1, is_up)
        return found[0] if found else None  # type: ignore[return-value]

    def take(self, most_s: float, is_up: Callable[[], bool]) -> None:
        """Ask rooms together, where they were asked for this time [s]: this process begins with the first."""
        parts, closed = self.mixes.that_share(), dict[int, bool]()
        while most_s == self.most_s and len(closed) < len(parts):
            closed.update(self._aside.answers(self._rooms, 0, is_up))  # type: ignore[arg-type]
            left = [number for number in range(len(parts)) if number not in closed]
            if len(left) > 1 and not is_up():
                closed[left[0]] = parts[left[0]].closes_by_rooms(most_s)
            elif left:
                before = len(self._aside.answers(self._rooms, 0, is_up))
                if len(self._aside.answers(self._rooms, before + 1, is_up)) == before:
                    break
        # As if they had been asked one after the other, up to the first that stays open.
        for number, part in enumerate(parts):
            if number in closed and not part.keep(most_s, closed[number]):
                break

    def end(self) -> None:
        """End the other process."""
        self._aside.end()

    def _answer(self, most_s: float | None, is_up: Callable[[], bool]) -> Iterator[C | Told]:
        """What is asked, in the other process: of all choices the last first."""
        if most_s is None:
            yield self._choose()
            return
        parts = self.mixes.that_share()
        for number, part in reversed(list(enumerate(parts))):
            part.is_up = is_up
            yield number, part.closes_by_rooms(most_s)


def are_worth_a_process(mixes: Mixes, workers: int | None) -> bool:
    """Whether rooms come next, are many, and may have another process."""
    rooms = int(np.prod(mixes.chains.available + 1))
    return mixes.begin_with_rooms and not mixes.columns and rooms >= LEAST_ROOMS and may_have_others(workers)
