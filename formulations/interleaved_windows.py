"""Ends of interleaved pipelines of which two neighbouring stages are known and the others at least so long.

Sets, data and schedule are those of `formulations.interleaved_paths`. Rows of single stages do not see that
neighbours wait for each other where their long chunks come at different times; all stages together are too
many to try. Two at a time are few.

Bound      (pair)     end of stage 0 >= the longest path to it that stays on stages s and s+1 and passes the
                      others, in which each piece of these takes the least that it may and nothing waits.
           Proof. Every piece starts no earlier than all of its paths say, and shorter pieces make no path
           longer. A pass over other stages from s+1 round to s (or back) is itself a part of a path: their
           forwards (backwards) of that micro-batch one after the other with the sends between them.

The longest of these paths is found piece by piece, for all pairs of ways to deal the layers at once.

Leaves out what stages between others wait for: three neighbours, or two that are further apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from formulations.interleaved_paths import Floats, schedule

ENDS_AT_ONCE = 2_000_000
"""Ends of pieces that are kept at once, 16 MB. A guess."""


@dataclass(frozen=True)
class Others:
    """What the other stages take at least."""

    forward: Floats
    """[stage, chunk]"""
    backward: Floats
    """[stage, chunk]"""
    send: Floats
    """[stage]; the last leads from the last stage to the first."""


@dataclass(frozen=True)
class Dealings:
    """Ways to deal the layers of one stage."""

    forward: Floats
    """[way, chunk]"""
    backward: Floats
    """[way, chunk]"""


@dataclass(frozen=True)
class _Piece:
    """A piece of one of the two stages, in an order in which none waits for a later one."""

    of_second: bool
    is_backward: bool
    chunk: int
    before: int
    """The piece before it on its stage, -1 for none."""
    source: int
    """The piece that feeds it, -1 for none."""
    delay: int
    """Which delay its input takes; 0 for a send between the two."""


@lru_cache(maxsize=32)
def _pieces(p: int, m: int, v: int, s: int) -> tuple[_Piece, ...]:
    """All pieces of s and s+1, and which delay each input takes: see `_delays`."""
    place: dict[tuple[int, bool, int, int], int] = {}
    last = [-1, -1]
    found: list[_Piece] = []
    for stage, back, k, j in schedule(p, m, v, (s, s + 1)):
        second = stage == s + 1
        feeds: tuple[int, bool, int, int] | None
        if second != back:  # forward of s+1, or backward of s: from the neighbour
            feeds, delay = (s if second else s + 1, back, k, j), 0
        elif not back:
            feeds, delay = ((s + 1, False, k - 1, j), 1 + k) if k > 0 else (None, 1)
        else:
            feeds = (s + 1, False, k, j) if k == v - 1 else (s, True, k + 1, j)
            delay = 1 + v + k
        source = -1 if feeds is None else place[feeds]
        place[stage, back, k, j] = len(found)
        found.append(_Piece(second, back, k, last[second], source, delay))
        last[second] = len(found) - 1
    return tuple(found)


def _delays(s: int, others: Others) -> Floats:
    """Delays of inputs: 0, then of forwards of s by chunk, then of backwards of s+1 by chunk."""
    forward, backward, send = others.forward, others.backward, others.send
    v = forward.shape[1]
    delays = np.zeros(1 + 2 * v)
    before, behind = slice(0, s), slice(s + 2, len(send))
    inner = float(send[s + 1 : -1].sum())
    around = inner + float(send[-1] + send[:s].sum())
    delays[1] = forward[before, 0].sum() + send[:s].sum()
    for k in range(1, v):
        delays[1 + k] = forward[behind, k - 1].sum() + around + forward[before, k].sum()
    for k in range(v - 1):
        delays[1 + v + k] = backward[before, k + 1].sum() + around + backward[behind, k].sum()
    turn = forward[behind, v - 1].sum() + backward[behind, v - 1].sum()
    delays[2 * v] = turn + 2 * inner
    return delays


def pair_ends(
    s: int, first: Dealings, second: Dealings, send: Floats, others: Others, num_microbatches: int
) -> Floats:
    """The bound (pair) for every pair of ways of stages s and s+1, [pair].

    Parameters
    ----------
    first, second
        Ways of s and of s+1, [pair] each.
    send
        [pair] the send between the two.
    """
    p, v = others.forward.shape
    pieces = _pieces(p, num_microbatches, v, s)
    delays = _delays(s, others).tolist()
    after = float(others.backward[:s, 0].sum() + others.send[:s].sum())
    found = np.empty(len(send))
    at_once = max(ENDS_AT_ONCE // len(pieces), 1)
    for begin in range(0, len(send), at_once):
        some = slice(begin, begin + at_once)
        times = [
            [np.ascontiguousarray(grid[some].T) for grid in (one.forward, one.backward)]
            for one in (first, second)
        ]
        found[some] = _last_end(pieces, times, send[some], delays) + after
    return found


def _last_end(
    pieces: tuple[_Piece, ...], times: list[list[Floats]], hop: Floats, delays: list[float]
) -> Floats:
    """End of the last piece of each pair, from times [stage][backward][chunk, pair]."""
    end = np.empty((len(pieces), len(hop)))
    ready = np.empty(len(hop))
    for i, piece in enumerate(pieces):
        work = times[piece.of_second][piece.is_backward][piece.chunk]
        if piece.source >= 0:
            np.add(end[piece.source], delays[piece.delay] if piece.delay else hop, out=ready)
        else:
            ready.fill(delays[piece.delay])
        if piece.before >= 0:
            np.maximum(end[piece.before], ready, out=ready)
        np.add(ready, work, out=end[i])
    last: Floats = end[-1]
    return last
