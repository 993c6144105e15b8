"""Into what numbers of stages that stay open together are cut: families, ends, fewer of them, batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.prices import Floats
from planner.data.problem import Problem
from planner.search.items import Lengths, Prefix
from planner.search.meshes.ends import list_ends, matter
from planner.search.meshes.places import Ints
from planner.search.meshes.shapes import Batch

PIECES = 4
"""Into how many pieces numbers of stages are cut that stay open together. A guess."""


@dataclass(frozen=True)
class Cutter:
    """Cuts parts of one search."""

    problem: Problem
    batches: Sequence[Batch]
    families: Sequence[Sequence[int]]
    """Numbers of the batches of each."""
    narrower: Mapping[int, range]
    """Families that some consist of."""
    longest: Mapping[int, int]
    """Most stages of every batch."""

    def longest_in(self, family: int) -> int:
        """Most stages of a family."""
        return max((self.longest.get(member, 0) for member in self.families[family]), default=0)

    def pieces(
        self, part: Lengths, stages: Ints, bounds_s: Floats, *, may_rise: bool
    ) -> Iterator[tuple[float, Lengths | Prefix]]:
        """Bounds and parts that hold all that is open of a part, some of its numbers of stages.

        One number that may rise by another look is looked at as it is.
        """
        left = _lengths(part, stages, bounds_s)
        if part.choice in self.narrower:
            found = list(self._by_families(left))
        else:
            found = self._by_ends(left)
            if not found and len(part.stages) > 1:
                found = list(_by_length(left))
            elif not found and may_rise:
                found = [left]
        if not found:
            yield from self._by_batches(left)
        for piece in found:
            yield min(piece.bounds_s), piece

    def _by_families(self, part: Lengths) -> Iterator[Lengths]:
        stages, bounds_s = np.array(part.stages), np.array(part.bounds_s)
        for number in self.narrower[part.choice]:
            mine = stages <= self.longest_in(number)
            if mine.any():
                yield replace(_lengths(part, stages[mine], bounds_s[mine]), choice=number)

    def _by_ends(self, part: Lengths) -> list[Lengths]:
        """Nothing where ends rule no pipeline out, or are told apart already."""
        if not matter(self.problem):
            return []
        members = [self.batches[member] for member in self.families[part.choice]]
        return [replace(part, ends=ends) for ends in list_ends(members, part.ends)]

    def _by_batches(self, part: Lengths) -> Iterator[tuple[float, Prefix]]:
        for p, least_s in zip(part.stages, part.bounds_s, strict=True):
            for member in self.families[part.choice]:
                may_be = part.ends is None or part.ends.may_be_of(self.batches[member])
                if p <= self.longest.get(member, 0) and may_be:
                    yield least_s, Prefix(member, p, (), ends=part.ends)


def _lengths(part: Lengths, stages: Ints, bounds_s: Floats) -> Lengths:
    return replace(part, stages=tuple(stages.tolist()), bounds_s=tuple(bounds_s.tolist()))


def _by_length(part: Lengths) -> Iterator[Lengths]:
    stages, bounds_s = np.array(part.stages), np.array(part.bounds_s)
    for piece in np.array_split(np.arange(len(stages)), PIECES):
        if len(piece):
            yield _lengths(part, stages[piece], bounds_s[piece])
