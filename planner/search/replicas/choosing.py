"""Choose which pipelines run side by side, and what each gets of the batch, among some candidates."""

from __future__ import annotations

from collections.abc import Sequence

from formulations import replica_mix, replica_mix_cp
from formulations.options import SolveOptions
from formulations.replica_mix import ReplicaMix, ReplicaMixData
from planner.data.problem import Problem
from planner.search.replicas.templates import Candidate

MOST_PROGRAMS = 40
"""Programs among which the time that is left is divided."""


def choose_mix(
    problem: Problem,
    candidates: Sequence[Candidate],
    most_pipelines: int,
    latest_ms: float,
    left_s: float | None,
) -> ReplicaMix | None:
    """The mix of at most so many pipelines that ends first, without what they exchange.

    None where none is found that ends before `latest_ms`. `left_s` is the time that is left [s], None without
    a limit.
    """
    options = problem.options
    data = ReplicaMixData(
        tuple(candidate.template for candidate in candidates),
        tuple(node_class.num_chips for node_class in problem.cluster.classes),
        problem.workload.global_batch_size,
        most_pipelines,
        latest_ms,
    )
    solver_options = SolveOptions(
        solver=options.solver,
        gap=0.0,
        seed=options.seed,
        time_limit_s=None if left_s is None else left_s / MOST_PROGRAMS,
    )
    if options.solver == "cp_sat":
        return replica_mix_cp.solve(data, solver_options)
    return replica_mix.solve(data, solver_options)
