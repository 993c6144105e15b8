"""Divide the nodes of a cluster among several trainings that run side by side.

Every training has been planned beforehand on every share of nodes that it may get: an option is such a
plan, with the nodes it takes and the rate it reaches. Rates are relative, the largest is 1.

Sets       j in J                        trainings
           o in O[j]                     options of j
           c in C                        node classes
Data       r[j,o]        rate            rate of option o, times the weight of j
           d[j,o]        progress        share of the work of j done in a unit of time
           n[j,o,c]      nodes           nodes of class c that option o takes
           N[c]          available       nodes of class c
           f             floor           progress that each training must keep (second pass of "slowest")
Variables  x[j,o]        binary          j gets option o
           T             >= 0            progress of the slowest training
Model      min  - sum_{j,o} r[j,o] x[j,o]      ("sum"),   or   min  - T      ("slowest")
           s.t. sum_o x[j,o] = 1                    for all j     (one_option)
                sum_{j,o} n[j,o,c] x[j,o] <= N[c]   for all c     (nodes)
                sum_o d[j,o] x[j,o] >= T            for all j     (slowest)
                sum_o d[j,o] x[j,o] >= f            for all j     (floor)
Size       sum_j |O[j]| binaries, 2 |J| + |C| rows: two trainings on 8 + 8 nodes have 160 binaries.
Exact      over the options given. Where each option's rate is replaced by what its own proof allows
           at most, the optimum bounds every split of the nodes into such shares.
Leaves out trainings that share a node, and what they take from each other on the network.
Source     multiple-choice multi-dimensional knapsack; Kellerer, Pferschy, Pisinger, "Knapsack Problems"
           (2004), chapter 11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pulp

from formulations import solvers
from formulations.options import SolveOptions
from planner.errors import SolverError

Objective = Literal["sum", "slowest"]

FLOOR_SLACK = 1e-9
"""Relative progress that the second pass may give up to rounding."""


@dataclass(frozen=True)
class Option:
    """A training on some nodes.

    Parameters
    ----------
    rate, progress
        What counts for "sum" and for "slowest".
    nodes
        Nodes that it takes of every class.
    """

    rate: float
    progress: float
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class FleetSplitData:
    """Options of every training, and the nodes there are of every class."""

    options: tuple[tuple[Option, ...], ...]
    available: tuple[int, ...]
    objective: Objective = "sum"


@dataclass(frozen=True)
class FleetSplit:
    """The option that each training gets, and the value of the objective."""

    chosen: tuple[int, ...]
    value: float


Choices = list[list[pulp.LpVariable]]


def build(data: FleetSplitData, floor: float | None = None) -> tuple[pulp.LpProblem, Choices]:
    """The program; with a floor under every training the sum is maximised above it."""
    model = pulp.LpProblem("fleet_split", pulp.LpMinimize)
    x = [
        [pulp.LpVariable(f"x_{j}_{o}", cat="Binary") for o in range(len(options))]
        for j, options in enumerate(data.options)
    ]
    slowest = pulp.LpVariable("T", lowBound=0)
    if data.objective == "slowest" and floor is None:
        model += -slowest
        add_slowest(model, data, x, slowest)
    else:
        model += -pulp.lpSum(
            option.rate * var
            for options, row in zip(data.options, x, strict=True)
            for option, var in zip(options, row, strict=True)
        )
    add_one_option(model, x)
    add_nodes(model, data, x)
    if floor is not None:
        add_floor(model, data, x, floor)
    return model, x


def add_one_option(model: pulp.LpProblem, x: Choices) -> None:
    """Every training gets exactly one share of the nodes."""
    for j, row in enumerate(x):
        model += pulp.lpSum(row) == 1, f"one_option_{j}"


def add_nodes(model: pulp.LpProblem, data: FleetSplitData, x: Choices) -> None:
    """No class gives more nodes than it has."""
    for c, available in enumerate(data.available):
        taken = pulp.lpSum(
            option.nodes[c] * var
            for options, row in zip(data.options, x, strict=True)
            for option, var in zip(options, row, strict=True)
        )
        model += taken <= available, f"nodes_{c}"


def add_slowest(model: pulp.LpProblem, data: FleetSplitData, x: Choices, slowest: pulp.LpVariable) -> None:
    """No training progresses less than the slowest."""
    for j, row in enumerate(x):
        model += _progress(data, row, j) >= slowest, f"slowest_{j}"


def add_floor(model: pulp.LpProblem, data: FleetSplitData, x: Choices, floor: float) -> None:
    """No training falls below what the first pass has reached for the slowest."""
    for j, row in enumerate(x):
        model += _progress(data, row, j) >= floor, f"floor_{j}"


def _progress(data: FleetSplitData, row: list[pulp.LpVariable], j: int) -> pulp.LpAffineExpression:
    return pulp.lpSum(option.progress * var for option, var in zip(data.options[j], row, strict=True))


def extract(data: FleetSplitData, solution: solvers.Solution) -> FleetSplit:
    """Read the options out of a solution, and recompute the objective from them."""
    chosen = []
    for j, options in enumerate(data.options):
        (option,) = (o for o in range(len(options)) if solution.integer(f"x_{j}_{o}") == 1)
        chosen.append(option)
    picked = [options[o] for options, o in zip(data.options, chosen, strict=True)]
    value = sum(o.rate for o in picked) if data.objective == "sum" else min(o.progress for o in picked)
    return FleetSplit(tuple(chosen), value)


def solve(data: FleetSplitData, options: SolveOptions) -> FleetSplit | None:
    """The best split, proven; None where the nodes do not go round.

    Of splits with the same slowest training the one with the greatest sum is taken, in a second pass.
    """
    if not all(data.options):
        return None
    best = _solved(data, options, None)
    if best is None or data.objective == "sum":
        return best
    return _solved(data, options, best.value * (1 - FLOOR_SLACK)) or best


def _solved(data: FleetSplitData, options: SolveOptions, floor: float | None) -> FleetSplit | None:
    model, _ = build(data, floor)
    solution = solvers.solve(model, options)
    if solution.status == "infeasible":
        return None
    if solution.status != "optimal":
        raise SolverError(f"the split of nodes was not proven: {options.solver} ended with {solution.status}")
    return extract(data, solution)
