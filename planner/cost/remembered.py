"""Prices that were asked for lately: plans of one problem that share their degrees are priced once.

Splitting layers otherwise, recomputing more or changing the number of micro-batches leaves the prices of a
plan's pieces as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.data.problem import Problem

REMEMBERED = 64
"""Tables of prices kept; those of a plan take some 10 kB for each node class."""

MAX_ROWS = 64
"""Larger tables are priced anew: they are asked for once."""


@dataclass(frozen=True, eq=False)
class _Question:
    """A problem and degrees; the same where the problem is the same object and all degrees agree."""

    problem: Problem
    degrees: Degrees
    key: tuple[object, ...]

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self.problem is other.problem and self.key == other.key


def remembered_price(problem: Problem, degrees: Degrees) -> Prices:
    """The prices that `price` finds, read-only; from memory where they were asked for lately."""
    if len(degrees) > MAX_ROWS:
        return price(problem, degrees)
    values = (getattr(degrees, field.name) for field in fields(Degrees))
    key = tuple(v.tobytes() if isinstance(v, np.ndarray) else v for v in values)
    return _priced(_Question(problem, degrees, (id(problem), *key)))


@lru_cache(maxsize=REMEMBERED)
def _priced(question: _Question) -> Prices:
    prices = price(question.problem, question.degrees)
    for field in fields(Prices):
        value = getattr(prices, field.name)
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    return prices
