"""Linear lower bounds on the time of a 1F1B pipeline with uneven stages and sends.

The usual closed form, sum_s t[s] + (m - 1) max_s t[s], is no bound: on uneven stages it can lie above
the true makespan, with slow sends below it. The rows here never exceed it.

Sets       s in S                   stages 0 .. p-1, in pipeline order
Data       m                        micro-batches
           q[s] = p - 1 - s         stages behind s
           c[s]                     send between s and s+1; it delays the receiver and occupies neither
           w[s]                     least time from the end of a backward of s to its next forward
Given      f[s], b[s], t[s]         forward, backward and both, of one micro-batch on s
           d[s]                     sum_{i>s} t[i] + 2 sum_{i>=s} c[i]: down from s to the last stage and back
           up[s]                    sum_{i<s} (t[i] + 2 c[i]): fill before s and drain after it
           W[s,e]                   sum_{i=s..e} t[i] + 2 sum_{i=s..e-1} c[i]: down from s to e and back

Write F(j), B(j) for the forward and backward of micro-batch j = 1 .. m on stage s. 1F1B fixes the
order on s: q[s] + 1 forwards (or all m) run before B(1), then B(j), F(j + q + 1) alternate, and
q[s] + 1 backwards follow F(m). F(1) starts no earlier than sum_{i<s} (f[i] + c[i]); after B(m) the
gradient still travels sum_{i<s} (b[i] + c[i]). Both together are up[s], so each row below is up[s] plus a
bound on the time from the start of F(1) to the end of B(m), called the core of s. Two facts are used:
(i) B(j) starts at least d[s] after F(j) ends; (ii) F(j + q + 1) starts at least w[s] after B(j) ends.

Wait       w[s] is 0 but where sends block and a stage receives a gradient before it sends the activation that
           it made last: c is 0 then, f[s] holds the send to s+1 and b[s] the one to s-1, and w[s] is as long
           as that hop, from s-1 to s, for s > 0.
               Proof. Stage s - 1 runs q + 2 forwards before its first backward and sends the first q + 1
               at once. Any later activation, F(j + q + 1), it sends before its B(j), but only when the
               gradient of j has come, which s sends at the end of its B(j); then it still takes the hop.

Rows       (window)   core >= r f[s] + (k + 1) (t[s] + d[s]) + k w[s],  m - 1 = k (q + 1) + r
               Proof. r forwards run before F(r + 1). From the start of F(j) to the end of B(j) is at
               least t + d by (i), and by (ii) F(j + q + 1) comes w after it: k + 1 such windows.
           (mirror)   core >= r b[s] + (k + 1) (t[s] + d[s]) + k w[s]: the same read backwards in time.
           (work)     core >= m t[s] + max(0, m - q - 1) w[s]: one stage does one thing at a time, and waits
               before every forward behind a backward.
           (partial), m >= q + 2, every e >= s, n = e - s + 1, m - 2 - q = J n + r:
                      core >= A + J W[s,e] + r t[s] + (J + r + 1) w[s] + Z,
                      A = max(t + d, (q + 1) f + b),  Z = max(t + d, (q + 1) b + f)
               Proof. B(1) ends A after F(1) starts: by (i), and because q + 1 forwards precede it; in
               the same way Z passes from the start of F(m) to the end of B(m). From the end of B(j)
               on s to the end of B(j + n) on s passes w + W[s,e]: F(j + q + 1) comes next on s, travels
               down to e, where the order puts B(j + n) right behind it, which travels up. J windows
               and r plain pairs (w + t each) lead from B(1) to B(m - 1 - q), w before F(m) by (ii).
               With e = s this says m t + (m - 1 - q) w + max(0, d - q f) + max(0, d - q b).

           (through), m >= q + 2, every e >= s: from the start to the end of the whole step
                      P[s] + J W[s,e] + r t[s] + (J + r + 1) w[s] + Q[s],
                      P[s] = max_{k>=s} (down(k) + q[k] max_{i<=k} f[i] + back(s,k))
                      with down(k) = sum_{i<=k} f[i] + sum_{i<k} c[i] and back(s,k) = sum_{i=s..k} b[i] +
                      sum_{i=s..k-1} c[i], and Q[s] the same with f and b swapped
               Proof. On every i <= k, q[k] + 1 forwards come before all else, as q[i] >= q[k]: F(q[k] + 1)
               of k ends no sooner than a micro-batch comes to i, q[k] + 1 of them pass it, and the last comes
               to k. B(1) of k is behind it and travels up to s, where it ends at P[s]. In the same way Q[s]
               passes from the start of F(m) on s to the end of the step; between them lies what lies
               between A and Z.
           (flush), m <= q + 1: from the start to the end of the whole step
                      sum_{i<=s} t[i] + 2 sum_{i<s} c[i] + (m - 1) (max_{i<=s} f[i] + max_{i<=s} b[i])
               Proof. All forwards of s precede all its backwards; both are paced by the stages up to s.

Sync       Stage j <= s ends at least sum_{i<s} (f[i] + c[i]) + core[s] + sum_{j<=i<s} (b[i] + c[i]) after the
           start, so whatever follows the end of j (its gradient reduction) adds to that row; (through) and
           (flush) speak of the end of stage 0.

Exact      not in general: below the makespan by 0.0 to 0.2% on average, 1.6% at worst with sends of 30%
           of a forward (benchmarks/formulation_times.py --rows); equal to it on even stages without sends,
           where it reads (m + p - 1)(f + b). On stages that differ tenfold without (through), (flush) up to
           17% below, with them 7%; best plans of few micro-batches lie up to 3% above the other rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from formulations.written_rows import RowName

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CoreValues:
    """Best core bound of each stage and the row that gives it; arrays end in axis `stage`."""

    core: Floats
    fill: Floats
    """Time before the first forward of the stage."""
    drain: Floats
    """Time from its last backward to the end of stage 0."""
    through: Floats
    """Bound of the whole step by a row through all stages with the same e, or by a flush."""
    families: tuple[Floats, Floats, Floats, Floats]
    """Bounds by the best window, mirror, work and partial row."""
    steady: Floats | None
    """[..., stage, e] the part of partial rows that depends on e; None where they are those with e = s."""

    @cached_property
    def family(self) -> Ints:
        """0 window, 1 mirror, 2 work, 3 partial."""
        best: Ints = np.array(self.families).argmax(axis=0)
        return best

    @cached_property
    def last(self) -> Ints:
        """e of the best partial row."""
        if self.steady is None:
            return np.broadcast_to(np.arange(self.core.shape[-1]), self.core.shape)
        best: Ints = self.steady.argmax(axis=-1)
        return best


@dataclass(frozen=True)
class _Counts:
    """Counts of the rows of pipelines of one length and so many micro-batches, as floating-point numbers."""

    behind: Floats
    """q[s] + 1."""
    windows: Floats
    """k[s] + 1 of a window."""
    rest: Floats
    """r[s] of a window."""
    waits: Floats
    """[s] forwards behind a backward."""
    turns: NDArray[np.bool_]
    """[s] whether there are more micro-batches than such forwards leave out: m >= q + 2."""
    partial_windows: Floats
    """J[s, e] of partial rows."""
    partial_rest: Floats
    """r[s, e] of them."""
    exists: NDArray[np.bool_]
    """[s, e] whether there is such a row."""


@lru_cache(maxsize=64)
def _spans(num_stages: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """q[s]; stages n[s, e] from s to e, at least one; whether e lies behind s, or is it."""
    stages = np.arange(num_stages)
    n = stages - stages[:, None] + 1
    return stages[::-1], np.maximum(n, 1), n >= 1


@lru_cache(maxsize=256)
def _counts(num_stages: int, num_microbatches: int) -> _Counts:
    """Counts of all rows."""
    m = num_microbatches
    q, n, is_behind = _spans(num_stages)
    k, r = np.divmod(m - 1, q + 1)
    turns = q <= m - 2
    partial = np.divmod(np.maximum(m - 2 - q, 0)[:, None], n)
    behind, windows, rest, waits = np.array([q + 1, k + 1, r, np.maximum(m - 1 - q, 0)], dtype=np.float64)
    return _Counts(
        behind,
        windows,
        rest,
        waits,
        turns,
        partial[0].astype(np.float64),
        partial[1].astype(np.float64),
        is_behind & turns[:, None],
    )


def core_values(
    forward: Floats,
    backward: Floats,
    send: Floats,
    num_microbatches: int,
    wait: Floats | float = 0.0,
    *,
    spans: bool = True,
) -> CoreValues:
    """Best row of every stage, for many pipelines at once.

    Parameters
    ----------
    forward, backward
        Arrays [..., stage] of one time unit.
    send
        Array [..., stage] of the hops s -> s+1; the last entry is ignored.
    wait
        Array [..., stage] of what a stage waits between a backward and a forward.
    spans
        Whether to look at partial rows with e > s, which take time and memory of O(p^2).
    """
    p = forward.shape[-1]
    counts = _counts(p, num_microbatches)
    both = forward + backward
    hop = np.array(send, dtype=np.float64, copy=True)
    hop[..., -1] = 0.0
    before = _before(both, hop, forward + hop, backward + hop)
    time_before, hop_before = before[0], before[1]
    down = time_before[..., -1:] - time_before[..., 1:] + 2 * (hop_before[..., -1:] - hop_before[..., :-1])
    fill, drain = before[2, ..., :-1], before[3, ..., :-1]
    round_trip = both + down
    round_trips = counts.windows * round_trip
    window = counts.rest * forward + round_trips
    mirror = counts.rest * backward + round_trips
    work = num_microbatches * both
    waits = np.count_nonzero(wait) > 0  # most wait for nothing
    if waits:
        wait = np.broadcast_to(wait, both.shape)
        in_windows, between_passes = (counts.windows - 1) * wait, counts.waits * wait
        window, mirror, work = window + in_windows, mirror + in_windows, work + between_passes
    first = np.maximum(round_trip, counts.behind * forward + backward)
    last = np.maximum(round_trip, counts.behind * backward + forward)
    if spans:
        span = time_before[..., None, 1:] - time_before[..., :-1, None]
        span = span + 2 * (hop_before[..., None, :-1] - hop_before[..., :-1, None])
        pairs = counts.partial_rest * both[..., :, None]
        if waits:
            times = counts.partial_windows + counts.partial_rest + 1
            pairs = pairs + times * wait[..., :, None]  # type: ignore[index]
        steady = np.where(counts.exists, counts.partial_windows * span + pairs, -np.inf)
        between = steady.max(axis=-1)
    else:
        steady = None
        one_by_one = (num_microbatches - 1 - counts.behind) * both
        if waits:
            one_by_one = one_by_one + between_passes
        between = np.where(counts.turns, one_by_one, -np.inf)
    partial = first + last + between
    through = _through(forward, backward, hop_before[..., :-1], num_microbatches, between)
    core = np.maximum(np.maximum(window, mirror), np.maximum(work, partial))
    return CoreValues(core, fill, drain, through, (window, mirror, work, partial), steady)


def _through(
    forward: Floats, backward: Floats, hop_before: Floats, num_microbatches: int, between: Floats
) -> Floats:
    """Rows through all stages, with what lies between their ends, or a flush, [..., stage]."""
    counts = _counts(forward.shape[-1], num_microbatches)
    there = np.array([forward, backward])
    down = there.cumsum(axis=-1) + hop_before
    back, up = there[::-1], down[::-1]
    paced = down + (np.minimum(counts.behind, num_microbatches) - 1) * np.maximum.accumulate(there, axis=-1)
    turned = np.maximum.accumulate((paced + up)[..., ::-1], axis=-1)[..., ::-1]
    ends = np.where(counts.turns, turned - up + back, paced)
    whole: Floats = ends[0] + ends[1] + np.where(counts.turns, between, 0.0)
    return whole


def _before(*times: Floats) -> Floats:
    """What lies before each stage of several times, and before the end: [time, ..., stage + 1]."""
    stages = np.array(times)
    before = np.zeros((*stages.shape[:-1], stages.shape[-1] + 1))
    np.cumsum(stages, axis=-1, out=before[..., 1:])
    return before


def step_bound(
    forward: Floats,
    backward: Floats,
    send: Floats,
    num_microbatches: int,
    after: Floats,
    wait: Floats | float = 0.0,
    *,
    spans: bool = True,
) -> Floats:
    """Lower bound on max_j (end of stage j + after[j]), arrays [..., stage] -> [...]."""
    values = core_values(forward, backward, send, num_microbatches, wait, spans=spans)
    end_first = values.fill + values.core + values.drain
    reach = np.maximum.accumulate(end_first[..., ::-1], axis=-1)[..., ::-1]
    bound: Floats = (reach - values.drain + after).max(axis=-1)
    whole: Floats = values.through.max(axis=-1) + after[..., 0]
    return np.maximum(bound, whole)


def row_name(values: CoreValues, stage: int, forward: Floats, backward: Floats, send: Floats) -> RowName:
    """The row that gives the best core of a stage, for one pipeline (arrays [stage])."""
    family = ("window", "mirror", "work", "partial")[int(values.family[stage])]
    if family != "partial":
        return RowName(family, stage, stage)
    p = len(forward)
    q = p - 1 - stage
    down = float((forward + backward)[stage + 1 :].sum() + 2 * send[stage : p - 1].sum())
    return RowName(
        family,
        stage,
        int(values.last[stage]),
        wait_first=down >= q * float(forward[stage]),
        wait_last=down >= q * float(backward[stage]),
    )


def through_name(
    values: CoreValues, stage: int, num_microbatches: int, forward: Floats, backward: Floats, send: Floats
) -> RowName:
    """The row through all stages, or the flush, that gives `values.through` of a stage, for one pipeline."""
    p, m = len(forward), num_microbatches
    q = p - 1 - np.arange(p)
    hop_before = np.concatenate([[0.0], np.cumsum(send[: p - 1])])
    turns, pacers = [], []
    for there, back in ((forward, backward), (backward, forward)):
        turned = np.cumsum(there + back) + 2 * hop_before + q * np.maximum.accumulate(there)
        turn = stage + int(np.argmax(turned[stage:])) if q[stage] <= m - 2 else stage
        turns.append(turn)
        pacers.append(int(np.argmax(there[: turn + 1])))
    family = "through" if q[stage] <= m - 2 else "flush"
    last = int(values.last[stage]) if family == "through" else stage
    return RowName(family, stage, last, turns=(turns[0], turns[1]), pacers=(pacers[0], pacers[1]))
