"""Raise many concave functions at once along their subgradients: Shor's algorithm with space dilation.

Each row steps along its subgradient in a space of its own, which is halved across the last two of them, so
that few steps are enough in few dimensions. A row that does not get on starts anew from its best point; now
and then rows try the best point of a neighbour.

References
----------
N. Z. Shor, "Minimization Methods for Non-Differentiable Functions", Springer 1985, section 3.5 (r-algorithm
with a dilation of 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats

FIRST_STEP = 0.2
"""Length of the first step, as a share of the first coordinate."""
AGAIN = 0.06
"""The same where a row starts anew."""
LONGER, SHORTER = 1.2, 0.8
"""What a step is multiplied by behind one that helped, and one that did not."""
PATIENCE = 5
"""Steps without a better point behind which a row starts anew."""
BORROW_EVERY = 4
"""Steps behind which rows look at their neighbours."""
BORROW_GAIN = 0.05
"""By how much more a neighbour must have reached, as a share."""


class Ascent:
    """Points of all rows: `prices` is where to look next, `best_at` the best point and `best` its value."""

    def __init__(self, prices: Floats) -> None:
        rows, size = prices.shape
        self.prices, self.point, self.best_at = prices, prices, prices
        self.value, self.best = np.full(rows, -np.inf), np.full(rows, -np.inf)
        self.slope = self.best_slope = np.zeros_like(prices)
        self.space = np.tile(np.eye(size), (rows, 1, 1))
        self.step = FIRST_STEP * np.maximum(np.abs(prices[:, 0]), 1e-9)
        self.fails = np.zeros(rows, dtype=np.int64)
        self.jumps = np.ones(rows, dtype=np.bool_)
        self.turn = 0

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Forget the other rows."""
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                setattr(self, name, values[rows])

    def learn(self, value: Floats, slope: Floats) -> None:
        """Take the values at `prices` and their subgradients, and choose where to look next."""
        turned = np.einsum("rij,ri->rj", self.space, slope - self.slope)
        length = np.linalg.norm(turned, axis=1)
        across = (
            np.where((length > 1e-12) & ~self.jumps, 1 / np.maximum(length, 1e-12), 0.0)[:, None] * turned
        )
        self.space = self.space - np.einsum("rij,rj,rk->rik", self.space, across, across) / 2
        self.step = self.step * np.where(value > self.value, LONGER, SHORTER)
        took = self.jumps & (value > self.best)
        stays = self.jumps & ~took & np.isfinite(self.value)
        self._begin(took & (self.turn > 0), FIRST_STEP)
        self.point = np.where(stays[:, None], self.point, self.prices)
        self.value = np.where(stays, self.value, value)
        self.slope = np.where(stays[:, None], self.slope, slope)
        better = self.value > self.best
        self.fails = np.where(better, 0, self.fails + 1)
        self.best_at = np.where(better[:, None], self.point, self.best_at)
        self.best_slope = np.where(better[:, None], self.slope, self.best_slope)
        self.best = np.maximum(self.best, self.value)
        again = self.fails >= PATIENCE
        self.point = np.where(again[:, None], self.best_at, self.point)
        self.value = np.where(again, self.best, self.value)
        self.slope = np.where(again[:, None], self.best_slope, self.slope)
        self._begin(again, AGAIN)
        self.turn += 1
        self._move()

    def _begin(self, rows: NDArray[np.bool_], share: float) -> None:
        """The space of some rows as at first."""
        self.space[rows] = np.eye(self.space.shape[1])
        self.step[rows] = share * np.maximum(np.abs(self.prices[rows, 0]), 1e-9)
        self.fails[rows] = 0

    def _move(self) -> None:
        along = np.einsum("rij,ri->rj", self.space, self.slope)
        size = np.linalg.norm(along, axis=1)
        along = along * (self.step / np.where(size > 1e-12, size, np.inf))[:, None]
        self.prices = self.point + np.einsum("rij,rj->ri", self.space, along)
        self.jumps = np.zeros(len(self.best), dtype=np.bool_)
        if self.turn % BORROW_EVERY == 0 and len(self.best) > 1:
            rows = np.arange(len(self.best))
            sides = np.clip(np.stack([rows - 1, rows + 1]), 0, len(rows) - 1)
            richer = np.take_along_axis(sides, np.argmax(self.best[sides], axis=0)[None], axis=0)[0]
            self.jumps = self.best[richer] > self.best + BORROW_GAIN * np.abs(self.best)
            self.prices = np.where(self.jumps[:, None], self.best_at[richer], self.prices)
