"""Multilinear interpolation of latencies in the logarithms of their sizes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.elementwise import Values
from planner.cost.lazy import lazy

Floats = NDArray[np.float64]

CHUNK = 4096
"""Points interpolated at once: what they need on the way then stays in the processor's cache."""


class _ScalarAxis(NamedTuple):
    """An axis as plain numbers."""

    points: list[float]
    """Logarithms of its sizes, ascending."""
    stride: int
    """Between neighbours along it in the list of all values."""
    below: float
    above: float
    """Powers of the size outside of it."""


class _Line:
    """Latencies along one axis: the logarithms of those at its points."""

    def __init__(self, axis: _ScalarAxis, values: list[float]) -> None:
        self._points, _, self._below, self._above = axis
        self._values = values

    def latency_s(self, size: float) -> float:
        """Latency at a size [s]."""
        x, points, values = math.log(size), self._points, self._values
        if x <= points[0]:
            return math.exp(values[0] + self._below * (x - points[0]))
        if x >= points[-1]:
            return math.exp(values[-1] + self._above * (x - points[-1]))
        low = bisect_right(points, x) - 1
        weight = (x - points[low]) / (points[low + 1] - points[low])
        return math.exp(values[low] + weight * (values[low + 1] - values[low]))


REMEMBERED = 4096
"""Single points of a grid kept: plans of one search ask for few sizes again and again."""


REMEMBERED_LINES = 256
"""First sizes of a grid of two axes kept."""


