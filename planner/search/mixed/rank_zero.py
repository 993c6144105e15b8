"""Prices of the pipeline of rank 0 where stages mix classes: no rank has quicker hops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.communication.replica_sync import ReplicaPlace, tied_embedding_s
from planner.cost.prices import Prices
from planner.data.problem import Problem
from planner.search.mixed.space import MixedSpace


def of_rank_zero(problem: Problem, prices: Prices, space: MixedSpace) -> Prices:
    """Prices of the pipeline of rank 0: hops that may stay in a host, a shared embedding at its best.

    Rank 0 of a stage and of the next share a host only where one holds a whole stage and a rank more.
    """
    send = prices.send_s.copy()
    degrees = space.table.degrees
    needed = space.table.stage_size + degrees.tensor_parallel * degrees.context_parallel
    for c, node_class in enumerate(problem.cluster.classes):
        inside = needed <= node_class.chips_per_node
        least = np.minimum(send[:, c, c], prices.send_inside_s[:, c])
        send[:, c, c] = np.where(inside, least, send[:, c, c])
    tied = np.zeros_like(prices.tied_sync_s)
    if problem.model.copies_embedding:
        for choice in np.flatnonzero(space.usable.any(axis=1)).tolist():
            tied[choice] = _least_tied_s(problem, space, choice)
    return replace(prices, send_s=send, tied_sync_s=tied)


def _least_tied_s(problem: Problem, space: MixedSpace, choice: int) -> float:
    """What sharing an embedding between the ends takes at least, wherever the ranks of both lie [s].

    Of the d ranks of the first stage some class holds d / |classes| or more, one after the other, so that
    some host holds half of them or as many as it can. Where that is more than half of what it can, the last
    stage of one of them lies on another host, and all of them share the adapters on the way there.
    """
    degrees, classes = space.table.degrees, np.flatnonzero(space.usable[choice]).tolist()
    tp, ranks = int(degrees.tensor_parallel[choice]), int(degrees.data_parallel[choice])
    chips = tp * int(degrees.context_parallel[choice])
    of_one_class = -(-ranks // len(classes))
    found = []
    for c in classes:
        held = problem.cluster.classes[c].chips_per_node // chips
        together = min(held, -(-of_one_class // 2))
        if 2 * together <= held:
            return 0.0
        first = ReplicaPlace(c, problem.cluster.hosts_of(c)[:1], chips, tp)
        for other in classes:
            last = ReplicaPlace(other, problem.cluster.hosts_of(other)[int(other == c) :][:1], chips, tp)
            if last.hosts:
                found.append(tied_embedding_s(problem, [(first, last)] * together))
    return min(found)
