"""What a micro-batch at least spends on sends outside a window, by the classes of the stages there.

Stages of one class are next to few of another, so that single sends say little: where every class has stages
the ring of all stages has to enter and to leave each. With h[c,c'] the least send from a stage of class c to
one of c',

    X(0, none, a, a) = 0,    X(s+1, g + one of c, a, c') = min over c of  X(s, g, a, c) + h[c,c']

is the least from stage 0, of class a, to stage s, of class c, with g stages of each class before it; likewise
Y(t, g, c, z) from stage t-1, of class c, to the last, of class z. What leads round a window, from its last
stage of class d with g + (its own) stages up to there to its first of class c with g before, takes at least

    min over a, z of  Y(., g + (its own), d, z) + h[z,a] + X(., g, a, c).

Proof. The classes of the stages outside are those of a plan, so that its sends are among those looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost.prices import Floats, Ints
from planner.search.virtual.sums import LayerSums


@dataclass(frozen=True)
class Sends:
    """Sends outside windows, by the numbers of stages before them, [numbers]."""

    before: Floats
    """From stage 0 to the first of the window."""
    around: Floats
    """From the last of the window round to its first."""
    inner: Floats
    """From the last of the window to the last of all."""


class LeastSends:
    """Least sends outside of windows, by their classes.

    Parameters
    ----------
    classes
        [stage] classes that it may have.
    hop_ms
        [class, class] a send from one to the other.
    """

    def __init__(self, sums: LayerSums, classes: Sequence[Ints], hop_ms: Floats) -> None:
        p, number = sums.num_stages, len(hop_ms)
        self._hop_ms = hop_ms
        same = np.where(np.eye(number, dtype=np.bool_), 0.0, np.inf)
        self._before = [np.full((size, number, number), np.inf) for size in sums.sizes[:p]]
        """[stage][numbers before it, class of stage 0, its class]"""
        self._before[0][0] = same
        for s in range(p - 1):
            for c in classes[s].tolist():
                old, new = sums.moves[s][c]
                found = self._before[s][old, :, c, None] + hop_ms[c]
                self._before[s + 1][new] = np.minimum(self._before[s + 1][new], found)
        self._behind = [np.full((size, number, number), np.inf) for size in sums.sizes]
        """[stage][numbers before it, class of the stage before it, class of the last]"""
        self._behind[p][sums.is_end] = same
        for s in range(p - 1, 0, -1):
            for c in classes[s].tolist():
                old, new = sums.moves[s][c]
                found = hop_ms[:, c, None] + self._behind[s + 1][new, c][:, None, :]
                self._behind[s][old] = np.minimum(self._behind[s][old], found)

    def around(self, s: int, at: Ints, end: int, to: Ints, first: int, last: int) -> Sends:
        """Those outside a window from stage s to before `end` with classes `first` and `last` at its ends.

        Parameters
        ----------
        at, to
            Numbers of stages before it, and the same with its own.
        """
        before, behind = self._before[s][at, :, first], self._behind[end][to, last]
        wrap = (behind[:, :, None] + self._hop_ms).min(axis=1)
        return Sends(before.min(axis=1), (wrap + before).min(axis=1), behind.min(axis=1))