class LogGrid:
    """Latency measured on a rectangular grid of sizes.

    The logarithm of the latency is linear in the logarithm of each size between two neighbours, which is
    the same as interpolating throughput geometrically; a grid point comes back as it was measured.
    Outside the grid the latency follows a power of the size.

    Parameters
    ----------
    axes
        Sizes of each axis, ascending.
    latency_s
        Latency [axis 0, axis 1, ...] in seconds, NaN where nobody measured.
    below, above
        Power of each size below its first and above its last grid point.
    """

    def __init__(
        self, axes: Sequence[ArrayLike], latency_s: Floats, below: Sequence[float], above: Sequence[float]
    ) -> None:
        log_axes = [np.log(np.asarray(axis, dtype=np.float64)) for axis in axes]
        values = np.log(np.asarray(latency_s, dtype=np.float64))
        for axis in range(len(log_axes)):
            values = _extend(values, log_axes[axis], axis, above[axis])
        self._flat = np.ascontiguousarray(values).ravel()
        # All axes one after the other, so that few numpy calls serve them all: [axis, 1] what a size meets
        # first and last and where its axis starts; then the points and the widths of the cells between.
        self._inner = [axis[1:-1] for axis in log_axes]
        self._first, self._last = (np.array([[axis[end]] for axis in log_axes]) for end in (0, -1))
        self._starts = np.cumsum([[0], *([len(axis)] for axis in log_axes[:-1])], axis=0)
        self._points = np.concatenate(log_axes)
        self._inverse_steps = np.concatenate([np.append(1.0 / np.diff(axis), 0.0) for axis in log_axes])
        self._below, self._above = np.array(below)[:, None], np.array(above)[:, None]
        # An axis of one point has no upper neighbour: its cell is the point.
        shape = values.shape
        self._strides = np.array([int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))])
        self._wide = [axis for axis in range(len(shape)) if shape[axis] > 1]
        corners = product(*((0, self._strides[axis]) for axis in self._wide))
        self._corners = np.array([sum(corner) for corner in corners])[:, None]
        self._scalar_axes = [
            _ScalarAxis(axis.tolist(), int(self._strides[i]), below[i], above[i])
            for i, axis in enumerate(log_axes)
        ]
        self._scalar_corners: list[int] = self._corners[:, 0].tolist()
        self._remembered_point_s = lru_cache(maxsize=REMEMBERED)(self._point_s)
        self._remembered_along = lru_cache(maxsize=REMEMBERED_LINES)(self._along)

    @lazy
    def _scalar_flat(self) -> list[float]:
        """Logarithms of the latencies as plain numbers."""
        values: list[float] = self._flat.tolist()
        return values

    @overload
    def latency_s(self, *sizes: float) -> float: ...

    @overload
    def latency_s(self, *sizes: Floats) -> Floats: ...

    @overload
    def latency_s(self, *sizes: Values) -> Values: ...

    @overload
    def latency_s(self, *sizes: ArrayLike) -> Floats: ...

    def latency_s(self, *sizes: ArrayLike) -> Values | Floats:
        """Latency at the given sizes [s]; the arguments broadcast, one an axis."""
        if len(sizes) == 2 and type(sizes[0]) is float and type(sizes[1]) is float:  # most are
            return self._remembered_point_s(*sizes)  # type: ignore[arg-type]
        for size in sizes:
            if not isinstance(size, float):
                break
        else:
            return self._remembered_point_s(*sizes)  # type: ignore[arg-type]
        shape = np.broadcast(*sizes).shape
        points = np.empty((len(sizes), *shape))
        for axis, size in enumerate(sizes):
            points[axis] = size
        return self.latency_at_s(np.log(points))

    def latency_at_s(self, logarithms: Floats) -> Floats:
        """Latency at the logarithms of sizes, array [axis, ...] -> [...] in seconds."""
        shape = logarithms.shape[1:]
        x = logarithms.reshape(len(logarithms), -1)
        if x.shape[1] <= CHUNK:
            return self._interpolate(x).reshape(shape)
        parts = [slice(start, start + CHUNK) for start in range(0, x.shape[1], CHUNK)]
        return np.concatenate([self._interpolate(x[:, part]) for part in parts]).reshape(shape)

    def _point_s(self, *sizes: float) -> float:
        """Latency at one point [s]: the same in plain numbers, which numpy is slow with."""
        if len(sizes) == 2:
            return self._remembered_along(sizes[0]).latency_s(sizes[1])
        base, beyond = 0, 0.0
        weights: list[float] = []
        for axis, size in zip(self._scalar_axes, sizes, strict=True):
            x, points, stride, below, above = math.log(size), *axis
            first, last = points[0], points[-1]
            if x < first:
                beyond += below * (x - first)
                x = first
            elif x > last:
                beyond += above * (x - last)
                x = last
            if last > first:
                low = bisect_right(points, x, 1, len(points) - 1) - 1
                base += stride * low
                weights.append((x - points[low]) / (points[low + 1] - points[low]))
        flat = self._scalar_flat
        corners = [flat[base + corner] for corner in self._scalar_corners]
        for weight in reversed(weights):  # corners of the last axis lie next to each other
            pairs = zip(corners[::2], corners[1::2], strict=True)
            corners = [low + weight * (high - low) for low, high in pairs]
        return math.exp(corners[0] + beyond)

    def _along(self, size: float) -> _Line:
        """The latencies of a grid of two axes at one size along the first."""
        _, axis = self._scalar_axes
        points = np.array([np.full(len(axis.points), math.log(size)), axis.points])
        return _Line(axis, self._logarithm(points).tolist())

    def _interpolate(self, x: Floats) -> Floats:
        """Latency [point] at the logarithms of sizes [axis, point] [s]."""
        latency: Floats = np.exp(self._logarithm(x))
        return latency

    def _logarithm(self, x: Floats) -> Floats:
        """Its logarithm."""
        inside = np.minimum(np.maximum(x, self._first), self._last)
        low = np.zeros(x.shape, dtype=np.intp)
        for axis in self._wide:
            low[axis] = self._inner[axis].searchsorted(inside[axis], side="right")
        cell = low + self._starts
        weight = (inside - self._points.take(cell)) * self._inverse_steps.take(cell)
        corners = self._flat.take(self._strides @ low + self._corners)
        for axis in reversed(self._wide):  # corners of the last axis lie next to each other
            below, above = corners[0::2], corners[1::2]
            corners = below + weight[axis] * (above - below)
        excess = x - inside
        if excess.any():
            powers = np.where(excess > 0, self._above, self._below) * excess
            corners = corners + powers.sum(axis=0)
        logarithm: Floats = corners[0]
        return logarithm


def _extend(values: Floats, log_axis: Floats, axis: int, power: float) -> Floats:
    """Fill holes from the neighbour along an axis, first from below, then from above."""
    values = np.moveaxis(values, axis, 0).copy()
    forwards = [(i, i - 1) for i in range(1, len(values))]
    for i, source in forwards + [(j, i) for i, j in reversed(forwards)]:
        guess = values[source] + power * (log_axis[i] - log_axis[source])
        values[i] = np.where(np.isnan(values[i]), guess, values[i])
    return np.moveaxis(values, 0, axis)
