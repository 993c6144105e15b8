"""What shortest walks are made of: costs of their stages, and what is found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.prices import Floats

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Walk:
    """Shortest walks of a batch: length, class and layers of every stage."""

    length: Floats
    """[row]"""
    order: Ints
    """[row, stage]"""
    layers: Ints
    """[row, stage]"""
    kinds: Ints
    """[row, stage]"""
    hops: Floats
    """[row, stage] the hop behind every stage [ms]; none behind the last."""
    slowest: Ints
    """[row] the stage s."""


@dataclass(frozen=True)
class Costs:
    """What a stage adds to a walk, [row or 1, stage, kind, n], and how often the hop behind it counts."""

    before: Floats
    twice: Floats
    """Behind s."""
    once: Floats
    """Behind s by a short row."""
    slowest: Floats
    """As s itself."""
    hops_paid: Floats
    """[before s, behind s, behind s by a short row; row or 1; stage]"""
