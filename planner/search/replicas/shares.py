"""What no mix of whole pipelines undercuts, by the shares of the batch that they run.

The prices of `planner.search.replicas.mixes` let any fraction of a pipeline run. Here pipelines are whole. At
prices lambda of a chip at which all are worth the batch S, a pipeline of d replicas whose chips are worth W
each gains n - d W when it runs n = d b m sequences. The chips of a mix are worth S at most, and it runs S:

    sum over its pipelines of (n - d W) >= 0.

By a deadline D a chain of a box (`planner.search.replicas.pricing`, whose value v at weight y is the least of
y W / b + T(m) - y m over its chains and micro-batches m) runs m of them only where T(m) <= D, so that

    n - d W = d b (m - W / b) <= d b (D - v) / y,

and no more than d b m less what its layers are worth at least. `formulations.share_totals` tells from the
most that each share gains which shares are in no mix: these are closed for all prices, as a mix is possible
at every price. Where no share is open, no mix of two or more pipelines is done by D.

Boxes are refined where a share of theirs is open. Other prices are tried where that does not help: those of
the chips that the two pipelines of the share that gains most take too many of rise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from formulations.share_totals import most_beside
from planner.cost.prices import Floats
from planner.search.replicas.boxes import Bools, Boxes, Found
from planner.search.replicas.chains import Kind
from planner.search.replicas.leaves import Leaves
from planner.search.replicas.pricing import TOGETHER, WIDE, Pricing
from planner.search.replicas.refining import Asked, refined
from planner.search.replicas.space import Ints
from planner.tolerances import COUNT_TOL

MOST_SEQUENCES = 2048
"""Batch up to which shares are told apart."""
MOST_ROUNDS = 30
"""Rounds of boxes at one deadline and price."""
MOST_PRICES = 6
"""Prices that are tried for a deadline."""
MOST_BOXES = 20_000
"""Boxes that are evaluated in one go."""
TILT = 0.01
"""How far prices move from one look to the next."""
SHARE_OF_WAY = 0.4
"""Share of the way to the last deadline that the next one takes."""
LEAST_WAY = 5e-4
"""The least such way, relative."""
STUCK = 3
"""For a box that cannot be refined any more."""
LOSES = 0.01
"""Share of the batch that a pipeline is shown to lose before others are refined. All of these
are guesses: they say what is looked at, never what is proven."""


class Shares:
    """Bounds on mixes of whole pipelines."""

    def __init__(self, pricing: Pricing, is_up: Callable[[], bool] = lambda: False) -> None:
        self.pricing, self.chains, self.is_up = pricing, pricing.chains, is_up
        self.batch = self.chains.batch
        self.evaluated = 0
        self._most_boxes = MOST_BOXES
        self.leaves: list[Leaves] = []
        """By price."""

    def improve(self, price: Floats, least_ms: float, most_ms: float) -> float:
        """The latest time, up to a last one, by which it was proven that no mix is done [ms].

        At the price of an earlier look its boxes are refined further.

        Parameters
        ----------
        price
            Sequences that a chip of each class is worth, all together the batch.
        least_ms, most_ms
            What is known already, and what it is to be raised to, both without the least exchange.
        """
        if self.batch > MOST_SEQUENCES or self.is_up():
            return least_ms
        self._most_boxes = self.evaluated + MOST_BOXES
        if not self.leaves or not np.array_equal(self.leaves[0].price, price):
            self._first, self._after = self._first_boxes()
            self.leaves = [Leaves(self._first, self._after, price, self.pricing)]
        bound_ms, way = least_ms, SHARE_OF_WAY
        while bound_ms < most_ms and not self._is_over:
            step_ms = max(way * (most_ms - bound_ms), LEAST_WAY * bound_ms)
            deadline_ms = min(bound_ms + step_ms, most_ms)
            if self.excludes(deadline_ms):
                bound_ms = deadline_ms
            elif step_ms <= LEAST_WAY * bound_ms:
                break
            else:
                way /= 2
        return bound_ms

    @property
    def _is_over(self) -> bool:
        return self.is_up() or self.evaluated >= self._most_boxes

    def _first_boxes(self) -> tuple[Boxes, Floats]:
        """Boxes of every number of replicas of a pipeline beside another, and what follows them at least."""
        parts, after = [Boxes.none()], [np.zeros(0)]
        for size, degrees in self.chains.replicas.items():
            for i, degree in enumerate(degrees):
                kind = self.chains.number(Kind(size, i, i + 1))
                least, most = 1, (self.batch - 1) // (size * degree)
                while least <= most:
                    last = min(least * WIDE[0] // WIDE[1], most)
                    parts.append(self.pricing.boxes_of(kind, least, last))
                    after.append(np.full(len(parts[-1]), self.pricing.paths.least(kind).after_ms))
                    least = last + 1
        return Boxes.join(parts), np.concatenate(after)

    def excludes(self, deadline_ms: float) -> bool:
        """Whether it was found that no mix of two or more pipelines is done by a deadline."""
        is_open = np.ones(self.batch + 1, dtype=np.bool_)
        is_open[[0, self.batch]] = False
        for number in range(MOST_PRICES):
            if number == len(self.leaves):
                price = self._tilted(self.leaves[-1], is_open, deadline_ms)
                if price is None:
                    break
                self.leaves.append(Leaves(self._first, self._after, price, self.pricing))
            self._close(self.leaves[number], is_open, deadline_ms)
            if not is_open.any():
                return True
            if self._is_over:
                break
        return False

    def _close(self, leaves: Leaves, is_open: Bools, deadline_ms: float) -> None:
        """Refine boxes at one price until no share is open, or nothing is left to refine."""
        alive = np.arange(len(leaves.worth))
        leaves.seen[leaves.seen < STUCK] = 0
        for _ in range(MOST_ROUNDS):
            gain, share, at = leaves.gains(alive, deadline_ms)
            most = np.full(self.batch + 1, -np.inf)
            own = is_open[share]
            np.maximum.at(most, share[own], gain[own])
            beside = most_beside(most)
            is_open &= most + beside >= -COUNT_TOL * self.batch
            if not is_open.any() or self._is_over:
                return
            needs, first, asked_for = self._needs(leaves, alive, (gain, share, at), beside, is_open)
            alive, first, needs = alive[asked_for], first[asked_for], needs[asked_for]
            left = np.flatnonzero(leaves.seen[alive] < 2)
            if not len(left):
                return
            left = left[np.argsort(-first[left], kind="stable")[:TOGETHER]]
            alive = self._refine(leaves, alive, left, needs[left], deadline_ms)

    def _needs(
        self,
        leaves: Leaves,
        alive: Ints,
        gains: tuple[Floats, Ints, Ints],
        beside: Floats,
        is_open: Bools,
    ) -> tuple[Floats, Floats, Bools]:
        """What boxes are to be shown to lose, how soon they are looked at, and which hold an open share."""
        gain, share, at = gains
        asks = is_open[share] & (gain + beside[share] >= -COUNT_TOL * self.batch)
        other = np.where(leaves.seen[alive][at] > 0, beside[share], np.minimum(beside[share], self._loss))
        needs, first = np.full(len(alive), -np.inf), np.full(len(alive), -np.inf)
        np.maximum.at(needs, at[asks], other[asks])
        np.maximum.at(first, at[asks], (gain + np.minimum(beside[share], self._loss))[asks])
        return needs / leaves.sequences()[alive], first, np.isfinite(first)

    @property
    def _loss(self) -> float:
        return LOSES * self.batch

    def _refine(self, leaves: Leaves, alive: Ints, left: Ints, needs: Floats, deadline_ms: float) -> Ints:
        """Evaluate some of the boxes and refine those that stay open; the rows of all that are open."""
        rows = alive[left]
        boxes = leaves.boxes.at(rows)
        cutoff = deadline_ms + boxes.weight * needs * (1 + COUNT_TOL) + COUNT_TOL * deadline_ms
        now, chains = self.pricing.paths.soonest(boxes, leaves.price, cutoff)
        if self.is_up():
            return alive
        self.evaluated += len(rows)
        parents: list[int] = []
        pieces: list[Boxes] = []
        asked: list[Asked] = []
        for j, (row, chain) in enumerate(zip(rows.tolist(), chains, strict=True)):
            leaves.learn(row, float(now[j]), float(boxes.weight[j]), deadline_ms)
            if chain is None or now[j] >= cutoff[j]:
                leaves.seen[row] += 1
                continue
            leaves.chain[row] = chain
            box = boxes.at(np.array([j]))
            found, line = refined(self.chains, box, float(now[j]), chain, leaves.asked[row], float(cutoff[j]))
            if not found:
                leaves.seen[row] = STUCK
            parents += [row] * len(found)
            pieces += found
            asked += [line] * len(found)
        if not parents:
            return alive
        before = len(leaves.worth)
        stays = leaves.replace(parents, pieces, asked)
        now_at = np.full(before, -1)
        now_at[stays] = np.arange(len(stays))
        kept = now_at[alive]
        return np.append(kept[kept >= 0], np.arange(len(stays), len(leaves.worth)))

    def _tilted(self, leaves: Leaves, is_open: Bools, deadline_ms: float) -> Floats | None:
        """Other prices, dearer where two pipelines that gain most take too many chips; None without any."""
        gain, share, at = leaves.gains(np.arange(len(leaves.worth)), deadline_ms)
        gain[~is_open[share] | (leaves.chain[at] == None)] = -np.inf  # noqa: E711
        most = np.full(self.batch + 1, -np.inf)
        np.maximum.at(most, share, gain)
        both = most[1:-1] + most[-2:0:-1]
        n = 1 + int(np.argmax(both))
        if not np.isfinite(both[n - 1]):
            return None
        chips = np.zeros(len(leaves.price))
        for own in (n, self.batch - n):
            row = int(at[np.flatnonzero((share == own) & (gain == most[own]))[0]])
            chain: Found = leaves.chain[row]
            replicas = self.chains.most_replicas(int(leaves.boxes.kind[row]))
            chips += replicas * np.array(chain.column.chips)
        beyond = chips / self.chains.available - 1
        most_beyond = float(np.abs(beyond).max())
        if most_beyond == 0:
            return None
        price = leaves.price * (1 + TILT * beyond / most_beyond)
        tilted: Floats = price * self.batch / float(price @ self.chains.available)
        return tilted
