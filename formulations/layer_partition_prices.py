"""What every split of all orders takes at least at given weights of the rows of the pipeline.

Sets, data and costs are those of `layer_partition`, the class of each stage open but for how many stages each
has. Let the rows of `pipeline_rows` up to the end of stage 0 have weights u >= 0 that add up to 1, and the
stages weights v >= 0 that add up to 1; let phi[s], beta[s] be the means of the counts of f[s] and b[s] in the
rows, those of the way down to a row's stage and back included:

Bound      (price)    T + O >= sum_s (phi[s] f[s] + beta[s] b[s] + v[s] o[s]) + z[0]
           Proof. T is no less than any row with the reduction of stage 0 behind it, O no less than what
           follows any stage, so neither is less than its mean. Sends and waits only add. The sum is one over
           stages and their runs of layers: its least is a shortest path through the cuts and the stages of
           each class used up.

Best weights are those of

Model      max  theta
           s.t. theta <= sum_r u[r] row(r) + sum_s v[s] o[s] + z[0]  for paths found so far          (path)
                sum_r u[r] <= 1,  sum_s v[s] <= 1                                                   (weights)

whose next path is the shortest at weights half way between the answer and the best weights met, which takes
far fewer than at the answer.

Size       at most 8 p variables, 2 rows and one a path; a path takes L^2 steps for each way to have used up
           stages of each class.
Exact      no: it is what the rows say of splits and orders in fractions.
Source     Kelley 1960; in-out separation: Ben-Ameur, Neto 2007, Networks 49.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from formulations.pipeline_rows import Floats, Ints
from formulations.solvers import GrowingProgram
from formulations.written_rows import RowName, row_coefficients

MOST_ROUNDS = 40
"""Paths after which the best bound at hand is taken. A guess."""
CLOSE = 1e-3
"""Part of the limit up to which more rounds gain too little. A guess."""

Path = list[tuple[int, int, int, int]]
"""Stage, class, first layer and end of every run."""


@dataclass(frozen=True)
class OrderCosts:
    """Arrays [stage, class, first, end] in ms, inf where a run does not fit; stages on each class."""

    num_microbatches: int
    forward: Floats
    backward: Floats
    reduction: Floats
    """Of stage 0 alone, [class, first, end]."""
    follow: Floats
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Weights:
    """Weights u of the rows of `all_rows` and v of the stages."""

    rows: Floats
    follow: Floats


def all_rows(num_stages: int, num_microbatches: int) -> tuple[Floats, Floats]:
    """Counts of f and of b in every row up to the end of stage 0, arrays [row, stage]."""
    p, m, names = num_stages, num_microbatches, []
    for s in range(p):
        names += [RowName(family, s, s) for family in ("window", "mirror", "work")]
        if m >= p - s + 1:
            sides = [(first, last) for first in (True, False) for last in (True, False)]
            names += [RowName("partial", s, s, first, last) for first, last in sides]
        else:
            names.append(RowName("flush", s, s, pacers=(s, s)))
    forward, backward = np.zeros((2, len(names), p))
    for row, name in enumerate(names):
        of = row_coefficients(name, p, m, np.zeros(p))
        before = np.arange(p) < (0 if name.family == "flush" else name.stage)
        forward[row], backward[row] = of.forward + before, of.backward + before
    return forward, backward


class PricedOrders:
    """Bounds of one group for one weighing after another."""

    def __init__(self, costs: OrderCosts) -> None:
        self.costs = costs
        self.fits = np.isfinite(costs.forward)
        self.forward, self.backward = all_rows(len(costs.forward), costs.num_microbatches)

    def best(self, limit_ms: float, start: Weights | None = None) -> tuple[float, Weights]:
        """The largest bound met, or one beyond the limit, with its weights [ms]; inf where no split fits."""
        num_rows, p = self.forward.shape
        best = start or Weights(np.full(num_rows, 1 / num_rows), np.full(p, 1 / p))
        best_ms, path = self.shortest(best)
        if best_ms >= limit_ms:
            return best_ms, best
        program = GrowingProgram([-1.0] + [0.0] * (num_rows + p))
        for i in range(1, num_rows + p + 1):
            program.set_bounds(i, 0.0, 1.0)
        add_weights(program, num_rows, p)
        add_path(program, *self.values(path))
        for _ in range(MOST_ROUNDS):
            answer = program.solve()
            if answer is None or answer[0] < limit_ms or answer[0] - best_ms < CLOSE * limit_ms:
                break
            there = Weights(np.array(answer[1 : num_rows + 1]), np.array(answer[num_rows + 1 :]))
            half = Weights((there.rows + best.rows) / 2, (there.follow + best.follow) / 2)
            value, path = self.shortest(half)
            if value > best_ms:
                best_ms, best = value, half
            if best_ms >= limit_ms:
                break
            add_path(program, *self.values(path))
        return best_ms, best

    def shortest(self, weights: Weights) -> tuple[float, Path]:
        """The bound (price) with a split and an order that have it; inf and none where nothing fits."""
        costs = self.costs
        factors = weights.rows @ self.forward, weights.rows @ self.backward, weights.follow
        each = np.where(self.fits, 0.0, np.inf)
        for factor, array in zip(factors, (costs.forward, costs.backward, costs.follow), strict=True):
            each += factor[:, None, None, None] * np.where(self.fits, array, 0.0)
        each[0] += np.where(self.fits[0], costs.reduction, 0.0) * weights.rows.sum()
        return shortest_path(each, costs.counts)

    def values(self, path: Path) -> tuple[Floats, Floats]:
        """What every row, with the reduction of stage 0, and what follows each stage take of a path."""
        at = tuple(np.array(path).T)
        rows = self.forward @ self.costs.forward[at] + self.backward @ self.costs.backward[at]
        return rows + float(self.costs.reduction[path[0][1:]]), self.costs.follow[at]


def shortest_path(costs: Floats, counts: tuple[int, ...]) -> tuple[float, Path]:
    """Least sum of costs [stage, class, first, end] of a split over all orders, and where; inf and none."""
    cut = np.arange(costs.shape[2])
    least = {(0,) * len(counts): np.where(cut == 0, 0.0, np.inf)}
    origins: list[dict[tuple[int, ...], tuple[Ints, Ints]]] = []
    for of_stage in costs:
        ahead: dict[tuple[int, ...], Floats] = {}
        came: dict[tuple[int, ...], tuple[Ints, Ints]] = {}
        for used, so_far in least.items():
            for c in np.flatnonzero(np.array(used) < np.array(counts)).tolist():
                total = so_far[:, None] + of_stage[c]
                first = total.argmin(axis=0)
                value, of_class = total[first, cut], np.full(len(cut), c)
                then = (*used[:c], used[c] + 1, *used[c + 1 :])
                if then in ahead:
                    better = value < ahead[then]
                    value = np.where(better, value, ahead[then])
                    of_class, first = (
                        np.where(better, *two) for two in zip((of_class, first), came[then], strict=True)
                    )
                ahead[then], came[then] = value, (of_class, first)
        least = ahead
        origins.append(came)
    used, end = counts, int(cut[-1])
    value_ms, path = float(least[used][end]), []
    for s in reversed(range(len(costs))) if np.isfinite(value_ms) else ():
        of_class, first = origins[s][used]
        c, begin = int(of_class[end]), int(first[end])
        path.append((s, c, begin, end))
        used, end = (*used[:c], used[c] - 1, *used[c + 1 :]), begin
    return value_ms, path[::-1]


def add_weights(program: GrowingProgram, num_rows: int, num_stages: int) -> None:
    """Weights of the rows, and those of the stages, add up to no more than 1."""
    program.add_row("weights_rows", dict.fromkeys(range(1, num_rows + 1), 1.0), 1.0)
    behind = range(num_rows + 1, num_rows + num_stages + 1)
    program.add_row("weights_follow", dict.fromkeys(behind, 1.0), 1.0)


def add_path(program: GrowingProgram, rows: Floats, follow: Floats) -> None:
    """The bound is no more than what the weighed rows say of a split that was found."""
    values = np.concatenate([rows, follow]).tolist()
    program.add_row("path", {0: 1.0} | {1 + i: -value for i, value in enumerate(values)}, 0.0)
