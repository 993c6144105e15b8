"""Ends of interleaved pipelines of which some neighbouring stages are known and the others at least so long.

Sets, data and schedule are those of `formulations.interleaved_paths`. Rows of single stages do not see that
neighbours wait for each other where their long chunks come at different times; all stages together are too
many to try. A few at a time are few.

Bound      (window)   end of stage 0 >= the longest path to it that stays on stages s .. e and passes the
                      others, of which each pass takes the least that it may and nothing waits.
           Proof. Every piece starts no earlier than all of its paths say, and shorter pieces make no path
           longer. A pass over other stages from e round to s (or back) is itself a part of a path: their
           forwards (backwards) of that micro-batch one after the other with the sends between them. Each pass
           may take its least on stages of its own, as each path holds for the stages that there are.
           With all stages it is the end itself; it grows with the window, as with passes over others that are
           known it holds all paths of a narrower one.
           Passes that one micro-batch makes one after the other, with nothing but the window in between, may
           be taken together: the least of their sum is no less than the sum of their least. On these paths
           begins and ends what the schedule waits for longest, as the stages outside deal their layers to
           the chunks once: quick on one of them they are slow on another. So a path may follow
           the first micro-batch to its forward on `s`, or to its first backward on `e`, and the last one from
           its backward on `s`, or its last forward on `e`, with the passes of either way taken together.
           Proof. Both ways are parts of paths; between them each pass takes its least, as before, and what
           stays ahead of the one is never behind the other.

The longest of these paths is found piece by piece, for all ways to deal the layers at once.

Leaves out what stages outside the window wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_paths import Floats, schedule

BYTES_AT_ONCE = 2_400_000
"""Ends of pieces that are kept at once, so that they stay near the processor. A guess."""
LEAST_AT_ONCE = 512
"""Windows that are looked at together, at least. A guess."""
SINGLE = 2.0**-24
"""Part by which a number in single precision is rounded at most."""


@dataclass(frozen=True)
class Passes:
    """What a micro-batch takes at least outside a window, each [chunk, choice], or [chunk, 1] for all."""

    forward: Floats
    """From the last chunk before on `e`, or from the start, to this one on `s`."""
    backward: Floats
    """From the chunk behind on `s` back to this one on `e`; of the last chunk from its forward there."""
    after: Floats
    """[choice] from the last backward of `s` to the end of stage 0."""
    first: Floats
    """Those of the first micro-batch together from the start to its chunks 1, 2 ... on `s`, and at last to
    its first backward on `e`, [chunk, choice]."""
    last: Floats
    """Those of the last one from its backwards of chunks 1, 2 ... on `s`, and at last from its last forward
    on `e`, to the end of stage 0, [chunk, choice]."""

    @staticmethod
    def apart(forward: Floats, backward: Floats, after: Floats) -> Passes:
        """Passes that are as long together as each on its own."""
        first = np.cumsum(np.concatenate([forward, backward[-1:]]), axis=0)[1:]
        return Passes(forward, backward, after, first, np.cumsum(backward, axis=0) + after)

    def only(self, some: NDArray[np.bool_]) -> Passes:
        """Those of some choices."""
        shape = len(self.forward), len(some)
        after = np.broadcast_to(self.after, len(some))[some]
        forward, backward, first, last = (
            np.broadcast_to(one, shape)[:, some]
            for one in (self.forward, self.backward, self.first, self.last)
        )
        return Passes(forward, backward, after, first, last)

    def with_sends(self, s: int, end: int, send: Floats) -> Passes:
        """With the sends on the way, [stage]; the last leads from the last stage to the first."""
        inner, before = float(send[end:-1].sum()), float(send[:s].sum())
        around = inner + float(send[-1]) + before
        v = len(self.forward)
        forward, backward = np.full((v, 1), around), np.full((v, 1), around)
        forward[0], backward[-1] = before, 2 * inner
        return Passes.apart(self.forward + forward, self.backward + backward, self.after + before)


def passes(s: int, end: int, forward: Floats, backward: Floats, send: Floats) -> Passes:
    """Those over stages that take so long, [stage, chunk], with the sends between them [stage]."""
    before, behind = slice(0, s), slice(end + 1, len(send))
    ahead, back = forward[before].sum(axis=0), backward[before].sum(axis=0)
    ahead[1:] += forward[behind, :-1].sum(axis=0)
    after = back[:1].copy()
    back[:-1] = back[1:] + backward[behind, :-1].sum(axis=0)
    back[-1] = forward[behind, -1].sum() + backward[behind, -1].sum()
    return Passes.apart(ahead[:, None], back[:, None], after).with_sends(s, end, send)


@dataclass(frozen=True)
class Dealings:
    """Ways to deal the layers of one stage."""

    forward: Floats
    """[way, chunk]"""
    backward: Floats
    """[way, chunk]"""


class _Piece(NamedTuple):
    """A piece of one of the stages, in an order in which none waits for a later one."""

    stage: int
    """From 0, the first of the window."""
    is_backward: bool
    chunk: int
    before: int
    """Where the end of the piece before it on its stage is kept, -1 for none."""
    source: int
    """Where the end of the piece that feeds it is kept, -1 for none."""
    delay: int
    """Which delay its input takes: passes forwards by chunk, then backwards; from -1 down sends within."""
    place: int
    """Where its end is kept, until nothing waits for it any more."""
    first: int
    """Which of `Passes.first` leads to it, -1 for none."""
    last: int
    """Which of `Passes.last` begins behind it, -1 for none."""


@lru_cache(maxsize=128)
def _pieces(p: int, m: int, v: int, s: int, width: int) -> tuple[tuple[_Piece, ...], int]:
    """All pieces of the stages of a window, and how many ends are kept at once."""
    at: dict[tuple[int, bool, int, int], int] = {}
    last = [-1] * width
    end = s + width - 1
    found: list[tuple[int, bool, int, int, int, int]] = []
    ways: list[tuple[int, int]] = []
    for stage, back, k, j in schedule(p, m, v, tuple(range(s, end + 1))):
        feeds: tuple[int, bool, int, int] | None
        if not back and stage > s:
            feeds, delay = (stage - 1, False, k, j), s - stage
        elif back and stage < end:
            feeds, delay = (stage + 1, True, k, j), s - stage - 1
        elif not back:
            feeds, delay = ((end, False, k - 1, j) if k > 0 else None), k
        else:
            feeds, delay = ((end, False, k, j) if k == v - 1 else (s, True, k + 1, j)), v + k
        source = -1 if feeds is None else at[feeds]
        at[stage, back, k, j] = len(found)
        found.append((stage - s, back, k, last[stage - s], source, delay))
        last[stage - s] = len(found) - 1
        # The way of the first micro-batch ends with what enters the window from outside; likewise the last.
        turns = k == v - 1 and stage == end
        goes = stage == s and k > 0
        enters = (v - 1 if back and turns else k - 1 if not back and goes else -1) if j == 0 else -1
        leaves = (v - 1 if not back and turns else k - 1 if back and goes else -1) if j == m - 1 else -1
        ways.append((enters, leaves))
    return _placed(found, ways)


def _placed(
    found: Sequence[tuple[int, bool, int, int, int, int]], ways: Sequence[tuple[int, int]]
) -> tuple[tuple[_Piece, ...], int]:
    """The pieces with places for their ends, each given on when nothing waits for the end any more."""
    last_use = list(range(len(found)))
    for i, (_, _, _, before, source, _) in enumerate(found):
        for earlier in (before, source):
            if earlier >= 0:
                last_use[earlier] = i
    ending: dict[int, list[int]] = {}
    for i, use in enumerate(last_use):
        ending.setdefault(use, []).append(i)
    free: list[int] = []
    places: list[int] = []
    most = 0
    for i in range(len(found)):
        if not free:
            free.append(most)
            most += 1
        places.append(free.pop())
        free += [places[earlier] for earlier in ending.get(i, ()) if i < len(found) - 1]
    pieces = tuple(
        _Piece(
            stage,
            back,
            k,
            places[before] if before >= 0 else -1,
            places[source] if source >= 0 else -1,
            delay,
            places[i],
            *ways[i],
        )
        for i, (stage, back, k, before, source, delay) in enumerate(found)
    )
    return pieces, most


def window_ends(
    s: int,
    num_stages: int,
    stages: Sequence[Dealings],
    sends: Sequence[Floats],
    outside: Passes,
    num_microbatches: int,
    limit_ms: Floats | None = None,
) -> Floats:
    """The bound (window) for many choices of ways of the stages s, s+1 ... of so many, [choice].

    With limits [choice] most are rounded, and each lies on the side of its limit where it belongs: single
    precision comes first, in less than half of the time. A path has at most 2 m v + 2 (p - 1) pieces, as
    `formulations.interleaved_paths` runs them in so many levels, each with an addition for itself and one for
    its input, so that with n = 2 (2 m v + 2 p) + 2 roundings by at most a part u = 2^-24 an end is wrong by
    less than 2 n u of it; those that lie as near their limit come again in full.

    Parameters
    ----------
    stages
        Ways of each of these stages, [choice] each.
    sends
        [choice] the send behind each of them but the last.
    """
    pieces, most = _pieces(num_stages, num_microbatches, stages[0].forward.shape[1], s, len(stages))
    if limit_ms is None:
        return _ends(pieces, most, stages, sends, outside, np.float64)
    ends = _ends(pieces, most, stages, sends, outside, np.float32)
    roundings = 2 * (2 * num_microbatches * stages[0].forward.shape[1] + 2 * num_stages) + 2
    near = np.isfinite(ends)
    near[near] = np.abs(ends - limit_ms)[near] <= 2 * roundings * SINGLE * np.maximum(ends, limit_ms)[near]
    if near.any():
        some = [Dealings(one.forward[near], one.backward[near]) for one in stages]
        ends[near] = _ends(pieces, most, some, [send[near] for send in sends], outside.only(near), np.float64)
    return ends


def _ends(
    pieces: tuple[_Piece, ...],
    most: int,
    stages: Sequence[Dealings],
    sends: Sequence[Floats],
    outside: Passes,
    precision: type[np.floating],
) -> Floats:
    """Ends of all choices in a precision, some of them at once."""
    number, v = stages[0].forward.shape
    delays = [np.broadcast_to(one, (v, number)) for one in (outside.forward, outside.backward)]
    ways = _whole_ways(stages, sends, outside)
    found, beyond = np.empty((2, number))
    at_once = max(BYTES_AT_ONCE // (most * np.dtype(precision).itemsize), LEAST_AT_ONCE)
    for begin in range(0, number, at_once):
        some = slice(begin, begin + at_once)
        times = [
            [np.ascontiguousarray(grid[some].T, dtype=precision) for grid in (one.forward, one.backward)]
            for one in stages
        ]
        inputs = [np.ascontiguousarray(delay[some], dtype=precision) for one in delays for delay in one]
        inputs += [np.ascontiguousarray(send[some], dtype=precision) for send in sends[::-1]]
        firsts, lasts = (np.ascontiguousarray(way[:, some], dtype=precision) for way in ways)
        found[some], beyond[some] = _last_ends(pieces, most, times, inputs, firsts, lasts)
    ends: Floats = np.maximum(found + outside.after, beyond)
    return ends


def _whole_ways(
    stages: Sequence[Dealings], sends: Sequence[Floats], outside: Passes
) -> tuple[Floats, Floats]:
    """`first` and `last` of passes with what the window takes in between, [chunk, choice]."""
    count = np.arange(1, len(outside.forward) + 1)[:, None]
    sent = count * np.sum(sends, axis=0) if len(sends) else np.zeros_like(count)
    forward, backward = (
        np.cumsum(np.sum(of_stages, axis=0), axis=1).T
        for of_stages in zip(*((one.forward, one.backward) for one in stages), strict=True)
    )
    return outside.first + forward + sent, outside.last + backward + sent


def _last_ends(
    pieces: tuple[_Piece, ...],
    most: int,
    times: list[list[NDArray[np.floating]]],
    delays: list[NDArray[np.floating]],
    firsts: NDArray[np.floating],
    lasts: NDArray[np.floating],
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """End of the last piece of each choice, and that of the ways of the last micro-batch [choice].

    Parameters
    ----------
    times
        [stage][backward][chunk, choice]
    firsts, lasts
        What it takes to the pieces with a `first`, and behind those with a `last`, [chunk, choice].
    """
    end = np.empty((most, times[0][0].shape[1]), dtype=delays[0].dtype)
    ready = np.empty(end.shape[1], dtype=end.dtype)
    beyond = np.zeros(end.shape[1], dtype=end.dtype)
    for piece in pieces:
        delay = delays[piece.delay]
        if piece.source >= 0:
            np.add(end[piece.source], delay, out=ready)
        else:
            np.copyto(ready, delay)
        if piece.before >= 0:
            np.maximum(end[piece.before], ready, out=ready)
        if piece.first >= 0:
            np.maximum(firsts[piece.first], ready, out=ready)
        np.add(ready, times[piece.stage][piece.is_backward][piece.chunk], out=end[piece.place])
        if piece.last >= 0:
            np.maximum(beyond, end[piece.place] + lasts[piece.last], out=beyond)
    return end[pieces[-1].place], beyond
