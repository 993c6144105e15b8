"""Parts of the space of plans with virtual stages, from coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass

from formulations.interleaved_paths import PathRow
from planner.search.virtual.capacity import VirtualLimits

FEW_CLASSES = 2
"""Classes of a part up to which whole numbers bound it before relaxations at lower cutoffs do: with few of
them the program is quickly solved. A guess, of how much is looked at and never of what is proven."""


@dataclass(frozen=True)
class VirtualPair:
    """A row of degrees and a number of stages, any number of virtual stages from two on."""

    choice: int
    stages: int


@dataclass(frozen=True)
class VirtualPart:
    """A row of degrees, a number of virtual stages, and limits on the orders of the classes."""

    choice: int
    virtual_stages: int
    stages: int
    limits: VirtualLimits
    looks: int = 0
    """What was done with it: nothing, the relaxation, whole layers along the pipeline, then relaxations at
    lower cutoffs (but with pieces) and whole numbers."""
    is_split: bool = False
    """Whether it is a piece of a larger one."""
    is_merged: bool = False
    """Whether it has been bounded with classes that are much alike as one."""

    @property
    def num_classes(self) -> int:
        """Classes that it may use."""
        return sum(k > 0 for k in self.limits.most)

    @property
    def whole_look(self) -> int:
        """Which look at it is the one in whole numbers."""
        return 2 if self.is_split or self.num_classes <= FEW_CLASSES else 3

    @property
    def rises(self) -> bool:
        """Whether whole numbers bound it at cutoffs that rise, as relaxations do before: in small bites."""
        return not self.is_split and self.num_classes > FEW_CLASSES


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
    raised: int = 0
    """Times that its limit of nodes has been raised."""


VirtualItem = VirtualPair | VirtualPart | VirtualOrder | VirtualProgram

PAIRS_TURN = 1
"""Turn of pairs, behind whole stages."""


def turn_of(part: object) -> int:
    """When a part is opened: whole stages first, then relaxations, then what takes whole numbers.

    A relaxation takes a fraction of what a program in whole numbers takes and closes most parts, so that
    none of those is solved while a relaxation may still spare it. Relaxations go where the bound is least,
    at the cutoff and below: nothing else raises the bound of all. So do programs whose cutoffs rise.
    """
    if isinstance(part, VirtualPart):
        return 2 if part.looks < (part.whole_look + 1 if part.rises else 1) else 3
    if isinstance(part, VirtualPair):
        return PAIRS_TURN
    return 3 if isinstance(part, VirtualOrder | VirtualProgram) else 0
