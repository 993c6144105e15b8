"""The least that any split with a given run of layers on a stage takes, for all runs at once.

With tau the time of the slowest stage of a split, Sigma the sum over its stages and C that of the sends, no
objective of `layer_partition` is less than each of these, with what follows at its least added:

    (paced)   (m - p - 1) tau + 2 Sigma + 2 C        if m >= p + 1
    (path)    Sigma + (m - 1) tau / 2 + 2 C
    (window)  (floor((m - 1) / p) + 1) (Sigma + 2 C)
    (work)    m tau

paced is proved in `stage_selection_cuts` (tighten_bottleneck), the others are rows of `pipeline_rows`, as in
`planner.search.bounds`; of path, the longer pass of a stage is at least half of both.

All of them rise with tau and Sigma, and splits with a smaller tau have a larger Sigma. So the values of tau
are cut into pieces: a split whose tau lies within a piece has a tau of at least where the piece begins, and a
Sigma of at least the shortest path through the cuts by runs no slower than where it ends. Through each run
leads a shortest path of its own: one from the first cut to it, one from it to the last.
"""

from __future__ import annotations

import numpy as np

from formulations.layer_partition_data import LayerPartitionData, least_bottleneck
from formulations.pipeline_rows import Floats

PIECES = 24
"""Pieces of the time of the slowest stage that are told apart; longer times make one more."""
STEP = 0.01
"""How much longer a piece ends than it begins, relatively."""


def least_through_ms(data: LayerPartitionData) -> Floats:
    """Array [stage, first, end]: what every split with this run on this stage exceeds, or equals [ms].

    inf where there is none. The least over the runs of any one stage bounds all splits.
    """
    times = np.where(data.allowed(), data.forward_ms + data.backward_ms, np.inf)
    begin, _ = least_bottleneck(data)
    least = np.full(times.shape, np.inf)
    if not np.isfinite(begin):
        return least
    for piece in range(PIECES + 1):
        end = begin * (1 + STEP) if piece < PIECES else np.inf
        quick = np.where(times <= end, times, np.inf)
        least = np.minimum(least, _rows(data, np.maximum(begin, quick), _sums(quick)))
        begin = end
    return least + _least_behind(data) + data.constant_ms


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


def _rows(data: LayerPartitionData, tau: Floats, total: Floats) -> Floats:
    """The largest of the four rows; inf where `total` is."""
    m, p, sends = data.num_microbatches, data.num_stages, 2 * float(data.send_ms.sum())
    exists = np.isfinite(total)
    reached = np.where(exists, tau, 0.0)
    rows = np.maximum(m * reached, total + (m - 1) * reached / 2 + sends)
    rows = np.maximum(rows, ((m - 1) // p + 1) * (total + sends))
    if m >= p + 1:
        rows = np.maximum(rows, (m - p - 1) * reached + 2 * total + sends)
    found: Floats = np.where(exists, rows, np.inf)
    return found


def _least_behind(data: LayerPartitionData) -> float:
    """Reduction of some stage, optimizer and gathering of the slowest, each at its least [ms]."""
    allowed = data.allowed()
    reduction = np.where(allowed, data.reduction_ms, np.inf).min()
    follow = np.where(allowed, data.follow_ms, np.inf).min(axis=(1, 2)).max()
    return float(reduction + follow)
