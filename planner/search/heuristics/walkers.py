"""Many plans that change at once in small random steps: what all annealing shares.

The loop, where it begins and what it hands over, stages that change places, and the step of pipelines of
whole stages. What a kind of plan decides, and where its times come from, is said where it is annealed.

References
----------
S. Kirkpatrick, C. D. Gelatt, M. P. Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from formulations.pipeline_rows import step_bound
from planner.cost.communication.hops import block_on_sends
from planner.cost.prices import Floats
from planner.search.walks.cheapest import Ints
from planner.simulate.alternating import alternating_stage_ends_s

T = TypeVar("T")
Bools = NDArray[np.bool_]

WALKERS = 48
LOOK_AT_CLOCK = 50
"""Steps between two looks at the clock."""


@dataclass(frozen=True)
class Cooling:
    """How long walkers go on, and what losses they take."""

    steps: int
    warmth: float
    """Loss that the first step keeps with probability 1/e, relative to the step time; it cools to nothing."""
    follow_every: int
    """Steps after which the last quarter of the walkers goes on from where the first quarter is."""


def step_ms(
    forward: Floats,
    backward: Floats,
    hops: Floats,
    reduction: Floats,
    follow: Floats,
    num_microbatches: int,
    most_waves: int,
    *,
    sends_block: bool,
    waits: bool = False,
) -> Floats:
    """Steps of pipelines of whole stages without what every plan adds, [walker, stage] -> [walker].

    Parameters
    ----------
    hops
        Sends behind the stages; 0 behind the last one.
    reduction, follow
        What follows the last backward of a stage, and what follows once all stages have met.
    most_waves
        Micro-batches and stages up to which steps come from events; beyond, from the pipeline rows.
    waits
        Whether stages wait for their sends between a backward and a forward.
    """
    m, wait = num_microbatches, 0.0 * hops
    if waits:
        wait[:, 1:] = hops[:, :-1]
    if sends_block:
        *seen, hops = block_on_sends(forward[..., None], backward[..., None], hops, p2p_overlap=False)
        forward, backward = (times[..., 0] for times in seen)
    if m + hops.shape[1] <= most_waves and not waits:
        end = (alternating_stage_ends_s(forward, backward, hops, m) + reduction).max(axis=1)
    else:
        end = step_bound(forward, backward, hops, m, reduction, wait, spans=False)
    step: Floats = end + follow.max(axis=1)
    return step


def for_all(starts: Sequence[T]) -> list[T]:
    """A start for every walker, each as often as the others."""
    return [starts[walker % len(starts)] for walker in range(WALKERS)]


def new_places(num_stages: int, one: Ints, other: Ints, swaps: Bools, shifts: Bools) -> Floats:
    """Places to sort the stages by, [walker, stage]: `one` and `other` change theirs, or `one` moves there.

    Parameters
    ----------
    one, other, swaps, shifts
        [walker] two stages, and whether they change places, or the first moves.
    """
    rows = np.arange(len(one))
    place = np.tile(np.arange(num_stages, dtype=np.float64), (len(one), 1))
    place[rows[swaps], one[swaps]], place[rows[swaps], other[swaps]] = other[swaps], one[swaps]
    place[rows[shifts], one[shifts]] = other[shifts] + np.where(other > one, 0.5, -0.5)[shifts]
    return place


def anneal_walkers(
    order: Ints,
    layers: Ints,
    values_ms: Callable[[Ints, Ints], Floats],
    change: Callable[[Ints, Ints], tuple[Ints, Ints, Bools]],
    cooling: Cooling,
    random: np.random.Generator,
    is_up: Callable[[], bool],
) -> list[tuple[Ints, Ints]]:
    """The best orders met with their layers, the best first, each order once.

    Parameters
    ----------
    order, layers
        Where the walkers begin, [walker, stage] and [walker, stage, ...].
    change
        One random change of every walker, and whether it is one that may be.
    """

    def changed(order: Ints, layers: Ints) -> tuple[Ints, Ints, Floats]:
        new_order, new_layers, legal = change(order, layers)
        new = np.full(len(legal), np.inf)
        if legal.any():
            new[legal] = values_ms(new_order[legal], new_layers[legal])
        return new_order, new_layers, new

    begun = values_ms(order, layers)
    best_order, best_layers, best = walk(order, layers, begun, changed, cooling, random, is_up)
    found: dict[tuple[int, ...], int] = {}
    for walker in np.argsort(best, kind="stable").tolist():
        if np.isfinite(best[walker]):
            found.setdefault(tuple(best_order[walker].tolist()), walker)
    return [(best_order[walker], best_layers[walker]) for walker in found.values()]


def walk(
    order: Ints,
    layers: Ints,
    value: Floats,
    change: Callable[[Ints, Ints], tuple[Ints, Ints, Floats]],
    cooling: Cooling,
    random: np.random.Generator,
    is_up: Callable[[], bool],
) -> tuple[Ints, Ints, Floats]:
    """The best that each walker has met: orders, layers and values [walker].

    Parameters
    ----------
    order, layers, value
        Where the walkers begin, and what that is worth; inf where it fits nowhere.
    change
        One random change of every walker, and its new values.
    is_up
        Whether the time is up.
    """
    best_order, best_layers, best = order.copy(), layers.copy(), value.copy()
    one_each = (-1, *(1,) * (layers.ndim - 1))
    for step in range(cooling.steps):
        if step % LOOK_AT_CLOCK == 0 and is_up():
            break
        new_order, new_layers, new = change(order, layers)
        least = float(best.min())
        warmth = cooling.warmth * (1 - step / cooling.steps) ** 2 * (least if np.isfinite(least) else 1.0)
        kept = new <= value - warmth * np.log1p(-random.random(len(value)))
        order = np.where(kept[:, None], new_order, order)
        layers = np.where(kept.reshape(one_each), new_layers, layers)
        value = np.where(kept, new, value)
        better = value < best
        best_order[better], best_layers[better] = order[better], layers[better]
        best = np.where(better, value, best)
        if step % cooling.follow_every == cooling.follow_every - 1:
            rank = np.argsort(value, kind="stable")
            ahead, behind = rank[: len(rank) // 4], rank[-(len(rank) // 4) :]
            order[behind], layers[behind], value[behind] = order[ahead], layers[ahead], value[ahead]
    return best_order, best_layers, best
