"""What the stages of an interleaved pipeline hold below a limit, over all orders of the classes at once.

`planner.search.virtual.capacity` takes what comes before a stage from the fastest classes that there are, for
each stage anew. Here all stages share one order: by the same row, `formulations.interleaved_rows` (wait,
k = 0), a stage of class c behind stages of which g[c'] are of class c' holds at most h(c, g) layers, where

    m t[s] + W(c, g) + (what follows the pipeline) <= limit,

and W(c, g) is the least time, over the orders of those stages, in which a micro-batch passes their first
chunks and the sends to the next stage, forth and back. A node (c, g) leads to every node (c', g + 1 of c);
an order is a path. The most layers of a path up to a node and from there on follow by dynamic programming.

Any plan below the limit is a path on which no stage holds more than its node does, so that

    n >= L - (most layers before the node) - (most layers behind it)  and  n <= h(c, g)

for its n layers on the stage of a node: numbers of layers for which no node of a class and place keeps this
are in no plan; where no path holds the L layers of the model there is no plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from planner.cost.prices import Bools, Floats, Ints

ROUNDING = 1e-9
"""Part of the limit by which a stage may exceed it, as sums of times are rounded."""
MOST_NODES = 20_000
"""Numbers of stages by class beyond which no path is looked for. A guess."""
HALVINGS = 7
"""Halvings of the interval in which a bound lies. A guess: any number leaves a bound."""


@dataclass(frozen=True)
class Places:
    """What single stages take, whatever their order."""

    least_ms: Floats
    """[class, stage, n] step where the stage holds n layers and nothing comes before it; inf where it may
    not."""
    first_ms: Floats
    """[class, stage] of chunk 0, forth and back, with sends that block."""
    hop_ms: Floats
    """[class, class] delay of a send; 0 where sends block."""
    fewest: Ints
    """[class] stages"""
    most: Ints
    """[class]"""
    follow_ms: Floats
    """[class, stage, n] what of the step a stage adds after the pipeline."""


class Prefixes:
    """Paths through the numbers of stages by class; `fits` and `bound_ms` say what they hold."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.num_classes, self.num_stages, width = places.least_ms.shape
        self.num_layers = width - 1
        self._or_more = _or_more(places.least_ms)
        most = np.minimum(places.most, self.num_stages)
        self.is_small = int(np.prod(most + 1)) <= MOST_NODES
        if not self.is_small:
            return
        counts = np.array(list(product(*(range(k + 1) for k in most.tolist()))), dtype=np.int64)
        self._stride = np.append(np.cumprod((most + 1)[::-1])[-2::-1], 1).astype(np.int64)
        total = counts.sum(axis=1)
        self._is_end = (total == self.num_stages) & (counts >= places.fewest).all(axis=1)
        self._nodes = [
            [np.flatnonzero((total == s) & (counts[:, c] < most[c])) for c in range(self.num_classes)]
            for s in range(self.num_stages)
        ]
        """[stage][class] numbers of stages before it, as places in a list."""
        self._num_counts = len(counts)
        self._wait_ms = self._least_wait_ms()

    def _least_wait_ms(self) -> Floats:
        """W, [class, numbers]; inf where no order leads there."""
        places = self.places
        wait = np.full((self.num_classes, self._num_counts), np.inf)
        wait[:, 0] = np.where(np.isfinite(places.least_ms[:, 0]).any(axis=1), 0.0, np.inf)
        for s in range(self.num_stages - 1):
            for c, to in np.ndindex(self.num_classes, self.num_classes):
                if not np.isfinite(places.least_ms[to, s + 1]).any():
                    continue
                at = self._nodes[s][c]
                then = at + self._stride[c]
                later = wait[c, at] + places.first_ms[c, s] + 2 * places.hop_ms[c, to]
                wait[to, then] = np.minimum(wait[to, then], later)
        return wait

    def _held(self, limit_ms: float, follow_ms: float = 0.0) -> list[list[Floats]]:
        """h, [stage][class][node]; minus infinity where nothing fits."""
        held = []
        or_more = self._or_more
        if follow_ms > 0.0:
            with np.errstate(invalid="ignore"):
                least = self.places.least_ms + np.maximum(follow_ms - self.places.follow_ms, 0.0)
            or_more = _or_more(least)
        for s, nodes in enumerate(self._nodes):
            of_stage = []
            for c, at in enumerate(nodes):
                room = limit_ms * (1 + ROUNDING) - self._wait_ms[c, at]
                most = np.searchsorted(or_more[c, s], room, side="right") - 1.0
                of_stage.append(np.where(most >= 0, most, -np.inf))
            held.append(of_stage)
        return held

    def _behind(self, held: list[list[Floats]]) -> Floats:
        """Most layers of the stages from numbers of stages on, by their class [class, numbers]."""
        behind = np.full((self.num_classes, self._num_counts), -np.inf)
        for s in range(self.num_stages - 1, -1, -1):
            for c, at in enumerate(self._nodes[s]):
                behind[c, at] = held[s][c] + self._next(behind, s, c, at)
        return behind

    def _next(self, behind: Floats, s: int, c: int, at: Ints) -> Floats:
        """Most layers of all stages behind s, of class c [node]."""
        then = at + self._stride[c]
        if s == self.num_stages - 1:
            ended: Floats = np.where(self._is_end[then], 0.0, -np.inf)
            return ended
        most: Floats = behind[:, then].max(axis=0)
        return most

    def holds(self, limit_ms: float) -> bool:
        """Whether some path holds all layers below the limit; never wrongly no."""
        return not self.is_small or bool(self._behind(self._held(limit_ms))[:, 0].max() >= self.num_layers)

    def bound_ms(self, low_ms: float, high_ms: float) -> float:
        """Least step for which some path may hold all layers, between a bound that is known and a limit."""
        if not self.holds(high_ms):
            return high_ms
        for _ in range(HALVINGS):
            middle_ms = (low_ms + high_ms) / 2
            if self.holds(middle_ms):
                high_ms = middle_ms
            else:
                low_ms = middle_ms
        return low_ms

    def fits(self, limit_ms: float, follow_ms: float = 0.0) -> Bools:
        """Numbers of layers that a stage may hold in a plan below the limit, [class, stage, n].

        Parameters
        ----------
        follow_ms
            What some stage of every such plan adds after the pipeline, at least.
        """
        width = self.num_layers + 1
        may: Bools = np.ones((self.num_classes, self.num_stages, width), dtype=np.bool_)
        if not self.is_small:
            return may
        held = self._held(limit_ms, follow_ms)
        behind = self._behind(held)
        before = np.full((self.num_classes, self._num_counts), -np.inf)
        before[:, 0] = 0.0
        for s, nodes in enumerate(self._nodes):
            for c, at in enumerate(nodes):
                least = np.maximum(self.num_layers - before[c, at] - self._next(behind, s, c, at), 0.0)
                can = least <= held[s][c]
                starts = np.bincount(least[can].astype(np.int64), minlength=width + 1)
                stops = np.bincount(held[s][c][can].astype(np.int64) + 1, minlength=width + 1)
                may[c, s] = np.cumsum(starts - stops)[:width] > 0
                then, total = at + self._stride[c], before[c, at] + held[s][c]
                if s < self.num_stages - 1:
                    before[:, then] = np.maximum(before[:, then], total)
        return may


def _or_more(least_ms: Floats) -> Floats:
    """The least step with n layers or more: what a limit allows is then one number of layers."""
    found: Floats = np.minimum.accumulate(least_ms[:, :, ::-1], axis=2)[:, :, ::-1]
    return found
