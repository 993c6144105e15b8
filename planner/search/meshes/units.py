"""In what units walks count the chips that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from planner.search.meshes.places import Ints
from planner.search.meshes.shapes import Batch


@dataclass(frozen=True)
class Units:
    """In what units the chips of each class are counted, and the lattice of what is left of them."""

    step: Ints
    """[class] chips of a unit."""
    taken: Ints
    """[shape] units that a stage takes."""
    source: Ints
    """[point, group] point before a stage; the last, a dummy, where too little is left."""
    group: Ints
    """[shape] shapes of one class that take as many units."""
    exact: bool
    """Whether all chips are counted."""


def count_units(batch: Batch, chips_of_class: Sequence[int], most_points: int) -> Units:
    """The finest units with at most so many points."""
    num_classes = len(chips_of_class)
    chips, classes = batch.num_chips, batch.node_class
    smallest = np.array(
        [
            gcd(*(int(g) for g in chips[classes == c])) if (classes == c).any() else 1
            for c in range(num_classes)
        ]
    )
    used = np.array([bool((classes == c).any()) for c in range(num_classes)])
    step = np.where(used, np.maximum(smallest, 1), np.array(chips_of_class) + 1)
    room = np.array(chips_of_class) // step
    exact = True
    while np.prod(room + 1.0) > most_points:
        finest = np.where(room > 0, step, step.max() * 2)
        step[int(np.argmin(finest))] *= 2
        room = np.array(chips_of_class) // step
        exact = False
    taken = chips // step[classes]
    keys = classes * (int(taken.max()) + 1) + taken
    listed, group = np.unique(keys, return_inverse=True)
    group_class, group_units = np.divmod(listed, int(taken.max()) + 1)
    sizes = room + 1
    radix = np.cumprod([1, *sizes[::-1]])[:-1][::-1]
    points = np.stack(np.unravel_index(np.arange(int(np.prod(sizes))), tuple(sizes)), axis=1)
    enough = points[:, group_class] >= group_units[None, :]
    before = np.arange(len(points))[:, None] - (radix[group_class] * group_units)[None, :]
    return Units(step, taken, np.where(enough, before, len(points)), group.ravel(), exact)
