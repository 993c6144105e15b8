"""What a pipeline that a bracket lets be is really like, so that the bracket is cut where it tells most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.brackets import EXCESS, FOLLOW, SLOWEST, SUM

if TYPE_CHECKING:
    from planner.search.meshes.walks import MeshWalks

BELOW = 1e-3
"""By how much less than the longest that follows a pipeline brackets are cut: it is in one part. A guess."""
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
        self.measures = np.array([whole.sum(), self.follow.max(), self.time.max(), exceeds.max()])
        """As told apart by `planner.search.meshes.brackets`."""

    def step_ms(self, asked: Floats) -> float:
        """The longest row of an inner stage if these measures are known of the pipeline."""
        m, q, t, x = self.num_microbatches, self.behind, self.time, self.ways_down
        f, b = self.forward, self.time - self.forward
        waits = np.maximum(x - q * f, 0.0) + np.maximum(x - q * b, 0.0)
        rows = (m - 1) * t - x + waits * (m >= q + 2)
        slow = np.maximum(m - 1 - q, 0) * t - x + np.minimum(q, m - 1) * asked[SLOWEST]
        if asked[SLOWEST] > 0:
            longer = np.maximum(f, b)[int(np.argmax(t))]
            slow = np.maximum(slow, np.where(m >= q + 2, (m - 1 - q) * t + q * longer, 0.0))
        is_behind = np.maximum.accumulate(t) >= asked[SLOWEST]
        rows = np.where(is_behind, np.maximum(rows, slow), rows)
        k, r = np.divmod(m - 1, q + 1)
        rows = np.maximum(rows, np.where(m >= q + 2, k * (t + x), 0.0) + r * np.maximum(f, b))
        if asked[EXCESS] > 0:
            rows = rows + asked[EXCESS] * (np.arange(len(t)) >= self.reduced_most)
        step = asked[SUM] + rows + np.maximum(self.follow, asked[FOLLOW])
        return float(step[1:].max(initial=0.0))

    def cuts_ms(self, edges: Floats, tick_ms: float) -> tuple[Floats, Floats]:
        """Where to cut a bracket by each measure, and by how much the longest row then grows, [measure] both.

        Below the cut it is left out. Before a stage there may be more by what the sum, of which the most
        counts, and the ticks behind it hide; the excess is cut lower by that.
        """
        known, at = self.step_ms(edges[:, 0]), self.measures * (1 - BELOW)
        hidden = edges[SUM, 1] - self.measures[SUM] + OF_TICKS * self.behind[self.reduced_most] * tick_ms
        at[EXCESS] -= max(hidden, 0.0)
        gains = np.zeros(len(at))
        for measure in range(len(gains)):
            asked = edges[:, 0].copy()
            asked[measure] = max(at[measure], asked[measure])
            gains[measure] = self.step_ms(asked) - known
        # What ticks hide lies beyond the bracket: to cut there again leaves nothing out.
        return at, np.where(at < edges[:, 1] * (1 - BELOW), gains, 0.0)
