"""One run of the walks of `planner.search.meshes.walks`: from the last stage to the first, and back."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.lines import Terms
from planner.search.meshes.places import Ints

if TYPE_CHECKING:
    from planner.search.meshes.walks import MeshWalks


@dataclass(frozen=True)
class Walk:
    """Shortest walks of a batch of rows."""

    length: Floats
    """[row, number of stages]"""
    layers: Ints
    """[row] layers of the shortest."""
    taken: Ints
    """[row, kind] shares that it takes."""
    shares: Floats
    """[row, 6] how its length grows with v and w of long ways behind the slowest stage, m >= q + 2, with
    those of short ones, with u and with z."""
    order: tuple[tuple[int, ...], ...]
    """[row] its shapes."""
    split: tuple[tuple[int, ...], ...]
    """[row] layers of its stages."""


@dataclass(frozen=True)
class Bracket:
    """Stages of every shape and place for slowest stages between two edges."""

    inner: Terms
    behind: Terms
    """Behind the last slow one: faster than the lower edge."""
    turn: Terms
    """As the last slow one."""
    first: Terms
    """Places are the numbers of stages that are looked at."""
    first_turn: Terms

    def rows(self, kept: NDArray[np.bool_] | Ints) -> Bracket:
        """Some of the rows."""
        return Bracket(*(getattr(self, name).rows(kept) for name in vars(self)))


@dataclass(frozen=True)
class Least:
    """Least of each group of shapes, and what it is the least of."""

    cost: Floats
    """[row, place, group]"""
    of: Floats
    """[row, place, shape, candidate]"""
    members: list[Ints]
    """[group] its shapes."""

    def found(self, row: int, place: int, group: int) -> tuple[int, int]:
        """Shape and candidate of a least."""
        mine = self.of[row, place, self.members[group]]
        member, candidate = divmod(int(np.argmin(mine)), mine.shape[1])
        return int(self.members[group][member]), candidate


DONE, SHORT, LONG, TURN = range(4)
"""Passed once; behind a slow stage with m <= q + 1; behind another; the last slow one itself."""


class Path:
    """One run from the last stage to the first."""

    def __init__(
        self,
        walks: MeshWalks,
        bracket: Bracket,
        inner: list[Least | None],
        first: list[Least],
        shares: Floats,
        counted: Floats,
    ) -> None:
        """`counted` is [layer, row] how often a hop counts behind which a walk is in each layer."""
        self.walks, self.bracket, self.inner, self.first = walks, bracket, inner, first
        self.shares, self.counted = shares, counted
        m, limit_ms = walks.num_microbatches, walks.limit_ms
        self.class_of = walks.class_of_group
        self.of_class = [np.flatnonzero(self.class_of == c) for c in range(len(walks.changes.more_ms))]
        self.changes_class = len(self.of_class) > 1
        barred = [walks.changes.barred(m, q, limit_ms) for q in range(walks.longest * self.changes_class)]
        self.barred = [one if one.any() else None for one in barred] or [None] * walks.longest
        """By place, [class, class] hops that no step within the limit has; None where all may be."""
        self.more_ms = walks.changes.more_ms[self.class_of].T
        """[class behind, group] what a change of class adds."""
        self.place = walks.place if walks.allowed is None else np.arange(walks.longest)
        self.source = walks.units.source
        self.rows, self.points = len(bracket.turn.times), len(self.source)
        self.groups = self.source.shape[1]

    def walk(self) -> Walk:
        """The walks, and what the shortest ones take."""
        walks, m = self.walks, self.walks.num_microbatches
        # By layer and the class of the stage behind.
        value = np.full((3, len(self.of_class), self.rows, self.points + 1), np.inf)
        value[1:, :, :, :-1] = 0.0
        self.values = [value]
        ends = np.full((self.rows, len(walks.lengths)), np.inf)
        wanted = {int(p): i for i, p in enumerate(walks.lengths)}
        for q in range(walks.longest):
            arrived = self._arrived(value, q)
            if q + 1 in wanted:
                i = wanted[q + 1]
                before, full = LONG if q <= m - 2 else SHORT, self.source[-1]
                passed = arrived[DONE][self.class_of, :, full].T + self.first[0].cost[:, i]
                turned = arrived[before][self.class_of, :, full].T + self.first[1].cost[:, i]
                ends[:, i] = np.minimum(passed.min(axis=1), turned.min(axis=1))
            if q + 1 < walks.longest:
                value = self._advance(arrived, q)
                self.values.append(value)
        return self._traced(ends)

    def _arrived(self, value: Floats, q: int) -> Floats:
        """Values with the hop to a stage of each class, [layer, class, row, point]."""
        if not q or not self.changes_class:
            return value
        arrived, barred, more_ms = value.copy(), self.barred[q], self.walks.changes.more_ms
        for c, behind in itertools.permutations(range(len(self.of_class)), 2):
            if barred is None or not barred[c, behind]:
                hop = (self.counted * more_ms[c, behind])[:, :, None]
                np.minimum(arrived[:, c], value[:, behind] + hop, out=arrived[:, c])
        return arrived

    def _advance(self, value: Floats, q: int) -> Floats:
        """Values one stage on."""
        m, c, source = self.walks.num_microbatches, self.place[q], self.source.T
        ahead = np.full_like(value, np.inf)
        for layer, kind in ((DONE, DONE), (SHORT, SHORT), (LONG, LONG), (DONE, TURN)):
            least = self.inner[kind]
            if least is None or (kind == LONG and q > m - 3):
                continue
            before = layer if kind != TURN else LONG if q <= m - 2 else SHORT
            for mine, groups in enumerate(self.of_class):
                found = value[before, mine][:, source[groups]]
                found += least.cost[:, c, groups, None]
                there = ahead[layer, mine, :, :-1]
                np.minimum(there, found.min(axis=1), out=there)
        return ahead

    def _pick(
        self, r: int, q: int, layer: int, place: int, point: int, mine: int | None, kept: Least, turn: Least
    ) -> tuple[bool, int, int]:
        """How a walk came to a value at stage q, of class `mine` where that is known.

        Whether that is the slowest, the group of its shape, and the class of the stage behind it.
        """
        value, before = self.values[q][:, :, r], self.source[point]
        barred = self.barred[q]

        def of(layer: int, least: Least) -> Floats:
            ways, cost = value[layer][:, before], least.cost[r, place]
            if self.changes_class:
                ways = ways + self.counted[layer, r] * self.more_ms
                cost = cost if mine is None else np.where(self.class_of == mine, cost, np.inf)
                if barred is not None:
                    cost = np.where(barred[self.class_of].T, np.inf, cost)
            return np.asarray(ways + cost)

        found = of(layer, kept)
        best, is_turned = int(np.argmin(found)), False
        if layer == DONE:
            ways = of(LONG if q <= self.walks.num_microbatches - 2 else SHORT, turn)
            other = int(np.argmin(ways))
            if ways.flat[other] < found.flat[best]:
                best, is_turned = other, True
        behind, group = divmod(best, self.groups)
        return is_turned, group, behind

    def _traced(self, ends: Floats) -> Walk:
        """Follow the shortest walk of each row back, from the first stage to the last."""
        walks = self.walks
        layers = np.zeros(self.rows, dtype=np.int64)
        taken = np.zeros((self.rows, len(walks.shares.room)), dtype=np.int64)
        shares = np.zeros((self.rows, 6))
        orders, splits = [], []
        for r in range(self.rows):
            i = int(np.argmin(ends[r]))
            order: list[int] = []
            split: list[int] = []
            if np.isfinite(ends[r, i]):
                shares[r] = self._follow(r, i, order, split)
            layers[r] = sum(split)
            taken[r] = walks.shares.taken[order].sum(axis=0)
            orders.append(tuple(order))
            splits.append(tuple(split))
        return Walk(ends, layers, taken, shares, tuple(orders), tuple(splits))

    def _follow(self, r: int, i: int, order: list[int], split: list[int]) -> Floats:
        """Fill in the shapes and layers of a walk; how its length grows with its weights."""
        walks, m, bracket = self.walks, self.walks.num_microbatches, self.bracket
        layer, behind, slowest, point = DONE, 0.0, (0.0, 0.0, 0), self.points - 1
        before, even, own, spread, beside, is_long = 0.0, 0.0, 0.0, 0.0, 0.0, True
        length, mine = int(self.walks.lengths[i]), None
        for q in range(length - 1, -1, -1):
            at_first = q == length - 1
            place = i if at_first else int(self.place[q])
            kept, turn = self.first if at_first else (self.inner[layer], self.inner[TURN])
            assert kept is not None and turn is not None
            turned, group, back = self._pick(r, q, layer, place, point, mine, kept, turn)
            more, mine = float(walks.changes.more_ms[back, self.class_of[group]]) * (q > 0), back
            least = turn if turned else kept
            if at_first:
                chosen = bracket.first_turn if turned else bracket.first
            else:
                chosen = bracket.turn if turned else bracket.inner if layer == DONE else bracket.behind
            shape, candidate = least.found(r, place, group)
            entry = r, place, shape, candidate
            order.append(shape)
            split.append(int(chosen.layers[entry]))
            time, follow = float(chosen.times[entry]), float(chosen.follow[entry])
            sends = float(chosen.sends[0, place if chosen.sends.shape[1] > 1 else 0, shape, 0])
            spread += float(chosen.share[0, place, 0, 0]) * follow
            if turned:
                layer = LONG if q <= m - 2 else SHORT
                forward = float(chosen.forward[entry])
                slowest, own, beside, is_long = (
                    (forward, time - forward, min(q, m - 1)),
                    follow,
                    sends,
                    layer == LONG,
                )
            elif layer != DONE:
                behind += time + sends
            else:
                before += time + sends
            even += time * (self.walks.even[q] if self.walks.even is not None else 0.0) + sends + more
            # The hop behind it: a walk that has just turned is in the layer behind the slowest stage.
            if layer == DONE:
                before += more
            else:
                behind += more
            point = int(self.source[point, group])
        forward, backward, waits = slowest
        u = self.shares[r, 4]
        v, w = self.shares[r, :2] if is_long else self.shares[r, 2:4]
        hop = beside if v + w < 1 else 0.0
        first, second = behind - waits * forward + hop, behind - waits * backward + hop
        row = before + m * (forward + backward) + v * first + w * second + beside - hop
        evened = even - row if self.walks.even is not None else 0.0
        waited, none = [(1 - u) * first, (1 - u) * second], [0.0, 0.0]
        return np.array(
            [*(waited if is_long else none), *(none if is_long else waited), evened, own - spread]
        )
