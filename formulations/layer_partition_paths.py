"""The least that any split with a given run of layers takes, for all runs at once.

With tau the time of the slowest stage of a split, Sigma the sum over its stages, C that of the sends and rho
the least share of the longer pass in a stage's time, no objective of `layer_partition` is less than each of
these, with what follows at its least added:

    (paced)   (m - p - 1) tau + 2 Sigma + 2 C            if m >= p + 1
    (late)    2 Sigma - sum_{s < p + 1 - m} t[s] + 2 C   if 2 <= m <= p
    (path)    Sigma + (m - 1) rho tau + 2 C
    (window)  (floor((m - 1) / p) + 1) (Sigma + 2 C)
    (work)    m tau

paced is proved in `stage_selection_cuts` (tighten_bottleneck), path, window and work as in
`planner.search.bounds`. late is the row (partial, e = s) of `pipeline_rows` at s = p + 1 - m, the first
stage with m >= q + 2: up + m t + (d - q f) + (d - q b), where m - q = 2, which is sum_{i<s} t[i] + 2 t[s] +
2 sum_{i>s} t[i] and sends of at least 2 C.

All of them rise with tau and the sums, and splits with a smaller tau have larger sums. So the values of tau
are cut into pieces: a split whose tau lies within a piece has a tau of at least where the piece begins, and
sums of at least the shortest path through the cuts by runs no slower than where it ends. Through each run
leads a shortest path of its own: one from the first cut to it, one from it to the last. Where the order of
the classes is open `layer_partition_groups` says more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.layer_partition_data import LayerPartitionData, least_bottleneck
from formulations.pipeline_rows import Floats

PIECES = 24
"""Pieces of the time of the slowest stage that are told apart; longer times make one more. A guess."""
STEP = 0.01
"""How much longer a piece ends than it begins, relatively. A guess."""


def least_through_ms(data: LayerPartitionData) -> Floats:
    """Array [stage, first, end]: what every split with this run on this stage exceeds, or equals [ms].

    inf where there is none. The least over the runs of any one stage bounds all splits.
    """
    allowed = data.allowed()
    forward, backward = (np.where(allowed, of, np.inf) for of in (data.forward_ms, data.backward_ms))
    times, least = forward + backward, np.full(allowed.shape, np.inf)
    begin, _ = least_bottleneck(data)
    if not np.isfinite(begin):
        return least
    rows = _Rows.of(data.num_microbatches, forward, backward, 2 * float(data.send_ms.sum()))
    for first, end in zip(*_pieces(begin), strict=True):
        quick = np.where(times <= end, times, np.inf)
        late = _sums(rows.weights[:, None, None] * quick)
        least = np.minimum(least, rows.largest(np.maximum(first, quick), _sums(quick), late))
    behind = _least_behind_ms(allowed, data.reduction_ms, data.follow_ms)
    return least + behind + data.constant_ms


def least_ms(data: LayerPartitionData) -> float:
    """The same over all splits, in less time [ms]; inf where nothing fits."""
    allowed = data.allowed()
    forward, backward = (np.where(allowed, of, np.inf) for of in (data.forward_ms, data.backward_ms))
    begin, _ = least_bottleneck(data)
    if not np.isfinite(begin):
        return begin
    rows = _Rows.of(data.num_microbatches, forward, backward, 2 * float(data.send_ms.sum()))
    times, (first, end) = forward + backward, _pieces(begin)
    late = _totals(rows.weights[:, None, None] * times, times, end)
    least = float(rows.largest(first, _totals(times, times, end), late).min())
    return least + _least_behind_ms(allowed, data.reduction_ms, data.follow_ms) + data.constant_ms


def _least_behind_ms(fits: NDArray[np.bool_], reduction_ms: Floats, follow_ms: Floats) -> float:
    """The least reduction of a stage, and optimizer and gathering of the slowest at their least [ms].

    Arrays [stage, ...] over what each stage may hold.
    """
    around = tuple(range(1, fits.ndim))
    follow = np.where(fits, follow_ms, np.inf).min(axis=around).max()
    return float(np.where(fits, reduction_ms, np.inf).min() + follow)


def _pieces(begin: float) -> tuple[Floats, Floats]:
    """Where pieces begin and end [ms]."""
    begins: Floats = begin * np.cumprod(np.append(1.0, np.full(PIECES, 1 + STEP)))
    return begins, np.append(begins[1:], np.array([np.inf]))


@dataclass(frozen=True)
class _Rows:
    """What the rows need beside tau and the sums."""

    num_microbatches: int
    num_stages: int
    sends_ms: float
    longer_share: float

    @classmethod
    def of(cls, num_microbatches: int, forward_ms: Floats, backward_ms: Floats, sends_ms: float) -> _Rows:
        """Of arrays [stage, ...], inf where runs do not fit."""
        both = forward_ms + backward_ms
        counts = np.isfinite(both) & (both > 0)
        share = np.maximum(forward_ms[counts], backward_ms[counts]) / both[counts]
        return cls(num_microbatches, len(both), sends_ms, float(share.min(initial=1.0)))

    @property
    def weights(self) -> Floats:
        """How often a stage counts in (late), [stage]."""
        return np.where(np.arange(self.num_stages) < self.num_stages + 1 - self.num_microbatches, 1.0, 2.0)

    def largest(self, tau: Floats, total: Floats, late: Floats) -> Floats:
        """The largest of the rows; inf where there is no sum."""
        m, p, exists = self.num_microbatches, self.num_stages, np.isfinite(total)
        tau, sends = np.where(exists, tau, 0.0), self.sends_ms
        rows = np.maximum(m * tau, total + (m - 1) * self.longer_share * tau + sends)
        rows = np.maximum(rows, ((m - 1) // p + 1) * (total + sends))
        if m >= p + 1:
            rows = np.maximum(rows, (m - p - 1) * tau + 2 * total + sends)
        elif m >= 2:
            rows = np.maximum(rows, late + sends)
        found: Floats = np.where(exists, rows, np.inf)
        return found


def _sums(times: Floats) -> Floats:
    """Shortest way through the cuts by each run, [stage, first, end]."""
    p, cuts = times.shape[0], times.shape[1]
    before, behind = np.full((p + 1, cuts), np.inf), np.full((p + 1, cuts), np.inf)
    before[0, 0] = behind[p, -1] = 0.0
    for s in range(p):
        before[s + 1] = (before[s][:, None] + times[s]).min(axis=0)
    for s in reversed(range(p)):
        behind[s] = (times[s] + behind[s + 1][None, :]).min(axis=1)
    sums: Floats = before[:-1, :, None] + times + behind[1:, None, :]
    return sums


def _totals(weighted: Floats, times: Floats, ends: Floats) -> Floats:
    """Shortest way through the cuts by runs no slower than where a piece ends, [piece]."""
    so_far = np.tile(np.where(np.arange(times.shape[1]) == 0, 0.0, np.inf), (len(ends), 1))
    for of_stage, own in zip(weighted, times, strict=True):
        quick = np.where(own <= ends[:, None, None], of_stage, np.inf)
        so_far = (so_far[:, :, None] + quick).min(axis=1)
    return so_far[:, -1]
