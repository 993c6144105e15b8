"""All pipelines that may keep a limit, grown from the first stage on, many at once.

With m micro-batches a stage takes no less than m passes both ways, hops that block included, and what follows
on it. So within a limit it holds so many layers at most once its neighbours are known. Stages behind it hold
no more than any do with the chips that are left on hosts there, hops as short as can be; that most is found
from the last stage to the first, for all numbers of chips at once. A beginning that leaves too few layers is
given up. Hosts are taken in whole runs of a class, as in `planner.search.meshes.shapes.can_be_placed`, and
hops lie inside them as in `planner.cost.communication.hops.hops_inside_host`. Where networks are slow or
chips are few, so little is left near the best plan that each pipeline is bounded by itself
(`planner.search.walks.dual`). Tables are those of `planner.search.meshes.places`: no stage takes less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.cost.communication.resharding import hops_between_s
from planner.cost.prices import Floats, Prices
from planner.data.problem import Problem
from planner.search.meshes.ends import Ends, matter
from planner.search.meshes.places import Ints, Places
from planner.search.meshes.shapes import Batch
from planner.search.meshes.tables import tied_ms
from planner.search.walks.dual import dual_bounds_ms, in_pieces
from planner.tolerances import BOUND_TOL
from planner.units import MS

Bools = NDArray[np.bool_]

MOST_POINTS = 20_000_000
"""Numbers of chips of all classes that may be left, times shapes and stages, beyond which nothing is listed:
some 0.2 s. A guess."""
MOST_BEGUN = 50_000
"""Beginnings of pipelines of one batch and length beyond which these are not listed. A guess."""
NONE_HELD = -(2**20)
"""Layers of what cannot be."""


@dataclass(frozen=True)
class Begun:
    """Beginnings of pipelines, arrays [beginning]."""

    shapes: Ints
    """[beginning, stage]"""
    held: Ints
    """Most layers of all stages but the last one."""
    back_ms: Floats
    """Hop into the last one, where sends block."""
    start: Ints
    """Chips of its run of one class up to it."""
    left: Ints
    """[beginning, class] hosts that the runs before that one leave."""

    def some(self, kept: Bools) -> Begun:
        """Some of them."""
        return Begun(*(values[kept] for values in vars(self).values()))


def is_too_large(problem: Problem, batch: Batch, longest: int) -> bool:
    """Whether too many numbers of chips may be left to look at all of them."""
    points = prod(node_class.num_chips + 1 for node_class in problem.cluster.classes)
    return points * len(batch.shapes) * longest > MOST_POINTS


class Lister:
    """Lists the pipelines of one batch that may take less than a limit."""

    def __init__(
        self,
        problem: Problem,
        prices: Prices,
        batch: Batch,
        places: Places,
        limit_ms: float,
        ends: Ends | None = None,
    ) -> None:
        self.problem, self.batch, self.places, self.ends = problem, batch, places, ends
        classes = problem.cluster.classes
        self.per_node = np.array([node_class.chips_per_node for node_class in classes])
        self.nodes = np.array([node_class.num_nodes for node_class in classes])
        self.blocks, self.limit_ms = not problem.stack.p2p_overlap, limit_ms * (1 + BOUND_TOL)
        self.hops_ms = np.stack(hops_between_s(problem, prices, batch.shapes)) / MS
        """[0 through the network or 1 inside a host, from, to]"""
        self.tied_ms = tied_ms(prices, batch)
        self.num_layers = int(places.inner.times_ms.shape[2]) - 1
        self._slack: list[Floats] = []
        """By stages behind, of stages that are not the first."""
        self._rest = [np.zeros(tuple((self.nodes * self.per_node + 1).tolist()), dtype=np.int64)]
        """[number of last stages][chips that are left of each class] most layers of these stages."""

    def list(self, p: int) -> tuple[Ints, Floats] | None:
        """Pipelines of so many stages that may take less than the limit, [pipeline, stage], and bounds [ms].

        None where more beginnings come up than can be looked at.
        """
        while len(self._slack) < p:
            self._add_place()
        first = self._slack_of(p - 1, is_first=True)
        begun, looked_at = self._first(first), 0
        for s in range(1, p):
            q = p - 1 - s
            before = first if s == 1 else self._slack[q + 1]
            kinds = np.flatnonzero(self._slack[q][:, 0] >= 0).tolist()
            grown = [self._grown(begun, k, before, q) for k in kinds]
            more = sum(len(some.held) for some in grown)
            if not more:
                return np.zeros((0, p), dtype=np.int64), np.zeros(0)
            looked_at += more
            if looked_at > MOST_BEGUN:
                return None
            pairs = zip(*(vars(some).values() for some in grown), strict=True)
            begun = Begun(*(np.concatenate(parts) for parts in pairs))
        slack = first if p == 1 else self._slack[0]
        most = _most(slack, begun.shapes[:, -1], begun.back_ms)
        orders = begun.shapes[begun.held + most >= self.num_layers]
        return orders, self._bounds_ms(orders)

    def _slack_of(self, q: int, *, is_first: bool) -> Floats:
        """How much longer passes may take with n layers or more, [shape, n - 1] [ms]; -inf for none."""
        batch, ends = self.batch, self.ends
        stages, place = (
            self.places.first if is_first else self.places.inner,
            min(q, self.places.num_places - 1),
        )
        times = stages.times_ms[:, place, 1:]
        after = stages.follow_ms[:, place, 1:] + self.places.constant_ms[not (is_first and q == 0)]
        if is_first:
            after = after + stages.reduce_ms[:, place, 1:]
        allowed = np.isfinite(times)
        if ends is not None:
            allowed &= (ends.first(batch) if is_first else ends.inner(batch))[:, None]
            allowed &= ends.last(batch)[:, None] | (q > 0)
        slack = (self.limit_ms - after) / batch.num_microbatches - np.where(allowed, times, np.inf)
        return np.asarray(np.maximum.accumulate(slack[:, ::-1], axis=1)[:, ::-1])

    def _add_place(self) -> None:
        """Slack of one stage more, and what so many last stages hold."""
        q = len(self._slack)
        self._slack.append(self._slack_of(q, is_first=False))
        hops = self.places.hop_ms * ((1 + (q > 0)) * self.blocks)
        most = _most(self._slack[q], np.arange(len(hops)), hops)
        before, best = self._rest[q], np.full_like(self._rest[q], NONE_HELD)
        for k in np.flatnonzero(most > 0).tolist():
            c, g = int(self.batch.node_class[k]), int(self.batch.num_chips[k])
            size, all_before = best.shape[c], (slice(None),) * c
            to = best[(*all_before, slice(g, None))]
            np.maximum(to, before[(*all_before, slice(None, max(size - g, 0)))] + most[k], out=to)
        self._rest.append(best)

    def _first(self, slack: Floats) -> Begun:
        k = np.flatnonzero(slack[:, 0] >= 0)
        start, c, none = self.batch.num_chips[k], self.batch.node_class[k], np.zeros(len(k))
        left = np.repeat(self.nodes[None], len(k), axis=0)
        begun = Begun(k[:, None], none.astype(np.int64), none, start, left)
        return begun.some(start <= self.nodes[c] * self.per_node[c])

    def _grown(self, begun: Begun, k: int, before: Floats, behind: int) -> Begun:
        """What one more stage of a shape makes of beginnings, without those that cannot be."""
        batch, last = self.batch, begun.shapes[:, -1]
        c, g, t = int(batch.node_class[k]), int(batch.num_chips[k]), int(batch.tensor_parallel[k])
        stays, size = batch.node_class[last] == c, int(self.per_node[c])
        start, left = np.where(stays, begun.start, 0), begun.left.copy()
        old = batch.node_class[last]
        left[np.arange(len(last)), old] -= np.where(stays, 0, -(-begun.start // self.per_node[old]))
        keeps = (start % t == 0) & (start + g <= left[:, c] * size)
        if self.problem.options.keep_class_order:
            keeps &= old <= c
        if matter(self.problem):
            keeps &= t % batch.tensor_parallel[begun.shapes[:, 0]] == 0
        inside = stays & ((start - batch.num_chips[last]) // size == (start + g - 1) // size)
        hop = self.hops_ms[inside.astype(np.int64), last, k] * self.blocks
        most = _most(before, last, begun.back_ms + hop)
        chips = left * self.per_node
        chips[:, c] -= start + g
        # What is left of negative numbers is not kept anyway.
        ahead = self._rest[behind][tuple(np.maximum(chips, 0).T)]
        own = _most(self._slack[behind], np.full(len(last), k), hop)
        held = begun.held + most
        keeps &= (most > 0) & (own > 0) & (held + own + ahead >= self.num_layers)
        rows = np.flatnonzero(keeps)
        shapes = np.concatenate([begun.shapes[rows], np.full((len(rows), 1), k)], axis=1)
        return Begun(shapes, held[rows], hop[rows], (start + g)[rows], left[rows])

    def _bounds_ms(self, orders: Ints) -> Floats:
        """Bounds of pipelines by weights on their rows, [pipeline]."""
        p, n, found = orders.shape[1], np.arange(self.num_layers + 1), np.zeros(len(orders))
        q = np.minimum(np.arange(p)[::-1], self.places.num_places - 1)
        inner, first = self.places.inner, self.places.first
        for piece in in_pieces(len(orders), p * len(n)):
            rows = orders[piece]
            tables = []
            for name in ("times_ms", "forward_ms", "base_forward_ms", "follow_ms"):
                table = getattr(inner, name)[rows, q]
                table[:, 0] = getattr(first, name)[rows[:, 0], q[0]]
                tables.append(table)
            times, of_layer, base, follow = tables
            times[:, :, 0] = np.inf
            forward = of_layer[:, :, None] * n + base[:, :, None]
            found[piece] = dual_bounds_ms(
                forward,
                times - forward,
                first.reduce_ms[rows[:, 0], q[0]],
                follow,
                self._hops(rows),
                self.batch.num_microbatches,
                sends_block=self.blocks,
            )
        if p > 1:
            found += self.tied_ms[orders[:, 0], orders[:, -1]]
        return found

    def _hops(self, rows: Ints) -> Floats:
        """Hop behind every stage, [pipeline, stage] [ms]; the last is 0."""
        hops, chips, classes = np.zeros(rows.shape), self.batch.num_chips[rows], self.batch.node_class[rows]
        start = np.zeros(len(rows), dtype=np.int64)
        for s in range(rows.shape[1] - 1):
            size, stays = self.per_node[classes[:, s]], classes[:, s] == classes[:, s + 1]
            inside = stays & (start // size == (start + chips[:, s] + chips[:, s + 1] - 1) // size)
            hops[:, s] = self.hops_ms[inside.astype(np.int64), rows[:, s], rows[:, s + 1]]
            start = np.where(stays, start + chips[:, s], 0)
        return hops


def _most(slack: Floats, shapes: Ints, hops_ms: Floats) -> Ints:
    """Most layers of stages of some shapes with such hops, [stage]."""
    return np.asarray((slack[shapes] >= hops_ms[:, None]).sum(axis=1))
