"""Parts of the space of plans with virtual stages, from coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass

from formulations.interleaved_paths import PathRow
from planner.search.virtual_capacity import VirtualLimits


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
    """What was done with it: nothing, the relaxation, relaxations at lower cutoffs, whole numbers as well."""
    is_split: bool = False
    """Whether it is a piece of a larger one."""


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


VirtualItem = VirtualPair | VirtualPart | VirtualOrder | VirtualProgram


def turn_of(part: object) -> int:
    """When a part is opened: whole stages first, then relaxations, then what takes whole numbers.

    A relaxation takes a fraction of what a program in whole numbers takes and closes most parts, so that
    none of those is solved while a relaxation may still spare it. Relaxations go where the bound is least,
    at the cutoff and below: nothing else raises the bound of all.
    """
    if isinstance(part, VirtualPart):
        return 2 if part.looks < 2 else 3
    if isinstance(part, VirtualPair):
        return 1
    return 3 if isinstance(part, VirtualOrder | VirtualProgram) else 0
