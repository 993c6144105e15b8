"""What chips compute: at most, a bound that any plan of any launcher keeps, and in a plan."""

from __future__ import annotations

import numpy as np

from planner.cost.prices import Floats
from planner.cost.pricing import price
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.search.bound_data import bound_data
from planner.search.degrees import list_degrees
from planner.search.kinds import layer_kinds
from planner.search.replicas.chains import Chains

NO_SPEED = 1e-12
"""Layers a second of a class that holds no chain."""


def work_bound_s(problem: Problem) -> float | None:
    """What no plan of the problem undercuts, as its chips cannot compute the batch faster [s]."""
    free = problem.options.model_copy(update={"use": ()})
    table = list_degrees(problem.model_copy(update={"options": free}), odd=problem.target == "unrestricted")
    kinds = layer_kinds(problem.model)
    if len(table) == 0 or kinds is None:
        return None
    prices = price(problem, table.degrees)
    data = bound_data(problem.model.num_layers, kinds, prices, sends_block=not problem.stack.p2p_overlap)
    usable = table.max_stages > 0
    degrees = table.degrees
    chips = (degrees.tensor_parallel * degrees.context_parallel / degrees.microbatch_size)[:, None]
    work_s = np.where(usable, data.layer_s * chips, np.inf).min(axis=0)
    ends = np.where(usable, (data.embedding_s + data.head_s) / data.layer_s, np.inf).min()
    counts = np.array([node_class.num_chips for node_class in problem.cluster.classes], dtype=np.float64)
    rate = float((counts / work_s).sum())
    layers = float(data.num_layers.min()) + float(ends)
    after = float(np.where(usable, data.fixed_s + data.tail_s, np.inf).min())
    return problem.workload.global_batch_size * layers / rate + after


def work_of_chips(problem: Problem, plan: Plan) -> tuple[Floats, Floats]:
    """Layers times sequences of a plan, and its chips, by class."""
    cluster = problem.cluster
    done, chips = np.zeros(len(cluster.classes)), np.zeros(len(cluster.classes))
    for part in plan.pipeline_plans:
        sequences = part.data_parallel * part.microbatch_size * part.num_microbatches
        for stage in part.stages:
            names = [replica.node_class for replica in stage.replicas or ()]
            names = names or [stage.node_class] * stage.data_parallel
            for name, tensor_parallel in zip(names, stage.tensor_parallel_degrees, strict=True):
                c = cluster.class_index(name)
                done[c] += stage.num_layers * sequences / stage.data_parallel
                chips[c] += tensor_parallel * plan.context_parallel
    return done, chips


def speeds_of(chains: Chains) -> Floats:
    """Layers a second of a chip of each class at its best, [class]."""
    best = np.full(len(chains.available), NO_SPEED)
    for size in chains.replicas:
        number = chains.kind_of(size, 1)
        if number is not None:
            times = chains.least_times(number)[:, 1:]
            n = np.arange(1, times.shape[1] + 1)
            rate = np.where(np.isfinite(times), n / times, 0.0).max(axis=1) * size
            np.maximum.at(best, chains.node_class, rate / chains.tensor_parallel)
    return best
