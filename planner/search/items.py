"""What the queue holds: parts of the space of plans, from coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass

from formulations.stage_selection import PipelineRow


@dataclass(frozen=True)
class Group:
    """A row of degrees and the number of stages on each class; any order, bounded without memory."""

    choice: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class BoundedGroup:
    """The same, bounded with memory and whole layers."""

    choice: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Order:
    """A row of degrees and the class of every stage."""

    choice: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """An order whose program has been solved, with the layer counts already judged."""

    choice: int
    order: tuple[int, ...]
    excluded: tuple[tuple[int, ...], ...]
    rows: tuple[PipelineRow, ...]


Item = Group | BoundedGroup | Order | Program
