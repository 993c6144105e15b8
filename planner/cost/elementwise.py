"""Operations on the values of many choices of degrees, or of one.

Formulas of the cost model are written once. For a table of choices a value is an array of axis `choice`; for
a single choice it is a plain number, which Python computes with some thirty times faster than numpy does with
an array of one. What operators do not cover stands here.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64] | float
"""One number a choice; a plain number where there is one choice, or where all choices share it."""

Flags = NDArray[np.bool_] | bool
"""One truth a choice."""


def where(condition: Flags, yes: Values, no: Values) -> Values:
    """`yes` where the condition holds, else `no`."""
    if condition is True:  # most are plain
        return yes
    if condition is False:
        return no
    return np.where(condition, yes, no) if isinstance(condition, np.ndarray) else yes if condition else no


def maximum(first: Values, second: Values) -> Values:
    """The larger value of each choice."""
    if type(first) is float and type(second) is float:  # most are
        return first if first >= second else second
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.maximum(first, second)
    return first if first >= second else second


def minimum(first: Values, second: Values) -> Values:
    """The smaller value of each choice."""
    if type(first) is float and type(second) is float:
        return first if first <= second else second
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.minimum(first, second)
    return first if first <= second else second


def ceil(values: Values) -> Values:
    """The next whole number."""
    return np.ceil(values) if isinstance(values, np.ndarray) else float(math.ceil(values))


def log2(values: Values) -> Values:
    """Binary logarithm."""
    return np.log2(values) if isinstance(values, np.ndarray) else math.log2(values)


def exists(condition: Flags) -> bool:
    """Whether the condition holds for any choice."""
    return bool(condition.any()) if isinstance(condition, np.ndarray) else condition


def everywhere(condition: Flags) -> bool:
    """Whether the condition holds for all choices."""
    return bool(condition.all()) if isinstance(condition, np.ndarray) else condition


def total(values: Iterable[Values]) -> Values:
    """Sum of several values of each choice."""
    return sum(values, start=0.0)


def by_choice(
    values: Sequence[Values], rows: int, shape: Sequence[int], axis: int = 0
) -> NDArray[np.float64]:
    """Values of several axes, the last one fastest, as an array with another axis: the choice.

    Parameters
    ----------
    rows
        Number of choices.
    shape
        Lengths of the axes of `values`.
    axis
        Where the choice stands in the array.
    """
    before, after = shape[:axis], shape[axis:]
    if rows == 1 and isinstance(values[0], float) and isinstance(values[-1], float):
        return np.array(values).reshape(*before, 1, *after)
    found = np.empty((len(values), rows))
    for row, value in zip(found, values, strict=True):
        row[:] = value
    of_choices = found.reshape(*shape, rows)
    axes = range(len(shape))
    return np.ascontiguousarray(of_choices.transpose(*axes[:axis], -1, *axes[axis:]))


class Curve:
    """A function given at a few points, linear in the logarithm of its argument between them.

    Parameters
    ----------
    arguments
        Where it is given, ascending; outside of them the nearest counts.
    values
        What it is there.
    """

    def __init__(self, arguments: Sequence[float], values: Sequence[float]) -> None:
        self._x, self._y = [math.log(argument) for argument in arguments], list(values)

    def at(self, arguments: Values) -> Values:
        """Its values."""
        if isinstance(arguments, np.ndarray):
            return np.interp(np.log(arguments), self._x, self._y)
        x, xs, ys = math.log(arguments), self._x, self._y
        above = bisect_right(xs, x)
        if above == 0:
            return ys[0]
        if above == len(xs):
            return ys[-1]
        slope = (ys[above] - ys[above - 1]) / (xs[above] - xs[above - 1])
        return ys[above - 1] + slope * (x - xs[above - 1])
