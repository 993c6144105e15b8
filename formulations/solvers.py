"""The only file that sets solver parameters or reads solver status codes.

PuLP builds the programs. HiGHS and SCIP run through OR-Tools' MathOpt (`model_proto`), which, unlike
OR-Tools' ModelBuilder (9.15), keeps the bound when a limit or a gap stops the solver. CBC is the one that
PuLP ships; it gives no bound unless it proves the optimum. CP-SAT runs the integer twins of the
formulations, never the linear programs: it would round the continuous variables. GLOP runs the one linear
program that only gains rows and is solved after each (`GrowingProgram`), as it goes on from its last basis.

Left out: other warm starts; every program here is small.
"""

from __future__ import annotations

import datetime
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pulp

from formulations.interrupts import ctrl_c_waits
from formulations.model_proto import WrittenRows, model_proto
from formulations.options import SolveOptions, SolverName, Status
from planner.errors import SolverError
from planner.tolerances import INTEGRALITY_TOL

GLOP_LIMITS = "max_number_of_iterations: 2000"
"""Of a program of a handful of variables, which takes some tens: rare ones go round in circles. Ours."""
LEAST_LIMIT_S = 1e-3
"""Least time that a solver gets [s]: MathOpt and CP-SAT refuse a negative limit. Ours."""
LOADING_S = 0.15
"""Time that a solver's modules take to load, at the first program of a process [s]: measured."""
_MODULES = {
    "highs": "ortools.math_opt.python.mathopt",
    "scip": "ortools.math_opt.python.mathopt",
    "cp_sat": "ortools.sat.python.cp_model",
}
"""What each solver loads at its first program; CBC is a program of its own."""
BUILDING = 300
"""Changes of basis that take as long as to write a program down: measured on programs of 350 to 840 rows."""


@dataclass(frozen=True)
class Solution:
    """What a solver said of a program that minimises.

    Parameters
    ----------
    status
        `optimal`: proven within the gap asked for. `feasible`: a solution, cut by a limit.
        `infeasible`: proven that there is none. `unknown`: cut before any solution.
    values
        Value of every variable by name; empty without a solution.
    objective, bound
        None where there is none.
    work
        How much there was to do: rows of the program, each as often as the simplex method changed its basis,
        and `BUILDING` times to write the program down. Unlike a time it is the same in every run. CBC does
        not say how often that was.
    """

    status: Status
    values: Mapping[str, float]
    objective: float | None
    bound: float | None
    work: int = 0

    def integer(self, name: str) -> int:
        """A whole number, checked against the integrality tolerance."""
        return as_integer(self.values[name], name)


def as_integer(value: float, name: str) -> int:
    """Round a solver's value of an integer variable; SolverError where it is not whole."""
    nearest = round(value)
    if abs(value - nearest) > INTEGRALITY_TOL:
        raise SolverError(f"variable {name} should be whole and is {value!r}")
    return int(nearest)


def loading_s(solver: SolverName) -> float:
    """How much longer the next program of a solver takes as its modules are not loaded yet [s]."""
    return LOADING_S if solver in _MODULES and _MODULES[solver] not in sys.modules else 0.0


def solve(model: pulp.LpProblem, options: SolveOptions, written: WrittenRows | None = None) -> Solution:
    """Solve a PuLP program (minimisation) with HiGHS, SCIP or CBC.

    Parameters
    ----------
    written
        Rows of the same program, kept between calls where it only gains rows.

    Raises
    ------
    SolverError
        For CP-SAT, a program that maximises, or a solver that fails.
    """
    if options.solver == "cp_sat":
        raise SolverError("CP-SAT solves the integer twin of a formulation, not its linear program")
    if model.sense != pulp.LpMinimize:
        raise SolverError("every formulation minimises; turn the signs of this one")
    if options.solver == "cbc":
        return _solve_cbc(model, options)
    return _solve_mathopt(model, options, written)


def _solve_mathopt(model: pulp.LpProblem, options: SolveOptions, written: WrittenRows | None) -> Solution:
    with ctrl_c_waits():
        from ortools.math_opt.python import mathopt

    kinds = {"highs": mathopt.SolverType.HIGHS, "scip": mathopt.SolverType.GSCIP}
    parameters = mathopt.SolveParameters(
        relative_gap_tolerance=options.gap,
        absolute_gap_tolerance=0.0,
        random_seed=options.seed,
        threads=None if options.solver == "highs" else 1,  # HiGHS refuses the setting here
        time_limit=_limit(options),
        node_limit=options.node_limit,
    )
    program = mathopt.Model.from_model_proto(model_proto(model, written))
    with ctrl_c_waits(), _silent_stdout():
        try:
            result = mathopt.solve(program, kinds[options.solver], params=parameters)
        except (AttributeError, ValueError, RuntimeError) as error:
            # HiGHS 1.12 now and then ends a program with an internal error, which OR-Tools 9.15 fails
            # to report (AttributeError: canonical_code); SCIP solves the same program.
            if options.solver != "highs":
                raise SolverError(f"{options.solver} failed: {error}") from error
            return _solve_mathopt(model, replace(options, solver="scip"), written)
    reason = result.termination.reason
    bound = result.termination.objective_bounds.dual_bound
    finite_bound = float(bound) if math.isfinite(bound) else None
    work = len(model.constraints()) * (BUILDING + int(result.solve_stats.simplex_iterations))
    if reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED):
        return Solution("infeasible", {}, None, None, work)
    if reason not in (
        mathopt.TerminationReason.OPTIMAL,
        mathopt.TerminationReason.FEASIBLE,
        mathopt.TerminationReason.NO_SOLUTION_FOUND,
    ):
        raise SolverError(f"{options.solver} stopped with {reason.name}: {result.termination.detail}")
    if not result.has_primal_feasible_solution():
        return Solution("unknown", {}, None, finite_bound, work)
    values = {variable.name: value for variable, value in result.variable_values().items()}
    status: Status = "optimal" if reason == mathopt.TerminationReason.OPTIMAL else "feasible"
    return Solution(status, values, float(result.objective_value()), finite_bound, work)


