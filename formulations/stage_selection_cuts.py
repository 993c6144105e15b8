"""Variables of `stage_selection` and the cuts that only strengthen it, each with its proof.

`solve` adds those that it is asked for; any of them may be left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pulp

from formulations.stage_constraints import Places
from formulations.stage_selection_data import StageSelectionData
from formulations.stage_selection_tables import least_bottleneck_ms, least_recompute


@dataclass(frozen=True)
class Variables:
    """The solver's variables: layers and recomputation by place, times each a list over the stages."""

    places: Places
    forward: list[pulp.LpVariable]
    backward: list[pulp.LpVariable]
    reduction: list[pulp.LpVariable]
    gathering: list[pulp.LpVariable]
    end: pulp.LpVariable
    follow: pulp.LpVariable

    @property
    def n(self) -> list[pulp.LpVariable]:
        """Layers of every stage."""
        return [own[0].n for own in self.places]


def tighten_recompute(model: pulp.LpProblem, data: StageSelectionData, var: Variables) -> None:
    """Cut: the backward of s lies above the lower convex hull of the best backward for each n[s].

    Every whole n[s] costs at least its least recomputation, so every solution lies on or above each
    line of the hull of those points; fractional ones below it are cut off.
    """
    table, layers = least_recompute(data), var.n
    for s in range(data.num_stages):
        fits = np.flatnonzero(np.isfinite(table.extra_ms[s]))
        points = [(int(n), float(table.extra_ms[s, n] + data.backward_ms[s] * n)) for n in fits]
        for line, (slope, offset) in enumerate(lower_hull(points)):
            total = slope * layers[s] + offset + float(data.base_backward_ms[s])
            model += var.backward[s] >= total, f"tighten_recompute_{s}_{line}"


def tighten_bottleneck(model: pulp.LpProblem, data: StageSelectionData, var: Variables) -> None:
    """Cut: the slowest stage cannot be faster than whole layers allow, and it paces the pipeline.

    Let s be a slowest stage, of time M. For m >= p + 1 its row (partial, e = s) gives
    T >= up + m M + (d - q f) + (d - q b), and up >= 2 sum_{i<s} t[i] - s M because t[i] <= M; together
    T >= (m - p - 1) M + 2 sum_i t[i]. For any m, T >= sum_i t[i] + (m - 1) M / 2, since the larger of
    f[s], b[s] is at least M / 2. M is at least every stage's time and at least the least bottleneck
    over whole layer counts, which fractional ones undercut.
    """
    least = least_bottleneck_ms(data, least_recompute(data))
    p, m = data.num_stages, data.num_microbatches
    slowest = pulp.LpVariable("M", least if np.isfinite(least) else 0.0)
    for s in range(p):
        model += slowest >= var.forward[s] + var.backward[s], f"tighten_bottleneck_{s}"
    after = var.reduction[0] + float(data.reduce_tail_ms[0])
    sends = float(2 * data.send_ms[: p - 1].sum())
    total = pulp.lpSum(var.forward) + pulp.lpSum(var.backward)
    model += var.end >= total + (m - 1) / 2 * slowest + after + sends, "tighten_bottleneck_any"
    if m >= p + 1:
        paced = (m - p - 1) * slowest + 2 * total
        model += var.end >= paced + after + sends, "tighten_bottleneck_paced"


def lower_hull(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Slope and offset of every edge of the lower convex hull of points sorted by abscissa."""
    hull: list[tuple[int, float]] = []
    for x, y in points:
        while len(hull) >= 2:
            (x1, y1), (x2, y2) = hull[-2], hull[-1]
            if (y2 - y1) * (x - x1) < (y - y1) * (x2 - x1):
                break
            hull.pop()
        hull.append((x, y))
    edges = []
    for (x1, y1), (x2, y2) in pairwise(hull):
        slope = (y2 - y1) / (x2 - x1)
        edges.append((slope, y1 - slope * x1))
    return edges
