"""Between how many ticks behind it a stage keeps the rows of `planner.search.meshes.holding`.

D is counted in whole ticks, of which rounding hides e = q more at most: D lies between its count and e above
it. The rows are kept between two ways down to the last stage (`planner.search.walks.ways_down`), D and the
hop behind the stage, of which the least is known, h, and the most, h'; S - x takes off h' at most, so that S'
is less than S by h' - h. So they are kept where D + e is no less than the shorter way and D no more than the
longer one: on one span of points, or on none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.brackets import EXCESS, FOLLOW, PACE, SLOWEST, SUM
from planner.search.meshes.choices import Choices
from planner.search.meshes.places import Ints
from planner.search.walks.ways_down import first_way_ms, inner_ways_ms
from planner.tolerances import COUNT_TOL

if TYPE_CHECKING:
    from planner.search.meshes.holding import Holding


def spans_of(
    holding: Holding,
    choices: Choices,
    q: int,
    excess: Floats | float = 0.0,
    most_excess: Floats | None = None,
    *,
    is_first: bool,
) -> tuple[Ints, Ints]:
    """First and last count of ticks behind each choice at which it keeps its rows, [choice, row].

    The first is the larger one where there is none. `excess` is what the rows of inner stages count more, and
    `most_excess` by how much their reductions may exceed what lies before them, if not by what is known.
    """
    most_excess = holding.most(EXCESS) if most_excess is None else most_excess
    t, f, b = (values[:, None] for values in (choices.time, choices.forward, choices.backward))
    passes = t, np.minimum(f, b), np.maximum(f, b)
    least_follow, most_follow, slowest = holding.least(FOLLOW), holding.most(FOLLOW), holding.most(SLOWEST)
    is_paced = (t < holding.least(SLOWEST)) | (np.maximum(f, b) <= holding.most(PACE))
    reached = (choices.follow[:, None] <= most_follow) & (t <= slowest) & is_paced
    left = holding.limit - np.maximum(choices.follow[:, None], least_follow)
    if is_first:
        low, high, keeps = _first(holding, choices, q, left - choices.reduce[:, None], passes)
    else:
        low, high, keeps = _inner(holding, choices, q, (left, left - excess), most_excess, passes)
    ticks = choices.ticks[:, None]
    high = np.minimum(high / holding.tick, holding.most(SUM) / holding.tick - ticks)
    least = np.ceil(np.maximum(low / holding.tick, 0.0) - COUNT_TOL)
    most = np.floor(np.minimum(high, float(holding.width)) + COUNT_TOL)
    if holding.windows is not None:
        fewest, longest = holding.windows.behind(choices, q, holding.tick)
        least, most = np.maximum(least, fewest), np.minimum(most, longest)
    keeps = keeps & reached & (least <= most)
    return np.where(keeps, least, 1).astype(np.int64), np.where(keeps, most, 0).astype(np.int64)


def least_behind_slow(holding: Holding, choices: Choices, q: int, excess: Floats | float = 0.0) -> Ints:
    """Fewest ticks behind each choice of an inner stage at which it keeps (slow), [choice, row].

    Out of reach where it breaks (paced).
    """
    m, t = holding.walks.num_microbatches, choices.time[:, None]
    left = holding.limit - np.maximum(choices.follow[:, None], holding.least(FOLLOW)) - excess
    begun = holding.least(SUM) - choices.most_hop[:, None] + max(m - 1 - q, 0) * t
    least = begun + min(q, m - 1) * holding.slowest - left - q * holding.tick
    ticks = np.ceil(np.maximum(least / holding.tick, 0.0) - COUNT_TOL)
    if m >= q + 2:
        # Row (paced) does not ask how long the way down is.
        breaks = holding.least(SUM) + (m - 1 - q) * t + q * holding.pace > left
        ticks = np.where(breaks, float(holding.width), ticks)
    return np.asarray(ticks.astype(np.int64))


def least_behind_excess(holding: Holding, choices: Choices, q: int) -> Ints:
    """Fewest ticks behind each choice of an inner stage whose reduction may be the excess, [choice, row]."""
    before = choices.most_reduce[:, None] - holding.least(EXCESS)
    taken = (choices.most_hop + choices.most_time)[:, None] + q * holding.tick
    least = holding.least(SUM) - taken - before
    ticks = np.ceil(np.maximum(least / holding.tick, 0.0) - COUNT_TOL)
    return np.where(before >= 0, ticks, float(holding.width)).astype(np.int64)


def _inner(
    holding: Holding,
    choices: Choices,
    q: int,
    lefts: tuple[Floats, Floats],
    most_excess: Floats,
    passes: tuple[Floats, Floats, Floats],
) -> tuple[Floats, Floats, np.ndarray]:
    """Least and most time behind a stage that has others before it, and whether there is any."""
    left, less = lefts
    low, hop, more = holding.least(SUM), choices.least_hop[:, None], choices.most_hop[:, None]
    sums = low, low - more + hop
    shortest, longest, keeps = inner_ways_ms(holding.walks.num_microbatches, q, sums, less, passes)
    # What lies before it is no less than its reduction, but for the excess.
    reduced = np.maximum(choices.own_reduce[:, None] - most_excess, 0.0)
    longest = np.minimum(longest, holding.most(SUM) - choices.time[:, None] - reduced)
    # Row (own): as if it were the first stage.
    alone, reduces = first_way_ms(
        holding.walks.num_microbatches, q, left - choices.own_reduce[:, None], passes
    )
    return shortest - hop - q * holding.tick, np.minimum(longest, alone) - hop, keeps & reduces


def _first(
    holding: Holding, choices: Choices, q: int, left: Floats, passes: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, np.ndarray]:
    """The same of the first stage: nothing lies before it, so that its rows rise with what lies behind."""
    least = holding.least(SUM) - (choices.ticks[:, None] + q + 1) * holding.tick
    longest, keeps = first_way_ms(holding.walks.num_microbatches, q, left, passes)
    return least, longest - choices.least_hop[:, None], keeps
