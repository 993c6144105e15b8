"""What a pipeline that a bracket lets be is really like, so that the bracket is cut where it tells most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.brackets import FOLLOW, SLOWEST, SUM

if TYPE_CHECKING:
    from planner.search.meshes.walks import MeshWalks


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
        self.measures = np.zeros(3)
        self.measures[[SUM, FOLLOW, SLOWEST]] = whole.sum(), self.follow.max(), self.time.max()

    def step_ms(self, asked: Floats) -> float:
        """The longest row of an inner stage if these measures are known of the pipeline."""
        m, q, t, x = self.num_microbatches, self.behind, self.time, self.ways_down
        f, b = self.forward, self.time - self.forward
        waits = np.maximum(x - q * f, 0.0) + np.maximum(x - q * b, 0.0)
        rows = (m - 1) * t - x + waits * (m >= q + 2)
        slow = np.maximum(m - 1 - q, 0) * t - x + np.minimum(q, m - 1) * asked[SLOWEST]
        is_behind = np.maximum.accumulate(t) >= asked[SLOWEST]
        rows = np.where(is_behind, np.maximum(rows, slow), rows)
        k, r = np.divmod(m - 1, q + 1)
        rows = np.maximum(rows, np.where(m >= q + 2, k * (t + x), 0.0) + r * np.maximum(f, b))
        step = asked[SUM] + rows + np.maximum(self.follow, asked[FOLLOW])
        return float(step[1:].max(initial=0.0))

    def gains_ms(self, least: Floats) -> Floats:
        """By how much that grows with each measure, from the edges that are known, [measure]."""
        known = self.step_ms(least)
        gains = np.zeros(3)
        for measure in (SUM, FOLLOW, SLOWEST):
            asked = least.copy()
            asked[measure] = max(self.measures[measure], least[measure])
            gains[measure] = self.step_ms(asked) - known
        return gains
