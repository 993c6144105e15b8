"""What a micro-batch takes at least over the stages outside a window, by their classes and layers together.

Stages outside a window have the classes that it leaves and the layers that it does not hold, so that they
cannot all be quick. For a piece of work q of a stage, such as the forward of chunk k, with x(s,c,n,q) its
least over the ways of s on class c with n layers,

    B(s+1, g, l, q) = min over c, n of  B(s, g - one of c, l - n, q) + x(s,c,n,q)

is the least of all stages up to s together, g of them of each class and l layers in all; likewise the least
of those behind. What passes a window of classes h and n layers takes, for every piece of work on its own, at
least min over g, l of B(s, g, l, q) + (behind) (g + h, l + n, q').

What comes after the last backward of a stage ends when the stages before it have reduced their gradients:
with b(s,c,n) and r(s,c,n) the least last backward of chunk 0 and reduction of a stage, h(c) the least send
from class c, behind that of stage s

    R(s, g, l),  R(s+1, g, l) = min over c, n of  h(c) + b(s,c,n) + max(r(s,c,n), R(s, g - one of c, l - n))

is the least. As all stages together have few layers less than they may hold, some early one reduces many.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formulations.interleaved_windows import Passes
from planner.cost.prices import Floats, Ints
from planner.search.virtual_sends import LeastSends, Sends
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
    hop_ms
        [class, class] the least send from one to the other.
    """

    def __init__(self, sums: LayerSums, ways: Sequence[Ways], hop_ms: Floats) -> None:
        self._sends = LeastSends(sums, [np.unique(one.of_class) for one in ways], hop_ms)
        self._sums, self._v = sums, ways[0].forward_ms.shape[1]
        v, p, width = self._v, sums.num_stages, sums.num_layers + 1
        hops = np.unique(np.concatenate([one.of_class for one in ways]))
        works = [_works(one) for one in ways]
        self._first_reduction_ms = float(ways[0].reduction_ms.min())
        self._before = [np.full((size, width, 2 * v + 3), np.inf) for size in sums.sizes]
        """[stage][numbers, layers, work] of the stages before it."""
        self._before[0][0, 0] = 0.0
        self._behind = [np.full_like(before, np.inf) for before in self._before]
        """[stage][numbers, layers, work] of the stage and those behind, by the layers before it."""
        self._behind[p][sums.is_end, sums.num_layers] = 0.0
        for s in range(p):
            for c, n, least, reduction_ms in works[s]:
                old, new = sums.moves[s][c]
                before = self._before[s][old, : width - n]
                found = before + least
                reduced = np.maximum(before[..., -1], reduction_ms)
                found[..., -1] = hop_ms[c, hops].min() + least[v] + reduced
                self._before[s + 1][new, n:] = np.minimum(self._before[s + 1][new, n:], found)
        for s in range(p - 1, -1, -1):
            for c, n, least, _ in works[s]:
                old, new = sums.moves[s][c]
                found = self._behind[s + 1][new, n:] + least
                self._behind[s][old, : width - n] = np.minimum(self._behind[s][old, : width - n], found)
        # Work before and behind the window of each pass: forwards, backwards, what comes after and all of it.
        forward, backward, turn, nothing = np.arange(v), v + np.arange(v), 2 * v, 2 * v + 1
        self._first = np.concatenate([forward, backward[1:], [nothing, v, nothing + 1]])
        self._second = np.concatenate([[nothing], forward[:-1], backward[:-1], [turn, nothing, nothing]])

    def of_windows(self, s: int, classes: Ints, layers: Ints) -> Passes:
        """Passes with their sends for windows from stage s on, infinite where no plan is left.

        What comes after ends with the last reduction of the stages before the window.

        Parameters
        ----------
        classes
            [window, stage]
        layers
            [window] of all its stages.
        """
        first, which = _alike(classes, layers)
        of_works: dict[tuple[tuple[int, ...], int], tuple[Ints, Ints, Floats]] = {}
        found = np.empty((len(first), len(self._first)))
        for i, (one, n) in enumerate(zip(classes[first].tolist(), layers[first].tolist(), strict=True)):
            key = tuple(sorted(one)), n
            if key not in of_works:
                of_works[key] = self._works_of(s, *key)
            at, to, works = of_works[key]
            sends = self._sends.around(s, at, s + len(one), to, one[0], one[-1])
            found[i] = (works + self._sends_of(sends)).min(axis=0, initial=np.inf)
        passes = found.T[:, which]
        after = np.maximum(passes[-2] + self._first_reduction_ms, passes[-1])
        return Passes(passes[: self._v], passes[self._v : -2], after)

    def _sends_of(self, sends: Sends) -> Floats:
        """Sends of each pass, [numbers, pass]."""
        v = self._v
        passes = np.repeat(sends.around[:, None], 2 * v + 2, axis=1)
        passes[:, 0] = passes[:, -2] = sends.before
        passes[:, -1] = 0.0  # these have been counted
        passes[:, 2 * v - 1] = 2 * sends.inner
        return passes

    def _works_of(self, s: int, classes: Sequence[int], layers: int) -> tuple[Ints, Ints, Floats]:
        """Works of the passes of windows of some classes and layers, [numbers, pass].

        With the numbers of stages that there may be before such a window, and the same with its own.
        """
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
            return at, to, np.full((len(at), len(self._first)), np.inf)
        some = slice(int(reached[0]), int(reached[-1]) + 1)
        then = slice(some.start + layers, some.stop + layers)
        both = before[at, some][:, :, self._first] + behind[to, then][:, :, self._second]
        return at, to, both.min(axis=1)


def _alike(classes: Ints, layers: Ints) -> tuple[Ints, Ints]:
    """One of all windows of the same ends, classes in any order and layers; which one that is [window]."""
    number, width = classes.shape
    base = int(classes.max(initial=0)) + 1
    # Sums of powers say how many stages each class has.
    power = (width + 1) ** np.arange(base, dtype=np.int64)
    key = (power[classes].sum(axis=1) * base + classes[:, 0]) * base + classes[:, -1]
    key = key * (int(layers.max(initial=0)) + 1) + layers
    size = int(key.max(initial=0)) + 1
    if size > MOST_KEYS:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return first, which.ravel()
    some = np.full(size, -1, dtype=np.int64)
    some[key] = np.arange(number)
    place = np.cumsum(some >= 0) - 1
    return some[some >= 0], place[key]


def _works(one: Ways) -> list[tuple[int, int, Floats, float]]:
    """Classes and layers of ways, with the least of each work and reduction.

    Works are forwards, backwards, turn, and twice nothing.
    """
    turn = one.forward_ms[:, -1:] + one.backward_ms[:, -1:]
    nothing = np.zeros((len(one), 2))
    all_works = np.concatenate([one.forward_ms, one.backward_ms, turn, nothing], axis=1)
    found = []
    for c, n in np.unique(np.stack([one.of_class, one.layers], axis=1), axis=0).tolist():
        some = (one.of_class == c) & (one.layers == n)
        found.append((c, n, all_works[some].min(axis=0), float(one.reduction_ms[some].min())))
    return found
