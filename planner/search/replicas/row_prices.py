"""Prices of chips over some rows: those of least worth in all, and those amid all that keep them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formulations import chip_prices
from formulations.chip_prices import ChipPricesData
from formulations.options import SolveOptions
from planner.cost.prices import Floats
from planner.data.problem import Problem
from planner.search.replicas.aims import Row
from planner.search.replicas.centres import centre

NO_ROOM = 1e-6
"""Share of the batch that rows must leave for prices to be looked for between them."""


class RowPrices:
    """Prices of the chips of one problem."""

    def __init__(self, problem: Problem, speed: Floats) -> None:
        """`speed` is layers a second of a chip of each class."""
        self.available = np.array([node_class.num_chips for node_class in problem.cluster.classes])
        self.batch, self.speed = problem.workload.global_batch_size, speed
        self.solver = "highs" if problem.options.solver == "cp_sat" else problem.options.solver

    def raised(self, rows: Sequence[Row]) -> tuple[Floats, float]:
        """Prices of least worth that keep the rows, raised to the batch by what classes compute.

        Beside them stands what chips were worth before.
        """
        prices = self._least(rows)
        worth = float(np.dot(prices, self.available))
        missing = max(self.batch - worth, 0.0)
        return prices + missing * self.speed / float(np.dot(self.speed, self.available)), worth

    def middle(self, rows: Sequence[Row]) -> tuple[Floats, float]:
        """Prices amid those that keep the rows, worth the batch, and the least that such may be worth.

        That is inf where they leave no room.
        """
        prices, all_speed = self._least(rows), self.speed * self.available
        shares, worth = prices * self.available, float(np.dot(prices, self.available))
        if worth >= self.batch * (1 - NO_ROOM):
            return prices * self.batch / worth, np.inf
        chips = np.array([row.chips for row in rows]).reshape(len(rows), len(self.available))
        asked = np.array([row.sequences for row in rows])
        scaled: Floats = chips / asked[:, None] * self.batch / self.available
        speeds: Floats = all_speed / all_speed.sum()
        amid = centre(scaled, shares / worth if rows else speeds, speeds)
        return amid * self.batch / self.available, worth

    def _least(self, rows: Sequence[Row]) -> Floats:
        """Prices of least worth in all that keep some rows."""
        if not rows:
            return np.zeros(len(self.available))
        data = ChipPricesData(
            tuple(self.available.tolist()),
            tuple(row.chips for row in rows),
            tuple(row.sequences for row in rows),
        )
        return np.array(chip_prices.solve(data, SolveOptions(solver=self.solver, gap=0.0)))
