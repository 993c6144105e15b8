"""Which runs of layers of several kinds fit a stage: the terms of `planner.cost.stage` for many runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.pipelines import in_pipeline_of, outside_bytes
from planner.cost.memory.stage import kept_of_layers
from planner.cost.prices import STATES, Floats, Prices
from planner.tolerances import MEMORY_TOL_BYTES

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Position:
    """All that tells two stages of a row of degrees apart, but for their layers."""

    choice: int
    node_class: int
    in_flight: int | Ints
    """Micro-batches whose activations the stage holds; several numbers where it stands for several stages."""
    first: bool
    last: bool
    num_stages: int
    """Stages of its pipeline."""
    may_be_empty: bool
    """Whether the stage may be without a layer."""


@dataclass(frozen=True)
class Runs:
    """Runs of layers by first layer and end, arrays that broadcast to [..., run]."""

    first: Ints
    end: Ints

    @classmethod
    def all_of(cls, num_layers: int) -> Runs:
        """Every run, [first, end]; those that end before they begin hold nothing."""
        cut = np.arange(num_layers + 1)
        return cls(cut[:, None], cut[None, :])

    @property
    def length(self) -> Ints:
        """Layers of each."""
        return self.end - self.first

    def sums(self, values: Floats) -> Floats:
        """Sum of a value of each layer."""
        until = np.concatenate([[0.0], np.cumsum(values)])
        sums: Floats = until[self.end] - until[self.first]
        return sums


class IntervalMemory:
    """Whether runs fit a position, by what is recomputed; arrays [run], or [in_flight, run] where `at` has
    several numbers of micro-batches, [in_flight, 1, ...]."""

    def __init__(self, prices: Prices, at: Position, kind_of_layer: Ints, runs: Runs) -> None:
        c, n, prices = at.choice, at.node_class, in_pipeline_of(prices, at.num_stages)
        self.prices, self.at, self.kinds, self.runs = prices, at, kind_of_layer, runs
        base: Any = 0.0 if at.first and at.last else float(prices.pipeline_buffer_bytes[c])
        if at.first:
            base += float(prices.embedding_state_bytes[c].sum())
            base = base + at.in_flight * float(prices.embedding_activation_bytes[c])
        if at.last:
            base = base + at.in_flight * float(prices.head_activation_bytes[c, n])
            base += float(self._head_states().sum())
        states = prices.layer_state_bytes[c].sum(axis=-1)[kind_of_layer]
        outside = outside_bytes(prices, c, n, at.first or at.last, at.num_stages)
        reserved = float(prices.limit_bytes[n]) + MEMORY_TOL_BYTES / 2 - float(outside)
        self.room: Floats = reserved * float(prices.allocated_fraction) - base - runs.sums(states)
        """What activations and passing buffers may take [bytes]."""
        present = [np.where(kind_of_layer == kind, 1.0, 0.0) for kind in range(len(prices.kinds))]
        self.present = [runs.sums(count) > 0 for count in present]
        self.step_fits = self._step_fits(reserved, base)

    def _step_fits(self, reserved: float, base: Any) -> Bools:
        """Whether what a run copies for the optimizer's step fits, when all activations are gone."""
        prices, c, n = self.prices, self.at.choice, self.at.node_class
        optimizer, ends = STATES.index("optimizer"), 0.0
        if self.at.first:
            base = base - self.at.in_flight * float(prices.embedding_activation_bytes[c])
            ends += float(prices.embedding_state_bytes[c, optimizer])
        if self.at.last:
            base = base - self.at.in_flight * float(prices.head_activation_bytes[c, n])
            ends += float(self._head_states()[optimizer])
        layers = prices.layer_state_bytes[c]
        held = self.runs.sums(
            (layers.sum(axis=-1) + prices.step_copy_share * layers[:, optimizer])[self.kinds]
        )
        held = held + self._largest(prices.layer_placeholder_bytes[c]) + prices.step_copy_share * ends
        fits: Bools = held <= reserved * float(prices.allocated_fraction) - base
        return fits

    def _head_states(self) -> Floats:
        """States of the head, beside the embedding where both are on the stage, array [state]."""
        prices, c = self.prices, self.at.choice
        states: Floats = prices.head_state_bytes[c]
        if self.at.first:
            states = prices.head_beside_embedding_state_bytes[c]
        return states

    def fits_plain(self) -> Bools:
        """Nothing recomputed."""
        return self._fits(self._kept(self.prices.layer_activation_bytes), self._working(0.0, "none"))

    def fits_selective(self) -> Bools:
        """The core attention of all layers recomputed."""
        whole, kept = self.prices.layer_activation_bytes, self.prices.layer_activation_selective_bytes
        again = self._of_class(whole) - self._of_class(kept)
        return self._fits(self._kept(kept), self._working(again, "selective"))

    def fewest_full(self) -> Ints:
        """How many of its first layers a run recomputes in full at least; 0 where not even all are enough.

        With the layers recomputed grows what they save, and in few steps what exists again beside their
        passing buffers: that of the largest kind among them. For each such size the fewest layers that save
        enough count where none of them is of a larger kind; the least over the sizes is exact.
        """
        prices, runs, kinds = self.prices, self.runs, self.kinds
        whole, kept = prices.layer_activation_bytes, prices.layer_activation_full_bytes
        saved = np.maximum(self._of_class(whole) - self._of_class(kept), 0.0)[kinds]
        until = np.concatenate([[0.0], np.cumsum(saved)])
        held, working = self._kept(whole) - self.room, self._working(0.0, "full")
        peaks = self._of_class(prices.layer_working_bytes + prices.layer_recompute_peak_bytes)
        most, fewest = runs.length, np.full(1, len(kinds) + 1)
        for size in np.unique(peaks[kinds]):
            larger = np.append(np.flatnonzero(peaks[kinds] > size), len(kinds))
            up_to = larger[np.searchsorted(larger, runs.first)] - runs.first
            short = (held + np.maximum(working, size)) / self.at.in_flight
            layers = np.maximum(np.searchsorted(until, until[runs.first] + short) - runs.first, 1)
            fewest = np.minimum(fewest, np.where(layers <= np.minimum(up_to, most), layers, len(kinds) + 1))
        return np.where((fewest <= len(kinds)) & self.step_fits, fewest, 0)

    def _of_class(self, layer_bytes: Floats) -> Floats:
        """Sizes of a layer [choice, kind, node_class] here, by kind."""
        sizes: Floats = layer_bytes[self.at.choice, :, self.at.node_class]
        return sizes

    def _kept(self, layer_bytes: Floats) -> Floats:
        """Activations that a run keeps [bytes]."""
        kept: Floats = self.at.in_flight * self.runs.sums(self._of_class(layer_bytes)[self.kinds])
        return kept

    def _working(self, again: Any, recompute: str) -> Floats:
        """Passing buffers of the largest kind in a run, with what exists again; or those of the head or of
        the embedding [bytes]."""
        c = self.at.choice
        largest = self._largest(self._of_class(self.prices.layer_working_bytes) + again)
        head = float(self.prices.head_peak_bytes[c]) if self.at.last else 0.0
        working: Floats = np.maximum(largest, head)
        if self.at.first:
            gone = -self._largest(-self._of_class(kept_of_layers(self.prices, recompute)), without=-np.inf)
            gone = np.where(np.isfinite(gone), gone, 0.0)
            working = np.maximum(working, float(self.prices.embedding_peak_bytes[c]) - gone)
        return working

    def _largest(self, by_kind: Floats, without: float = 0.0) -> Floats:
        """The largest value of the kinds in a run; of an empty one `without`."""
        values = [np.where(present, by_kind[kind], without) for kind, present in enumerate(self.present)]
        largest: Floats = np.max(values, axis=0)
        return largest

    def _fits(self, kept: Floats, working: Floats) -> Bools:
        fits: Bools = (kept + working <= self.room) & self.step_fits
        return fits
