"""Nodes of each class: what they cost, the problem on so many of them, how many a plan uses."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.data.changes import with_cluster, with_nodes
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.errors import InstanceError

Objective = Literal["cost", "energy"]
Counts = tuple[int, ...]


def weights(problem: Problem, objective: Objective, *, is_reach: bool) -> NDArray[np.float64]:
    """Price or power of a node of every class, [node_class]; `is_reach` where a step time is asked for."""
    asked = "--reach-step-s" if is_reach and objective == "cost" else f"--objective {objective}"
    key = {"cost": "price_usd_per_hour", "energy": "power_kw"}[objective]
    values = []
    for i, node_class in enumerate(problem.cluster.classes):
        value = getattr(node_class, key)
        if value is None and node_class.name not in problem.options.spare:
            raise InstanceError(
                f"class {node_class.name} has no {key}, which `{asked}` needs; add it",
                f"{problem.name}: cluster.classes[{i}]",
            )
        values.append(float(value or 0.0))
    return np.array(values)


def with_counts(problem: Problem, counts: Counts) -> Problem:
    """The problem on so many nodes of each class."""
    cluster = problem.cluster
    gone = [cluster.classes[c].name for c, n in enumerate(counts) if n == 0]
    for c in reversed(range(len(counts))):
        smaller = with_nodes(cluster, c, counts[c])
        assert smaller is not None, "at least one class keeps nodes"
        cluster = smaller
    spare = tuple(name for name in problem.options.spare if name not in gone)
    options = problem.options.model_copy(update={"spare": spare, "time_limit_s": None})
    return with_cluster(problem, cluster).model_copy(update={"options": options})


def used_nodes(problem: Problem, plan: Plan) -> Counts:
    """Nodes of each class that a plan uses."""
    working = {host for stage in plan.stages for _, _, hosts in stage.places for host in hosts}
    return tuple(
        sum(host in working for host in problem.cluster.hosts_of(c))
        for c in range(len(problem.cluster.classes))
    )
