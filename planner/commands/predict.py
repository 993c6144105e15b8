"""`hetplan predict`: what a given plan would cost."""

from __future__ import annotations

from pathlib import Path

from planner import api
from planner.commands import screen
from planner.commands.screen import ExitCode
from planner.data import load
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.errors import InstanceError


def run(problem_name: str | None, plan_path: Path, *, as_json: bool) -> ExitCode:
    """Print the prediction; a plan that breaks a rule is predicted as well, and reported."""
    plan = load.load_plan(plan_path)
    problem = problem_of(problem_name, plan, str(plan_path))
    evaluation = api.predict(problem, plan)
    if as_json:
        screen.show_json({"schema": "hetplan/evaluation/v1", **evaluation.model_dump(mode="json")})
    else:
        from planner.report.tables import prediction_report

        screen.show(prediction_report(problem, plan, evaluation, width=screen.console().width))
    return ExitCode.INFEASIBLE if evaluation.violations else ExitCode.PLAN


def problem_of(problem_name: str | None, plan: Plan, where: str) -> Problem:
    """The named problem, or the one that the plan carries.

    Raises
    ------
    InstanceError
        Where there is neither.
    """
    if problem_name is not None:
        return load.load_problem(problem_name)
    if plan.problem is None:
        raise InstanceError("the plan does not carry its problem; name the problem as well", where)
    return load.resolve_problem(plan.problem, f"{where}: problem")
