"""Times of stages by shape and place, bounded below by two lines, and their corners between two edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats
from planner.search.meshes.places import Ints, Stages


@dataclass(frozen=True)
class Terms:
    """Stages that may be looked at, arrays [row, place, shape, candidate]."""

    layers: Ints
    times: Floats
    """With the sends that block it; inf where there is none."""
    forward: Floats
    after: Floats
    """What it adds to the whole: the reduction of a first stage."""
    follow: Floats
    """What it adds behind the pipeline."""
    share: Floats
    """[1, place, 1, 1] by how much that counts on a stage that is not the slowest."""
    sends: Floats
    """[1, place, shape, 1] hops beside it, where those delay the receiver."""

    @cached_property
    def counts(self) -> Floats:
        """Layers as numbers that prices are multiplied by."""
        return self.layers.astype(np.float64)

    @cached_property
    def has_sends(self) -> bool:
        """Whether there is any hop beside a stage."""
        return bool(self.sends.any())

    @cached_property
    def with_sends(self) -> Floats:
        """Times with the hops beside them."""
        return self.times + self.sends if self.has_sends else self.times

    def rows(self, kept: NDArray[np.bool_] | Ints) -> Terms:
        """Some of the rows."""
        after = self.after[kept] if len(self.after) == len(self.times) else self.after
        return Terms(
            self.layers[kept],
            self.times[kept],
            self.forward[kept],
            after,
            self.follow[kept],
            self.share,
            self.sends,
        )

    def at(self, places: Ints, barred: Floats) -> Terms:
        """At other places, without the shapes that are barred there, [place, shape]."""
        times = self.times[:, places] + barred[None, :, :, None]
        after = self.after[:, places] if self.after.shape[1] > 1 else self.after
        return Terms(
            self.layers[:, places],
            times,
            self.forward[:, places],
            after,
            self.follow[:, places],
            self.share[:, places],
            self.sends[:, places],
        )


class Lines:
    """Times of stages, bounded below by two lines each; arrays [shape, place]."""

    def __init__(self, stages: Stages, hop_ms: Floats, sides: Floats, *, sends_block: bool) -> None:
        """`sides` is [place] how many hops a stage there has."""
        times = stages.times_ms
        hops = hop_ms * sides
        self.delay = np.zeros_like(hops) if sends_block else hops
        if sends_block:
            times = times + hops[:, :, None]
        n = np.arange(times.shape[2])
        fits = np.isfinite(times)
        self.times = times
        self.most = np.where(fits, n, 0).max(axis=2)
        self.fewest = np.where(fits.any(axis=2), fits.argmax(axis=2), 1)
        finite = np.where(fits, times, 0.0)
        self.at_fewest = np.take_along_axis(finite, self.fewest[:, :, None], axis=2)[:, :, 0]
        self.bend = np.maximum(stages.plain, self.fewest)
        self.at_bend = np.take_along_axis(finite, self.bend[:, :, None], axis=2)[:, :, 0]
        self.slope = (self.at_bend - self.at_fewest) / np.maximum(self.bend - self.fewest, 1)
        beyond = fits & (n > self.bend[:, :, None])
        with np.errstate(invalid="ignore"):
            rise = (times - self.at_bend[:, :, None]) / np.maximum(n - self.bend[:, :, None], 1)
        steeper = np.where(beyond, rise, np.inf).min(axis=2)
        self.steeper = np.where(np.isfinite(steeper), steeper, 0.0)
        # Less time for more layers counts for fewer as well, so that times rise with n.
        self.sooner = np.minimum.accumulate(times[:, :, ::-1], axis=2)[:, :, ::-1]
        self.later = np.maximum.accumulate(finite, axis=2)
        self.forward = stages.forward_ms
        # A hop ahead lengthens the forward; the last stage and a single one have none.
        ahead = hop_ms * (np.arange(times.shape[1]) > 0) if sends_block else 0.0
        self.base_forward = stages.base_forward_ms + ahead
        self.follow, self.reduce = stages.follow_ms, stages.reduce_ms

    def tangent(self, usual: float) -> tuple[Floats, Floats]:
        """What follows the pipeline at no layers, and for each: a tangent near the usual number."""
        at = int(np.clip(usual, 1, max(self.times.shape[2] - 2, 1)))
        slope = self.follow[:, :, min(at + 1, self.times.shape[2] - 1)] - self.follow[:, :, at]
        return self.follow[:, :, at] - slope * at, slope

    def terms(self, low: Floats, high: Floats, places: Ints, usual: float) -> tuple[Terms, Terms]:
        """Stages no slower than `high` at their corners, and those of them no faster than `low`."""
        sooner, later = self.sooner[:, places, 1:], self.later[:, places]
        fewest, bend = self.fewest[:, places], self.bend[:, places]
        cap = np.stack([(sooner <= edge).sum(axis=2) for edge in high])
        least = np.stack([np.maximum((later < edge).sum(axis=2), fewest) for edge in low])
        usable = (cap >= fewest) & (self.most[:, places] > 0)
        corners = np.stack([np.broadcast_to(fewest, cap.shape), np.minimum(bend, cap), cap], axis=-1)
        kept = self._at(corners, usable, places, None)
        turned = np.clip(corners, least[..., None], cap[..., None])
        return kept, self._at(turned, usable & (least <= cap), places, low)

    def _at(self, layers: Ints, usable: NDArray[np.bool_], places: Ints, low: Floats | None) -> Terms:
        bend = np.minimum(layers, self.bend[None, :, places, None])
        times = self.at_fewest[None, :, places, None] + self.slope[None, :, places, None] * (
            bend - self.fewest[None, :, places, None]
        )
        times = times + self.steeper[None, :, places, None] * (layers - bend)
        if low is not None:
            times = np.maximum(times, low[:, None, None, None])
        forward = self.forward[None, :, places, None] * layers + self.base_forward[None, :, places, None]
        times = np.where(usable[..., None], times, np.inf)
        return self._terms(layers, times, forward, places)

    def every_term(self, low: Floats, high: Floats, places: Ints) -> tuple[Terms, Terms]:
        """The same with every number of layers."""
        times = self.times[None, :, places]
        layers = np.broadcast_to(np.arange(times.shape[3]), (len(low), *times.shape[1:]))
        forward = self.forward[None, :, places, None] * layers + self.base_forward[None, :, places, None]
        kept = np.where(times <= high[:, None, None, None], times, np.inf)
        turned = np.where(times >= low[:, None, None, None], kept, np.inf)
        return self._terms(layers, kept, forward, places), self._terms(layers, turned, forward, places)

    def _terms(self, layers: Ints, times: Floats, forward: Floats, places: Ints) -> Terms:
        """Turned to [row, place, shape, candidate]."""
        return Terms(
            layers=np.ascontiguousarray(layers.swapaxes(1, 2)),
            times=np.ascontiguousarray(times.swapaxes(1, 2)),
            forward=np.ascontiguousarray(forward.swapaxes(1, 2)),
            after=np.zeros((1, 1, 1, 1)),
            follow=np.zeros((1, 1, 1, 1)),
            share=np.zeros((1, 1, 1, 1)),
            sends=self.delay[:, places].T[None, :, :, None],
        )
