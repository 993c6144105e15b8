"""Longest paths through the schedule of an interleaved 1F1B pipeline, as linear rows.

Sets       s in S                   stages 0 .. p-1, in pipeline order
           k in K                   chunks 0 .. v-1 of every stage; chunk k of s is virtual stage k p + s
Data       m                        micro-batches, a multiple of p
           c[s]                     send between s and s+1, the last one from p-1 back to 0; it delays the
                                    receiver and occupies neither
Given      f[s,k], b[s,k]           forward, backward of one micro-batch on chunk k of s

The order of work on s is fixed: forwards go in groups of p micro-batches through chunk 0, then chunk 1,
... chunk v-1, then the next group; backwards in the same order with the chunks reversed; s runs
min(2 (p-1-s) + (v-1) p, m v) forwards, then one forward and one backward in turn, then the backwards left.
A piece starts when the piece before it on its stage has ended, and its input has arrived: the forward of
the virtual stage before, or the backward of the one behind, and its send. So the pieces and these two kinds
of precedence form a graph that does not depend on any time.

Rows       (path)     end of s >= sum_{i,k} (F[i,k] f[i,k] + B[i,k] b[i,k]) + sum_i C[i] c[i]
                      for every path of the graph that ends in the last backward of s; F and B count the
                      pieces along it, C its sends.
           Proof. Each piece on the path starts no earlier than the one before it has ended, plus the send
           between them where there is one. The largest such row is the end itself: the rows are exact.
           A path knows no times: one that is longest for some times bounds the end for all others too.

Exact      with all rows; they are found one by one, each the longest path for the times at hand.
Leaves out schedules with groups of another size than p, and the sends of a warm-up that block.
Source     order of work: megatron-core 0.19.2, schedules.py, as in `planner.simulate.schedules`, which this
           file shares nothing with; longest paths: any text on project scheduling (PERT).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PathRow:
    """A row (path): how often each piece and each send lies on it, and the stage whose end it bounds."""

    forward: tuple[tuple[int, ...], ...]
    """[stage][chunk]"""
    backward: tuple[tuple[int, ...], ...]
    """[stage][chunk]"""
    sends: tuple[int, ...]
    """[stage]"""
    end_stage: int


@dataclass(frozen=True)
class _Graph:
    """The precedence graph in levels: within a level no piece waits for another; arrays [level, stage]."""

    piece: Ints
    """Which entry of (nothing, forwards, backwards) runs."""
    source: Ints
    """Where its input's end stands among all ends, flat; 0 where it has none."""
    send: Ints
    """Which entry of (nothing, sends) its input travels."""


def _levels(p: int, m: int, v: int) -> tuple[Ints, Ints]:
    """Level of the x-th forward and of the x-th backward of every stage, [stage, x].

    When all pieces take one unit of time and sends none, these are starts of a feasible schedule of the
    least length, 2 m v + 2 (p - 1): warm-up without a wait, pairs two units apart of which the next stage is
    two units behind, and the backwards left without a wait. So every piece comes after those it waits for.
    """
    total = m * v
    s, x = np.arange(p)[:, None], np.arange(total)[None, :]
    warmup = np.minimum(2 * (p - 1 - s) + (v - 1) * p, total)
    forward = np.where(x < warmup, s + x, 2 * x + 2 * s + 1 - v * p)
    left = total - 1 - x
    backward = np.where(left >= warmup, 2 * x + v * p + 2 * p - 2 - 2 * s, 2 * total + 2 * p - 3 - s - left)
    return forward, backward


def schedule(p: int, m: int, v: int, stages: tuple[int, ...]) -> list[tuple[int, bool, int, int]]:
    """Stage, direction (whether backward), chunk and micro-batch of the pieces of some stages, none before
    one that it waits for."""
    forward, backward = _levels(p, m, v)
    x = np.arange(m * v)
    chunk, microbatch = x // p % v, x // (p * v) * p + x % p
    found = [
        (int(level), s, back, int(v - 1 - k if back else k), int(j))
        for s in stages
        for back, levels in ((False, forward[s]), (True, backward[s]))
        for level, k, j in zip(levels, chunk, microbatch, strict=True)
    ]
    return [one[1:] for one in sorted(found)]


