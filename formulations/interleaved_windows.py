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
           The way of the first micro-batch to its first backward and any way of the last one may be taken
           together, too: the stages outside are as slow as their layers make them, whichever chunks are
           short. With B[j] the least of both for way j of the last, and Q[j] some bound on what way j takes
           beside the way that is looked at of the first, also on that with its passes on their own,
               end >= max over j of (inside of the window to j + B[j]) - max over j of (B[j] - Q[j]).
           Proof. The j that is the longest counts Q[j] at least, which is B[j] less what is taken off at
           most. For the way to the first backward Q is B itself, and nothing is taken off.

The longest of these paths is found piece by piece, from the last one to the first, for all ways to deal the
layers at once.

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
    both: Floats
    """Those of the first to its first backward on `e` with those of the last from its backwards of chunks 0,
    1 ... on `s`, and at last from its last forward on `e`, [chunk, choice]."""

    @staticmethod
    def apart(forward: Floats, backward: Floats, after: Floats) -> Passes:
        """Passes that are as long together as each on its own."""
        first = np.cumsum(np.concatenate([forward, backward[-1:]]), axis=0)
        last = np.cumsum(backward, axis=0) + after
        both = first[-1] + np.concatenate([np.broadcast_to(after, (1, last.shape[1])), last])
        return Passes(forward, backward, after, first[1:], last, both)

    def only(self, some: NDArray[np.bool_]) -> Passes:
        """Those of some choices."""
        after = np.broadcast_to(self.after, len(some))[some]
        forward, backward, first, last, both = (
            np.broadcast_to(one, (len(one), len(some)))[:, some]
            for one in (self.forward, self.backward, self.first, self.last, self.both)
        )
        return Passes(forward, backward, after, first, last, both)

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
    """A piece of one of the stages, in an order in which none comes before one that waits for it."""

    stage: int
    """From 0, the first of the window."""
    is_backward: bool
    chunk: int
    behind: int
    """Where what the piece behind it on its stage begins is kept, -1 for none."""
    fed: int
    """Where that of the piece that it feeds is kept, -1 for none."""
    delay: int
    """Which delay its output takes: passes forwards by chunk, then backwards; from -1 down sends within."""
    place: int
    """Where what it begins is kept, until no earlier one asks for it any more."""
    first: int
    """Which way of the first micro-batch leads to it, -1 for none."""
    last: int
    """Which way of the last one begins behind it, -1 for none."""


@lru_cache(maxsize=128)
def _pieces(p: int, m: int, v: int, s: int, width: int) -> tuple[tuple[_Piece, ...], int]:
    """All pieces of the stages of a window, from the last one on, and how many of them are kept at once."""
    at: dict[tuple[int, bool, int, int], int] = {}
    behind = [-1] * width
    end = s + width - 1
    found: list[tuple[int, bool, int, int, int, int]] = []
    ways: list[tuple[int, int]] = []
    for stage, back, k, j in reversed(schedule(p, m, v, tuple(range(s, end + 1)))):
        feeds: tuple[int, bool, int, int] | None
        if not back and stage < end:
            feeds, delay = (stage + 1, False, k, j), s - stage - 1
        elif back and stage > s:
            feeds, delay = (stage - 1, True, k, j), s - stage
        elif not back:
            feeds, delay = ((s, False, k + 1, j), k + 1) if k < v - 1 else ((end, True, k, j), v + k)
        else:
            feeds, delay = ((end, True, k - 1, j) if k > 0 else None), v + k - 1
        at[stage, back, k, j] = len(found)
        found.append((stage - s, back, k, behind[stage - s], -1 if feeds is None else at[feeds], delay))
        behind[stage - s] = len(found) - 1
        # Ways of the first micro-batch lead to what it enters the window by; those of the last likewise.
        turns, goes = k == v - 1 and stage == end, stage == s
        enters = (v if back and turns else k if not back and goes else -1) if j == 0 else -1
        leaves = (v if not back and turns else k if back and goes else -1) if j == m - 1 else -1
        ways.append((enters, leaves))
    return _placed(found, ways)


