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

It holds as well of the splits whose slowest stage takes a time within two numbers: no run of theirs is
slower, and one is no faster, so that a path goes through whether it has passed one. Weights of their own for
pieces of that time say more than one set for all: they cannot mix splits that fill different stages.

Best weights are those of

Model      max  theta
           s.t. theta <= sum_r u[r] row(r) + sum_s v[s] o[s] + z[0]  for paths found so far          (path)
                sum_r u[r] <= 1,  sum_s v[s] <= 1                                                   (weights)

whose next path is the shortest at weights half way between the answer and the best weights met, which takes
far fewer than at the answer.

Size       at most 8 p variables, 2 rows and one a path; a path takes a step for each run of layers and each
           way to have used up stages of each class, two where the slowest stage is told.
Exact      no: it is what the rows say of splits and orders in fractions.
Source     Kelley 1960; in-out separation: Ben-Ameur, Neto 2007, Networks 49.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.layer_partition_groups import GroupCosts, start_of, totals, ways_to_use
from formulations.pipeline_rows import Floats
from formulations.solvers import GrowingProgram
from formulations.written_rows import RowName, row_coefficients

MOST_ROUNDS = 40
"""Paths after which the best bound at hand is taken. A guess."""
CLOSE = 1e-3
"""Part of the limit up to which more rounds gain too little. A guess."""

NARROW = 0.02
"""Width of a piece of the time of the slowest stage, relatively, that is halved no more. A guess."""

Bools = NDArray[np.bool_]
Path = list[tuple[int, int, int, int]]
"""Stage, class, length and end of every run."""


@dataclass(frozen=True)
class Weights:
    """Weights u of the rows of `all_rows` and v of the stages."""

    rows: Floats
    follow: Floats


def row_names(num_stages: int, num_microbatches: int) -> list[RowName]:
    """The rows, stage by stage."""
    p, m = num_stages, num_microbatches
    names: list[RowName] = []
    for s in range(p):
        names += [RowName(family, s, s) for family in ("window", "mirror", "work")]
        if m >= p - s + 1:
            sides = [(first, last) for first in (True, False) for last in (True, False)]
            names += [RowName("partial", s, s, first, last) for first, last in sides]
        else:
            names.append(RowName("flush", s, s, pacers=(s, s)))
    return names


def all_rows(num_stages: int, num_microbatches: int) -> tuple[Floats, Floats]:
    """Counts of f and of b in every row up to the end of stage 0, arrays [row, stage]."""
    p, m, names = num_stages, num_microbatches, row_names(num_stages, num_microbatches)
    forward, backward = np.zeros((2, len(names), p))
    for row, name in enumerate(names):
        of = row_coefficients(name, p, m, np.zeros(p))
        before = np.arange(p) < (0 if name.family == "flush" else name.stage)
        forward[row], backward[row] = of.forward + before, of.backward + before
    return forward, backward


