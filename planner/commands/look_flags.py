"""Arguments of the commands that show what is shipped and how good it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.commands.flags import Json


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(accuracy)
    app.command()(calibrate)
    app.command(name="list")(list_shipped)
    app.command()(schema)


def accuracy(
    runs: Annotated[Path, typer.Argument(help="Measured runs, one JSON object a line.", show_default=False)],
    suite: Annotated[str | None, typer.Option(help="Only the runs of this source.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Only runs with this value, such as precision=bf16; repeatable.")
    ] = None,
    anchor: Annotated[
        str | None, typer.Option(help="leave-one-out: scale each run by other runs of its chip and software.")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Every run as well.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a scatter of all runs to this .html file.")] = None,
    as_json: Json = False,
) -> int:
    """Compare predictions with measured runs."""
    from planner.commands.accuracy import run

    return run(runs, suite=suite, where=where or [], anchor=anchor, rows=rows, as_json=as_json, plot=plot)


def calibrate(
    measured: Annotated[
        list[str],
        typer.Argument(
            help="Steps that you timed: PLAN.yaml=SECONDS, or a file of runs, one JSON object a line.",
            metavar="MEASURED...",
            show_default=False,
        ),
    ],
    stack: Annotated[str | None, typer.Option(help="Only runs of this training software.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the software with the factors to this .yaml file, for --stack.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
    as_json: Json = False,
) -> int:
    """Correct predictions by steps that you timed: one factor a chip."""
    from planner.commands.calibrate import run

    return run(measured, stack=stack, out=out, force=force, as_json=as_json)


def list_shipped(
    kind: Annotated[
        str, typer.Argument(help="chips, models, clusters, problems, targets or stacks.", show_default=False)
    ],
    contains: Annotated[
        str | None, typer.Argument(help="Only names that hold this.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Show what is shipped, with key facts and sources."""
    from planner.commands.listing import run

    return run(kind, contains, as_json=as_json)


def schema(
    kind: Annotated[str, typer.Argument(help="problem, plan, cluster, chip, model, ...", show_default=False)],
) -> int:
    """Print the JSON Schema of a kind of file."""
    from planner.commands.schema import run

    return run(kind)
