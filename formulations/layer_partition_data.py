"""Data and answer of `layer_partition`, shared by its linear and its integer form; its least bottleneck.

Names as in the docstring of `layer_partition`; times in ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from formulations.options import Status
from formulations.pipeline_rows import Floats, Ints, step_bound

Cuts = tuple[int, ...]
"""First layer of every stage but the first."""


@dataclass(frozen=True)
class LayerPartitionData:
    """Costs by stage, first layer and end, inf where layers do not fit.

    In the docstring of `layer_partition` these are, in order: m, f, b, z, o, c, x, K.
    """

    num_microbatches: int
    forward_ms: Floats
    """[stage, first, end]"""
    backward_ms: Floats
    """[stage, first, end] with what the layers recompute."""
    reduction_ms: Floats
    """[stage, first, end] exposed, with its tail."""
    follow_ms: Floats
    """[stage, first, end] optimizer and exposed gathering, with its tail."""
    send_ms: Floats
    """[stage] the last is 0."""
    wait_ms: Floats
    """[stage]"""
    constant_ms: float
    """What every plan adds to the step."""
    may_be_empty: NDArray[np.bool_] | None = None
    """[stage] whether it may be without a layer, holding embedding or head alone; None where none may."""

    @property
    def num_stages(self) -> int:
        """p."""
        return len(self.forward_ms)

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.forward_ms.shape[1]) - 1

    def allowed(self) -> NDArray[np.bool_]:
        """[stage, first, end] whether a stage may hold layers first .. end - 1: the set E."""
        return self._allowed

    @cached_property
    def _allowed(self) -> NDArray[np.bool_]:
        p, cut = self.num_stages, np.arange(self.num_layers + 1)
        stage = np.arange(p)[:, None, None]
        first, end = cut[None, :, None], cut[None, None, :]
        empty = np.zeros(p, dtype=np.bool_) if self.may_be_empty is None else self.may_be_empty
        before = np.cumsum(~empty) - ~empty
        behind = (~empty).sum() - before - ~empty
        before, behind, least = (of[:, None, None] for of in (before, behind, ~empty))
        fits = np.isfinite(self.forward_ms) & np.isfinite(self.backward_ms) & (first + least <= end)
        begins = np.where(stage == 0, first == 0, first >= before)
        closes = np.where(stage == p - 1, end == self.num_layers, end <= self.num_layers - behind)
        chosen: NDArray[np.bool_] = fits & begins & closes
        return chosen


@dataclass(frozen=True)
class LayerPartitionResult:
    """Cuts, objective and bound [ms]; cuts None where there are none (or none found in time)."""

    status: Status
    cuts: Cuts | None
    objective_ms: float | None
    bound_ms: float | None


def stages_of(cuts: Cuts, num_layers: int) -> list[tuple[int, int]]:
    """First layer and end of every stage."""
    return list(zip((0, *cuts), (*cuts, num_layers), strict=True))


def objective_ms(data: LayerPartitionData, cuts: Cuts) -> float:
    """The objective of one split; inf where some stage does not fit."""
    return float(objectives_ms(data, np.array([cuts], dtype=np.int64).reshape(1, len(cuts)))[0])


def objectives_ms(data: LayerPartitionData, cuts: Ints) -> Floats:
    """The objective of several splits, [split, stage but the first]; inf where some stage does not fit."""
    edges = np.pad(cuts, ((0, 0), (1, 1)), constant_values=(0, data.num_layers))
    whole = (edges[:, :-1] <= edges[:, 1:]).all(axis=1)
    at = np.arange(data.num_stages), *np.clip([edges[:, :-1], edges[:, 1:]], 0, data.num_layers)
    fits = whole & data.allowed()[at].all(axis=1)
    at, values = (at[0], at[1][fits], at[2][fits]), np.full(len(cuts), np.inf)
    if not fits.any():
        return values
    send, wait = (np.broadcast_to(of, at[1].shape) for of in (data.send_ms, data.wait_ms))
    times = data.forward_ms[at], data.backward_ms[at], send
    end = step_bound(*times, data.num_microbatches, data.reduction_ms[at], wait)
    values[fits] = end + data.follow_ms[at].max(axis=-1) + data.constant_ms
    return values


def least_bottleneck(data: LayerPartitionData) -> tuple[float, Cuts | None]:
    """Least time of the slowest stage [ms], and cuts that reach it; inf and None where nothing fits."""
    times = np.where(data.allowed(), data.forward_ms + data.backward_ms, np.inf)
    least, from_cut = np.full((data.num_stages + 1, data.num_layers + 1), np.inf), []
    least[0, 0] = 0.0
    for s in range(data.num_stages):
        slowest = np.maximum(least[s][:, None], times[s])
        from_cut.append(slowest.argmin(axis=0))
        least[s + 1] = slowest.min(axis=0)
    if not np.isfinite(least[-1, -1]):
        return float("inf"), None
    cuts, at = [], data.num_layers
    for s in reversed(range(1, data.num_stages)):
        at = int(from_cut[s][at])
        cuts.append(at)
    return float(least[-1, -1]), tuple(reversed(cuts))
