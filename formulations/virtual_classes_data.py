"""Data and answer of `virtual_classes`: coefficients of all orders of the classes, and what they imply.

Names as in the docstring of `virtual_classes`; times in ms, sizes in GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.interleaved_paths import Floats, PathRow
from formulations.stage_selection_cuts import lower_hull
from formulations.virtual_selection_data import VirtualSelectionData
from formulations.virtual_selection_tables import DealtTable
from planner.tolerances import NEXT_TO_NOTHING

Key = tuple[int, int]
"""Stage and class."""


@dataclass(frozen=True)
class VirtualClassesData:
    """Coefficients of one outer choice over all its orders of classes."""

    classes: dict[int, VirtualSelectionData]
    """By class: the pipeline as if all its stages lay on that class, sends left out."""
    tables: dict[int, DealtTable]
    fits: NDArray[np.bool_]
    """[class, stage, n] N[s,c]; nothing where the stage may not be of the class."""
    fewest: NDArray[np.int64]
    """[class] k1"""
    most: NDArray[np.int64]
    """[class] k2"""
    hop_ms: Floats
    """[class, class] h"""
    sends_block: bool
    cutoff_ms: float
    least_follow_ms: float = 0.0
    """What the slowest stage of every plan below the cutoff adds after the pipeline, at least."""

    @property
    def sample(self) -> VirtualSelectionData:
        """One of the classes, for what all share."""
        return next(iter(self.classes.values()))

    @property
    def keys(self) -> list[Key]:
        """Stages with the classes that they may have."""
        return [(int(s), int(c)) for s, c in np.argwhere(self.fits.any(axis=2).T)]

    def layers(self, key: Key) -> NDArray[np.int64]:
        """N[s,c], ascending."""
        return np.flatnonzero(self.fits[key[1], key[0]])


@dataclass(frozen=True)
class VirtualClassesResult:
    """Bound [ms], infinite where no order is left; class and layers of every stage of a solution."""

    bound_ms: float
    order: tuple[int, ...] | None
    layers: tuple[int, ...]
    work: int = 0
    """Of its programs (`Solution.work`)."""
    rows: tuple[PathRow, ...] = ()
    """Rows (path) that hold it, or nearly."""


def most_saved(data: VirtualSelectionData, s: int, held: NDArray[np.int64]) -> float:
    """r: most memory that recomputation saves at a moment, by its time, of either kind [GiB / ms]."""
    stage, has_lead = data.stage, bool(data.stage.lead[s])
    kept, selective, full = data.lead_kept_gib

    def rate(main_gib: float, lead_gib: float, main_ms: float, lead_ms: float) -> float:
        saves = max(main_gib, lead_gib) if has_lead else main_gib
        time = min(main_ms, lead_ms) if has_lead else main_ms
        return saves / max(time, NEXT_TO_NOTHING)

    # A chunk that may be empty is either among those that are recomputed or not.
    has_layers = [np.ones(held.shape, dtype=np.bool_)]
    if (empty := data.may_be_empty(s)) is not None:
        has_layers.append(np.arange(len(held)) != empty)
    in_full = rate(
        float(data.kept_gib[s] - data.kept_full_gib[s]),
        kept - full,
        float(stage.full_ms[s]),
        float(stage.lead_full_ms[s]),
    )
    best = in_full * max(float(held[of].mean()) for of in has_layers) if "full" in data.kinds else 0.0
    if "selective" in data.kinds:
        some = rate(
            float(data.kept_gib[s] - data.kept_selective_gib[s]),
            kept - selective,
            float(stage.selective_ms[s]),
            float(stage.lead_selective_ms[s]),
        )
        best = max(best, some * float(held.max()))
    return best


def hull_lines(layers: NDArray[np.int64], values: Floats) -> list[tuple[float, float]]:
    """Lines of the lower hull of values at whole layers."""
    if len(layers) == 1:
        return [(0.0, float(values[0]))]
    return lower_hull([(int(n), float(value)) for n, value in zip(layers, values, strict=True)])
