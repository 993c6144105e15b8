"""What the queue holds: parts of the space of plans, from coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass

from formulations.stage_selection_data import PipelineRow
from planner.search.meshes.ends import Ends
from planner.search.space import Groups
from planner.search.virtual.items import VirtualItem
from planner.search.walks.part import Limits


@dataclass(frozen=True)
class Pair:
    """A row of degrees and a number of stages."""

    choice: int
    stages: int
    step: int = 0
    """Which step bounds it next, of `planner.search.partition`."""
    slowest_ms: tuple[float, float] = (0.0, float("inf"))
    """Where its slowest stage lies in plans better than the best one."""


@dataclass(frozen=True)
class Part:
    """A row of degrees and a number of stages, with limits on the stages of each class."""

    choice: int
    stages: int
    limits: Limits
    fine: bool
    """Whether it has been bounded as well as can be."""


@dataclass(frozen=True)
class GroupList:
    """The groups of a pair from the `start`-th on, bounded without memory."""

    choice: int
    groups: Groups
    start: int


@dataclass(frozen=True)
class GroupedPair:
    """A row of degrees and all its groups of one number of stages, bounded by paths."""

    choice: int
    groups: Groups


@dataclass(frozen=True)
class BoundedGroup:
    """A row of degrees and the number of stages on each class; any order, bounded with memory."""

    choice: int
    counts: tuple[int, ...]
    first: tuple[int, ...] = ()
    """Classes of its first stages, where they are given."""


@dataclass(frozen=True)
class OrderSet:
    """Some orders of a group, by the classes of their first stages."""

    choice: int
    limits: Limits


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
    alike: tuple[int, int] | None = None
    """Where all stages recompute one number of layers in full: the least and the most that it may be."""


@dataclass(frozen=True)
class TightOrder:
    """An order of compositions, for the plans that fit although its program has no room for them."""

    choice: int
    order: tuple[int, ...]
    program: Program | None = None
    """Its program in the memory of the classes that say most, and the answers already judged."""
    holder: int = 0
    """Which classes these are, as `MixedTables.by_memory` lists them."""


@dataclass(frozen=True)
class Lengths:
    """Pipelines of one family of batches and of several numbers of stages (`planner.search.meshes`)."""

    choice: int
    stages: tuple[int, ...]
    bounds_s: tuple[float, ...]
    """Bound of each number of stages."""
    ends: Ends | None = None
    """What both ends are, where that is given."""


@dataclass(frozen=True)
class Prefix:
    """Pipelines of one batch and length that begin with these shapes (`planner.search.meshes`)."""

    choice: int
    stages: int
    shapes: tuple[int, ...]
    banned: tuple[int, ...] = ()
    """Shapes that the next stage does not have."""
    ends: Ends | None = None
    """What both ends are, where that is given."""


Item = (
    Pair
    | Part
    | GroupList
    | GroupedPair
    | BoundedGroup
    | OrderSet
    | Order
    | TightOrder
    | Program
    | Lengths
    | Prefix
    | VirtualItem
)
