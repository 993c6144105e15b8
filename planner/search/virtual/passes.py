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

Passes that one micro-batch makes one after the other are taken together as well: q may be the forwards of
chunks 0 .. k of a stage, or its backwards. With d(k,s,c,n) the least of the backwards
of chunks 1 .. k, and D its least over the stages before, what comes after the last micro-batch's backward of
chunk k takes of the stages before a window, the last of the ways round it included, at least

    R(k, s+1, g, l) = min over c, n of  h(c) + (b + d)(s,c,n) + max(r(s,c,n) + D, R)(k, s, g', l'),

with g' one of c less than g, and l' = l - n. Proof. All passes but the last lead
through all stages; that one ends with the reduction of one of them. The same holds with all forwards of the
first micro-batch in d and D, the turn of those behind the window beside them: what it takes to its first
backward and what comes after the last one, of the same stages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formulations.interleaved_windows import Passes
from planner.cost.prices import Floats, Ints
from planner.search.virtual.sends import LeastSends, Sends
from planner.search.virtual.sums import LayerSums
from planner.search.virtual.ways import Ways

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
        p, width = sums.num_stages, sums.num_layers + 1
        hops = np.unique(np.concatenate([one.of_class for one in ways]))
        works = [_works(one) for one in ways]
        self.first_reduction_ms = float(ways[0].reduction_ms.min())
        """The least of stage 0, which `last` of windows from there on counts."""
        self._at = at = _Places(self._v)
        self._before = [np.full((size, width, at.number), np.inf) for size in sums.sizes]
        """[stage][numbers, layers, work] of the stages before it."""
        self._before[0][0, 0] = 0.0
        self._behind = [np.full((size, width, at.number), np.inf) for size in sums.sizes]
        """[stage][numbers, layers, work] of the stage and those behind, by the layers before it."""
        self._behind[p][sums.is_end, sums.num_layers] = 0.0
        for s in range(p):
            for c, n, least, reduction_ms in works[s]:
                old, new = sums.moves[s][c]
                before = self._before[s][old, : width - n]
                found = before + least
                reduced = np.maximum(before[..., at.end], before[..., at.rounds] + reduction_ms)
                found[..., at.end] = hop_ms[c, hops].min() + least[at.end] + reduced
                self._before[s + 1][new, n:] = np.minimum(self._before[s + 1][new, n:], found)
        for s in range(p - 1, -1, -1):
            for c, n, least, _ in works[s]:
                old, new = sums.moves[s][c]
                found = self._behind[s + 1][new, n:] + least
                self._behind[s][old, : width - n] = np.minimum(self._behind[s][old, : width - n], found)

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
        found = np.empty((len(first), len(self._at.first)))
        for i, (one, n) in enumerate(zip(classes[first].tolist(), layers[first].tolist(), strict=True)):
            key = tuple(sorted(one)), n
            if key not in of_works:
                of_works[key] = self._works_of(s, *key)
            at, to, works = of_works[key]
            sends = self._sends.around(s, at, s + len(one), to, one[0], one[-1])
            found[i] = (works + self._sends_of(sends)).min(axis=0, initial=np.inf)
        v, passes = self._v, found.T[:, which]
        plain, reduced = np.split(passes[3 * v :], 2)
        ends = np.maximum(plain + self.first_reduction_ms, reduced)
        last, both = ends[: v + 1], ends[v + 1 :]
        return Passes(passes[:v], passes[v : 2 * v], last[0], passes[2 * v : 3 * v], last[1:], both)

    def _sends_of(self, sends: Sends) -> Floats:
        """Sends of each pass, [numbers, pass]."""
        v = self._v
        before, around, turn = sends.before[:, None], sends.around[:, None], 2 * sends.inner[:, None]
        nothing = np.zeros_like(before)
        # Those of ways together: one round after the other, and at last the turn.
        rounds = np.concatenate(
            [around * np.arange(1, v), around * (v - 1) + turn if v > 1 else turn], axis=1
        )
        each = [before, around.repeat(v - 1, axis=1), around.repeat(v - 1, axis=1), turn]
        # What ends with a reduction has counted the sends of the last pass.
        plain, reduced = (np.concatenate([one, one + rounds], axis=1) for one in (before, nothing))
        to_turn = before + rounds[:, -1:]
        ends = [plain, to_turn + plain, reduced, to_turn + reduced]
        return np.concatenate([*each, before + rounds, *ends], axis=1)

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
            return at, to, np.full((len(at), len(self._at.first)), np.inf)
        some = slice(int(reached[0]), int(reached[-1]) + 1)
        then = slice(some.start + layers, some.stop + layers)
        both = before[at, some][:, :, self._at.first] + behind[to, then][:, :, self._at.second]
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


