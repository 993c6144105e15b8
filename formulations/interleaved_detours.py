"""Linear lower bounds on an interleaved pipeline whose stages are on long chunks at different times.

Sets, data and schedule are those of `formulations.interleaved_paths`, w[s] and the rows (wait) those of
`formulations.interleaved_rows`. Where chunks hold whole layers, one stage is slow on one chunk and its
neighbour on another. The rows (wait) see each stage alone: a path that changes the stage on the way sees
both.

Rows       (detour)   end of stage 0 >= m t[s] + before + after of s + sum_j D[j], where j runs over blocks of
                      l p forwards of s that follow each other between its first backward and its last
                      forward, each with D[j] >= 0 and, for every d that leaves n = l p - 2 d >= 1,
                      D[j] >= what the pieces of one of these detours take beyond those they replace.
           Let x be the first forward of the block, and y = x - w[s] the backward behind it on s.
           forth:  s + d runs F[x] .. F[x+n-1] and as many backwards, B[y+2d] .. B[y+2d+n-1]; each stage
                   between runs F[x] and B[y+2d+n-1]; 2 (c[s] + .. + c[s+d-1]).
                   In the place of F[x+1] .. F[x+n+2d-1] and B[y] .. B[y+n+2d-2] of s.
           back:   s - d runs B[y] .. B[y+n-1] and F[x+2d+1] .. F[x+2d+n]; each stage between runs B[y] and
                   F[x+2d+n]; 2 (c[s-d] + .. + c[s-1]).
                   In the place of F[x+1] .. F[x+2d+n-1] and B[y+1] .. B[y+2d+n-1] of s.
           Proof. Past its warm-up s runs F[x], B[x-w[s]], F[x+1] and so on, and w[s] = w[s+d] + 2 d. Forth:
           behind F[x] of s comes F[x] of each stage up to s+d, where B[x-w[s+d]] = B[y+2d] follows; n
           forwards and n backwards on, B[y+2d+n-1] goes from stage to stage back to s, where it follows
           F[x+n+2d-1]. Back: behind B[y] of s comes B[y] of each stage down to s-d, where it follows F[x+2d];
           F[x+2d+n], n pairs on, goes from stage to stage up to s. Both leave s at F[x] or B[y], and are
           there again when F[x+lp] has been run, at the latest, which begins the next block: detours of
           different blocks fit into one path. The first block begins behind the forward before the first
           backward, the last ends with the last forward or before it, so that they lie between the two ends
           of (wait). With D[j] = 0 the path stays on s.

Leaves out detours longer than two turns of p forwards, and those that lead on from a detour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formulations.interleaved_paths import Floats

MOST_REACH = 3
"""Stages that a detour leads away, at most. A guess: each costs a forward and a backward that are not run."""
LENGTHS = 1, 2
"""l: turns of p forwards in a block."""


@dataclass(frozen=True)
class Detour:
    """What a detour takes beyond what it replaces."""

    forward: Floats
    """[stage, chunk] factor of f."""
    backward: Floats
    """[stage, chunk] factor of b."""
    sends: Floats
    """[stage]"""


@dataclass(frozen=True)
class DetourRow:
    """A row (detour): blocks of one stage that are alike, how often there are such, and their detours."""

    stage: int
    blocks: tuple[tuple[int, tuple[Detour, ...]], ...]


def detour_rows(num_stages: int, num_microbatches: int, virtual_stages: int) -> list[DetourRow]:
    """The rows (detour) of every stage, with blocks that begin with a chunk of forwards or of backwards."""
    p, m, v = num_stages, num_microbatches, virtual_stages
    if m < 2 * p:
        return []
    rows = []
    for s in range(p):
        warmup = 2 * (p - 1 - s) + (v - 1) * p
        for length in LENGTHS:
            for align in dict.fromkeys((0, warmup % p)):
                counts: dict[int, int] = {}
                first = warmup + 1 + (align - warmup - 1) % p
                for x in range(first, m * v - length * p, length * p):
                    turn = x % (p * v)
                    counts[turn] = counts.get(turn, 0) + 1
                blocks = [
                    (count, tuple(_detours(p, v, s, turn + p * v * v, length)))
                    for turn, count in counts.items()
                ]
                if any(found for _, found in blocks):
                    rows.append(DetourRow(s, tuple(blocks)))
    return rows


def _detours(p: int, v: int, s: int, x: int, length: int) -> Iterator[Detour]:
    """Detours of the block of s that begins with forward x, in both directions."""
    y = x - (2 * (p - 1 - s) + (v - 1) * p)
    for d in range(1, MOST_REACH + 1):
        n = length * p - 2 * d
        if n < 1:
            return
        if s + d < p:
            one = _Pieces(p, v)
            one.forwards(s + d, x, x + n)
            one.backwards(s + d, y + 2 * d, y + 2 * d + n)
            one.between(range(s + 1, s + d), x, y + 2 * d + n - 1)
            one.forwards(s, x + 1, x + n + 2 * d, -1)
            one.backwards(s, y, y + n + 2 * d - 1, -1)
            one.sends[s : s + d] = 2
            yield one.detour()
        if s - d >= 0:
            one = _Pieces(p, v)
            one.backwards(s - d, y, y + n)
            one.forwards(s - d, x + 2 * d + 1, x + 2 * d + n + 1)
            one.between(range(s - d + 1, s), x + 2 * d + n, y)
            one.forwards(s, x + 1, x + 2 * d + n, -1)
            one.backwards(s, y + 1, y + 2 * d + n, -1)
            one.sends[s - d : s] = 2
            yield one.detour()


class _Pieces:
    """Counts of the pieces of a path, as it is put together."""

    def __init__(self, p: int, v: int) -> None:
        self.p, self.v = p, v
        self.forward, self.backward, self.sends = np.zeros((p, v)), np.zeros((p, v)), np.zeros(p)

    def forwards(self, s: int, first: int, end: int, sign: int = 1) -> None:
        """Forwards of a stage, from one up to another."""
        chunks = np.arange(first, end) // self.p % self.v
        self.forward[s] += sign * np.bincount(chunks, minlength=self.v)

    def backwards(self, s: int, first: int, end: int, sign: int = 1) -> None:
        """The same of backwards, which take the chunks in reverse."""
        chunks = self.v - 1 - np.arange(first, end) // self.p % self.v
        self.backward[s] += sign * np.bincount(chunks, minlength=self.v)

    def between(self, stages: range, forward: int, backward: int) -> None:
        """One forward and one backward of each of some stages."""
        for s in stages:
            self.forwards(s, forward, forward + 1)
            self.backwards(s, backward, backward + 1)

    def detour(self) -> Detour:
        """What has been counted."""
        return Detour(self.forward, self.backward, self.sends)
