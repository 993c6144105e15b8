"""Flags that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output directory where it exists.")]
Target = Annotated[
    str | None,
    typer.Option(help="Launcher that must be able to run the plan: see `hetplan list targets`."),
]
