"""The plans with mixed stages: which stages the classes hold together, and bounds on them.

The ranks of a mixed stage are listed slowest class first, so that rank 0 of every stage is on its slowest
class, the *pace* of the stage. Rank 0 of all stages is a pipeline like one of whole stages on those classes:

    T >= time of the pipeline of whole stages on the paces        (its rows and its hops)

Hence the bounds, walks and orders of `planner.search` serve, and no arrangement of ranks is ever enumerated:
a mixed stage of pace c counts as a stage on a class of its own, c + |classes|, as fast as c. It has at least
one rank of c, the rest of faster classes.

Mixed stages are made of what is left when whole stages are taken off. With R[c] the ranks that class c holds,
d those of a stage, W[c] = floor(R[c] / d), n[c] whole and x[c] mixed stages of pace c,

    n[c] <= W[c],   x[c] > 0 only if n[c] = W[c]
    sum_{i at least as fast as c} x[i] <= floor(sum_{i at least as fast as c} (R[i] mod d) / d)

and a class gives no more than R[c] mod d ranks to mixed stages. There are fewer mixed stages than classes,
and none for degrees that the classes hold without a rest. Other mixes slow down a faster class that could
have run a stage of its own. A part is one choice of x; its first bound closes it where what is left is not
worth its pace. Where that does not,

    a mixed stage of n layers:  T >= m t[n] + exposed reduction + what follows        (its own work)

caps its layers: over a slow link between classes it can hold few.

Left out: virtual stages; experts on several ranks, whose exchange would cross classes; other orders of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.bound_data import BoundData
from planner.search.degrees import DegreeTable, allowed_stages
from planner.search.empty import most_stages
from planner.search.pair_bounds import Exposed, closer_bounds
from planner.search.space import fewest_stages
from planner.search.walks.cheapest import Ints
from planner.search.walks.part import Limits


@dataclass(frozen=True)
class MixedPart:
    """Orders of one row of degrees and number of stages with so many mixed stages of each pace."""

    choice: int
    stages: int
    limits: Limits


class MixedSpace:
    """The numbers of stages that mixed stages allow for each row of degrees."""

    def __init__(self, problem: Problem, table: DegreeTable, layer_s: Floats) -> None:
        """`layer_s` tells which classes are faster, [choice, node_class]."""
        self.problem = problem
        degrees = table.degrees
        usable = (table.ranks > 0) & (degrees.expert_parallel == 1)[:, None]
        usable &= (usable.sum(axis=1) > 1)[:, None] & (degrees.data_parallel > 1)[:, None]
        self.usable = usable
        self.per_stage = degrees.data_parallel
        layer = np.where(usable, layer_s, np.inf)
        self.fastest_first: Ints = np.argsort(layer, axis=1, kind="stable")
        """[choice, position] node classes, the fastest first."""
        ranks = np.take_along_axis(np.where(usable, table.ranks, 0), self.fastest_first, axis=1)
        self.whole: Ints = ranks // self.per_stage[:, None]
        """[choice, position] whole stages of a class."""
        self.left: Ints = ranks % self.per_stage[:, None]
        """[choice, position] ranks of a class beyond its whole stages."""
        self.pool: Ints = np.cumsum(self.left, axis=1) // self.per_stage[:, None]
        """[choice, position] mixed stages that a class and all faster ones hold together."""
        mixed = np.minimum(self.pool, self.left)
        mixed[:, 0] = 0
        held = np.concatenate([self._by_class(self.whole), self._by_class(mixed)], axis=1)
        self.table = replace(table, max_stages=held)

    def _by_class(self, by_position: Ints) -> Ints:
        values = np.zeros_like(by_position)
        np.put_along_axis(values, self.fastest_first, by_position, axis=1)
        return values

    def slowest_first(self, choice: int, classes: Sequence[int]) -> tuple[int, ...]:
        """Classes of a stage in the order of its ranks."""
        order = self.fastest_first[choice].tolist()
        return tuple(sorted(classes, key=order.index, reverse=True))

    def faster(self, choice: int, node_class: int) -> tuple[int, ...]:
        """Classes that may fill up a stage with this pace, the fastest first."""
        order = self.fastest_first[choice].tolist()
        return tuple(c for c in order[: order.index(node_class)] if self.usable[choice, c])

    def left_of(self, choice: int) -> tuple[int, ...]:
        """Ranks that each class may give to mixed stages."""
        left = dict(zip(self.fastest_first[choice].tolist(), self.left[choice].tolist(), strict=True))
        return tuple(left[c] for c in range(len(left)))

    def parts(self, prices: Prices, data: BoundData, exposed: Exposed) -> list[tuple[float, MixedPart]]:
        """All parts with their bounds, the least first; prices and the rest are those by kind of stage."""
        listed, rooms = [], []
        fewest = fewest_stages(self.problem, self.table, prices)
        for choice in np.flatnonzero(self.pool[:, -1] > 0).tolist():
            for mixed in self._mixes(choice):
                for stages, room, limits in self._lengths(choice, mixed, int(np.ceil(fewest[choice]))):
                    listed.append(MixedPart(choice, stages, limits))
                    rooms.append(room)
        if not listed:
            return []
        choices = np.array([part.choice for part in listed])
        lengths = np.array([part.stages for part in listed])
        microbatches, kinds = self.table.num_microbatches[choices], np.tile(self.usable[choices], 2)
        ends = [np.array([getattr(part.limits, end) for part in listed]) for end in ("fewest", "most")]
        given = choices, microbatches, np.array(rooms), lengths, kinds, (ends[0], ends[1])
        bounds = closer_bounds(data, exposed, *given)
        order = np.argsort(bounds, kind="stable").tolist()
        return [(float(bounds[i]), listed[i]) for i in order]

    def _mixes(self, choice: int) -> list[tuple[int, ...]]:
        """Every number of mixed stages by position of the pace, at least one in all."""
        pool, left = self.pool[choice].tolist(), self.left[choice].tolist()
        most = [0, *(min(p, n) for p, n in zip(pool[1:], left[1:], strict=True))]
        found: list[tuple[int, ...]] = [()]
        for i, limit in enumerate(most):
            found = [(*x, k) for x in found for k in range(limit + 1) if sum(x) + k <= pool[i]]
        return [x for x in found if any(x)]

    def _lengths(
        self, choice: int, mixed: Sequence[int], fewest: int
    ) -> Iterator[tuple[int, list[int], Limits]]:
        """Numbers of stages with such mixed ones; the fastest stages they can have, and their limits."""
        order, whole = self.fastest_first[choice].tolist(), self.whole[choice].tolist()
        forced = sum(n + x for n, x in zip(whole, mixed, strict=True) if x)
        free = [i for i, x in enumerate(mixed) if not x and whole[i]]
        most = min(forced + sum(whole[i] for i in free), most_stages(self.problem))
        for stages in allowed_stages(self.problem.options, most):
            if stages < max(forced, fewest):
                continue
            room, low, high = ([0] * (2 * len(order)) for _ in range(3))
            rest = stages - forced
            for i, c in enumerate(order):
                if mixed[i]:
                    room[c] = low[c] = high[c] = whole[i]
                    behind = len(order) + c
                    room[behind] = low[behind] = high[behind] = mixed[i]
                elif whole[i]:
                    high[c] = min(whole[i], stages - forced)
                    room[c] = min(whole[i], rest)
                    rest -= room[c]
            yield stages, room, Limits(tuple(low), tuple(high))
