"""`hetplan accuracy`: predictions against measured runs."""

from __future__ import annotations

from pathlib import Path

from planner.commands import screen
from planner.commands.screen import ExitCode
from planner.errors import InstanceError


def run(
    path: Path,
    *,
    suite: str | None,
    where: list[str],
    anchor: str | None,
    rows: bool,
    as_json: bool,
    plot: Path | None = None,
) -> ExitCode:
    """Score every run of the file that the filters let through, and print the errors by suite."""
    from planner.calibrate.accuracy import score

    scores = score(path, suite=suite, where=filters(where), anchor=anchor, rows=rows or plot is not None)
    if plot is not None:
        from planner.report.accuracy_plot import write_accuracy_plot

        write_accuracy_plot(scores["rows"], plot)
        scores["rows"] = scores["rows"] if rows else []
    if as_json:
        screen.show_json(scores)
    else:
        from planner.calibrate.table import accuracy_table

        screen.show(accuracy_table(scores))
    return ExitCode.PLAN


def filters(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs as a mapping.

    Raises
    ------
    InstanceError
        Where a pair has no equals sign.
    """
    wanted = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise InstanceError(
                f"{pair!r} is no filter; write it as key=value, such as precision=bf16", "--where"
            )
        wanted[key] = value
    return wanted
