"""One part of the space relaxed by shortest walks: what it is bounded by, and how it splits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.walks.cheapest import Ints, Walks
from planner.search.walks.dual import in_pieces
from planner.search.walks.relaxation import Found, Relaxed, part_value
from planner.units import MS

FEW_BRACKETS = 4
"""Open brackets of a group up to which they are looked at once more with counts that are exact."""


@dataclass(frozen=True)
class Limits:
    """Part of the orders of a row of degrees with some stages."""

    fewest: tuple[int, ...]
    most: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    """Classes of the first stages."""
    banned: tuple[int, ...] = ()
    """Classes that the next stage does not have."""


@dataclass(frozen=True)
class RelaxedPart:
    """One relaxed part, to read and to split."""

    walks: Walks
    allowed: NDArray[np.bool_]
    used: Ints
    fewest: Ints
    most: Ints
    relaxed: Relaxed
    cutoff_s: float
    constant_ms: float

    @property
    def may_be_counted(self) -> bool:
        """Whether counts were not exact, and few brackets are open."""
        return not self.walks.counter.exact and 0 < len(self.relaxed.brackets.mu) <= FEW_BRACKETS

    @property
    def cutoff_ms(self) -> float:
        """Where walks stop, what every plan adds to the step taken off."""
        return self.cutoff_s / MS - self.constant_ms

    def seconds(self, bound_ms: float) -> float:
        """A bound in seconds; what lies beyond the cutoff was not looked at."""
        if bound_ms >= self.cutoff_ms:
            return self.cutoff_s
        return min((bound_ms + self.constant_ms) * MS, self.cutoff_s)

    def found(self) -> tuple[Found, ...]:
        """Orders by index of the problem's classes, with their layers."""
        return tuple((tuple(int(self.used[c]) for c in order), n) for order, n in self.relaxed.found)

    def without(self, order: tuple[int, ...], limits: Limits) -> list[tuple[float, Limits]]:
        """Parts that hold every other order, by the first stage at which it differs, with bounds [s]."""
        start = len(limits.prefix)
        children, masks = [], []
        for j in range(start, len(order)):
            banned = {order[j], *(limits.banned if j == start else ())}
            allowed = self.allowed.copy()
            for s in range(start, j):
                allowed[s] = self.used == order[s]
            allowed[j] = allowed[j] & ~np.isin(self.used, sorted(banned))
            if allowed[j].any():
                masks.append(allowed)
                children.append(replace(limits, prefix=order[:j], banned=tuple(sorted(banned))))
        if not children:
            return []
        bounds = self._bounds(np.array(masks)).tolist()
        return [(self.seconds(b), child) for b, child in zip(bounds, children, strict=True) if np.isfinite(b)]

    def _bounds(self, masks: NDArray[np.bool_]) -> Floats:
        """Bounds of parts with other classes allowed, at the prices of the open brackets [ms]."""
        open_, walks = self.relaxed.brackets, self.walks
        rows, found = len(open_.mu), []
        for piece in in_pieces(len(masks), rows * walks.times.size):
            count = len(piece)
            mu, price = np.tile(open_.mu, count), np.tile(open_.price, (count, 1))
            low, high = np.tile(open_.low_ms, count), np.tile(open_.high_ms, count)
            walk = walks.shortest(mu, price, low, high, np.repeat(masks[piece], rows, axis=0))
            value = part_value(walk, mu, price, walks.num_layers, self.fewest, self.most)
            found.append(value.reshape(count, rows).min(axis=1, initial=np.inf))
        least: Floats = np.minimum(np.concatenate(found), self.relaxed.closed_ms)
        return np.maximum(least, self.relaxed.bound_ms)
