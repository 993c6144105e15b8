"""Better orders of the classes of stages, by letting two stages change places.

With their classes the stages exchange their numbers of layers; single moves of layers (`cut_moves`) follow
where that comes near to the best order so far. Neighbours are tried before stages farther apart; the first
order that is better is gone on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from formulations.layer_partition_data import Cuts, LayerPartitionData, least_bottleneck, objective_ms
from planner.search.partition.cut_moves import improved

MOST_TRIES = 60
"""Orders of which layers are moved in one climb. A guess."""
NEAR = 1.05
"""How much longer than the best order one may take before layers are moved. A guess."""

Order = tuple[int, ...]


def climbed(
    data_of: Callable[[Order], LayerPartitionData],
    is_allowed: Callable[[Order], bool],
    order: Order,
    cuts: Cuts,
    is_up: Callable[[], bool] = lambda: False,
) -> tuple[Order, Cuts]:
    """The order and the cuts that changes of places lead to from others.

    Parameters
    ----------
    data_of
        The data of an order.
    is_allowed
        Whether an order may be.
    is_up
        Whether the time is up.
    """
    data = data_of(order)
    value_ms, tries, seen = objective_ms(data, cuts), 0, {order}
    going = True
    while going:
        going = False
        for one, other in _places(len(order)):
            changed = list(order)
            changed[one], changed[other] = changed[other], changed[one]
            if tuple(changed) in seen or not is_allowed(tuple(changed)):
                continue
            seen.add(tuple(changed))
            data = data_of(tuple(changed))
            begin = _start(data, cuts, one, other)
            if begin is None or objective_ms(data, begin) > NEAR * value_ms:
                continue
            moved, moved_ms = improved(data, begin)
            tries += 1
            if moved_ms < value_ms:
                order, cuts, value_ms, going = tuple(changed), moved, moved_ms, True
            if tries >= MOST_TRIES or is_up():
                return order, cuts
    return order, cuts


def _places(num_stages: int) -> Iterator[tuple[int, int]]:
    """Pairs of stages, neighbours first."""
    return ((s, s + by) for by in range(1, num_stages) for s in range(num_stages - by))


def _start(data: LayerPartitionData, cuts: Cuts, one: int, other: int) -> Cuts | None:
    """Cuts with the layers of two stages exchanged; those of the least bottleneck where these do not fit."""
    held = np.diff([0, *cuts, data.num_layers])
    held[[one, other]] = held[[other, one]]
    begin = tuple(np.cumsum(held)[:-1].tolist())
    return begin if np.isfinite(objective_ms(data, begin)) else least_bottleneck(data)[1]
