"""Arguments of the commands that plan many problems and look at many answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Plan many problems into a store, resumable.")(batch)
    app.command()(results)
    app.command()(compare)
    app.command(short_help="Divide a cluster among trainings.")(split)


def batch(
    jobs: Annotated[Path, typer.Argument(help="Jobs file, YAML or JSON.", show_default=False)],
    store: Annotated[Path, typer.Option(help="Where answers are kept: an SQLite file, made where absent.")],
    workers: Annotated[
        int | None, typer.Option(help="Jobs at a time. [default: one a core]", show_default=False)
    ] = None,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to join; a local one where absent.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed in an earlier run.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="First save what can be read of a damaged store.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")] = False,
) -> int:
    """Plan many problems into a store; goes on where an earlier run ended. Exit code 1 where any failed."""
    from planner.commands.batch import run

    return run(
        jobs,
        store,
        workers=workers,
        executor=executor,
        address=address,
        retry_failed=retry_failed,
        repair=repair,
        quiet=quiet,
    )


def results(
    store: Annotated[Path, typer.Argument(help="Store that `hetplan batch` has filled.", show_default=False)],
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only rows such as model=llama3-8b, step_s<2, name~h100; repeatable."),
    ] = None,
    sort: Annotated[
        list[str] | None, typer.Option(help="Order by a field, -FIELD for descending; repeatable.")
    ] = None,
    pareto: Annotated[
        str | None,
        typer.Option(help="chips, nodes or cost: only rows that nothing beats in step time for no more."),
    ] = None,
    result: Annotated[
        str | None, typer.Option(help="The whole result of one job, by its name or key, as JSON.")
    ] = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write a Parquet file instead.")] = None,
) -> int:
    """List the jobs of a store with their answers."""
    from planner.commands.results import run

    return run(
        store,
        where=where or [],
        sort=sort or [],
        front=pareto,
        result=result,
        as_json=as_json,
        as_csv=as_csv,
        parquet=parquet,
    )


def compare(
    a: Annotated[str, typer.Argument(help="Plan file, result file, or job of --store.", show_default=False)],
    b: Annotated[str, typer.Argument(help="The other one.", show_default=False)],
    store: Annotated[Path | None, typer.Option(help="Store that holds the jobs named.")] = None,
    as_json: Json = False,
) -> int:
    """Say what changed between two plans, and why one is faster."""
    from planner.commands.compare import run

    return run(a, b, store=store, as_json=as_json)


def split(
    store: Annotated[Path, typer.Argument(help="Store that `hetplan batch` has filled.", show_default=False)],
    study: Annotated[str, typer.Argument(help="Name of a job of `kind: fleet_split`.", show_default=False)],
    objective: Annotated[
        str, typer.Option(help="sum of tokens a second, or slowest: the last training to finish.")
    ] = "sum",
    as_json: Json = False,
) -> int:
    """Divide a cluster's nodes among trainings, from the plans of a batch. Exit code 3 where it cannot be."""
    from planner.commands.split import run

    return run(store, study, objective=objective, as_json=as_json)
