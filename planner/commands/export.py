"""`hetplan export`: the launch directory of a plan file."""

from __future__ import annotations

import sys
from pathlib import Path

from planner import api
from planner.commands.plan import check_out_dir, say_crowded, say_unstated, say_version, say_written
from planner.commands.predict import problem_of
from planner.commands.screen import ExitCode
from planner.data import load
from planner.errors import InstanceError


def run(
    plan_path: Path,
    *,
    target: str | None,
    out: Path | None,
    problem_name: str | None,
    version: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> ExitCode:
    """Check the plan with the referee, write the directory and name its files, or print them."""
    if target is not None:
        api.check_target(target, "--target")
    plan = load.load_plan(plan_path)
    if out is not None and not dry_run:
        check_out_dir(out, force=force)
    problem = problem_of(problem_name, plan, str(plan_path))
    if version is None:
        say_version(problem.model_copy(update={"target": target or plan.target}))
    if dry_run:
        _print_files(api.export_texts(plan, target or plan.target, problem=problem, version=version))
        return ExitCode.PLAN
    if out is None:
        raise InstanceError("missing --out, or --dry-run to print the files", "command line")
    api.export(plan, target or plan.target, out, problem=problem, version=version, force=force)
    say_unstated(problem, target or plan.target, version)
    if (target or plan.target) == "flagscale":
        say_crowded(plan.model_copy(update={"target": "flagscale"}))
    say_written(out, quiet=quiet)
    return ExitCode.PLAN


def _print_files(files: dict[str, str]) -> None:
    """Every file under a line with its name, in the order of the names."""
    for name in sorted(files):
        sys.stdout.write(f"==> {name} <==\n{files[name]}\n")
