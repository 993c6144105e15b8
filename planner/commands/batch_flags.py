"""Arguments of the commands that plan many problems and look at many answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(batch)


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
        quiet=quiet,
    )
