"""What pipelines have to share: the chips of each class, and the few stages of many chips that these make.

Every pipeline takes chips that are there, sum_s g[s] <= N[c] over its stages of class c. So does it with all
counts divided by any u and rounded down,

    sum_s floor(g[s] / u) <= floor(N[c] / u),

as the left side is whole and no more than N[c] / u. Where u does not divide N[c] that says what no price of
single chips can: of 12,800 chips, one stage of 10,240 is made, not one and a quarter.

References
----------
V. Chvatal, "Edmonds polytopes and a hierarchy of combinatorial problems", Discrete Mathematics 4, 1973.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.search.meshes.places import Ints
from planner.search.meshes.shapes import Batch

ROUNDED = 1
"""Units by which the chips of a class are counted beside single ones, those that leave most over. A guess."""


@dataclass(frozen=True)
class Shares:
    """What is shared, by kind: first the chips of each class, then units of some."""

    taken: Ints
    """[shape, kind] that a stage takes."""
    room: Ints
    """[kind] that there is."""


def list_shares(batch: Batch, chips_of_class: Sequence[int], rounded: int = ROUNDED) -> Shares:
    """Chips of each class, and the units by which most of them are left over."""
    room = np.array(chips_of_class, dtype=np.int64)
    chips, classes = batch.num_chips, batch.node_class
    taken = np.where(classes[:, None] == np.arange(len(room)), chips[:, None], 0)
    columns, more = [taken], [room]
    for c, there in enumerate(room.tolist()):
        sizes = np.unique(chips[(classes == c) & (chips <= there)])
        left = there % sizes
        units = sizes[np.argsort(-left, kind="stable")][:rounded]
        units = units[there % units > 0]
        columns.append(np.where(classes[:, None] == c, chips[:, None] // units, 0))
        more.append(there // units)
    return Shares(np.concatenate(columns, axis=1), np.concatenate(more))
