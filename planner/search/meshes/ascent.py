"""Raise many concave functions at once, each row by its own cutting planes (`formulations.box_planes`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from formulations.box_planes import BoxPlanes
from planner.cost.prices import Floats
from planner.tolerances import NEXT_TO_NOTHING


class Ascent:
    """Points of all rows: `prices` is where to look next, `best_at` the best point and `best` its value."""

    def __init__(self, prices: Floats, most: Floats, wholes: tuple[tuple[int, ...], ...]) -> None:
        """The first price is free, the others lie between 0 and `most`; of each pair the sum is at most 1."""
        rows, size = prices.shape
        self.prices = np.clip(prices, np.where(np.arange(size) > 0, 0.0, -np.inf), most)
        # Prices go as far as that of a layer in one step, weights as far as they may.
        unit = np.where(np.isfinite(most)[None, :], most, np.maximum(np.abs(prices[:, :1]), NEXT_TO_NOTHING))
        self.best, self.best_at = np.full(rows, -np.inf), self.prices.copy()
        self.rise = np.full(rows, np.inf)
        """How much higher the functions may still be around their best points."""
        self._planes = [BoxPlanes(one, most, wholes) for one in unit]

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Forget the other rows."""
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                setattr(self, name, values[rows])
        self._planes = [planes for planes, kept in zip(self._planes, rows.tolist(), strict=True) if kept]

    def learn(self, value: Floats, slope: Floats, asked: NDArray[np.bool_] | None = None) -> None:
        """Take the values at `prices` and their subgradients, and choose where to look next.

        Rows that were not asked stay as they are.
        """
        rows = np.flatnonzero(np.ones(len(value)) if asked is None else asked)
        better = rows[value[rows] > self.best[rows]]
        self.best[better], self.best_at[better] = value[better], self.prices[better]
        for row in rows.tolist():
            planes = self._planes[row]
            self.prices[row] = planes.next_point(self.prices[row].copy(), float(value[row]), slope[row])
            self.rise[row] = planes.rise
