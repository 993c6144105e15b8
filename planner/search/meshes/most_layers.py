"""The most layers that pipelines can hold, however long a step takes: where that is too few there is no plan.

Layers behind a stage depend on nothing but what is left of the chips there, as each place has its own most
layers of every shape (`planner.search.meshes.places`). So stages are chosen from the last to the first, for
all chips that may be left at once: the least memory of a stage at a place counts, and chips in the units of
the walks, of which each stage takes no more than it has. Both only let more pipelines be, and the most over
all of them is no less than what any plan holds.
"""

from __future__ import annotations

import numpy as np

from planner.search.meshes.places import Ints
from planner.search.meshes.walks import MeshWalks

NONE_HELD = -(2**40)
"""Layers of pipelines that cannot be: far below none, whatever is added."""


def most_layers(walks: MeshWalks) -> Ints:
    """Most layers that pipelines hold, [number of stages]; -1 where there can be none."""
    source = walks.units.source
    at = {int(p) - 1: i for i, p in enumerate(walks.lengths)}
    most = np.full(len(walks.lengths), -1, dtype=np.int64)
    # By point; the last, a dummy, is where too few chips are left.
    held = np.append(np.zeros(len(source), dtype=np.int64), NONE_HELD)
    for q, place in enumerate(walks.place.tolist()):
        if q in at:
            with_first = held[source[-1]] + _of_groups(walks, walks.first.most[:, place], q)
            most[at[q]] = max(int(with_first.max()), -1)
        with_inner = held[source] + _of_groups(walks, walks.inner.most[:, place], q)
        held = np.append(with_inner.max(axis=1), NONE_HELD)
    return most


def _of_groups(walks: MeshWalks, most: Ints, behind: int) -> Ints:
    """Most layers of any shape of each group, [group], at a place with so many stages behind it."""
    usable = most > 0
    if walks.allowed is not None:
        usable = usable & walks.allowed[::-1][behind]
    held: Ints = np.where(usable, most, NONE_HELD)[walks.by_group]
    return np.asarray(np.maximum.reduceat(held, walks.group_starts))
