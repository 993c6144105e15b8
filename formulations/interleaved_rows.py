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

import numpy as np

from formulations.interleaved_paths import Floats


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
    rows = []

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
            forwards = np.arange(2 * (p - 1 - s) + (v - 1) * p + 1)
            own[s] -= np.bincount(forwards // p % v, minlength=v)
            other[s + 1 :, v - 1] = 1
            sends = np.full(p, float(v - 1))
            sends[: p - 1] += 1
            sends[s : p - 1] += 1
            add(s, own, other, sends)
    return rows


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