def _placed(
    found: Sequence[tuple[int, bool, int, int, int, int]], ways: Sequence[tuple[int, int]]
) -> tuple[tuple[_Piece, ...], int]:
    """The pieces with places, each given on when no piece asks for what is there any more."""
    last_use = list(range(len(found)))
    for i, (_, _, _, behind, fed, _) in enumerate(found):
        for later in (behind, fed):
            if later >= 0:
                last_use[later] = i
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
        free += [places[later] for later in ending.get(i, ()) if i < len(found) - 1]
    pieces = tuple(
        _Piece(
            stage,
            back,
            k,
            places[behind] if behind >= 0 else -1,
            places[fed] if fed >= 0 else -1,
            delay,
            places[i],
            *ways[i],
        )
        for i, (stage, back, k, behind, fed, delay) in enumerate(found)
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
    its input, so that with n = 2 (2 m v + 2 p) + 2 roundings by at most a part u = 2^-24 what is left behind
    a piece is wrong by less than 2 n u of it. That is no more than twice the end, as B[j] is at most the end:
    those that lie within 4 n u of it of their limit come again in full.

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
    near[near] = np.abs(ends - limit_ms)[near] <= 4 * roundings * SINGLE * np.maximum(ends, limit_ms)[near]
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
    there, back, sent = _ways_within(stages, sends)
    both = np.broadcast_to(outside.both, (v + 1, number))
    apart = np.concatenate([np.broadcast_to(outside.after, (1, number)), outside.last + np.zeros(number)])
    lasts = both.copy()
    lasts[1:] += back + sent
    rest = np.empty((v + 1, number))
    at_once = max(BYTES_AT_ONCE // (most * np.dtype(precision).itemsize), LEAST_AT_ONCE)
    for begin in range(0, number, at_once):
        some = slice(begin, begin + at_once)
        times = [
            [np.ascontiguousarray(grid[some].T, dtype=precision) for grid in (one.forward, one.backward)]
            for one in stages
        ]
        inputs = [np.ascontiguousarray(delay[some], dtype=precision) for one in delays for delay in one]
        inputs += [np.ascontiguousarray(send[some], dtype=precision) for send in sends[::-1]]
        behind = np.ascontiguousarray(lasts[:, some], dtype=precision)
        rest[:, some] = _rests(pieces, most, times, inputs, behind)
    rest[1:] += there + sent
    with np.errstate(invalid="ignore"):  # no plan is left where they are infinite
        off = (both - apart).max(axis=0)
        rest[0] += outside.forward[0] - off
        rest[1:-1] += outside.first[:-1] - off
        ends: Floats = rest.max(axis=0)
    ends[~np.isfinite(both).all(axis=0)] = np.inf
    return ends


def _ways_within(stages: Sequence[Dealings], sends: Sequence[Floats]) -> tuple[Floats, Floats, Floats]:
    """What ways over chunks 0 .. k take within a window, there and back, and their sends [chunk, choice]."""
    there, back = (
        np.cumsum(np.sum(of_stages, axis=0), axis=1).T
        for of_stages in zip(*((one.forward, one.backward) for one in stages), strict=True)
    )
    count = np.arange(1, len(there) + 1)[:, None]
    return there, back, count * np.sum(sends, axis=0) if len(sends) else np.zeros(count.shape)


def _rests(
    pieces: tuple[_Piece, ...],
    most: int,
    times: list[list[NDArray[np.floating]]],
    delays: list[NDArray[np.floating]],
    lasts: NDArray[np.floating],
) -> NDArray[np.floating]:
    """What is left from the pieces with a way of the first micro-batch to the end, [way, choice].

    Parameters
    ----------
    times
        [stage][backward][chunk, choice]
    lasts
        The ways of the last micro-batch, [way, choice].
    """
    rest = np.empty((most, times[0][0].shape[1]), dtype=lasts.dtype)
    found = np.empty_like(lasts)
    later = np.empty(rest.shape[1], dtype=lasts.dtype)
    for piece in pieces:
        if piece.fed >= 0:
            np.add(rest[piece.fed], delays[piece.delay], out=later)
            if piece.behind >= 0:
                np.maximum(rest[piece.behind], later, out=later)
        elif piece.behind >= 0:
            np.copyto(later, rest[piece.behind])
        if piece.last >= 0:
            longest = lasts[piece.last]
            np.copyto(later, np.maximum(longest, later) if piece.fed >= 0 else longest)
        np.add(later, times[piece.stage][piece.is_backward][piece.chunk], out=rest[piece.place])
        if piece.first >= 0:
            found[piece.first] = rest[piece.place]
    return found
