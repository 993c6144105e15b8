"""What the hops between classes take at least, as a pipeline must join its classes to one another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats


def joining_hop_s(
    hop_s: Floats, room: NDArray[np.int64], stages: NDArray[np.int64], must: NDArray[np.bool_]
) -> Floats:
    """No order has all its hops between classes below this one, [pair]; 0 where one class may hold all [s].

    Take the hops between classes from the least on. Classes that those so far join, one by way of another,
    are a set that no pipeline leaves by a shorter hop. As long as no set holds all stages and all classes
    that must have one, a pipeline has a hop that is no shorter than the next.

    Parameters
    ----------
    hop_s
        [pair, class, class]
    room
        [pair, class] stages at most.
    stages
        [pair] stages of the pipeline.
    must
        [pair, class] whether a class has a stage in every order.

    References
    ----------
    The largest edge of a least spanning tree: Kruskal 1956, Proc. American Mathematical Society 7, pp. 48-50.
    """
    longest = np.zeros(len(stages))
    num_classes = room.shape[1]
    alone = (room >= stages[:, None]) & (must.sum(axis=1)[:, None] - must <= 0)
    several = np.flatnonzero(~alone.any(axis=1))
    if not len(several) or num_classes == 1:
        return longest
    hop_s, room, stages, must = hop_s[several], room[several], stages[several], must[several]
    one, other = np.triu_indices(num_classes, 1)
    joined_s = np.minimum(hop_s[:, one, other], hop_s[:, other, one])
    joined_s = np.where((room[:, one] > 0) & (room[:, other] > 0), joined_s, np.inf)
    rows, found = np.arange(len(several)), np.zeros(len(several))
    set_of = np.tile(np.arange(num_classes), (len(several), 1))
    waits = np.ones(len(several), dtype=np.bool_)
    for edge in np.argsort(joined_s, axis=1, kind="stable").T:
        length_s = joined_s[rows, edge]
        here, there = set_of[rows, one[edge]], set_of[rows, other[edge]]
        join = np.isfinite(length_s)
        set_of = np.where((set_of == there[:, None]) & join[:, None], here[:, None], set_of)
        inside = set_of == here[:, None]
        holds = ((room * inside).sum(axis=1) >= stages) & (inside | ~must).all(axis=1)
        found[waits & join] = length_s[waits & join]
        waits &= ~(holds & join)
        if not waits.any():
            break
    longest[several] = found
    return longest


def least_sends(
    hop_s: Floats,
    limits: tuple[NDArray[np.int64], NDArray[np.int64]],
    available: NDArray[np.bool_],
    stages: NDArray[np.int64],
) -> tuple[Floats, Floats]:
    """Least time of the longest hop where no class holds all stages, else 0, and of all hops [pair].

    Stages need as many classes at least as the roomiest need to hold them, and one fewer hops between them.
    """
    num_classes, (fewest, most) = available.shape[1], limits
    pair = available[:, :, None] & available[:, None, :]
    between = pair & ~np.eye(num_classes, dtype=np.bool_)
    least = np.where(pair, hop_s, np.inf).min(axis=(1, 2))
    cross = np.where(between, hop_s, np.inf).min(axis=(1, 2))
    room = np.cumsum(np.sort(most, axis=1)[:, ::-1], axis=1)
    changes = np.minimum((room < stages[:, None]).sum(axis=1), num_classes - 1)
    cross = np.where((changes > 0) & np.isfinite(cross), cross, 0.0)
    longest = np.maximum(joining_hop_s(hop_s, most, stages, fewest > 0), cross)
    sends = changes * cross + np.maximum(stages - 1 - changes, 0) * np.where(stages > 1, least, 0.0)
    return longest, sends + np.where(longest > cross, longest - np.maximum(cross, least), 0.0)


def slow_hop_bounds(
    num_layers: Floats,
    layer: Floats,
    used: NDArray[np.bool_],
    rate: Floats,
    cross_s: Floats,
    num_microbatches: NDArray[np.int64],
    stages: NDArray[np.int64],
) -> Floats:
    """(hop) for one hop between classes: its two stages hold few layers, the others no more than T / m [s].

    With R the layers a second of all stages, rho of the fastest pair: L <= (R - rho) T / m +
    (T / (J + 2) - 2 c) / t, t the fastest layer; solved for T. A slower pair takes less off R but holds
    less itself, so rho of the fastest pair would take off too much: the slowest pair's is used.

    Times [group, class] of a layer, where `used`; `rate` in layers a second of all stages of each class;
    sends, micro-batches and stages [group]. 0 where there is no such hop, or the row does not hold.
    """
    fastest = layer.min(axis=1)
    slowest = np.sort(np.where(used, layer, 0.0), axis=1)[:, ::-1][:, :1]
    rho = 2 / np.where(slowest[:, 0] > 0, slowest[:, 0], np.inf)
    windows = np.maximum((num_microbatches - 1 - stages) // 2, 0) + 2
    applies = (used.sum(axis=1) > 1) & (num_microbatches >= stages + 1)
    pace = (rate.sum(axis=1) - rho) / num_microbatches + 1 / (windows * fastest)
    pace = np.where(applies, pace, np.inf)
    bound: Floats = (num_layers + 2 * cross_s / fastest) / pace
    return bound
