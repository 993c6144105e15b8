"""Pipelines of one shape a class to begin an annealing with: what the densest shapes of each class make."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.cost.prices import Floats
from planner.search.meshes.annealing import MeshTimes
from planner.search.meshes.balance import NOTHING, Balance
from planner.search.meshes.places import Ints
from planner.search.walks.relaxation import Found

SHAPES_OF_CLASS = 2
"""Shapes of each class: of the most replicas those that hold most layers a chip within a limit, for the time
that pipelines of as large ones take to fill. A guess."""
MOST_BLOCKS = 1000
"""Choices of shapes that are looked at, drawn at random where there are more. A guess."""
ORDERS = 4
"""Orders of each choice: the slowest class first, the fastest first, and random ones. A guess."""


def block_starts(times: MeshTimes, balance: Balance, limit_ms: float, number: int, seed: int) -> list[Found]:
    """The best of them by their step time, with balanced layers.

    Parameters
    ----------
    limit_ms
        Time of a stage within which shapes are held against each other.
    """
    random = np.random.default_rng(seed)
    longest = len(times.lengths) - 1
    listed = [
        (NOTHING,) * (longest - len(order)) + order
        for order in _orders(times, balance, limit_ms, random)
        if len(order) <= longest
    ]
    if not listed:
        return []
    orders = np.array(listed)
    layers, fits = balance.layers(orders, random)
    orders, layers = orders[fits], layers[fits]
    if not len(orders):
        return []
    values = times.values_ms(orders, layers)
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for i in np.argsort(values, kind="stable")[:number].tolist():
        real = orders[i] != NOTHING
        if np.isfinite(values[i]):
            found.setdefault(tuple(orders[i][real].tolist()), tuple(layers[i][real].tolist()))
    return list(found.items())


def _orders(
    times: MeshTimes, balance: Balance, limit_ms: float, random: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Shapes of the stages, each class in a row of its own with all its chips."""
    at = min(int(np.searchsorted(balance.limits_ms, limit_ms)), len(balance.limits_ms) - 1)
    held = balance.most[0, :, balance.most.shape[2] // 2, at]
    chips_of_class = _chips_of_class(times)
    rounds = times.num_microbatches + chips_of_class.sum() / times.chips - 1
    density = held / times.chips / rounds
    options = [_densest(times, density, c) for c in range(len(times.nodes))]
    total = int(np.prod([len(of_class) for of_class in options], dtype=np.float64))
    picked = np.arange(total) if total <= MOST_BLOCKS else random.choice(total, MOST_BLOCKS, replace=False)
    chips = chips_of_class.tolist()
    for number in picked.tolist():
        which = np.unravel_index(number, [len(of_class) for of_class in options])
        shapes = [of_class[int(j)] for of_class, j in zip(options, which, strict=True)]
        used = [k for k in shapes if k != NOTHING]
        if not used:
            continue
        slow_first = sorted(used, key=lambda k: (density[k], k))
        orders = [slow_first, slow_first[::-1]]
        orders += [random.permutation(used).tolist() for _ in range(ORDERS - len(orders))]
        for order in dict.fromkeys(map(tuple, orders)):
            yield tuple(
                k for k in order for _ in range(chips[int(times.node_class[k])] // int(times.chips[k]))
            )


def _densest(times: MeshTimes, density: Floats, c: int) -> list[int]:
    """No shape, and the densest of a class; with fewer replicas pipelines would have more stages."""
    mine = np.flatnonzero((times.node_class == c) & (density > 0))
    replicas = times.chips[mine] // times.tensor[mine]
    mine = mine[replicas == replicas.max(initial=0)]
    best = mine[np.argsort(-density[mine], kind="stable")[:SHAPES_OF_CLASS]]
    return [NOTHING, *best.tolist()]


def _chips_of_class(times: MeshTimes) -> Ints:
    chips = np.zeros(len(times.nodes), dtype=np.int64)
    chips[times.node_class] = times.per_node
    return chips * times.nodes
