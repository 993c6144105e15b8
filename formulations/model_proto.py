"""A PuLP program as MathOpt's message, number by number.

PuLP's own way out is an MPS file, whose text takes longer to write and to read than many a small program
takes to solve, and cuts every number to twelve digits.
"""

from __future__ import annotations

import math
from typing import Any

import pulp

from formulations.interrupts import ctrl_c_waits


class WrittenRows:
    """The rows of one program, number by number: of one that gains rows only the new ones are written.

    A row must stay as it was written.
    """

    def __init__(self) -> None:
        self._begin({})

    def _begin(self, index: dict[str, int]) -> None:
        self._index = index
        self.names: list[str] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []

    def add_new(self, model: pulp.LpProblem, index: dict[str, int]) -> None:
        """Write the rows that are not written yet; all of them where a new variable has moved the columns."""
        if index != self._index:
            self._begin(index)
        for constraint in model.constraints()[len(self.names) :]:
            limit = -float(constraint.constant)
            self.lower.append(-math.inf if constraint.sense == pulp.LpConstraintLE else limit)
            self.upper.append(math.inf if constraint.sense == pulp.LpConstraintGE else limit)
            for column, value in _terms(constraint, index):
                self.rows.append(len(self.names))
                self.columns.append(column)
                self.values.append(value)
            self.names.append(constraint.name)


def model_proto(model: pulp.LpProblem, written: WrittenRows | None = None) -> Any:
    """The `ModelProto` of a program that minimises; variables in order of name, rows as they were added.

    Parameters
    ----------
    written
        Rows of the same program from earlier calls, which this one goes on from.
    """
    with ctrl_c_waits():
        from ortools.math_opt import model_pb2

    proto = model_pb2.ModelProto(name=model.name)
    variables = model.variables()
    index = {variable.name: i for i, variable in enumerate(variables)}
    proto.variables.ids.extend(range(len(variables)))
    proto.variables.names.extend(index)
    proto.variables.integers.extend(variable.cat == pulp.LpInteger for variable in variables)
    proto.variables.lower_bounds.extend(_or(variable.lowBound, -math.inf) for variable in variables)
    proto.variables.upper_bounds.extend(_or(variable.upBound, math.inf) for variable in variables)
    terms = _terms(model.objective, index)
    proto.objective.offset = float(model.objective.constant)
    proto.objective.linear_coefficients.ids.extend(column for column, _ in terms)
    proto.objective.linear_coefficients.values.extend(value for _, value in terms)
    rows = written or WrittenRows()
    rows.add_new(model, index)
    proto.linear_constraints.ids.extend(range(len(rows.names)))
    proto.linear_constraints.names.extend(rows.names)
    proto.linear_constraints.lower_bounds.extend(rows.lower)
    proto.linear_constraints.upper_bounds.extend(rows.upper)
    proto.linear_constraint_matrix.row_ids.extend(rows.rows)
    proto.linear_constraint_matrix.column_ids.extend(rows.columns)
    proto.linear_constraint_matrix.coefficients.extend(rows.values)
    return proto


def _terms(expression: Any, index: dict[str, int]) -> list[tuple[int, float]]:
    """Columns and coefficients other than zero, by column."""
    return sorted((index[variable.name], float(value)) for variable, value in expression.items() if value)


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else float(bound)
