"""What every answer passes before it leaves: the referee once more, and the problem put inside.

The referee looks at each plan again, whatever the search says of it; a plan that fails is withheld.
"""

from __future__ import annotations

from planner.data import load
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import SolverError
from planner.tolerances import BOUND_TOL

LEAVING_SHARE = 0.03
"""Part of a time limit that is kept for what follows the search: last check, tables, end of the process.

With the piece of work that a search has in hand when its time is up, a run then ends within 5% of its limit.
"""
LEAVING_S = 0.06
"""What is kept besides, whatever the limit [s]: the last check, the tables and the end of the process take
about as long after a short search as after a long one. Measured on the shipped problems.
"""


def with_remaining_time(problem: Problem, elapsed_s: float) -> Problem:
    """The same problem with the time already spent, and the time to leave, taken off its limit."""
    limit_s = problem.options.time_limit_s
    if limit_s is None:
        return problem
    # A search that starts too late still ends in the ordinary way, at its first look at the clock.
    remaining_s = max(limit_s * (1 - LEAVING_SHARE) - LEAVING_S - elapsed_s, 1e-3)
    options = problem.options.model_copy(update={"time_limit_s": remaining_s})
    return problem.model_copy(update={"options": options})


def check_again(problem: Problem, result: Result) -> None:
    """Let the referee look at every plan of a result, whatever the search says of it.

    Raises
    ------
    SolverError
        Where a plan breaks a rule, or the search states another time or a bound above it: our bug.
    """
    from planner.simulate.evaluate import evaluate

    if result.plan is None:
        return
    best = evaluate(problem, result.plan)
    others = [evaluate(problem, other.plan) for other in result.runners_up]
    for number, evaluation in enumerate([best, *others], start=1):
        if evaluation.violations:
            raise SolverError(
                f"our bug: plan {number} of {problem.name!r} breaks a rule ({evaluation.violations[0]}); "
                "it is withheld"
            )
    if result.evaluation is None or abs(result.evaluation.step_s - best.step_s) > BOUND_TOL * best.step_s:
        raise SolverError(
            f"our bug: the search states another step time for {problem.name!r} than the referee"
        )
    if result.bound_s is not None and result.bound_s > best.step_s * (1 + BOUND_TOL):
        raise SolverError(
            f"our bug: the bound of {problem.name!r}, {result.bound_s:.9g} s, lies above the step time of "
            f"its plan, {best.step_s:.9g} s"
        )


def with_room_for_experts(result: Result, problem: Problem) -> Result:
    """The same result, whose best plan says how unevenly its experts may be loaded."""
    from planner.simulate.uneven_experts import with_most_imbalance

    if result.plan is None or result.evaluation is None:
        return result
    evaluation = with_most_imbalance(problem, result.plan, result.evaluation)
    return result.model_copy(update={"evaluation": evaluation})


def with_problem_inside(result: Result, problem: Problem) -> Result:
    """The same result, whose plans carry the problem that they answer."""
    if result.plan is None:
        return result
    inside = load.problem_file(portable(problem))
    runners_up = tuple(
        other.model_copy(update={"plan": other.plan.model_copy(update={"problem": inside})})
        for other in result.runners_up
    )
    best = result.plan.model_copy(update={"problem": inside})
    return result.model_copy(update={"plan": best, "runners_up": runners_up})


def portable(problem: Problem) -> Problem:
    """The problem without how long and on how many workers it was searched.

    Those two change no plan, so a plan's file must not differ by them.
    """
    options = problem.options.model_copy(update={"time_limit_s": None, "workers": None})
    return problem.model_copy(update={"options": options})
