"""Remember what was computed for a problem, known by which object it is.

Comparing two problems field by field takes longer than pricing one; problems are frozen, so that the same
object stays the same problem.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Concatenate, ParamSpec, TypeVar

from planner.data.problem import Problem

Found = TypeVar("Found")
Rest = ParamSpec("Rest")

REMEMBERED = 256
"""Results kept of each function."""


class _This:
    """A problem; equal to itself alone, kept alive, so that no other takes its identity."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


_THESE: dict[int, _This] = {}
"""Of problems asked about lately, by `id`."""


def _this(problem: Problem) -> _This:
    """The one object that stands for a problem while it is remembered."""
    this = _THESE.get(id(problem))
    if this is None:
        if len(_THESE) >= REMEMBERED:
            _THESE.clear()  # what is known of them is found anew
        this = _THESE[id(problem)] = _This(problem)
    return this


def remembered(
    function: Callable[Concatenate[Problem, Rest], Found],
) -> Callable[Concatenate[Problem, Rest], Found]:
    """Decorate a function of a problem and of hashable values: its last results are kept, read-only."""

    @lru_cache(maxsize=REMEMBERED)
    def kept(this: _This, *values: Hashable) -> Found:
        return function(this.problem, *values)  # type: ignore[arg-type, call-arg]

    def ask(problem: Problem, /, *values: Rest.args, **_: Rest.kwargs) -> Found:
        return kept(_this(problem), *values)

    return ask
