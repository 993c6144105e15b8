"""Between how many ticks behind it a stage keeps the rows of `planner.search.meshes.holding`.

With D whole ticks counted behind a stage, e more at most that rounding hides, and a = S1 - h' - t + m t, h'
being the most and h the least that its hop may take, the rows (work) and (partial) ask of an inner stage

    m >= q + 2    min_{D <= y <= D + e} a - y + max(0, y + h - q f) + max(0, y + h - q b) <= T - o

As a function of y that falls up to q min(f, b) - h, stands up to q max(f, b) - h, and rises behind it, each
time by 1 for 1. So it is at most a limit between two values of y, and for D that is so where D + e is no less
than the lower one and D no more than the upper one. Any other row falls or rises with D, so that all of them
are kept on one span of points, or on none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.brackets import FOLLOW, SLOWEST, SUM
from planner.search.meshes.choices import Choices
from planner.search.meshes.places import Ints
from planner.tolerances import COUNT_TOL

if TYPE_CHECKING:
    from planner.search.meshes.holding import Holding


def spans_of(holding: Holding, choices: Choices, q: int, *, is_first: bool) -> tuple[Ints, Ints]:
    """First and last count of ticks behind each choice at which it keeps its rows, [choice, row].

    The first is the larger one where there is none.
    """
    t, f, b = (values[:, None] for values in (choices.time, choices.forward, choices.backward))
    least_follow, most_follow, slowest = holding.least(FOLLOW), holding.most(FOLLOW), holding.most(SLOWEST)
    reached = (choices.follow[:, None] <= most_follow) & (t <= slowest)
    left = holding.limit - np.maximum(choices.follow[:, None], least_follow)
    if is_first:
        low, high, keeps = _first(holding, choices, q, left - choices.reduce[:, None], t, f, b)
    else:
        low, high, keeps = _inner(holding, choices, q, left, t, f, b)
    ticks = choices.ticks[:, None]
    high = np.minimum(high / holding.tick, holding.most(SUM) / holding.tick - ticks)
    least = np.ceil(np.maximum(low / holding.tick, 0.0) - COUNT_TOL)
    most = np.floor(np.minimum(high, float(holding.width)) + COUNT_TOL)
    keeps = keeps & reached & (least <= most)
    return np.where(keeps, least, 1).astype(np.int64), np.where(keeps, most, 0).astype(np.int64)


def least_behind_slow(holding: Holding, choices: Choices, q: int) -> Ints:
    """Fewest ticks behind each choice of an inner stage at which it keeps (slow), [choice, row]."""
    m, t = holding.walks.num_microbatches, choices.time[:, None]
    left = holding.limit - np.maximum(choices.follow[:, None], holding.least(FOLLOW))
    begun = holding.least(SUM) - choices.most_hop[:, None] + max(m - 1 - q, 0) * t
    least = begun + min(q, m - 1) * holding.least(SLOWEST) - left - q * holding.tick
    return np.ceil(np.maximum(least / holding.tick, 0.0) - COUNT_TOL).astype(np.int64)


def _inner(
    holding: Holding, choices: Choices, q: int, left: Floats, t: Floats, f: Floats, b: Floats
) -> tuple[Floats, Floats, np.ndarray]:
    """Least and most time behind a stage that has others before it, and whether there is any."""
    m, low = holding.walks.num_microbatches, holding.least(SUM)
    hop, more = choices.least_hop[:, None], choices.most_hop[:, None]
    k, r = divmod(m - 1, q + 1)
    error, longer, shorter = q * holding.tick, np.maximum(f, b), np.minimum(f, b)
    begun = low - more + (m - 1) * t
    least = begun - left - error
    if m < q + 2:
        return least, np.full_like(least, np.inf), low + (m - 1) * longer <= left
    # How far below the limit the row lies where it stands.
    spare = left - (begun - (q * shorter - hop))
    most = np.minimum(q * longer - hop + spare, (left - low - r * longer) / k - t - hop)
    return least, most, spare >= 0


def _first(
    holding: Holding, choices: Choices, q: int, left: Floats, t: Floats, f: Floats, b: Floats
) -> tuple[Floats, Floats, np.ndarray]:
    """The same of the first stage: nothing lies before it, so that its rows rise with what lies behind."""
    m, tick, hop = holding.walks.num_microbatches, holding.tick, choices.least_hop[:, None]
    k, r = divmod(m - 1, q + 1)
    least = holding.least(SUM) - (choices.ticks[:, None] + q + 1) * tick
    longer, shorter = np.maximum(f, b), np.minimum(f, b)
    most = (left - r * longer) / (k + 1) - t - hop
    spare = left - m * t
    if m >= q + 2:
        # One wait grows up to where the other one begins, then both do.
        both = (spare + q * (f + b)) / 2
        waits = np.where(spare <= q * (longer - shorter), q * shorter + spare, both)
        most = np.minimum(most, waits - hop)
    return least, most, spare >= 0
