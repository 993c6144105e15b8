"""Parts of the space of plans with virtual stages, from coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass

from formulations.interleaved_rows import PathRow
from planner.search.space import Groups


@dataclass(frozen=True)
class VirtualPair:
    """A row of degrees and a number of stages, any number of virtual stages from two on."""

    choice: int
    stages: int


@dataclass(frozen=True)
class VirtualGroups:
    """The groups of a pair from the `start`-th on, bounded without memory."""

    choice: int
    groups: Groups
    start: int


@dataclass(frozen=True)
class VirtualGroup:
    """A row of degrees and the number of stages on each class, bounded with memory."""

    choice: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class VirtualOrder:
    """A row of degrees, virtual stages and the class of every stage."""

    choice: int
    virtual_stages: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class VirtualProgram:
    """An order whose program has been solved, with the layer counts [stage][chunk] already judged."""

    choice: int
    virtual_stages: int
    order: tuple[int, ...]
    excluded: tuple[tuple[tuple[int, ...], ...], ...]
    rows: tuple[PathRow, ...]


VirtualItem = VirtualPair | VirtualGroups | VirtualGroup | VirtualOrder | VirtualProgram
