"""The integer twin of `replica_mix`: the same counts, solved by CP-SAT.

Sets       j in J                        templates
           c in C                        node classes
Data       as in `replica_mix`; all of it is whole, so that nothing is rounded
Variables  y[j]   whole, 0 .. U[j]       copies of j
           x[j]   whole, 0 .. M[j] U[j]  micro-batches of all copies of j together
Model      max  sum_j b[j] x[j]
           s.t. sum_j a[j,c] y[j] <= N[c]           for all c     (chips)
                x[j] <= M[j] y[j]                   for all j     (deadline)
                sum_j b[j] x[j] <= S                              (batch)
                sum_j y[j] <= G                                   (pipelines)
Size       2 |J| integers, |J| + |C| + 2 rows.
Exact      as `replica_mix`, with which it agrees on the deadline.
Leaves out what `replica_mix` leaves out.
Source     as `replica_mix`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from formulations import solvers
from formulations.interrupts import ctrl_c_waits
from formulations.options import SolveOptions
from formulations.replica_mix import (
    Counts,
    ReplicaMix,
    ReplicaMixData,
    earliest,
    most_copies,
    most_microbatches,
)
from planner.errors import SolverError

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Choices = tuple[list[Any], list[Any]]


def build(data: ReplicaMixData, deadline_ms: float) -> tuple[cp_model.CpModel, Choices]:
    """The program of one deadline."""
    with ctrl_c_waits():
        from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    copies = [most_copies(data, template) for template in data.templates]
    most = [most_microbatches(template, deadline_ms) for template in data.templates]
    y = [model.new_int_var(0, count, f"y_{j}") for j, count in enumerate(copies)]
    x = [model.new_int_var(0, copies[j] * count, f"x_{j}") for j, count in enumerate(most)]
    model.maximize(sum(template.sequences * x[j] for j, template in enumerate(data.templates)))
    add_chips(model, data, y)
    add_deadline(model, most, (y, x))
    add_batch(model, data, x)
    add_pipelines(model, data, y)
    return model, (y, x)


def add_chips(model: cp_model.CpModel, data: ReplicaMixData, y: list[Any]) -> None:
    """No class gives more chips than it has."""
    for c, available in enumerate(data.available):
        taken = sum(template.chips[c] * y[j] for j, template in enumerate(data.templates))
        model.add(taken <= available).with_name(f"chips_{c}")


def add_deadline(model: cp_model.CpModel, most: list[int], var: Choices) -> None:
    """No copy gets more micro-batches than it finishes by the deadline."""
    y, x = var
    for j, count in enumerate(most):
        model.add(x[j] <= count * y[j]).with_name(f"deadline_{j}")


def add_batch(model: cp_model.CpModel, data: ReplicaMixData, x: list[Any]) -> None:
    """No sequence runs twice."""
    done = sum(template.sequences * x[j] for j, template in enumerate(data.templates))
    model.add(done <= data.sequences).with_name("batch")


def add_pipelines(model: cp_model.CpModel, data: ReplicaMixData, y: list[Any]) -> None:
    """No more pipelines run than may exchange their gradients."""
    model.add(sum(y) <= data.most_pipelines).with_name("pipelines")


def solve(data: ReplicaMixData, options: SolveOptions) -> ReplicaMix | None:
    """The mix that is done first; None where no mix runs the whole batch before the latest time."""

    options = replace(options, gap=0.0)

    def within(deadline_ms: float) -> Counts | None:
        model, (y, x) = build(data, deadline_ms)
        status, solver = solvers.solve_cp(model, options)
        if status == "infeasible" or (status != "optimal" and options.time_limit_s):
            return None
        if status != "optimal":
            raise SolverError(f"a mix was not proven: CP-SAT ended with {status}")
        return tuple(solver.value(v) for v in y), tuple(solver.value(v) for v in x)

    return earliest(data, within)
