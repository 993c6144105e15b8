"""Layers for many pipelines of free shapes at once, such that no stage is much slower than it must be.

For some limits on the time of a stage each shape has the most layers that keep it, at every place. Of the
limits the least is taken at which a pipeline holds all layers; what is too many for that is taken from
stages that would keep the limit below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints

if TYPE_CHECKING:
    from planner.search.meshes.annealing import MeshTimes

NOTHING = -1
"""Shape of a stage that is not there."""
NUM_LIMITS, FARTHEST = 80, 6.0
"""Limits on the time of a stage, and how many times the least that the chips could keep the last one is.
Guesses."""


@dataclass(frozen=True)
class Balance:
    """Layers that stages hold within some limits."""

    limits_ms: Floats
    """[limit] ascending"""
    most: Ints
    """[inner or first, shape, place, limit] most layers of a stage that takes no longer."""
    num_layers: int

    @staticmethod
    def of(times: MeshTimes) -> Balance:
        """Tables of one batch."""
        both = times.forward_ms + times.backward_ms
        num_layers = both.shape[3] - 1
        n = np.arange(1, num_layers + 1)
        passes = both[:, :, : len(times.lengths), 1:]
        fits = np.isfinite(passes)
        rate = np.where(fits, n / passes, 0.0).max(axis=(0, 2, 3)) / times.chips
        total = sum(
            rate[times.node_class == c].max() * num_nodes * times.per_node[times.node_class == c][0]
            for c, num_nodes in enumerate(times.nodes.tolist())
            if (times.node_class == c).any()
        )
        limits = num_layers / total * np.geomspace(1.0, FARTHEST, NUM_LIMITS)
        # With how many layers a stage comes to which limit; too many for the memory come to none.
        most = np.where(fits, n, 0).max(axis=3, keepdims=True)
        later = np.maximum.accumulate(np.where(fits, passes, 0.0), axis=3)
        reached = np.searchsorted(limits, np.where(n <= most, later, np.inf).ravel())
        rows = np.repeat(np.arange(passes[..., 0].size), num_layers)
        width = NUM_LIMITS + 1
        counts = np.bincount(rows * width + reached, minlength=passes[..., 0].size * width)
        held = np.cumsum(counts.reshape(*passes.shape[:3], width)[..., :-1], axis=3)
        return Balance(limits, held, num_layers)

    def layers(self, order: Ints, random: np.random.Generator) -> tuple[Ints, NDArray[np.bool_]]:
        """Layers of many pipelines, and whether they hold all, [walker, stage] -> [walker, stage], [walker].

        Stages that give layers away are drawn at random.
        """
        walkers, stages = order.shape
        rows = np.arange(walkers)
        real = order != NOTHING
        first = (np.arange(stages) == (stages - real.sum(axis=1))[:, None]).astype(np.int64)
        place = np.minimum(np.arange(stages)[::-1], self.most.shape[2] - 1)
        held = self.most[first, np.maximum(order, 0), place] * real[:, :, None]
        total = held.sum(axis=1)
        limit = (total >= self.num_layers).argmax(axis=1)
        below = held[rows, :, np.maximum(limit - 1, 0)] * (limit > 0)[:, None]
        least = np.where(real, np.maximum(below, 1), 0)
        most = np.maximum(held[rows, :, limit], least)
        turn = random.random(order.shape).argsort(axis=1)
        room = np.take_along_axis(most - least, turn, axis=1)
        missing = (self.num_layers - least.sum(axis=1))[:, None]
        added = np.clip(missing - (np.cumsum(room, axis=1) - room), 0, room)
        layers = least.copy()
        np.put_along_axis(layers, turn, np.take_along_axis(least, turn, axis=1) + added, axis=1)
        return layers, np.asarray(layers.sum(axis=1) == self.num_layers)
