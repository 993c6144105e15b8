"""`hetplan export`: the launch directory of a plan file."""

from __future__ import annotations

from pathlib import Path

from planner import api
from planner.commands.plan import check_out_dir, say_written
from planner.commands.predict import problem_of
from planner.commands.screen import ExitCode
from planner.data import load


def run(
    plan_path: Path, *, target: str | None, out: Path, problem_name: str | None, force: bool, quiet: bool
) -> ExitCode:
    """Check the plan with the referee, write the directory, name its files."""
    if target is not None:
        api.check_export_target(target, "--target")
    plan = load.load_plan(plan_path)
    check_out_dir(out, force=force)
    problem = problem_of(problem_name, plan, str(plan_path))
    api.export(plan, target or plan.target, out, problem=problem, force=force)
    say_written(out, quiet=quiet)
    return ExitCode.PLAN
