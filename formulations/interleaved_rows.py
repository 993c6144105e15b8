"""Linear lower bounds on the time of an interleaved 1F1B pipeline with uneven chunks and sends.

Sets       s in S                   stages 0 .. p-1, in pipeline order
           k in K                   chunks 0 .. v-1 of every stage; chunk k of s is virtual stage k p + s
Data       m                        micro-batches, a multiple of p
           c[s]                     send between s and s+1, the last one from p-1 back to 0; it delays the
                                    receiver and occupies neither
Given      f[s,k], b[s,k]           forward, backward of one micro-batch on chunk k of s
           t[s]                     sum_k (f[s,k] + b[s,k])

The order of work and the graph of its pieces are those of `formulations.interleaved_paths`; each row here is
one of its paths, or a mean of several, written out.

Rows       (wait)     end of stage 0 >= m t[s] + before + after, for every s, where before is the largest of
                      F_k: sum_{j<k} (sum_i f[i,j] - p f[s,j]) + sum_{i<s} f[i,k] + k sum_i c[i]
                         + sum_{i<s} c[i],
                      B (m > p): sum_{i,j} f[i,j] + sum_{i>s} b[i,v-1] - (the forwards of s before its first
                         backward) + (v-1) sum_i c[i] + sum_{i<p-1} c[i] + sum_{s<=i<p-1} c[i],
                      and after the largest of the same with f and b exchanged.
           Proof. Of the paths that follow micro-batch 0 to its forward on chunk k of s, or on to its first
           backward there, then the order of s up to the backward of micro-batch m-1 on some chunk, or its
           last forward, and that micro-batch to the end: the first part takes what is written here, and what
           s runs before it is left out of m t[s]. Before its forward on chunk k, s has run p forwards on each
           chunk before k and nothing else. The last part is the first one read backwards in time, where
           backwards are forwards: chunk 0 comes last. With m = p a stage may run all its forwards before the
           first backward; B is then left out, as the two ends would overlap.
           (dealt)    the mean of the rows (wait) over all k on both sides and all s:
                      T >= (m/p) sum_s t[s] + 1/(p v) sum_s (p-1-s) t[s] + sum_s (v-1 + 2 (p-1-s)/p) c[s].
           Proof. The mean over s of sum_i f[i,j] - p f[s,j] is zero for every j, so that only
           (1/v) sum_k sum_{i<s} f[i,k] = (1/v) sum_{i<s} f[i] stays, whatever the chunks hold.
           (dealt) holds however the layers of a stage are dealt to its chunks.
           (hop)      end of stage 0 >= (m - M) t[a] + (M - e)/3 (t[s] + t[s+1]) + 2 J c[s]
                      + before + after of a,  for a = s and a = s+1, s < p-1, where M = m - 2 p > 0,
                      J = floor(M v / 3), and e = 0 where that leaves no rest, else 2.
           Proof. Let w[s] be the forwards of s before its first backward, so that the order of s runs
           F[x], B[x - w[s]], F[x+1] for the x-th forward and the backwards in their order, x >= w[s]. As
           w[s] = w[s+1] + 2, this is a path: F[x] of s, c[s], F[x] and B[x - w[s+1]] of s+1, c[s],
           B[x - w[s+1]] of s, F[x+3] of s. J rounds of it take the place of 3 J forwards and backwards of s
           in its order, at most those of M whole micro-batches; the mean over rounds that begin at three
           forwards in a row has 3 J forwards in a row and as many backwards of both stages a third of a
           time: those of M micro-batches but for at most two, none of which takes longer than all chunks.
           They begin after the first backward of s and end before its last forward, between the two ends of
           (wait), because w[s] + 4 <= (v+1) p + 2 <= 2 p v. From s+1 it is the same round, begun at its
           backward.

Leaves out what chunks of different length cost between the two ends: paths that change the stage on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from formulations.interleaved_paths import Floats, PathRow


@dataclass(frozen=True)
class WaitRow:
    """A row (wait): how long stage s waits at least, before its work or after it."""

    stage: int
    after: bool
    forward: Floats
    """[stage, chunk] factor of f."""
    backward: Floats
    """[stage, chunk] factor of b."""
    sends: Floats
    """[stage]"""


def wait_rows(num_stages: int, num_microbatches: int, virtual_stages: int) -> list[WaitRow]:
    """The rows (wait) of every stage, on both sides."""
    p, m, v = num_stages, num_microbatches, virtual_stages
    rows, run = [], forwards_before(p, v)

    def add(s: int, own: Floats, other: Floats, sends: Floats) -> None:
        rows.append(WaitRow(s, False, own, other, sends))
        rows.append(WaitRow(s, True, other, own, sends))

    for s in range(p):
        for k in range(v):
            own = np.zeros((p, v))
            own[:, :k] += 1
            own[s, :k] -= p
            own[:s, k] += 1
            sends = np.full(p, float(k))
            sends[:s] += 1
            add(s, own, np.zeros((p, v)), sends)
        if m > p:
            own, other = np.ones((p, v)), np.zeros((p, v))
            own[s] -= run[s]
            other[s + 1 :, v - 1] = 1
            sends = np.full(p, float(v - 1))
            sends[: p - 1] += 1
            sends[s : p - 1] += 1
            add(s, own, other, sends)
    return rows


def largest_waits(forward: Floats, backward: Floats, send: Floats, num_microbatches: int) -> Floats:
    """The largest row (wait) of many pipelines, [pipeline]: with times at hand far quicker than row by row.

    Parameters
    ----------
    forward, backward
        [pipeline, stage, chunk] of one time unit.
    send
        [pipeline, stage]; the last entry leads from the last stage to the first.
    """
    own = num_microbatches * (forward + backward).sum(axis=2)
    before = _waits(forward, backward, send, num_microbatches)
    largest: Floats = (own + before + _waits(backward, forward, send, num_microbatches)).max(axis=1)
    return largest


def largest_wait(forward: Floats, backward: Floats, send: Floats, num_microbatches: int) -> PathRow:
    """The largest row (wait) of one pipeline, arrays [stage, chunk] and [stage], as the path that it is."""
    p, v = forward.shape
    factors = _wait_factors(p, num_microbatches, v)
    values = factors @ np.concatenate([forward.ravel(), backward.ravel(), send])
    ends = num_microbatches * (forward + backward).sum(axis=1) + values.max(axis=2).sum(axis=1)
    s = int(np.argmax(ends))
    counts = factors[s, [0, 1], values[s].argmax(axis=1)].sum(axis=0).round().astype(int)
    pieces, sends = counts[: 2 * p * v].reshape(2, p, v), counts[2 * p * v :]
    pieces[:, s] += num_microbatches
    there, back = (tuple(map(tuple, one)) for one in pieces.tolist())
    return PathRow(there, back, tuple(sends.tolist()), 0)


@lru_cache(maxsize=16)
def _wait_factors(num_stages: int, num_microbatches: int, virtual_stages: int) -> Floats:
    """Factors of the rows (wait), [stage, whether after, row, piece]."""
    p = num_stages
    rows = wait_rows(p, num_microbatches, virtual_stages)
    rows.sort(key=lambda row: (row.stage, row.after))
    flat = [np.concatenate([row.forward.ravel(), row.backward.ravel(), row.sends]) for row in rows]
    return np.array(flat).reshape(p, 2, len(rows) // (2 * p), -1)


def _waits(own: Floats, other: Floats, send: Floats, num_microbatches: int) -> Floats:
    """How long each stage waits at least before its work, [pipeline, stage]; after it with own and other
    exchanged."""
    p, v = own.shape[1:]
    up, behind, around = np.cumsum(send, axis=1) - send, send.copy(), send.sum(axis=1)[:, None]
    behind[:, -1] = 0.0
    behind = np.cumsum(behind[:, ::-1], axis=1)[:, ::-1]
    each = own.sum(axis=1)[:, None] - p * own
    waits = np.cumsum(each, axis=2) - each + np.cumsum(own, axis=1) - own
    waits += (around * np.arange(v))[:, None] + up[:, :, None]
    least: Floats = waits.max(axis=2)
    if num_microbatches > p:
        last = other[:, :, v - 1]
        beyond = np.cumsum(last[:, ::-1], axis=1)[:, ::-1] - last
        sends = (v - 1) * around + behind[:, :1] + behind
        run = (forwards_before(p, v) * own).sum(axis=2)
        np.maximum(least, own.sum(axis=(1, 2))[:, None] - run + beyond + sends, out=least)
    return least


def forwards_before(num_stages: int, virtual_stages: int) -> Floats:
    """Forwards of each stage before its first backward, where the step is longer, [stage, chunk]."""
    p, v = num_stages, virtual_stages
    counts = np.zeros((p, v))
    for s in range(p):
        forwards = np.arange(2 * (p - 1 - s) + (v - 1) * p + 1)
        counts[s] = np.bincount(forwards // p % v, minlength=v)
    return counts


def dealt_factors(num_stages: int, num_microbatches: int, virtual_stages: int) -> tuple[Floats, Floats]:
    """Factors of the times and of the sends of the stages in the row (dealt), [stage] each.

    The time of a stage is that of one micro-batch on all its chunks, there and back; the last send leads from
    the last stage to the first.
    """
    behind = num_stages - 1 - np.arange(num_stages)
    of_stage = num_microbatches / num_stages + behind / (num_stages * virtual_stages)
    of_send = virtual_stages - 1 + 2 * behind / num_stages
    return of_stage, of_send


@dataclass(frozen=True)
class HopFactors:
    """Factors of the row (hop)."""

    own: float
    """m - M, of the stage that the rounds begin at."""
    both: float
    """(M - e) / 3, of that stage and of the neighbour."""
    send: float
    """2 J"""


def hop_factors(num_stages: int, num_microbatches: int, virtual_stages: int) -> HopFactors | None:
    """The row (hop); None where the step is too short for it."""
    looped = num_microbatches - 2 * num_stages
    if looped <= 0:
        return None
    rounds, rest = divmod(looped * virtual_stages, 3)
    return HopFactors(2.0 * num_stages, (looped - (2 if rest else 0)) / 3, 2.0 * rounds)
