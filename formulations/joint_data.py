"""Data and answer of `joint`, shared by its linear and its integer form.

Names as in the docstring of `joint`; times in ms, sizes in GiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from formulations.options import Status
from formulations.pipeline_rows import Floats
from formulations.stage_selection_data import StageChoice, StageSelectionData, most_layers
from planner.errors import SolverError

Pair = tuple[int, int]
"""Stage and class."""


@dataclass(frozen=True)
class JointData:
    """Coefficients of one choice of degrees and number of stages."""

    of_class: tuple[StageSelectionData, ...]
    """The pipeline with every stage on class k: row s holds what stage s costs there. Constants are alike."""
    send_ms: Floats
    """[class, class] send from a stage to the next."""
    most_stages: tuple[int, ...]
    """Stages that each class has chips for."""

    @property
    def num_stages(self) -> int:
        """p."""
        return self.of_class[0].num_stages

    @property
    def num_classes(self) -> int:
        """|K|."""
        return len(self.of_class)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Every stage with every class."""
        return tuple(product(range(self.num_stages), range(self.num_classes)))

    def term(self, name: str) -> dict[Pair, float]:
        """A coefficient of `StageSelectionData` by stage and class."""
        return {(s, k): float(getattr(self.of_class[k], name)[s]) for s, k in self.pairs}

    def most(self) -> dict[Pair, int]:
        """N[s,k]; valid as a big-M because no feasible n exceeds it (`most_layers`)."""
        by_class = [most_layers(data) for data in self.of_class]
        return {(s, k): max(int(by_class[k][s]), 0) for s, k in self.pairs}


@dataclass(frozen=True)
class JointResult:
    """Classes, choice, objective and bound [ms]; classes and choice None where there is none."""

    status: Status
    classes: tuple[int, ...] | None
    choice: StageChoice | None
    objective_ms: float | None
    bound_ms: float | None


def order_data(data: JointData, classes: tuple[int, ...]) -> StageSelectionData:
    """The instance of `stage_selection` that remains when the class of every stage is fixed."""
    picked: dict[str, Any] = {}
    for field in fields(StageSelectionData):
        value = getattr(data.of_class[0], field.name)
        if isinstance(value, np.ndarray):
            rows = [getattr(data.of_class[k], field.name)[s] for s, k in enumerate(classes)]
            picked[field.name] = np.array(rows, dtype=value.dtype)
    hops = [float(data.send_ms[k, after]) for k, after in pairwise(classes)]
    picked["send_ms"] = np.array([*hops, 0.0])
    picked["wait_ms"] = np.zeros(len(classes))  # no sends that block, so that no stage waits for them
    return replace(data.of_class[0], **picked)


def orders(data: JointData) -> Iterator[tuple[int, ...]]:
    """Every way to place the stages on the classes that have chips for them."""
    for classes in product(range(data.num_classes), repeat=data.num_stages):
        if all(classes.count(k) <= most for k, most in enumerate(data.most_stages)):
            yield classes


def check_what_is_left_out(data: JointData) -> None:
    """Refuse what both forms leave out: layers of several kinds, constants by class, stages without a layer.

    Raises
    ------
    SolverError
        Where a stage begins with layers of another kind or may be without any, or constants differ.
    """
    if len({of_class.constant_ms for of_class in data.of_class}) > 1:
        raise SolverError("the joint form takes one constant; use stage_selection order by order")
    if any(of_class.may_be_empty is not None and of_class.may_be_empty.any() for of_class in data.of_class):
        raise SolverError("the joint form gives each stage a layer; use stage_selection order by order")
    if any(int(of_class.lead.max()) > 0 for of_class in data.of_class):
        raise SolverError("the joint form takes layers of one kind; use stage_selection order by order")
