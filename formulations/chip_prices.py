"""Prices of chips at which no pipeline found so far does more work than its chips are worth.

The dual of sharing chips and batch among pipelines in any fractions, by cutting planes: the pipelines are
found one by one (`planner.search.replicas.pricing`), and each adds a row.

Sets       c in C                        node classes
           j in J                        pipelines found
Data       N[c]          available       chips of class c
           a[j,c]        chips           chips of class c that j takes
           v[j]          sequences       sequences that j does by the deadline
Variables  z[c]          >= 0            price of a chip of class c [sequences]
Model      min  sum_c N[c] z[c]
           s.t. sum_c a[j,c] z[c] >= v[j]           for all j     (worth)
Size       |C| variables, |J| rows.
Exact      as the dual of the linear program over the pipelines found: its optimum is the most sequences
           that fractions of them do together. At prices where all chips are worth the batch, whatever they
           are, the pipeline that first runs what its chips are worth bounds every mix.
Leaves out whole numbers of copies and of micro-batches.
Source     cutting planes for the dual of a program whose columns are generated: J. E. Kelley, "The
           cutting-plane method for solving convex programs", Journal of SIAM 8(4), 1960.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulp

from formulations import solvers
from formulations.options import SolveOptions
from planner.errors import SolverError


@dataclass(frozen=True)
class ChipPricesData:
    """Chips of each class, and what the pipelines found take and do."""

    available: tuple[int, ...]
    chips: tuple[tuple[float, ...], ...]
    """[pipeline, class]"""
    sequences: tuple[float, ...]
    """[pipeline]"""


def build(data: ChipPricesData) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """The program over the pipelines found."""
    model = pulp.LpProblem("chip_prices", pulp.LpMinimize)
    z = [pulp.LpVariable(f"z_{c}", 0) for c in range(len(data.available))]
    model += pulp.lpSum(have * price for have, price in zip(data.available, z, strict=True))
    add_worth(model, data, z)
    return model, z


def add_worth(model: pulp.LpProblem, data: ChipPricesData, z: Sequence[pulp.LpVariable]) -> None:
    """No pipeline does more than its chips are worth."""
    for j, (chips, done) in enumerate(zip(data.chips, data.sequences, strict=True)):
        model += pulp.lpSum(a * price for a, price in zip(chips, z, strict=True) if a) >= done, f"worth_{j}"


def solve(data: ChipPricesData, options: SolveOptions) -> tuple[float, ...]:
    """Prices by class [sequences]."""
    model, _ = build(data)
    solution = solvers.solve(model, options)
    if solution.status != "optimal":
        raise SolverError(f"prices of chips were not found: {options.solver} ended with {solution.status}")
    return tuple(max(solution.values[f"z_{c}"], 0.0) for c in range(len(data.available)))