@lru_cache(maxsize=64)
def _graph(p: int, m: int, v: int) -> _Graph:
    total = m * v
    x = np.arange(total)
    chunk, microbatch = x // p % v, x // (p * v) * p + x % p
    passes = np.stack(_levels(p, m, v))
    # Level by chunk and micro-batch: backwards take the chunks in reverse.
    level = np.empty((2, p, v, m), dtype=np.int64)
    level[0][:, chunk, microbatch] = passes[0]
    level[1][:, v - 1 - chunk, microbatch] = passes[1]
    shape = (2 * total + 2 * (p - 1), p)
    piece, source, send = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for back, s, k in np.ndindex(2, p, v):
        at = level[back, s, k]
        piece[at, s] = 1 + back * p * v + s * v + k
        virtual = k * p + s + (1 if back else -1)
        if 0 <= virtual < p * v:
            feeds = virtual % p
            source[at, s] = (level[back, feeds, virtual // p] + 1) * p + feeds
            send[at, s] = 1 + (s if back else feeds)
    return _Graph(piece, source, send)


def _run(graph: _Graph, forward: Floats, backward: Floats, send: Floats) -> Floats:
    """Ends [level + 1, stage, pipeline] of every piece; level 0 is the start."""
    num_pipelines, p = forward.shape[0], forward.shape[1]
    nothing = np.zeros((1, num_pipelines))
    times = np.concatenate(
        [nothing, forward.reshape(num_pipelines, -1).T, backward.reshape(num_pipelines, -1).T]
    )
    # One array for all three: where several are freed the allocator gives memory back to the system, and to
    # fetch it anew takes twice as long as all else.
    end, took, delay = np.empty((3, len(graph.piece) + 1, p, num_pipelines))
    end[0] = 0.0
    times.take(graph.piece, axis=0, out=took[1:], mode="clip")
    np.concatenate([nothing, send.T]).take(graph.send, axis=0, out=delay[1:], mode="clip")
    flat = end.reshape(-1, num_pipelines)
    ready = np.empty((p, num_pipelines))
    for level, (source, travels, works) in enumerate(zip(graph.source, delay[1:], took[1:], strict=True)):
        flat.take(source, axis=0, out=ready, mode="clip")
        np.add(ready, travels, out=ready)
        np.maximum(ready, end[level], out=ready)
        np.add(ready, works, out=end[level + 1])
    return end


@lru_cache(maxsize=4)
def _lists(p: int, m: int, v: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """A graph as lists, which are quicker to follow one entry at a time; a few, as they take memory."""
    graph = _graph(p, m, v)
    return graph.piece.tolist(), graph.source.tolist(), graph.send.tolist()


class Schedules:
    """Schedules of many pipelines, with the longest paths through them.

    Parameters
    ----------
    forward, backward
        [pipeline, stage, chunk] of one time unit.
    send
        [pipeline, stage]; the last entry leads from the last stage to the first.
    """

    def __init__(self, forward: Floats, backward: Floats, send: Floats, num_microbatches: int) -> None:
        _, p, v = forward.shape
        self._shape, self._send = (p, num_microbatches, v), send
        self._end = _run(_graph(p, num_microbatches, v), forward, backward, send)
        self.ends: Floats = self._end[-1].T
        """[pipeline, stage] end of every stage, the largest (path) row of each."""

    def path(self, pipeline: int, stage: int) -> PathRow:
        """The (path) row that is largest for the end of a stage of a pipeline."""
        p, _, v = self._shape
        piece, source, sent = _lists(*self._shape)
        end, travel = self._end[:, :, pipeline].ravel().tolist(), [0.0, *self._send[pipeline].tolist()]
        counts, sends = [0] * (1 + 2 * p * v), [0] * (p + 1)
        level, s = len(piece) - 1, stage
        while level >= 0:
            counts[piece[level][s]] += 1
            at = source[level][s]
            if at and piece[level][s] and end[at] + travel[sent[level][s]] >= end[level * p + s]:
                sends[sent[level][s]] += 1
                level, s = divmod(at, p)
            level -= 1
        both = np.array(counts[1:]).reshape(2, p, v).tolist()
        forward, backward = (tuple(tuple(row) for row in one) for one in both)
        return PathRow(forward, backward, tuple(sends[1:]), stage)


def stage_ends(forward: Floats, backward: Floats, send: Floats, num_microbatches: int) -> Floats:
    """End of every stage, the largest (path) row of each, for many pipelines; array [pipeline, stage].

    Parameters as of `Schedules`.
    """
    return Schedules(forward, backward, send, num_microbatches).ends


def longest_paths(
    forward: Floats, backward: Floats, send: Floats, num_microbatches: int, end_stages: list[int]
) -> list[PathRow]:
    """The (path) row that is largest for the end of each of `end_stages`, for one pipeline.

    Parameters
    ----------
    forward, backward
        [stage, chunk] of one time unit.
    send
        [stage]; the last entry leads from the last stage to the first.
    """
    one = Schedules(forward[None], backward[None], send[None], num_microbatches)
    return [one.path(0, stage) for stage in end_stages]


def row_value(row: PathRow, forward: Floats, backward: Floats, send: Floats) -> float:
    """A row for given times, arrays [stage, chunk] and [stage]."""
    total = (np.array(row.forward) * forward).sum() + (np.array(row.backward) * backward).sum()
    return float(total + np.array(row.sends) @ send)
