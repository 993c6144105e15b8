"""The program that a solver gets is the one that PuLP holds: against PuLP's MPS file, read by OR-Tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pulp
import pytest
from ortools.math_opt.io.python import mps_converter

from formulations.model_proto import WrittenRows, model_proto

BOUNDS = [(0, None), (None, None), (None, 3), (2, 2), (-3, None), (0, 5), (-4, 4)]
CATEGORIES = ["Continuous", "Integer", "Binary"]


def random_program(rng: np.random.Generator) -> pulp.LpProblem:
    model = pulp.LpProblem("random", pulp.LpMinimize)
    variables = []
    for i in range(12):
        low, high = BOUNDS[rng.integers(len(BOUNDS))]
        category = CATEGORIES[rng.integers(3)]
        if category == "Integer" and high is None:
            high = 9  # an MPS file means another bound by an integer without one
        variables.append(pulp.LpVariable(f"v_{i}", low, high, cat=category))

    def expression() -> Any:
        chosen = rng.choice(12, 5, replace=False)
        return pulp.lpSum(float(rng.integers(-9, 9)) * variables[i] for i in chosen) + float(rng.integers(5))

    model += expression()
    for row in range(10):
        left, right = expression(), expression()
        model += [left <= right, left == right, left >= right][rng.integers(3)], f"row_{row}"
    return model


@pytest.mark.parametrize("seed", range(20))
def test_program_is_that_of_the_mps_file(seed: int, tmp_path: Path) -> None:
    model = random_program(np.random.default_rng(seed))
    model.writeMPS(str(tmp_path / "program.mps"))
    theirs = mps_converter.mps_to_model_proto((tmp_path / "program.mps").read_text())
    ours = model_proto(model)
    # The file lacks the objective's constant.
    assert ours.objective.offset == model.objective.constant
    theirs.objective.offset = ours.objective.offset
    assert named(ours) == named(theirs)


def named(proto: Any) -> dict[str, Any]:
    """Bounds, kinds and coefficients by name: neither the order of rows nor that of variables is compared."""
    columns = dict(zip(proto.variables.ids, proto.variables.names, strict=True))
    rows = dict(zip(proto.linear_constraints.ids, proto.linear_constraints.names, strict=True))
    matrix = proto.linear_constraint_matrix
    return {
        "objective": (
            proto.objective.offset,
            proto.objective.maximize,
            {
                columns[i]: value
                for i, value in zip(
                    proto.objective.linear_coefficients.ids,
                    proto.objective.linear_coefficients.values,
                    strict=True,
                )
            },
        ),
        "variables": {
            name: (low, high, whole)
            for name, low, high, whole in zip(
                proto.variables.names,
                proto.variables.lower_bounds,
                proto.variables.upper_bounds,
                proto.variables.integers,
                strict=True,
            )
        },
        "rows": {
            name: (low, high)
            for name, low, high in zip(
                proto.linear_constraints.names,
                proto.linear_constraints.lower_bounds,
                proto.linear_constraints.upper_bounds,
                strict=True,
            )
        },
        "matrix": {
            (rows[r], columns[c]): value
            for r, c, value in zip(matrix.row_ids, matrix.column_ids, matrix.coefficients, strict=True)
        },
    }


def test_numbers_are_kept_to_their_last_digit() -> None:
    model = pulp.LpProblem("digits", pulp.LpMinimize)
    x = pulp.LpVariable("x", 0)
    model += x / 3
    model += x * (2 / 3) >= 1 / 7, "row"
    proto = model_proto(model)
    assert list(proto.objective.linear_coefficients.values) == [1 / 3]
    assert list(proto.linear_constraint_matrix.coefficients) == [2 / 3]
    assert list(proto.linear_constraints.lower_bounds) == [1 / 7]


def test_program_that_gains_rows_is_written_as_a_whole_one() -> None:
    """A row may bring a variable whose name moves all columns behind it."""
    model, written = pulp.LpProblem("grows", pulp.LpMinimize), WrittenRows()
    x, z, y = (pulp.LpVariable(name, 0) for name in "xzy")
    model += x + z
    for name, row in (("first", x + z >= 1), ("second", 2 * z >= x), ("third", y + z <= 3)):
        model += row, name
        assert model_proto(model, written) == model_proto(model)
