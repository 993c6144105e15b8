"""What a pipeline that a bracket lets be is really like, so that the bracket is cut where it tells most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.brackets import EXCESS, FOLLOW, PACE, SLOWEST, SUM
from planner.tolerances import BOUND_TOL

if TYPE_CHECKING:
    from planner.search.meshes.walks import MeshWalks

BELOW = 1e-3
"""By how much less than the longest that follows a pipeline brackets are cut: it is in one part. A guess."""
SURE = 0.3
"""Share of what the row grows by beyond the limit that a lower cut of the excess keeps. A guess."""
BISECTIONS = 5
"""Halvings of the range in which that cut lies."""
OF_TICKS = 0.5
"""Share of a tick that each stage hides, about."""


class Measured:
    """A pipeline by the rows of `planner.search.meshes.holding`, arrays [stage]."""

    def __init__(self, walks: MeshWalks, order: tuple[int, ...], split: tuple[int, ...]) -> None:
        p, self.num_microbatches = len(order), walks.num_microbatches
        q = np.arange(p)[::-1]
        lines = [walks.first, *[walks.inner] * (p - 1)]
        at = [
            (k, min(int(behind), one.times.shape[1] - 1), n)
            for one, k, behind, n in zip(lines, order, q, split, strict=True)
        ]

        def each(name: str, axes: int) -> Floats:
            return np.array([getattr(one, name)[i[:axes]] for one, i in zip(lines, at, strict=True)])

        self.behind, self.time = q, each("times", 3)
        self.forward = each("forward", 2) * np.array(split) + each("base_forward", 2)
        self.follow, sends = each("follow", 3), each("delay", 2)
        self.hop = sends * np.where(np.arange(p) > 0, 0.5, 1.0) * (q > 0)
        whole = self.time + sends
        whole[0] += walks.first.reduce[at[0]]
        self.ways_down = whole.sum() - np.cumsum(whole) + self.hop
        before = np.cumsum(whole) - whole
        exceeds = (each("reduce", 3) - before) * (np.arange(p) > 0)
        self.reduced_most = int(np.argmax(exceeds))
        self.longer = np.maximum(self.forward, self.time - self.forward)
        self._walks = walks
        longest = self.follow.max(), self.time.max(), exceeds.max(), self.longer.max()
        self.measures = np.array([whole.sum(), *longest])
        """As told apart by `planner.search.meshes.brackets`; the last one of all stages."""

    def step_ms(self, asked: Floats, most: Floats) -> float:
        """The longest row of an inner stage if all measures are known to lie between these, [measure]."""
        m, q, t, x = self.num_microbatches, self.behind, self.time, self.ways_down
        f, b = self.forward, self.time - self.forward
        waits = np.maximum(x - q * f, 0.0) + np.maximum(x - q * b, 0.0)
        rows = (m - 1) * t - x + waits * (m >= q + 2)
        if asked[SLOWEST] > 0 or asked[PACE] > 0:
            edges = np.stack([asked * (1 - BOUND_TOL), most * (1 + BOUND_TOL)], axis=1)
            slowest, pace = self._walks.least_slow_ms(edges[SLOWEST], edges[PACE])
            slow = np.maximum(m - 1 - q, 0) * t - x + np.minimum(q, m - 1) * slowest
            slow = np.maximum(slow, np.where(m >= q + 2, (m - 1 - q) * t + q * pace, 0.0))
            is_behind = np.maximum.accumulate((t >= asked[SLOWEST]) & (self.longer >= asked[PACE]))
            rows = np.where(is_behind, np.maximum(rows, slow), rows)
        k, r = np.divmod(m - 1, q + 1)
        rows = np.maximum(rows, np.where(m >= q + 2, k * (t + x), 0.0) + r * np.maximum(f, b))
        if asked[EXCESS] > 0:
            rows = rows + asked[EXCESS] * (np.arange(len(t)) >= self.reduced_most)
        step = asked[SUM] + rows + np.maximum(self.follow, asked[FOLLOW])
        return float(step[1:].max(initial=0.0))

    def cuts_ms(self, edges: Floats, tick_ms: float, limit_ms: float) -> tuple[Floats, Floats]:
        """Where to cut a bracket by each measure, and by how much the longest row then grows, [measure] both.

        Below the cut it is left out. Before a stage there may be more by what the sum, of which the most
        counts, and the ticks behind it hide; the excess is cut lower by that. Where it takes the row beyond
        the limit it is cut lower still, so that the part below has less in it.
        """
        known, at = self.step_ms(edges[:, 0], edges[:, 1]), self.measures * (1 - BELOW)
        at[PACE] = self.longer[self.time >= edges[SLOWEST, 0]].max(initial=0.0) * (1 - BELOW)
        hidden = edges[SUM, 1] - self.measures[SUM] + OF_TICKS * self.behind[self.reduced_most] * tick_ms
        at[EXCESS] -= max(hidden, 0.0)
        gains = np.zeros(len(at))
        for measure in range(len(gains)):
            gains[measure] = self._grown(edges, measure, at[measure]) - known
        # What ticks hide lies beyond the bracket: to cut there again leaves nothing out.
        gains = np.where(at < edges[:, 1] * (1 - BELOW), gains, 0.0)
        lacks = limit_ms - known + OF_TICKS * len(self.time) * tick_ms
        if gains[EXCESS] > lacks > 0 and gains[EXCESS] == gains.max():
            enough = known + lacks + SURE * (gains[EXCESS] - lacks)
            at[EXCESS] = self._lowest_cut(edges, EXCESS, at[EXCESS], enough)
        return at, gains

    def _lowest_cut(self, edges: Floats, measure: int, high: float, enough: float) -> float:
        """About the least cut no higher than that with which the longest row is long enough."""
        low = float(edges[measure, 0])
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            reaches = self._grown(edges, measure, middle) >= enough
            low, high = (low, middle) if reaches else (middle, high)
        return high

    def _grown(self, edges: Floats, measure: int, at: float) -> float:
        """The longest row of a bracket whose pipelines have no less than so much of a measure."""
        asked = edges[:, 0].copy()
        if measure == SLOWEST:
            # As `Brackets.cut` has it.
            asked[PACE] = 0.0
        asked[measure] = max(at, asked[measure])
        return self.step_ms(asked, edges[:, 1])
