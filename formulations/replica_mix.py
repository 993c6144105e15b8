"""Choose pipelines and their shares of the batch so that the last one is done as early as possible.

Pipelines come as templates; how many copies of each run side by side, and how many micro-batches each of them
gets, is decided. The deadline D is found by bisection over all times at which some template finishes some
number of micro-batches: for each D a program asks how many sequences can be done by then.

Sets       j in J                        templates
           c in C                        node classes
Data       a[j,c]        chips           chips of class c that a copy of j takes
           b[j]          sequences       sequences of a micro-batch, over all replicas of a copy; S need be no
                                         multiple of it
           t[j,m]        times_ms        time of m micro-batches on a copy, not falling in m [ms]
           M[j]          most            micro-batches that a copy finishes by D: most m with t[j,m] <= D
           U[j]          copies          min_c floor(N[c] / a[j,c]): copies that the cluster can hold
           N[c]          available       chips of class c
           S             sequences       sequences of a step
           G             most_pipelines  most copies in all, as all of them exchange their gradients
           E             latest_ms       D < E: mixes that are done later are of no use
Variables  y[j]   whole, 0 .. U[j]       copies of j
           x[j]   whole, >= 0            micro-batches of all copies of j together
Model      min  - sum_j b[j] x[j]
           s.t. sum_j a[j,c] y[j] <= N[c]           for all c     (chips)
                x[j] <= M[j] y[j]                   for all j     (deadline)
                sum_j b[j] x[j] <= S                              (batch)
                sum_j y[j] <= G                                   (pipelines)
           D is in reach if the optimum is -S: the batch is kept exactly. A program is solved to its optimum,
           whatever gap is asked for, as one that stops short of it would not tell.
Size       2 |J| integers, |J| + |C| + 2 rows; about log2 of all times as many programs.
Exact      for the templates given: their micro-batches are dealt evenly to the copies, and no copy gets more
           than ceil(x[j] / y[j]) <= M[j]. Where t bounds the referee's time of a pipeline from below,
           D bounds the step of every mix of these templates, as what pipelines exchange only adds to it.
Leaves out the exchange of gradients between pipelines, and where on the hosts the copies lie.
Source     a deadline by bisection: Hochbaum and Shmoys, "Using dual approximation algorithms for scheduling
           problems", Journal of the ACM 34(1), 1987; each deadline is a knapsack in whole copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import pulp

from formulations import solvers
from formulations.options import SolveOptions
from planner.errors import SolverError


@dataclass(frozen=True)
class Template:
    """A pipeline that may run in several copies."""

    chips: tuple[int, ...]
    """Chips of each class that a copy takes."""
    sequences: int
    """Sequences of a micro-batch over all its replicas."""
    times_ms: tuple[float, ...]
    """Time of 1, 2, ... micro-batches, not falling [ms]."""


@dataclass(frozen=True)
class ReplicaMixData:
    """Templates, the chips of each class, and the sequences of a step."""

    templates: tuple[Template, ...]
    available: tuple[int, ...]
    sequences: int
    most_pipelines: int = 1_000_000
    """No limit by default."""
    latest_ms: float = float("inf")
    """A mix that is not done before is not looked for."""


@dataclass(frozen=True)
class ReplicaMix:
    """Copies of each template, micro-batches of all of them together, and when the last is done [ms]."""

    copies: tuple[int, ...]
    microbatches: tuple[int, ...]
    deadline_ms: float


Counts = tuple[tuple[int, ...], tuple[int, ...]]
"""Copies and micro-batches by template."""


def most_copies(data: ReplicaMixData, template: Template) -> int:
    """U[j]."""
    return min(
        (have // take for have, take in zip(data.available, template.chips, strict=True) if take), default=0
    )


def most_microbatches(template: Template, deadline_ms: float) -> int:
    """M[j]."""
    return bisect_right(template.times_ms, deadline_ms)


Choices = tuple[list[pulp.LpVariable], list[pulp.LpVariable]]


def build(data: ReplicaMixData, deadline_ms: float) -> tuple[pulp.LpProblem, Choices]:
    """The program of one deadline."""
    model = pulp.LpProblem("replica_mix", pulp.LpMinimize)
    numbers = range(len(data.templates))
    y = [pulp.LpVariable(f"y_{j}", 0, most_copies(data, data.templates[j]), cat="Integer") for j in numbers]
    x = [pulp.LpVariable(f"x_{j}", 0, cat="Integer") for j in numbers]
    model += -pulp.lpSum(template.sequences * x[j] for j, template in enumerate(data.templates))
    add_chips(model, data, y)
    add_deadline(model, data, (y, x), deadline_ms)
    add_batch(model, data, x)
    add_pipelines(model, data, y)
    return model, (y, x)


def add_chips(model: pulp.LpProblem, data: ReplicaMixData, y: list[pulp.LpVariable]) -> None:
    """No class gives more chips than it has."""
    for c, available in enumerate(data.available):
        taken = pulp.lpSum(template.chips[c] * y[j] for j, template in enumerate(data.templates))
        model += taken <= available, f"chips_{c}"


def add_deadline(model: pulp.LpProblem, data: ReplicaMixData, var: Choices, deadline_ms: float) -> None:
    """No copy gets more micro-batches than it finishes by the deadline."""
    y, x = var
    for j, template in enumerate(data.templates):
        model += x[j] <= most_microbatches(template, deadline_ms) * y[j], f"deadline_{j}"


def add_batch(model: pulp.LpProblem, data: ReplicaMixData, x: list[pulp.LpVariable]) -> None:
    """No sequence runs twice."""
    done = pulp.lpSum(template.sequences * x[j] for j, template in enumerate(data.templates))
    model += done <= data.sequences, "batch"


def add_pipelines(model: pulp.LpProblem, data: ReplicaMixData, y: list[pulp.LpVariable]) -> None:
    """No more pipelines run than may exchange their gradients."""
    model += pulp.lpSum(y) <= data.most_pipelines, "pipelines"


def solve(data: ReplicaMixData, options: SolveOptions) -> ReplicaMix | None:
    """The mix that is done first; None where no mix runs the whole batch before the latest time.

    A time limit holds for each program: one that it cuts counts as if no mix were done by then, so that the
    mix found runs the whole batch but need not be the first to do so.
    """

    options = replace(options, gap=0.0)

    def within(deadline_ms: float) -> Counts | None:
        model, _ = build(data, deadline_ms)
        solution = solvers.solve(model, options)
        if solution.status == "infeasible" or (solution.status != "optimal" and options.time_limit_s):
            return None
        if solution.status != "optimal":
            raise SolverError(f"a mix was not proven: {options.solver} ended with {solution.status}")
        numbers = range(len(data.templates))
        copies = tuple(solution.integer(f"y_{j}") for j in numbers)
        return copies, tuple(solution.integer(f"x_{j}") for j in numbers)

    return earliest(data, within)


def earliest(data: ReplicaMixData, within: Callable[[float], Counts | None]) -> ReplicaMix | None:
    """Bisect over the times at which a template finishes; `within` does most sequences by one of them."""
    found = {time for template in data.templates for time in template.times_ms}
    times = sorted(time for time in found if time < data.latest_ms)

    def whole(deadline_ms: float) -> Counts | None:
        counts = within(deadline_ms)
        if counts is None:
            return None
        done = sum(t.sequences * x for t, x in zip(data.templates, counts[1], strict=True))
        return counts if done == data.sequences else None

    best = whole(times[-1]) if times else None
    if best is None:
        return None
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        counts = whole(times[middle])
        low, high, best = (middle + 1, high, best) if counts is None else (low, middle, counts)
    return ReplicaMix(*best, times[high])
