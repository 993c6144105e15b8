"""Layer profiles: times measured layer by layer, which replace the operator model for a chip.

A profile holds points (tensor-parallel degree, micro-batch size). Between two measured micro-batches
times are interpolated; nothing is extrapolated, and a degree that was not measured is refused: a point
that is missing means not measured, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from planner.data.base import Data
from planner.units import MIB, MS

Floats = NDArray[np.float64]


class PieceTimes(Data):
    """What one layer, the embedding or the head takes on one chip."""

    forward_ms: float = Field(ge=0)
    """Forward pass of one micro-batch, tensor-parallel collectives included [ms]."""
    backward_ms: float = Field(ge=0)
    """Backward pass of one micro-batch, nothing recomputed [ms]."""
    update_ms: float | None = Field(default=None, gt=0)
    """Optimizer step over its parameters, once a step; null where not measured [ms]."""
    memory_mib: float | None = Field(default=None, gt=0)
    """Memory with one micro-batch in flight, states included; null where not measured [MiB]."""


class ProfilePoint(Data):
    """One measured combination of tensor-parallel degree and micro-batch size."""

    tensor_parallel: int = Field(ge=1)
    """Tensor-parallel degree."""
    microbatch_size: int = Field(ge=1)
    """Sequences of a micro-batch."""
    embedding: PieceTimes
    """The first entry of the profile."""
    layer: PieceTimes
    """One of the equal layers between, their mean where they were listed one by one."""
    head: PieceTimes
    """Final norm, head and loss: the entries behind the layers."""

    @model_validator(mode="after")
    def _layer_takes_time(self) -> ProfilePoint:
        if self.layer.forward_ms == 0 or self.layer.backward_ms == 0:
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel}, microbatch_size {self.microbatch_size}: the layer "
                "takes no time; leave out what was not measured"
            )
        return self


class LayerProfile(Data):
    """Measured layer times of one model on one chip."""

    chip: str = Field(min_length=1)
    """Id of the chip."""
    model: str = ""
    """Name of the model, in the words of the source."""
    seq_length: int | None = Field(default=None, ge=1)
    """Tokens of a sequence; null where the source does not say."""
    num_layers: int | None = Field(default=None, ge=1)
    """Layers of the model; null where the source does not say."""
    value_bytes: float = Field(default=2.0, gt=0)
    """Bytes of one activation value as it was computed and as it is sent: 4 in fp32, else 2."""
    points: tuple[ProfilePoint, ...] = Field(min_length=1)
    """Measured points, in any order."""
    source: str = ""
    """Where the times come from."""
    assumptions: tuple[str, ...] = ()
    """What was filled in while reading them."""

    @model_validator(mode="after")
    def _points_are_distinct(self) -> LayerProfile:
        seen: set[tuple[int, int]] = set()
        for point in self.points:
            key = point.tensor_parallel, point.microbatch_size
            if key in seen:
                raise ValueError(
                    f"tensor_parallel {key[0]} with microbatch_size {key[1]} is given twice; keep one"
                )
            seen.add(key)
        return self

    @cached_property
    def curves(self) -> dict[int, ProfileCurves]:
        """Times along the micro-batch by tensor-parallel degree, ascending."""
        degrees = sorted({point.tensor_parallel for point in self.points})
        return {tp: _curves([p for p in self.points if p.tensor_parallel == tp]) for tp in degrees}

    def covers(self, tensor_parallel: int, microbatch_size: int) -> bool:
        """Whether a point was measured or lies between two measured micro-batches."""
        curves = self.curves.get(tensor_parallel)
        return curves is not None and curves.sizes[0] <= microbatch_size <= curves.sizes[-1]

    def gap(self, tensor_parallel: int, microbatch_size: int) -> str:
        """Sentence on what the profile lacks for a point that it does not cover."""
        curves = self.curves.get(tensor_parallel)
        if curves is None:
            measured = ", ".join(map(str, self.curves))
            return (
                f"the profile of chip {self.chip} has no tensor_parallel {tensor_parallel}; it has {measured}"
            )
        return (
            f"the profile of chip {self.chip} at tensor_parallel {tensor_parallel} holds micro-batches "
            f"{curves.sizes[0]:.0f} to {curves.sizes[-1]:.0f}, not {microbatch_size}; measure it"
        )


PIECES = ("embedding", "layer", "head")
"""Order of the `piece` axis."""


@dataclass(frozen=True)
class ProfileCurves:
    """Times and memory of one tensor-parallel degree along the micro-batch."""

    sizes: Floats
    """[point] micro-batch sizes, ascending."""
    times_s: Floats
    """[point, piece, pass] forward, backward and update of each piece [s]; NaN an update not measured."""
    activation_bytes: Floats | None
    """[piece] memory that one more sequence in flight takes; None where it cannot be told [bytes]."""

    def times_at(self, microbatch_size: float) -> Floats:
        """Times at a micro-batch within the measured range, array [piece, pass] in seconds."""
        above = int(np.searchsorted(self.sizes, microbatch_size))
        if self.sizes[above] == microbatch_size:
            exact: Floats = self.times_s[above]
            return exact
        low, high = self.sizes[above - 1], self.sizes[above]
        weight = (microbatch_size - low) / (high - low)
        between: Floats = (1 - weight) * self.times_s[above - 1] + weight * self.times_s[above]
        return between


def _curves(points: list[ProfilePoint]) -> ProfileCurves:
    """Sort the points of one degree.

    A smaller micro-batch never takes longer: where it was measured so, launches and clocks of the
    profiler disturbed it, and the time of the larger one stands for both.
    """
    ordered = sorted(points, key=lambda point: point.microbatch_size)
    pieces = [[getattr(point, piece) for piece in PIECES] for point in ordered]
    nan = float("nan")
    times = MS * np.array(
        [[[x.forward_ms, x.backward_ms, x.update_ms or nan] for x in row] for row in pieces], dtype=np.float64
    )
    times[:, :, :2] = np.minimum.accumulate(times[::-1, :, :2], axis=0)[::-1]
    sizes = np.array([float(point.microbatch_size) for point in ordered])
    return ProfileCurves(sizes, times, _activation_bytes(sizes, pieces))


def _activation_bytes(sizes: Floats, pieces: list[list[PieceTimes]]) -> Floats | None:
    """Slope of the memory over the micro-batch by least squares, which leaves the states out."""
    if len(sizes) < 2 or any(x.memory_mib is None for row in pieces for x in row):
        return None
    memory = np.array([[x.memory_mib for x in row] for row in pieces], dtype=np.float64) * MIB
    offset = sizes - sizes.mean()
    slopes: Floats = np.maximum((offset[:, None] * memory).sum(axis=0) / (offset**2).sum(), 0.0)
    return slopes
