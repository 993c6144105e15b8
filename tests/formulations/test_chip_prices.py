"""Prices of chips by hand, across solvers, and against the program that they are the dual of."""

from __future__ import annotations

import numpy as np
import pulp
import pytest

from formulations import chip_prices, solvers
from formulations.chip_prices import ChipPricesData
from formulations.options import SolveOptions, SolverName


def worth(data: ChipPricesData, prices: tuple[float, ...]) -> float:
    return sum(have * price for have, price in zip(data.available, prices, strict=True))


def test_a_chip_is_worth_what_it_does_in_the_best_pipeline() -> None:
    """Class 0 alone does 3 a chip; one chip of each does 5 together, so that class 1 is worth 2."""
    data = ChipPricesData((4, 2), ((1.0, 0.0), (1.0, 1.0)), (3.0, 5.0))
    assert chip_prices.solve(data, SolveOptions(gap=0.0)) == pytest.approx((3.0, 2.0))


@pytest.mark.parametrize("seed", range(5))
def test_all_chips_are_worth_what_fractions_of_the_pipelines_do_together(seed: int) -> None:
    random = np.random.default_rng(seed)
    chips = random.integers(0, 4, (6, 3)) + np.eye(3, dtype=int)[random.integers(0, 3, 6)]
    done = random.uniform(1, 9, 6)
    data = ChipPricesData(
        tuple(random.integers(2, 20, 3).tolist()),
        tuple(tuple(float(a) for a in row) for row in chips),
        tuple(done.tolist()),
    )
    model = pulp.LpProblem("shares", pulp.LpMinimize)
    x = [pulp.LpVariable(f"x_{j}", 0) for j in range(6)]
    model += -pulp.lpSum(v * share for v, share in zip(data.sequences, x, strict=True))
    for c, have in enumerate(data.available):
        model += pulp.lpSum(int(chips[j, c]) * x[j] for j in range(6)) <= have, f"chips_{c}"
    most = solvers.solve(model, SolveOptions(gap=0.0)).objective
    assert most is not None
    names: tuple[SolverName, ...] = ("highs", "scip", "cbc")
    for solver in names:
        prices = chip_prices.solve(data, SolveOptions(solver=solver, gap=0.0))
        assert worth(data, prices) == pytest.approx(-most, rel=1e-6), solver
