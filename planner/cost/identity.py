"""Remember what was computed for a problem, known by which object it is.

Comparing two problems field by field takes longer than pricing one; problems are frozen, so that the same
object stays the same problem.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Concatenate, ParamSpec, TypeVar

from planner.data.problem import Problem

Found = TypeVar("Found")
Rest = ParamSpec("Rest")

REMEMBERED = 256
"""Results kept of each function."""


@dataclass(frozen=True, eq=False)
class _This:
    """A problem; equal to itself alone. It is kept alive, so that no other takes its identity."""

    problem: Problem

    def __hash__(self) -> int:
        return id(self.problem)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and self.problem is other.problem


def remembered(
    function: Callable[Concatenate[Problem, Rest], Found],
) -> Callable[Concatenate[Problem, Rest], Found]:
    """Decorate a function of a problem and of hashable values: its last results are kept, read-only."""

    @lru_cache(maxsize=REMEMBERED)
    def kept(this: _This, *values: Hashable) -> Found:
        return function(this.problem, *values)  # type: ignore[arg-type, call-arg]

    def ask(problem: Problem, /, *values: Rest.args, **_: Rest.kwargs) -> Found:
        return kept(_This(problem), *values)

    return ask
