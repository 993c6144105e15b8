"""What `solvers` makes of a solver's answer: status, bound, silence, whole numbers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import pulp
import pytest
from ortools.sat.python import cp_model

from formulations import solvers
from formulations.options import SolveOptions, SolverName
from planner.errors import SolverError

LINEAR: tuple[SolverName, ...] = ("highs", "scip", "cbc")


def two_items() -> pulp.LpProblem:
    """min -5 x - 4 y + 20 with 2 x + 3 y <= 7 over whole numbers: x = 3, y = 0 is worth 5.

    Near-miss: without whole numbers x = 3.5 is worth 2.5; x = 2, y = 1 is worth 6.
    """
    model = pulp.LpProblem("two_items", pulp.LpMinimize)
    x = pulp.LpVariable("x", 0, 10, cat="Integer")
    y = pulp.LpVariable("y", 0, 10, cat="Integer")
    model += -5 * x - 4 * y + 20
    model += 2 * x + 3 * y <= 7, "room"
    return model


def market_split() -> pulp.LpProblem:
    """Any choice is allowed and none closes the books: a plan at once, a proof in hours.

    Cornuejols and Dawande, "A class of hard small 0-1 programs", 1998, here with slack to minimise.
    """
    rng = np.random.default_rng(1)
    model = pulp.LpProblem("market_split", pulp.LpMinimize)
    items = [pulp.LpVariable(f"x_{i}", cat="Binary") for i in range(40)]
    slacks = []
    for row in range(5):
        weights = rng.integers(1, 100, len(items))
        over, under = pulp.LpVariable(f"over_{row}", 0), pulp.LpVariable(f"under_{row}", 0)
        taken = pulp.lpSum(int(w) * x for w, x in zip(weights, items, strict=True))
        model += taken + over - under == int(weights.sum()) // 2, f"half_{row}"
        slacks += [over, under]
    model.setObjective(pulp.lpSum(slacks) + 1)
    return model


@pytest.mark.parametrize("solver", LINEAR)
def test_optimum_bound_and_values_come_back_with_the_constant_of_the_objective(solver: SolverName) -> None:
    solution = solvers.solve(two_items(), SolveOptions(solver=solver))
    assert solution.status == "optimal"
    assert solution.objective == pytest.approx(5, abs=1e-9)
    # The bound once lacked the 20 of this objective.
    assert solution.bound == pytest.approx(5, abs=1e-9)
    assert (solution.integer("x"), solution.integer("y")) == (3, 0)


@pytest.mark.parametrize("solver", LINEAR)
def test_program_without_solution_is_infeasible(solver: SolverName) -> None:
    model = two_items()
    model += model.variablesDict()["x"] + model.variablesDict()["y"] >= 4, "too_many"
    solution = solvers.solve(model, SolveOptions(solver=solver))
    assert solution.status == "infeasible"
    assert (solution.objective, solution.bound, dict(solution.values)) == (None, None, {})


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_time_limit_with_a_plan_in_hand_keeps_plan_and_bound(solver: SolverName) -> None:
    solution = solvers.solve(market_split(), SolveOptions(solver=solver, time_limit_s=1.0))
    assert solution.status == "feasible"
    assert solution.objective is not None and solution.bound is not None
    assert solution.bound <= solution.objective - 0.5
    assert all(solution.integer(f"x_{i}") in (0, 1) for i in range(40))


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs", "scip", "cp_sat"])
def test_ctrl_c_during_a_solve_is_heard_behind_it(solver: SolverName) -> None:
    """OR-Tools dropped it amid the conversion of the answer, and the search went on to its end."""
    options = SolveOptions(solver=solver, time_limit_s=1.0)
    ours = signal.getsignal(signal.SIGINT)
    hit = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    hit.start()
    with pytest.raises(KeyboardInterrupt):
        solvers.solve_cp(hard_cp(), options) if solver == "cp_sat" else solvers.solve(market_split(), options)
    hit.join()
    assert signal.getsignal(signal.SIGINT) is ours


class HalfLoaded(ModuleType):
    """A compiled module that Ctrl-C meets in its loading: what the handler raises becomes an ImportError."""

    def __getattr__(self, name: str) -> object:
        try:
            if name == "mathopt":
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None
        return None


def test_ctrl_c_while_a_solver_is_loaded_is_heard_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the program with a traceback."""
    monkeypatch.setitem(sys.modules, "ortools.math_opt.python", HalfLoaded("ortools.math_opt.python"))
    with pytest.raises(KeyboardInterrupt):
        solvers.solve(two_items(), SolveOptions())


