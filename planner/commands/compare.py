"""`hetplan compare`: what changed between two plans, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planner import api
from planner.batch.compare import Comparison, Side, compare
from planner.batch.rows import read_answer
from planner.commands import screen
from planner.commands.predict import problem_of
from planner.commands.screen import ExitCode
from planner.data import load
from planner.errors import InstanceError
from planner.units import LEAST_SHOWN_S, format_change, format_seconds

if TYPE_CHECKING:
    from rich.console import Group


def run(a: str, b: str, *, store: Path | None, as_json: bool) -> ExitCode:
    """Print the comparison."""
    found = compare(_side(a, store), _side(b, store))
    if as_json:
        screen.show_json(found.as_json())
    else:
        screen.show(report(found))
    return ExitCode.PLAN


def _side(name: str, store: Path | None) -> Side:
    """A plan file, a result file, or a job of the store."""
    if Path(name).is_file():
        plan = load.load_plan(name)
        problem = problem_of(None, plan, name)
        return Side(name, problem, plan, api.predict(problem, plan))
    if store is None:
        raise InstanceError("there is no such file; for a job of a store add --store", name)
    problem, result = read_answer(store, name)
    if result.plan is None or result.evaluation is None:
        raise InstanceError(f"has no plan: {result.reason or result.termination}", name)
    return Side(problem.name, problem, result.plan, result.evaluation)


def report(found: Comparison) -> Group:
    """The comparison as tables and sentences."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from planner.report.facts import two_columns
    from planner.report.words import degrees_of, predicted

    heads = two_columns()
    for letter, side in (("A", found.a), ("B", found.b)):
        heads.add_row(letter, side.label)
        step = predicted(side.evaluation.step_s, side.evaluation.error_band)
        heads.add_row("", f"{degrees_of(side.plan)}; {step}")
        for violation in side.evaluation.violations:
            heads.add_row("", f"breaks a rule: {violation}")
    changes = two_columns()
    for name, before, after in found.question:
        changes.add_row(name, f"{before} -> {after}")
    changes.add_row("decisions", found.decisions or "the same")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part of the step")
    for heading in ("A", "B", "change", "of step A"):
        table.add_column(heading, justify="right", no_wrap=True)
    step_s = found.a.evaluation.step_s
    for part, before_s, after_s in (*found.parts, ("step", step_s, found.b.evaluation.step_s)):
        change_s = after_s - before_s
        sign = "+" if change_s > -LEAST_SHOWN_S else "-"
        table.add_row(
            part,
            format_seconds(before_s),
            format_seconds(after_s),
            sign + format_seconds(abs(change_s)),
            format_change(change_s / step_s),
        )
    title = Text("What changed", style="bold")
    why = [Text("Why", style="bold"), *(Text(f"- {sentence}") for sentence in found.reasons)]
    return Group(heads, "", title, changes, "", table, *why)