def _limit(options: SolveOptions) -> datetime.timedelta | None:
    if options.time_limit_s is None:
        return None
    return datetime.timedelta(seconds=max(options.time_limit_s, LEAST_LIMIT_S))


def _solve_cbc(model: pulp.LpProblem, options: SolveOptions) -> Solution:
    command = pulp.PULP_CBC_CMD(
        msg=False, gapRel=options.gap, threads=1, timeLimit=options.time_limit_s, options=["allowableGap 0"]
    )
    model.solve(command)
    work = len(model.constraints()) * BUILDING
    if model.status == pulp.LpStatusInfeasible:
        return Solution("infeasible", {}, None, None, work)
    if model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Solution("unknown", {}, None, None, work)
    values = {variable.name: float(variable.value() or 0.0) for variable in model.variables()}
    objective = float(pulp.value(model.objective))
    if model.sol_status == pulp.LpSolutionOptimal:
        bound = objective * (1 - options.gap) if objective > 0 else objective
        return Solution("optimal", values, objective, bound, work)
    return Solution("feasible", values, objective, None, work)


class GrowingProgram:
    """A linear program that gains rows and is solved after each, minimising, variables by number.

    Built once: for a handful of variables building costs more than solving.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        """`costs` are what a unit of each variable adds to the objective; no variable has bounds yet."""
        with ctrl_c_waits():
            from ortools.linear_solver import pywraplp

        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._solver.SetSolverSpecificParametersAsString(GLOP_LIMITS)
        self._variables = [self._solver.NumVar(-math.inf, math.inf, f"x_{i}") for i in range(len(costs))]
        objective = self._solver.Objective()
        for variable, cost in zip(self._variables, costs, strict=True):
            objective.SetCoefficient(variable, cost)
        objective.SetMinimization()

    def add_row(self, name: str, coefficients: Mapping[int, float], most: float) -> None:
        """The sum of coefficients times variables is at most so much."""
        row = self._solver.Constraint(-math.inf, most, name)
        for i, coefficient in coefficients.items():
            row.SetCoefficient(self._variables[i], coefficient)

    @property
    def row_names(self) -> list[str]:
        """Names of the rows, in the order in which they were added."""
        return [row.name() for row in self._solver.constraints()]

    def set_bounds(self, i: int, low: float, high: float) -> None:
        """Let a variable lie between two values."""
        self._variables[i].SetBounds(low, high)

    def solve(self) -> list[float] | None:
        """Values of the variables at the optimum; None where the solver finds none."""
        if self._solver.Solve() != self._solver.OPTIMAL:
            return None
        return [variable.solution_value() for variable in self._variables]

    def row_prices(self) -> list[float]:
        """By how much the optimum rises with what each row may be, in the order in which they were added.

        Of the last solve, behind which no row was added; none is positive.
        """
        return [row.dual_value() for row in self._solver.constraints()]


def solve_cp(model: Any, options: SolveOptions) -> tuple[Status, Any]:
    """Run CP-SAT on a `cp_model.CpModel`; the solver object answers `value`, objective and bound.

    One worker and a fixed seed, so that the same model gives the same answer.

    Raises
    ------
    SolverError
        For a model that CP-SAT refuses.
    """
    with ctrl_c_waits():
        from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = options.seed
    solver.parameters.relative_gap_limit = options.gap
    # Long sums of times: full linear relaxations close 16 stages in 2 s, the default not in 20 s.
    solver.parameters.linearization_level = 2
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.symmetry_level = 0
    if options.time_limit_s is not None:
        solver.parameters.max_time_in_seconds = max(options.time_limit_s, LEAST_LIMIT_S)
    solver.parameters.catch_sigint_signal = False  # it would end this solve alone, and unset our handler
    with ctrl_c_waits():
        code = solver.solve(model)
    if code == cp_model.MODEL_INVALID:
        raise SolverError(f"CP-SAT refuses the model: {model.validate()}")
    names: dict[Any, Status] = {
        cp_model.OPTIMAL: "optimal",
        cp_model.FEASIBLE: "feasible",
        cp_model.INFEASIBLE: "infeasible",
    }
    return names.get(code, "unknown"), solver


@contextmanager
def _silent_stdout() -> Iterator[None]:
    """Keep file descriptor 1 clean: HiGHS inside OR-Tools 9.15 writes there whatever it is told."""
    sys.stdout.flush()
    saved = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)
