"""Whether any mix of pipelines runs the batch by a deadline: prices of chips against all pipelines.

For a deadline the prices of `formulations.chip_prices` are raised until either all chips together are worth
the batch, which fractions of the pipelines found then do, or no chain is worth more than its chips: what the
chips are worth is less than the batch, and no mix is done in time. Several pipelines exchange their gradients
after that (`planner.search.replicas.space.exchange_floor_s`), which comes off the deadline.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from formulations import chip_prices
from formulations.chip_prices import ChipPricesData
from formulations.options import SolveOptions
from planner.cost.prices import Floats
from planner.data.problem import Problem
from planner.search.replicas.chains import Chains
from planner.search.replicas.paths import Column
from planner.search.replicas.pricing import Pricing
from planner.search.replicas.space import Shared, exchange_floor_s
from planner.units import MS

ROUNDS = 60
"""Rounds of prices after which a deadline counts as reachable."""
HALVINGS = 8
"""Halvings of the interval in which the bound lies."""
NEARLY = 0.97
"""Share of its chips' worth at which a chain may be of use in whole numbers."""
ENOUGH = 30
"""Such chains that are enough."""
DOUBLINGS = 12
"""Doublings of a time in which any chains are looked for."""
SLACK = 1e-6
"""Relative shortage of the batch below which prices are not raised."""
NEAR = 1e-3
"""Relative width of that interval at which it is narrow enough."""


class Mixes:
    """Bounds on mixes, and the chains that the bounds were found with."""

    def __init__(self, problem: Problem, chains: Chains, is_up: Callable[[], bool] = lambda: False) -> None:
        self.problem, self.chains = problem, chains
        self.pricing = Pricing(chains, is_up)
        self.is_up = is_up
        self.available = tuple(node_class.num_chips for node_class in problem.cluster.classes)
        self.exchange_ms = exchange_floor_s(problem, 2) / MS
        self.columns: dict[Shared, list[Column]] = {}
        self.looks = 0

    @property
    def shared(self) -> list[Shared]:
        """Every choice of what the pipelines of a plan share."""
        return list(dict.fromkeys(kind.shared for kind in self.chains.kinds))

    def bound_s(self, least_s: float, most_s: float) -> float:
        """What no mix of two or more pipelines undercuts, looked for between two times [s]."""
        return min((self._bound_of_s(shared, least_s, most_s) for shared in self.shared), default=most_s)

    def reachable_s(self, least_s: float) -> float:
        """A time by which fractions of some chains run the batch [s]: chains where there is no plan."""
        time_s = max(least_s, 1e-3)
        for _ in range(DOUBLINGS):
            if self.is_up() or not all(self.misses(shared, time_s) for shared in self.shared):
                break
            time_s *= 2
        return time_s

    def _bound_of_s(self, shared: Shared, least_s: float, most_s: float) -> float:
        if self.misses(shared, most_s):
            return most_s
        low, high = least_s, most_s
        for _ in range(HALVINGS):
            if high - low <= NEAR * high or self.is_up():
                break
            middle = (low + high) / 2
            low, high = (middle, high) if self.misses(shared, middle) else (low, middle)
        return low

    def misses(self, shared: Shared, deadline_s: float) -> bool:
        """Whether no mix of two or more pipelines is done by a deadline."""
        deadline_ms = deadline_s / MS - self.exchange_ms
        batch = self.problem.workload.global_batch_size * (1 - SLACK)
        kinds = [k for k, kind in enumerate(self.chains.kinds) if kind.shared == shared]
        columns = self.columns.setdefault(shared, [])
        for _ in range(ROUNDS):
            prices = self._prices(columns, deadline_ms)
            worth = float(np.dot(prices, self.available))
            if worth >= batch:
                return False
            prices = self._raised(prices, batch)
            self.looks += 1
            found = self.pricing.worthwhile(prices, deadline_ms, kinds)
            if found is None:
                return False
            if not found:
                return True
            columns += found
        return False

    def enrich(self, shared: Shared, deadline_s: float) -> None:
        """Find chains of every kind that are nearly worth their chips at the prices of a deadline."""
        columns = self.columns.setdefault(shared, [])
        deadline_ms = deadline_s / MS - self.exchange_ms
        kinds = [k for k, kind in enumerate(self.chains.kinds) if kind.shared == shared]
        prices = self._prices(columns, deadline_ms) * NEARLY
        found = self.pricing.worthwhile(prices, deadline_ms, kinds, ENOUGH)
        columns += found or []

    def _raised(self, prices: Floats, worth: float) -> Floats:
        """The same prices, the shortage of what all chips are worth spread over all of them alike."""
        missing = worth - float(np.dot(prices, self.available))
        speed = self._speed()
        raised: Floats = prices + missing * speed / float(np.dot(speed, self.available))
        return raised

    def _speed(self) -> Floats:
        """Layers a second of a chip of each class at its best, [class]."""
        best = np.full(len(self.available), 1e-12)
        for number, kind in enumerate(self.chains.kinds):
            times = self.pricing.paths.quick_times(number)[:, 1:]
            n = np.arange(1, times.shape[1] + 1)
            rate = (np.where(np.isfinite(times), n / times, 0.0)).max(axis=1) * kind.microbatch_size
            np.maximum.at(best, kind.node_class, rate / kind.tensor_parallel)
        return best

    def _prices(self, columns: list[Column], deadline_ms: float) -> Floats:
        """Prices of the program over the chains found, those worth something by the deadline."""
        done = [column.sequences(deadline_ms) for column in columns]
        rows = [j for j, v in enumerate(done) if v > 0]
        if not rows:
            return np.zeros(len(self.available))
        data = ChipPricesData(
            self.available, tuple(columns[j].chips for j in rows), tuple(done[j] for j in rows)
        )
        solver = "highs" if self.problem.options.solver == "cp_sat" else self.problem.options.solver
        return np.array(chip_prices.solve(data, SolveOptions(solver=solver, gap=0.0)))
