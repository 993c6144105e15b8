"""Between which ways down to the last stage and back a stage keeps its rows by a deadline.

What `planner.search.meshes.holding` and `planner.search.replicas.holding` ask of each stage. With S the time
of all stages with their hops, x the way from a stage down to the last one and back, q stages behind it,
t = f + b its own time, m - 1 = k (q + 1) + r, and T the time that what follows leaves, the rows of
`formulations.pipeline_rows` are

    m >= q + 2    S' - x - t + m t + max(0, x - q f) + max(0, x - q b) <= T      (partial, e = s)
                  S + k (t + x) + r max(f, b) <= T                               (window, mirror)
    m <= q + 1    S' - x - t + m t <= T                                          (work)
                  S + (m - 1) max(f, b) <= T                                     (window, mirror)

and those of the first stage the same with t + x for S and S', as nothing lies before it. S' is S, or less by
what is not known of a hop that S - x takes off and x has. The left sides never fall with t, f or b, so that
the least of each serve, be they of one stage or not.

As a function of x (partial) falls 1 for 1 up to q min(f, b), stands up to q max(f, b), and rises 1 for 1
behind it, (work) falls, and (window) rises: all are kept between two values of x, or nowhere. The rows of the
first stage only rise: (partial) stands up to q min(f, b), rises 1 for 1 up to q max(f, b), and 2 for 1 behind
it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats

Bools = NDArray[np.bool_]
Behind = int | NDArray[np.int64]
"""q, one of all or of each; all m - 2 or fewer, or none."""


def inner_ways_ms(
    num_microbatches: int,
    behind: Behind,
    sums_ms: tuple[Floats | float, Floats | float],
    left_ms: Floats | float,
    passes_ms: tuple[Floats, Floats, Floats],
) -> tuple[Floats, Floats, Bools]:
    """Shortest and longest way of a stage that has others before it, and whether there is any.

    Parameters
    ----------
    sums_ms
        S and S'.
    left_ms
        T.
    passes_ms
        t, and the shorter and the longer one of f and b.
    """
    m, q, (whole, before), (t, shorter, longer) = num_microbatches, behind, sums_ms, passes_ms
    shortest = before + (m - 1) * t - left_ms
    if not _is_short(m, q):
        return shortest, np.full_like(shortest, np.inf), np.asarray(whole + (m - 1) * longer <= left_ms)
    k, r = divmod(m - 1, q + 1)
    # How far below the deadline (partial) lies where it stands.
    spare = q * shorter - shortest
    by_window = (left_ms - whole - r * longer) / k - t
    return shortest, np.minimum(q * longer + spare, by_window), np.asarray(spare >= 0)


def first_way_ms(
    num_microbatches: int, behind: Behind, left_ms: Floats | float, passes_ms: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Bools]:
    """Longest way of the first stage, and whether it keeps the row of its own work; as above."""
    m, q, (t, shorter, longer) = num_microbatches, behind, passes_ms
    k, r = divmod(m - 1, q + 1)
    spare = left_ms - m * t
    longest = (left_ms - r * longer) / (k + 1) - t
    if _is_short(m, q):
        # One wait grows up to where the other one begins, then both do.
        one, both = q * shorter + spare, (spare + q * (shorter + longer)) / 2
        longest = np.minimum(longest, np.where(spare <= q * (longer - shorter), one, both))
    return longest, np.asarray(spare >= 0)


def _is_short(num_microbatches: int, behind: Behind) -> bool:
    """Whether m >= q + 2."""
    one = behind if isinstance(behind, int) else int(behind[0])
    return num_microbatches >= one + 2
