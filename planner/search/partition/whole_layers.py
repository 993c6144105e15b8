"""What the slowest stage of any order and split takes at least, as layers are whole and no stage is idle.

Embedding, layers and head stand in a row, each as fast as on the class that is fastest for it. Every stage
holds some of them, at least one, and together they hold all, one behind the other. So the slowest stage takes
no less than that of the best cut of the row into as many parts: slower classes, recomputation and sends only
add, and memory only forbids.

Source     chain partitions: Bokhari 1988, IEEE Transactions on Computers 37, pp. 48-57.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from planner.cost.prices import Floats
from planner.search.partition.intervals import Intervals


class WholeLayers:
    """Least times of the slowest stage by rows of degrees, kept while the search comes back to them."""

    def __init__(self, intervals: Intervals) -> None:
        self.intervals = intervals
        self._of_row = lru_cache(maxsize=None)(lambda choice: slowest_of_parts(self._row(choice)))

    def slowest_s(self, choice: int, stages: int) -> float:
        """Of pipelines of so many stages, no more than pieces that can be put on them [s]."""
        return float(self._of_row(choice)[stages - 1])

    def _row(self, choice: int) -> Floats:
        """Least time of embedding, every layer and head, there and back [s]."""
        prices, used = self.intervals.prices, self.intervals.table.max_stages[choice] > 0

        def fastest(forward: Floats, backward: Floats) -> Floats:
            least: Floats = (forward[choice] + backward[choice]).sum(axis=-1)[..., used].min(axis=-1)
            return least

        layers = fastest(prices.layer_forward_s, prices.layer_backward_s)[self.intervals.kind_of_layer]
        embedding = fastest(prices.embedding_forward_s, prices.embedding_backward_s)
        head = fastest(prices.head_forward_s, prices.head_backward_s)
        return np.array([embedding, *layers, head])


def slowest_of_parts(row: Floats) -> Floats:
    """Least value of the largest part of a row cut into 1, 2, ... parts of some pieces each, [parts - 1]."""
    until = np.concatenate([[0.0], np.cumsum(row)])
    part = until[None, :] - until[:, None]
    part[np.tril_indices(len(until))] = np.inf
    slowest = part[0]
    found = [slowest[-1]]
    for _ in range(len(row) - 1):
        slowest = np.maximum(slowest[:, None], part).min(axis=0)
        found.append(slowest[-1])
    return np.array(found)