def test_only_modules_that_are_not_loaded_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ortools.math_opt.python.mathopt", raising=False)
    assert solvers.loading_s("highs") == solvers.loading_s("scip") == solvers.LOADING_S
    assert solvers.loading_s("cbc") == 0
    monkeypatch.setitem(sys.modules, "ortools.math_opt.python.mathopt", ModuleType("mathopt"))
    assert solvers.loading_s("highs") == 0


def hard_cp() -> cp_model.CpModel:
    """The books of `market_split` for CP-SAT."""
    rng, model = np.random.default_rng(1), cp_model.CpModel()
    items = [model.new_bool_var(f"x_{i}") for i in range(40)]
    gaps = []
    for row in range(5):
        weights = rng.integers(1, 100, len(items)).tolist()
        gaps.append(model.new_int_var(0, 10_000, f"gap_{row}"))
        short = sum(w * x for w, x in zip(weights, items, strict=True)) - sum(weights) // 2
        model.add(gaps[-1] >= short)
        model.add(gaps[-1] >= -short)
    model.minimize(sum(gaps))
    return model


@pytest.mark.slow
def test_cbc_cut_by_a_limit_has_a_plan_and_no_bound() -> None:
    """PuLP calls such a plan Optimal in `status`; only `sol_status` tells."""
    solution = solvers.solve(market_split(), SolveOptions(solver="cbc", time_limit_s=1.0))
    assert solution.status == "feasible"
    assert solution.objective is not None and solution.bound is None


@pytest.mark.parametrize("solver", LINEAR)
def test_stop_at_a_gap_counts_as_optimal_with_a_bound_within_it(solver: SolverName) -> None:
    model = two_items()
    solution = solvers.solve(model, SolveOptions(solver=solver, gap=0.5))
    assert solution.status == "optimal"
    assert solution.objective is not None and solution.bound is not None
    assert solution.objective >= 5 - 1e-9
    assert solution.objective * 0.5 - 1e-9 <= solution.bound <= 5 + 1e-9


