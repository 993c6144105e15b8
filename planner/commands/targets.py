"""`hetplan plan --target all`: the best plan for each launcher, and what each launcher costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner import api
from planner.commands import clock, screen
from planner.commands.screen import ExitCode
from planner.data.problem import Problem, TargetName
from planner.data.result import Result
from planner.search.progress import Progress

Results = dict[TargetName, Result]


def solve(problem: Problem, on_progress: Callable[[Progress], None] | None) -> Results:
    """The best plan for each launcher."""
    return api.plan_all(problem, on_progress=on_progress, elapsed_s=clock.since_process_start_s())


def show(
    problem: Problem, results: Results, to_json: Callable[[Result], dict[str, Any]], *, as_json: bool
) -> None:
    """Print all answers: JSON for programs, else a line a launcher and the best plan whole."""
    if as_json:
        screen.show_json({"targets": {name: to_json(result) for name, result in results.items()}})
        return
    from planner.report.tables import plan_report
    from planner.report.targets import best_target, targets_report

    best = best_target(results)
    if best is not None:
        asked = problem.model_copy(update={"target": best})
        screen.show(plan_report(asked, results[best], width=screen.console().width), "")
    screen.show(targets_report(results))


def exit_code(results: Results) -> ExitCode:
    """A plan for any launcher is a plan; infeasible only where no launcher has one."""
    if any(result.plan is not None for result in results.values()):
        return ExitCode.PLAN
    if all(result.termination == "infeasible" for result in results.values()):
        return ExitCode.INFEASIBLE
    return ExitCode.NOT_FOUND