class _Places:
    """Places of works, and which of them each pass takes of the stages before and behind a window.

    Works are forwards, backwards, turn and nothing; sums of forwards up to each chunk, with the turn at last;
    likewise of backwards; sums of backwards without chunk 0; what ends with a reduction; and sums of all
    forwards with backwards up to each chunk, the same without chunk 0, what ends of them with a reduction,
    and those behind a window, with the turn there, and at last with both.
    """

    def __init__(self, v: int) -> None:
        forward, backward = np.arange(v), v + np.arange(v)
        turn, nothing = np.array([2 * v]), np.array([2 * v + 1])
        ahead, back = 2 * v + 2 + np.arange(v + 1), 3 * v + 3 + np.arange(v + 1)
        both, both_rounds, both_end = (6 * v + 3 + i * v + np.arange(v) for i in range(3))
        both_behind = 9 * v + 3 + np.arange(v + 1)
        self.rounds = np.concatenate([nothing, 4 * v + 4 + np.arange(v - 1), both_rounds])
        """Backwards of chunks 1 .. k, for each k, alone and with all forwards."""
        self.end = np.concatenate([5 * v + 3 + np.arange(v), both_end])
        """What ends with a reduction of a stage, behind the last micro-batch's backward of each chunk, alone
        and with all forwards of the first."""
        self.number = 10 * v + 4
        ends = np.append(np.arange(v), v - 1)  # the turn leads to the last chunk, too
        behind = [*ahead[: v - 1], ahead[v]], [nothing[0], *back[: v - 1], back[v]]
        self.first = np.concatenate(
            [
                *(forward, backward[1:], nothing, ahead[1:v], ahead[[v - 1]]),
                *(back[ends], both[ends], self.end[ends], both_end[ends]),
            ]
        )
        """[pass] forwards, backwards, ways there; ends of all chunks and of the turn, alone and with the way
        there and the turn, without and with a reduction."""
        then = *behind[1], *both_behind
        self.second = np.concatenate([nothing, forward[:-1], backward[:-1], turn, behind[0], then, then])


def _works(one: Ways) -> list[tuple[int, int, Floats, float]]:
    """Classes and layers of ways, with the least of each work and reduction; works as in `_Places`."""
    forward, backward = one.forward_ms, one.backward_ms
    turn, nothing = forward[:, -1:] + backward[:, -1:], np.zeros((len(one), 1))
    ahead, back = np.cumsum(forward, axis=1), np.cumsum(backward, axis=1)
    ahead_and_turn, back_and_turn = ahead[:, -1:] + backward[:, -1:], back[:, -1:] + forward[:, -1:]
    rounds = back[:, 1:] - backward[:, :1]
    sums = ahead, ahead_and_turn, back, back_and_turn, rounds, back
    both = ahead[:, -1:] + back
    behind = ahead_and_turn + np.concatenate([nothing, back[:, :-1], back_and_turn], axis=1)
    together = both, both - backward[:, :1], both, behind
    all_works = np.concatenate([forward, backward, turn, nothing, *sums, *together], axis=1)
    found = []
    for c, n in np.unique(np.stack([one.of_class, one.layers], axis=1), axis=0).tolist():
        some = (one.of_class == c) & (one.layers == n)
        found.append((c, n, all_works[some].min(axis=0), float(one.reduction_ms[some].min())))
    return found
