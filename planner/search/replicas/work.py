"""What the chips can compute at most: a bound that any plan of any launcher keeps."""

from __future__ import annotations

import numpy as np

from planner.cost.pricing import price
from planner.data.problem import Problem
from planner.search.bound_data import bound_data
from planner.search.degrees import list_degrees
from planner.search.kinds import layer_kinds


def work_bound_s(problem: Problem) -> float | None:
    """What no plan of the problem undercuts, as its chips cannot compute the batch faster [s]."""
    free = problem.options.model_copy(update={"use": ()})
    table = list_degrees(problem.model_copy(update={"options": free}))
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