class PricedOrders:
    """Bounds of one group for one weighing after another."""

    def __init__(self, costs: GroupCosts) -> None:
        self.costs = costs
        self.fits, self.times = np.isfinite(costs.forward), costs.forward + costs.backward
        self.promised: tuple[float, Path] = (np.inf, [])
        """Of the paths met, that with the least of what its rows say, and so much [ms]."""
        self.forward, self.backward = all_rows(len(costs.forward), costs.num_microbatches)

    def best(
        self,
        limit_ms: float,
        start: Weights | None = None,
        low_ms: float = 0.0,
        high_ms: float = np.inf,
        *,
        to_the_end: bool = False,
    ) -> tuple[float, Weights]:
        """The largest bound met, or one beyond the limit, with its weights [ms]; inf where no split fits.

        Of splits whose slowest stage takes no less than `low_ms` and no more than `high_ms`. It goes on
        `to_the_end` even where it is clear that no weights reach the limit.
        """
        num_rows, p = self.forward.shape
        best = start or Weights(np.full(num_rows, 1 / num_rows), np.full(p, 1 / p))
        best_ms, path = self.shortest(best, low_ms, high_ms)
        if best_ms >= limit_ms:
            return best_ms, best
        program = GrowingProgram([-1.0] + [0.0] * (num_rows + p))
        for i in range(1, num_rows + p + 1):
            program.set_bounds(i, 0.0, 1.0)
        add_weights(program, num_rows, p)
        add_path(program, *self.values(path))
        for _ in range(MOST_ROUNDS):
            answer = program.solve()
            if answer is None and start is not None:  # numbers that the solver cannot bear: begin anew
                other_ms, other = self.best(limit_ms, None, low_ms, high_ms, to_the_end=to_the_end)
                return (other_ms, other) if other_ms > best_ms else (best_ms, best)
            if answer is None or answer[0] - best_ms < CLOSE * limit_ms:
                break
            if answer[0] < limit_ms and not to_the_end:
                break
            there = Weights(np.array(answer[1 : num_rows + 1]), np.array(answer[num_rows + 1 :]))
            half = Weights((there.rows + best.rows) / 2, (there.follow + best.follow) / 2)
            value, path = self.shortest(half, low_ms, high_ms)
            if value > best_ms:
                best_ms, best = value, half
            if best_ms >= limit_ms:
                break
            add_path(program, *self.values(path))
        return best_ms, best

    def best_in_pieces(
        self, limit_ms: float, low_ms: float, high_ms: float, start: Weights | None = None
    ) -> tuple[float, Weights | None]:
        """As `best`, with weights of their own for pieces of the time of the slowest stage [ms].

        A piece that weights do not bring to the limit is halved; where even a narrow one stays below it, the
        best weights for all together are looked for.
        """
        whole = low_ms, high_ms
        pieces, least_ms, weights = [(-np.inf, low_ms, high_ms)], np.inf, start
        while pieces:
            known_ms, low_ms, high_ms = pieces.pop()
            value_ms, weights = self.best(limit_ms, weights, low_ms, high_ms)
            value_ms = max(known_ms, value_ms)
            if value_ms >= limit_ms:
                least_ms = min(least_ms, value_ms)
            elif high_ms > low_ms * (1 + NARROW):
                middle_ms = float(np.sqrt(low_ms * high_ms))
                pieces += [(value_ms, low_ms, middle_ms), (value_ms, middle_ms, high_ms)]
            else:
                least_ms = min(least_ms, value_ms, *(known_ms for known_ms, _, _ in pieces))
                value_ms, weights = self.best(limit_ms, weights, *whole, to_the_end=True)
                return max(least_ms, value_ms), weights
        return least_ms, weights

    def shortest(self, weights: Weights, low_ms: float = 0.0, high_ms: float = np.inf) -> tuple[float, Path]:
        """The bound (price) with a split and an order that have it; inf and none where nothing fits."""
        costs, fits = self.costs, self.fits & (self.times <= high_ms)
        factors = weights.rows @ self.forward, weights.rows @ self.backward, weights.follow
        each = np.where(fits, 0.0, np.inf)
        for factor, array in zip(factors, (costs.forward, costs.backward, costs.follow), strict=True):
            each += factor[:, None, None, None] * np.where(fits, array, 0.0)
        each[0] += np.where(fits[0], costs.reduction, 0.0) * weights.rows.sum()
        slack = 0.0 if costs.slack is None else costs.slack[:, :, None, None]
        value_ms, path = shortest_path(each, costs, self.times + slack >= low_ms)
        if path:
            rows, follow = self.values(path)
            promise_ms = float(rows.max() + follow.max())
            if promise_ms < self.promised[0]:
                self.promised = promise_ms, path
        return value_ms, path

    def values(self, path: Path) -> tuple[Floats, Floats]:
        """What every row, with the reduction of stage 0, and what follows each stage take of a path."""
        at = tuple(np.array(path).T)
        rows = self.forward @ self.costs.forward[at] + self.backward @ self.costs.backward[at]
        return rows + float(self.costs.reduction[path[0][1:]]), self.costs.follow[at]


def shortest_path(each: Floats, costs: GroupCosts, slow: Bools | None = None) -> tuple[float, Path]:
    """Least sum of costs [stage, class, length, end] of a split over all orders, and where; inf and none.

    Of those that have one of the `slow` runs, where there are any.
    """
    sources, _ = ways_to_use(costs.most, costs.num_stages)
    turns = each[:, None] if slow is None else np.stack([each, np.where(slow, each, np.inf)], axis=1)
    so_far, came = np.repeat(start_of(costs, 1), turns.shape[1], axis=0), []
    so_far[1:] = np.inf
    for of_stage, source in zip(turns, sources, strict=True):
        least = np.full((len(of_stage), source.shape[1] + 1, each.shape[-1]), np.inf)
        origin = np.zeros((3, *least.shape), dtype=np.int64)
        for c, before in enumerate(source):
            for into, layer, cost in [(0, 0, 0), (1, 1, 0), (1, 0, 1)][: 2 * len(of_stage) - 1]:
                sums = totals(so_far[layer], of_stage[cost, c])
                length = sums.argmin(axis=0)
                value = np.take_along_axis(sums, length[None], axis=0)[0][before]
                at = np.flatnonzero(value.ravel() < least[into, :-1].ravel())
                least[into, :-1].ravel()[at] = value.ravel()[at]
                for part, of in enumerate((np.full_like(length, c), length, np.full_like(length, layer))):
                    origin[part, into, :-1].ravel()[at] = of[before].ravel()[at]
        so_far = least
        came.append(origin)
    layer, state, end = len(so_far) - 1, 0, each.shape[-1] - 1
    value_ms, path = float(so_far[layer, state, end]), []
    for s in reversed(range(len(each))) if np.isfinite(value_ms) else ():
        c, length, layer = (int(of[layer, state, end]) for of in came[s])
        path.append((s, c, length, end))
        state, end = int(sources[s][c, state]), end - length
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
