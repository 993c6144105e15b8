"""The rows written as constraints say of given times what `pipeline_rows` says: neither less nor more."""

from __future__ import annotations

import numpy as np
import pulp
import pytest
from ortools.sat.python import cp_model

from formulations import solvers
from formulations.options import SolveOptions
from formulations.pipeline_constraints import (
    Add,
    PipelineTimes,
    add_end,
    add_partial,
    add_through,
    add_window,
    to_integer,
    to_linear,
)
from formulations.pipeline_rows import step_bound

CASES = [(p, m) for p in range(1, 6) for m in (1, 2, 3, 4, 5, 6, 7, 9, 12)]
DRAWS = 24


def whole_times(p: int, m: int) -> list[dict[str, np.ndarray]]:
    """Passes, sends, waits and what follows in whole ticks, of many kinds: so that every row is the largest
    somewhere."""
    rng, found = np.random.default_rng([p, m]), []
    for _ in range(DRAWS):
        times = {name: rng.integers(0, 1 + 10 ** rng.integers(0, 4, p)) for name in ("forward", "backward")}
        times["send"] = np.append(rng.integers(0, rng.choice([1, 4, 400]), p - 1), 0)
        times["wait"] = rng.integers(0, rng.choice([1, 4, 400]), p)
        times["after"] = rng.integers(0, rng.choice([1, 10, 10_000]), p)
        found.append(times)
    return found


def add_all(add: Add, times: PipelineTimes) -> None:
    for group in (add_window, add_partial, add_through, add_end):
        group(add, times)


def pipeline(m: int, given: dict[str, np.ndarray], draw: int, new: object) -> PipelineTimes:
    """Given times with variables for all else, each made by `new`."""
    p = len(given["send"])

    def some(name: str) -> list[object]:
        return [new(f"{name}_{s}_{draw}") for s in range(p)]  # type: ignore[operator]

    return PipelineTimes(
        num_microbatches=m,
        first=some("A"),
        last=some("Y"),
        core=some("C"),
        reach=some("R"),
        longest=(some("U1"), some("U2")),
        through=(some("P1"), some("P2")),
        end=new(f"T_{draw}"),  # type: ignore[operator]
        **{name: value.tolist() for name, value in given.items()},
    )


def bound(m: int, given: dict[str, np.ndarray]) -> float:
    passes = given["forward"], given["backward"], given["send"]
    floats = [np.asarray(one, dtype=np.float64) for one in passes]
    return float(step_bound(*floats, m, given["after"].astype(np.float64), given["wait"].astype(np.float64)))


@pytest.mark.parametrize(
    ("p", "m"), [*CASES[::2], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1::2])]
)
def test_the_least_end_of_the_linear_program_is_the_bound_of_the_rows(p: int, m: int) -> None:
    model, cases = pulp.LpProblem("rows", pulp.LpMinimize), whole_times(p, m)
    found = [
        pipeline(m, given, draw, lambda name: pulp.LpVariable(name, 0)) for draw, given in enumerate(cases)
    ]
    model += pulp.lpSum(times.end for times in found)
    for draw, times in enumerate(found):
        add_all(lambda row, name, draw=draw: to_linear(model)(row, f"{name}_{draw}"), times)
    solution = solvers.solve(model, SolveOptions())
    ends = [solution.values[f"T_{draw}"] for draw in range(DRAWS)]
    assert ends == pytest.approx([bound(m, given) for given in cases], rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(("p", "m"), CASES[::5])
def test_the_least_end_of_the_integer_program_is_the_bound_of_the_rows(p: int, m: int) -> None:
    given = whole_times(p, m)[0]
    model = cp_model.CpModel()
    times = pipeline(m, given, 0, lambda name: model.new_int_var(0, 1_000_000, name))
    model.minimize(times.end)
    add_all(to_integer(model), times)
    status, solver = solvers.solve_cp(model, SolveOptions())
    assert status == "optimal"
    assert solver.objective_value == pytest.approx(bound(m, given), rel=1e-9, abs=1e-9)
