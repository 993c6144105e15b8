"""The measurements that the judge reads, as arrays: layer times, layer sizes, network fits."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.units import GB, MB

Floats = NDArray[np.float64]

FILE = Path(__file__).parent / "data" / "profile.json"
DEGREES = (1, 2, 4)
"""Tensor-parallel degrees within a node of four chips."""
SIZES = (1, 2, 4, 8)
"""Micro-batch sizes of the profile."""
NUM_LAYERS = 26
"""Embedding, 24 blocks, norm and head: the units that a stage holds."""
FLOAT_BYTES = 4.0
FAST, SLOW = "a100-sxm-40gb", "v100-sxm-16gb"
CHIPS = (FAST, SLOW)


@dataclass(frozen=True, order=True)
class Kind:
    """What runs one replica of a stage: a chip type and a tensor-parallel degree."""

    chip: str
    tensor_parallel: int

    def __str__(self) -> str:
        return f"{self.chip.split('-')[0]} tp {self.tensor_parallel}"


KINDS = tuple(Kind(chip, degree) for chip in CHIPS for degree in DEGREES)


@dataclass(frozen=True)
class Profile:
    """All that was measured."""

    times_s: dict[tuple[Kind, int], Floats]
    """By kind and micro-batch size: [layer, pass], forward, backward and update [s]; measured points only."""
    floats: dict[int, Floats]
    """By tensor degree: [layer, what], parameters, output, kept for the backward pass of one sequence."""
    fits: dict[tuple[Kind, Kind], tuple[float, float, float]]
    """By sender and receiver: c2, c1, c0 of the bandwidth in GB/s over the log2 of the size in MB."""

    def transfer_s(self, size_bytes: float, sender: Kind, receiver: Kind) -> float:
        """Time of one message [s]; infinite where the fit has left its range and is not positive."""
        gb_per_s = bandwidth_gb_per_s(self.fits[sender, receiver], math.log2(size_bytes / MB))
        return size_bytes / (gb_per_s * GB) if gb_per_s > 0 else math.inf

    def output_bytes(self, layer: int, microbatch_size: int) -> float:
        """Activations that a layer hands on, whatever its degree [bytes]."""
        return float(self.floats[1][layer, 1]) * FLOAT_BYTES * microbatch_size


def bandwidth_gb_per_s(fit: tuple[float, float, float], log_mb: float) -> float:
    """The fitted parabola; its measured plateau is not applied."""
    c2, c1, c0 = fit
    return c2 * log_mb * log_mb + c1 * log_mb + c0


@cache
def profile() -> Profile:
    """Read the file once."""
    raw = json.loads(FILE.read_text())
    return Profile(
        times_s={
            (Kind(chip, int(degree)), int(size)): unfolded(layers)
            for chip, degrees in raw["times_s"].items()
            for degree, sizes in degrees.items()
            for size, layers in sizes.items()
        },
        floats={int(degree): unfolded(layers) for degree, layers in raw["floats"].items()},
        fits={(Kind(g, n), Kind(h, k)): (c2, c1, c0) for g, n, h, k, c2, c1, c0 in raw["fits"]},
    )


def unfolded(layers: dict[str, Any]) -> Floats:
    """All 26 layers of the four that differ, array [layer, what]."""
    rows = [layers["embedding"], layers["first_block"], *[layers["block"]] * 23, layers["head"]]
    return np.array(rows, dtype=np.float64)
