"""Rows of interleaved pipelines in a program: written with sums they say the same."""

from __future__ import annotations

import numpy as np
import pulp

from formulations.interleaved_constraints import Passes, _Sums
from formulations.interleaved_rows import wait_rows


def test_rows_with_sums_have_the_values_of_those_without() -> None:
    rng = np.random.default_rng(2)
    for p, m, v in ((2, 2, 2), (3, 6, 2), (4, 8, 3), (9, 18, 4)):
        names = {name: [[f"{name}_{s}_{k}" for k in range(v)] for s in range(p)] for name in "FB"}
        grids = {name: [[pulp.LpVariable(one) for one in row] for row in names[name]] for name in "FB"}
        nothing = pulp.LpVariable("nothing")
        passes = Passes(grids["F"], grids["B"], [0.0] * p, [], [], nothing, pulp.LpAffineExpression(), m)
        sums = _Sums(pulp.LpProblem("rows"), passes)
        forward, backward = rng.random((2, p, v))
        for grid, values in (
            (passes.forward, forward),
            (passes.backward, backward),
            (sums.forward, np.cumsum(forward, axis=0)),
            (sums.backward, np.cumsum(backward, axis=0)),
        ):
            for s, k in np.ndindex(p, v):
                grid[s][k].varValue = values[s, k]
        for row in wait_rows(p, m, v):
            terms = sums.terms(row)
            value = sum(factor * variable.varValue for variable, factor in terms)
            assert np.isclose(value, (row.forward * forward + row.backward * backward).sum())
            assert len({variable.name for variable, _ in terms}) == len(terms) <= 6 * v + 2
