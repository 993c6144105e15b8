"""What a micro-batch takes at least over the stages outside a window, by their classes and layers together.

Stages outside a window have the classes that it leaves and the layers that it does not hold, so that they
cannot all be quick. For a piece of work q of a stage, such as the forward of chunk k, with x(s,c,n,q) its
least over the ways of s on class c with n layers,

    B(s+1, g, l, q) = min over c, n of  B(s, g - one of c, l - n, q) + x(s,c,n,q)

is the least of all stages up to s together, g of them of each class and l layers in all; likewise the least
of those behind. What passes a window of classes h and n layers takes, for every piece of work on its own, at
least min over g, l of B(s, g, l, q) + (behind) (g + h, l + n, q').
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formulations.interleaved_windows import Passes
from planner.cost.prices import Floats, Ints
from planner.search.virtual_sums import LayerSums
from planner.search.virtual_ways import Ways

MOST_KEYS = 2_000_000
"""Numbers of stages by class and layers up to which windows are told apart by a table, 32 MB, rather than by
sorting, which takes many times as long."""


class LeastPasses:
    """Least passes over the stages outside of windows, by their classes and layers.

    Parameters
    ----------
    ways
        [stage] what is left of the lists.
    """

    def __init__(self, sums: LayerSums, ways: Sequence[Ways]) -> None:
        self._sums, self._v = sums, ways[0].forward_ms.shape[1]
        v, p, width = self._v, sums.num_stages, sums.num_layers + 1
        works = [_works(one) for one in ways]
        self._before = [np.full((size, width, 2 * v + 2), np.inf) for size in sums.sizes]
        """[stage][numbers, layers, work] of the stages before it."""
        self._before[0][0, 0] = 0.0
        self._behind = [np.full_like(before, np.inf) for before in self._before]
        """[stage][numbers, layers, work] of the stage and those behind, by the layers before it."""
        self._behind[p][sums.is_end, sums.num_layers] = 0.0
        for s in range(p):
            for c, n, least in works[s]:
                old, new = sums.moves[s][c]
                found = self._before[s][old, : width - n] + least
                self._before[s + 1][new, n:] = np.minimum(self._before[s + 1][new, n:], found)
        for s in range(p - 1, -1, -1):
            for c, n, least in works[s]:
                old, new = sums.moves[s][c]
                found = self._behind[s + 1][new, n:] + least
                self._behind[s][old, : width - n] = np.minimum(self._behind[s][old, : width - n], found)
        # Work before and behind the window of each pass: forwards, backwards, and what comes after.
        forward, backward, turn, nothing = np.arange(v), v + np.arange(v), 2 * v, 2 * v + 1
        self._first = np.concatenate([forward, backward[1:], [nothing, v]])
        self._second = np.concatenate([[nothing], forward[:-1], backward[:-1], [turn, nothing]])

    def of_windows(self, s: int, classes: Ints, layers: Ints) -> Passes:
        """Passes without sends for windows from stage s on, infinite where no plan is left.

        Parameters
        ----------
        classes
            [window, stage]
        layers
            [window] of all its stages.
        """
        first, which = _alike(classes, layers)
        kinds = zip(classes[first].tolist(), layers[first].tolist(), strict=True)
        found = np.array([self._of_one(s, of_classes, n) for of_classes, n in kinds])
        found = found.reshape(len(first), -1).T[:, which]
        return Passes(found[: self._v], found[self._v : -1], found[-1])

    def _of_one(self, s: int, classes: Sequence[int], layers: int) -> Floats:
        """Passes of windows of some classes and layers, [pass]."""
        at: Ints = np.arange(self._sums.sizes[s])
        to = at
        for i, c in enumerate(classes):
            old, new = self._sums.moves[s + i][c]
            place = np.full(self._sums.sizes[s + i], -1)
            place[old] = new
            to = place[to]
            at, to = at[to >= 0], to[to >= 0]
        before, behind = self._before[s], self._behind[s + len(classes)]
        reached = np.flatnonzero(np.isfinite(before[at, :, 0]).any(axis=0))
        reached = reached[reached + layers <= self._sums.num_layers]
        if not len(reached):
            return np.full(len(self._first), np.inf)
        some = slice(int(reached[0]), int(reached[-1]) + 1)
        then = slice(some.start + layers, some.stop + layers)
        both = before[at, some][:, :, self._first] + behind[to, then][:, :, self._second]
        least: Floats = both.min(axis=(0, 1))
        return least


def _alike(classes: Ints, layers: Ints) -> tuple[Ints, Ints]:
    """One of all windows of the same classes, in any order, and layers, and which one that is [window]."""
    number, width = classes.shape
    # Sums of powers say how many stages each class has.
    power = (width + 1) ** np.arange(int(classes.max(initial=0)) + 1, dtype=np.int64)
    key = power[classes].sum(axis=1) * (int(layers.max(initial=0)) + 1) + layers
    size = int(key.max(initial=0)) + 1
    if size > MOST_KEYS:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return first, which.ravel()
    some = np.full(size, -1, dtype=np.int64)
    some[key] = np.arange(number)
    place = np.cumsum(some >= 0) - 1
    return some[some >= 0], place[key]


def _works(one: Ways) -> list[tuple[int, int, Floats]]:
    """Classes and layers of ways, with the least of each work: forwards, backwards, turn, nothing."""
    turn = one.forward_ms[:, -1:] + one.backward_ms[:, -1:]
    all_works = np.concatenate([one.forward_ms, one.backward_ms, turn, np.zeros_like(turn)], axis=1)
    pairs = np.unique(np.stack([one.of_class, one.layers], axis=1), axis=0).tolist()
    return [(c, n, all_works[(one.of_class == c) & (one.layers == n)].min(axis=0)) for c, n in pairs]
