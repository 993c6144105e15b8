"""What a stage may be at one place of a pipeline whose step keeps a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.brackets import PACE, SLOWEST, Brackets
from planner.search.meshes.lines import Lines
from planner.search.meshes.places import Ints
from planner.search.meshes.walks import MeshWalks

Bools = NDArray[np.bool_]

if TYPE_CHECKING:
    from planner.search.meshes.windows import Window


@dataclass(frozen=True)
class Choices:
    """Shapes and layers of a stage, arrays [choice], by ascending ticks; those alike count as one."""

    shape: Ints
    layers: Ints
    chips: Ints
    node_class: Ints
    ticks: Ints
    time: Floats
    most_time: Floats
    """The most of those that count as one."""
    most_longer: Floats
    """The most of their longer passes."""
    forward: Floats
    backward: Floats
    follow: Floats
    least_hop: Floats
    """Hop behind it, of both directions; the least of those that count as one."""
    most_hop: Floats
    reduce: Floats
    """Its reduction, if it is the first."""
    own_reduce: Floats
    """Its reduction wherever it is; the least of those that count as one."""
    most_reduce: Floats
    """The most of them."""
    number: Ints
    """[shape, layers] as which choice a stage counts; -1 for none."""
    behind: tuple[Ints, Ints] | None
    """[choice, row] fewest and most ticks behind it, in those of `planner.search.meshes.windows`."""

    def slow(self, brackets: Brackets) -> tuple[Bools, Bools]:
        """Whether any, and whether each, of those that count as one is among the slowest, [choice, row]."""
        time, longer = brackets.least(SLOWEST), brackets.least(PACE)
        any_is = (self.most_time[:, None] >= time) & (self.most_longer[:, None] >= longer)
        least_longer = np.maximum(self.forward, self.backward)[:, None]
        each_is = (self.time[:, None] >= time) & (least_longer >= longer)
        known = brackets.knows_slow()
        return np.asarray(any_is & known), np.asarray(each_is & known)

    def worth(self, paid: Floats) -> Floats:
        """Layers less the price of the shares, [row, choice]; `paid` is [row, shape]."""
        worth: Floats = self.layers - paid[:, self.shape]
        return worth


def list_choices(
    walks: MeshWalks,
    lines: Lines,
    q: int,
    limit_ms: float,
    tick_ms: float,
    window: Window | None = None,
    *,
    is_first: bool,
) -> Choices:
    """What keeps the row of its own work with q stages behind it, and is left in a window.

    Stages of one class, as many chips and as many ticks count as one that is best in all: that only lets more
    pipelines be.
    """
    batch, m, place = walks.batch, walks.num_microbatches, min(q, lines.times.shape[1] - 1)
    times = lines.times[:, place]
    n = np.arange(times.shape[1])
    usable = np.isfinite(times) & (n > 0)
    usable &= m * np.where(usable, times, 0.0) + lines.follow[:, place] <= limit_ms
    if walks.allowed is not None:
        usable &= walks.allowed[::-1][q][:, None]
    if window is not None:
        usable &= window.usable()
    shape, layers = np.nonzero(usable)
    time = times[shape, layers]
    forward = lines.forward[shape, place] * layers + lines.base_forward[shape, place]
    sends = lines.delay[shape, place]
    behind = sends * (1.0 if is_first else 0.5) * (q > 0)
    reduce = lines.reduce[shape, place, layers] * is_first
    ticks = ((time + sends + reduce) / tick_ms).astype(np.int64)
    chips, node_class = batch.num_chips[shape], batch.node_class[shape]
    order = np.lexsort((-layers, chips, node_class, ticks))
    keys = np.stack([ticks, node_class, chips])[:, order]
    starts = np.flatnonzero(np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)]))
    if not len(order):
        starts = np.zeros(0, dtype=np.int64)

    def least(values: Floats) -> Floats:
        found: Floats = np.minimum.reduceat(values[order], starts) if len(order) else np.zeros(0)
        return found

    best = order[starts]
    number = np.full(usable.shape, -1, dtype=np.int64)
    number[shape[order], layers[order]] = np.repeat(
        np.arange(len(starts)), np.diff(np.append(starts, len(order)))
    )
    ticks_behind = window.of_groups(shape[order], layers[order], starts) if window is not None else None
    return Choices(
        shape[best],
        layers[best],
        chips[best],
        node_class[best],
        ticks[best],
        least(time),
        -least(-time),
        -least(-np.maximum(forward, time - forward)),
        least(forward),
        least(time - forward),
        least(lines.follow[shape, place, layers]),
        least(behind),
        -least(-behind),
        least(reduce),
        least(lines.reduce[shape, place, layers]),
        -least(-lines.reduce[shape, place, layers]),
        number,
        ticks_behind,
    )
