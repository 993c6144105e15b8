"""By how much hops between two classes outlast what stages pay for any hop, and which are barred.

Walks charge each stage of shape k the least hop h[k] that it takes part in, once for each neighbour. A hop
forth and back between stages k of class a and l of class b takes 2 c[k, l], and

    2 c[k, l] >= h[k] + h[l] + min over k' of a, l' of b of (2 max(x[k', b], x[l', a]) - h[k'] - h[l'])

where x[k, b] <= c[k, l] is the least hop between k and any stage of class b; the minimum is no less than 0,
as h[k] <= x[k, b]. So walks that know the class of the stage behind count it whenever that is another one.

By (partial) of `formulations.pipeline_rows` with e = s + 1, of which A and Z are no less than t[s] + d[s],
and that no less than W[s, e], with q stages behind s

    T >= up[s] + t[s] + d[s] + (J + 1) W[s, e]
      >= sum_i t[i] + 2 c[s] + (J + 1) (t[s] + t[s + 1] + 2 c[s]),    J = floor((m - 2 - q) / 2), m >= q + 2

and for fewer micro-batches, by (window), the same with J = -1. Where that exceeds T with the least times of
two classes and the least of all stages together, no plan has such a hop there. Where sends block, c is a part
of the times, and the same holds with times that leave it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints, Places
from planner.search.meshes.shapes import Batch
from planner.tolerances import BOUND_TOL

WORTH_A_CLASS = 0.01
"""Share of the time of all stages that a change of class must add for walks to tell classes apart, which
takes them longer. A guess."""
LONGEST_MS = 1e300
"""In the place of a time that is not finite."""


@dataclass(frozen=True)
class Changes:
    """Hops between classes, which are numbered as they come; all are one where changes cost little."""

    node_class: Ints
    """[shape] number of its class."""
    more_ms: Floats
    """[class, class] what a change adds to a walk."""
    pair_ms: Floats
    """[class, class] least time of two stages and the hop between them, both ways."""
    send_ms: Floats
    """[class, class] least hop both ways."""
    sum_ms: float
    """Least time of all stages together, without hops."""

    def barred(self, num_microbatches: int, q: int, limit_ms: float) -> NDArray[np.bool_]:
        """[class, class] hops that no step within the limit has, q stages behind the one before the hop."""
        windows = (num_microbatches - 2 - q) // 2 + 1 if num_microbatches >= q + 2 else 0
        # Classes whose stages hold no layer anywhere take no time that is finite.
        least = self.sum_ms + self.send_ms + (windows * self.pair_ms if windows else 0.0)
        return np.asarray((least > limit_ms * (1 + BOUND_TOL)) & ~np.eye(len(least), dtype=np.bool_))


def list_changes(places: Places, batch: Batch) -> Changes:
    """Changes of class in pipelines of a batch."""
    listed, number = np.unique(batch.node_class, return_inverse=True)
    more, pair, send = np.zeros((3, len(listed), len(listed)))
    hop, cross = places.hop_ms, places.cross_ms
    time = np.minimum(*(stages.times_ms.min(axis=(1, 2)) for stages in (places.inner, places.first)))
    for a in range(len(listed)):
        for b in range(a):
            k, other = (np.flatnonzero(number == c) for c in (a, b))
            sends = 2 * np.maximum(cross[k, listed[b]][:, None], cross[other, listed[a]][None, :])
            more[a, b] = more[b, a] = max((sends - hop[k][:, None] - hop[other][None, :]).min(), 0.0)
            pair[a, b] = pair[b, a] = (sends + time[k][:, None] + time[other][None, :]).min()
            send[a, b] = send[b, a] = sends.min()
    sum_ms = _least_sum_ms(places)
    if more.max() <= WORTH_A_CLASS * min(sum_ms, LONGEST_MS):
        none = np.zeros((1, 1))
        return Changes(np.zeros(len(number), dtype=np.int64), none, none, none, 0.0)
    return Changes(number.ravel(), more, pair, send, sum_ms)


def _least_sum_ms(places: Places) -> float:
    """Least time of all stages together, all layers at the best rate of any; without hops."""
    layers = places.inner.times_ms.shape[2] - 1
    n = np.arange(1, layers + 1)
    rates = [float((one.times_ms[:, :, 1:] / n).min()) for one in (places.inner, places.first)]
    return min(rates) * float(layers)
