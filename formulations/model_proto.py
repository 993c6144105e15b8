"""A PuLP program as MathOpt's message, number by number.

PuLP's own way out is an MPS file, whose text takes longer to write and to read than many a small program
takes to solve, and cuts every number to twelve digits.
"""

from __future__ import annotations

import math
from typing import Any

import pulp


def model_proto(model: pulp.LpProblem) -> Any:
    """The `ModelProto` of a program that minimises; variables in order of name, rows as they were added."""
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
    _add_rows(proto, model, index)
    return proto


def _add_rows(proto: Any, model: pulp.LpProblem, index: dict[str, int]) -> None:
    rows, columns, values = [], [], []
    lower, upper = [], []
    constraints = model.constraints()
    for row, constraint in enumerate(constraints):
        limit = -float(constraint.constant)
        lower.append(-math.inf if constraint.sense == pulp.LpConstraintLE else limit)
        upper.append(math.inf if constraint.sense == pulp.LpConstraintGE else limit)
        for column, value in _terms(constraint, index):
            rows.append(row)
            columns.append(column)
            values.append(value)
    proto.linear_constraints.ids.extend(range(len(lower)))
    proto.linear_constraints.names.extend(constraint.name for constraint in constraints)
    proto.linear_constraints.lower_bounds.extend(lower)
    proto.linear_constraints.upper_bounds.extend(upper)
    proto.linear_constraint_matrix.row_ids.extend(rows)
    proto.linear_constraint_matrix.column_ids.extend(columns)
    proto.linear_constraint_matrix.coefficients.extend(values)


def _terms(expression: Any, index: dict[str, int]) -> list[tuple[int, float]]:
    """Columns and coefficients other than zero, by column."""
    return sorted((index[variable.name], float(value)) for variable, value in expression.items() if value)


def _or(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else float(bound)
