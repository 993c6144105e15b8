"""Multilinear interpolation of latencies in the logarithms of their sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


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
        self._axes = [np.log(np.asarray(axis, dtype=np.float64)) for axis in axes]
        values = np.log(np.asarray(latency_s, dtype=np.float64))
        for axis in range(values.ndim):
            values = _extend(values, self._axes[axis], axis, above[axis])
        self._inner = [axis[1:-1] for axis in self._axes]
        self._inverse_steps = [1.0 / np.diff(axis) for axis in self._axes]
        self._flat = np.ascontiguousarray(values).ravel()
        self._strides = [int(np.prod(values.shape[i + 1 :])) for i in range(values.ndim)]
        self._below, self._above = tuple(below), tuple(above)

    def latency_s(self, *sizes: ArrayLike) -> Floats:
        """Latency at the given sizes [s]; the arguments broadcast, one an axis."""
        base: NDArray[np.int64] | int = 0
        weights: list[Floats] = []
        outside: Floats | float = 0.0
        for i, size in enumerate(sizes):
            axis = self._axes[i]
            x = np.log(size)
            inside = np.minimum(np.maximum(x, axis[0]), axis[-1])
            outside = outside + _power(x - inside, self._below[i], self._above[i])
            if len(axis) == 1:
                weights.append(np.zeros_like(x))
                continue
            low = self._inner[i].searchsorted(inside, side="right")
            weights.append((inside - axis[low]) * self._inverse_steps[i][low])
            base = base + low * self._strides[i]
        return np.exp(self._corners(np.asarray(base), weights) + outside)

    def _corners(self, base: NDArray[np.int64], weights: list[Floats], axis: int = 0) -> Floats:
        """Interpolate the axes one after the other, from the last."""
        if axis == len(weights):
            return self._flat[base]
        low = self._corners(base, weights, axis + 1)
        if len(self._axes[axis]) == 1:
            return low
        high = self._corners(base + self._strides[axis], weights, axis + 1)
        return low + weights[axis] * (high - low)


def _power(log_excess: Floats, below: float, above: float) -> Floats:
    """Logarithm of the factor that a size outside the grid brings."""
    if below == above:
        return below * log_excess
    return np.where(log_excess > 0, above, below) * log_excess


def _extend(values: Floats, log_axis: Floats, axis: int, power: float) -> Floats:
    """Fill holes from the neighbour along an axis, first from below, then from above."""
    values = np.moveaxis(values, axis, 0).copy()
    forwards = [(i, i - 1) for i in range(1, len(values))]
    for i, source in forwards + [(j, i) for i, j in reversed(forwards)]:
        guess = values[source] + power * (log_axis[i] - log_axis[source])
        values[i] = np.where(np.isnan(values[i]), guess, values[i])
    return np.moveaxis(values, 0, axis)