@pytest.mark.parametrize("solver", LINEAR)
def test_nothing_reaches_file_descriptor_1(solver: SolverName, capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS inside OR-Tools 9.15 writes there whatever it is told; results alone belong on stdout."""
    solvers.solve(two_items(), SolveOptions(solver=solver))
    assert capfd.readouterr().out == ""


def test_output_works_again_after_a_solve(capfd: pytest.CaptureFixture[str]) -> None:
    solvers.solve(two_items(), SolveOptions())
    print("result")
    assert capfd.readouterr().out == "result\n"


@pytest.mark.parametrize("solver", LINEAR)
def test_maximisation_is_refused(solver: SolverName) -> None:
    model = pulp.LpProblem("most", pulp.LpMaximize)
    model += pulp.LpVariable("x", 0, 1)
    with pytest.raises(SolverError, match="minimises"):
        solvers.solve(model, SolveOptions(solver=solver))


def test_linear_program_is_not_handed_to_cp_sat() -> None:
    with pytest.raises(SolverError, match="integer twin"):
        solvers.solve(two_items(), SolveOptions(solver="cp_sat"))


def test_integer_is_rounded_within_the_tolerance_and_refused_beyond() -> None:
    assert solvers.as_integer(2.9999995, "n_0") == 3
    with pytest.raises(SolverError, match="n_0"):
        solvers.as_integer(2.999, "n_0")


def small_cp_model() -> tuple[Any, Any]:
    """min x with x >= 3: 3; x = 2 is the near-miss."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    x = model.new_int_var(0, 10, "x")
    model.add(x >= 3)
    model.minimize(x)
    return model, x


def test_cp_sat_optimum_and_infeasible_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    model, x = small_cp_model()
    status, solver = solvers.solve_cp(model, SolveOptions(solver="cp_sat"))
    assert (status, solver.value(x), solver.best_objective_bound) == ("optimal", 3, 3)
    model.add(x <= 2)
    assert solvers.solve_cp(model, SolveOptions(solver="cp_sat"))[0] == "infeasible"
    assert capfd.readouterr().out == ""


def test_cp_sat_model_that_may_overflow_is_an_error() -> None:
    model, x = small_cp_model()
    model.add(2**62 * x <= 2**62)
    with pytest.raises(SolverError, match="CP-SAT refuses"):
        solvers.solve_cp(model, SolveOptions(solver="cp_sat"))


@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_same_program_gives_the_same_values_twice(solver: SolverName) -> None:
    first, second = (solvers.solve(two_items(), SolveOptions(solver=solver, seed=3)) for _ in range(2))
    assert first == second


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Solvers that were started, with their threads."""
    from ortools.math_opt.python import mathopt

    calls: list[tuple[str, int | None]] = []
    really = mathopt.solve

    def record(model: Any, kind: Any, params: Any) -> Any:
        calls.append((kind.name, params.threads))
        return really(model, kind, params=params)

    monkeypatch.setattr(mathopt, "solve", record)
    return calls


def test_solver_asked_for_is_the_one_that_runs(started: list[tuple[str, int | None]]) -> None:
    """HiGHS refuses a number of threads: told one, it would fail and SCIP would answer in its place."""
    for solver in ("highs", "scip"):
        solvers.solve(two_items(), SolveOptions(solver=solver))  # type: ignore[arg-type]
    assert started == [("HIGHS", None), ("GSCIP", 1)]


def test_scip_takes_over_where_highs_fails_and_nobody_where_scip_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ortools.math_opt.python import mathopt

    really, failing = mathopt.solve, {"HIGHS"}

    def fail(model: Any, kind: Any, params: Any) -> Any:
        if kind.name in failing:
            raise AttributeError("canonical_code")
        return really(model, kind, params=params)

    monkeypatch.setattr(mathopt, "solve", fail)
    assert solvers.solve(two_items(), SolveOptions(solver="highs")).objective == pytest.approx(5, abs=1e-9)
    failing.add("GSCIP")
    with pytest.raises(SolverError, match="scip failed: canonical_code"):
        solvers.solve(two_items(), SolveOptions(solver="highs"))


def test_cp_sat_runs_on_one_worker_with_the_seed_and_the_gap() -> None:
    """More workers find other plans of the same objective from run to run."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    model.minimize(model.new_int_var(3, 9, "x"))
    status, solver = solvers.solve_cp(model, SolveOptions(solver="cp_sat", seed=7, gap=0.25))
    assert status == "optimal"
    parameters = solver.parameters
    assert (parameters.num_workers, parameters.random_seed, parameters.relative_gap_limit) == (1, 7, 0.25)


@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_work_is_the_same_in_every_run_and_counts_what_whole_numbers_take(solver: SolverName) -> None:
    """Programs in whole numbers once counted as their relaxations, which take a twentieth of the time."""

    def knapsack(cat: str) -> pulp.LpProblem:
        model = pulp.LpProblem("knapsack", pulp.LpMinimize)
        items = [pulp.LpVariable(f"x_{i}", 0, 1, cat=cat) for i in range(30)]
        weights = np.random.default_rng(0).integers(20, 80, (5, 30))
        for row, weight in enumerate(weights):
            taken = pulp.lpSum(int(w) * x for w, x in zip(weight, items, strict=True))
            model += taken <= int(weight.sum()) // 3, f"room_{row}"
        model += pulp.lpSum(-(20 + i % 7) * x for i, x in enumerate(items))
        return model

    first, again = (solvers.solve(knapsack("Integer"), SolveOptions(solver=solver)) for _ in range(2))
    relaxed = solvers.solve(knapsack("Continuous"), SolveOptions(solver=solver))
    written = 5 * solvers.BUILDING
    assert first.work == again.work and relaxed.work > written
    assert first.work - written > 5 * (relaxed.work - written)
