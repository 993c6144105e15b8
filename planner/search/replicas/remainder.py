"""What one pipeline of a mix may take at most: others hold the model as well.

At prices of chips at which all are worth the batch S, let w be the least that the chips of any pipeline are
worth: they hold all layers, with one micro-batch at a time, however long that takes. A mix has two pipelines
or more, all of them together worth S at most, so that none is worth more than S - w.

Of a kind of several numbers of replicas the fewest of them, times the least worth of one replica, bound all
numbers. The kind that says least is cut in two until it is one number.
"""

from __future__ import annotations

import heapq

import numpy as np

from planner.cost.prices import Floats
from planner.search.replicas.paths import Paths
from planner.tolerances import COUNT_TOL

ANY_TIME_MS = np.array([np.finfo(np.float64).max])
"""A time that all stages take whose layers fit."""


def most_worth(paths: Paths, price: Floats) -> float:
    """Most that the chips of a pipeline are worth that has another one beside it [sequences].

    Parameters
    ----------
    price
        [class] sequences that a chip is worth, all chips together the batch or less.
    """
    chains = paths.chains

    def least_worth(kind: int) -> float:
        of_replica = paths.least(kind).worth_of_chain(price, chains.num_layers, ANY_TIME_MS)
        return chains.replicas_of(kind)[0] * float(of_replica[0])

    kinds = [kind for size in chains.replicas if (kind := chains.kind_of(size, 1)) is not None]
    heap = [(least_worth(kind), kind) for kind in kinds]
    heapq.heapify(heap)
    while heap and not chains.kinds[heap[0][1]].is_single:
        _, kind = heapq.heappop(heap)
        for half in chains.halves(kind):
            heapq.heappush(heap, (least_worth(half), half))
    return chains.batch * (1 + COUNT_TOL) - (heap[0][0] if heap else 0.0)
