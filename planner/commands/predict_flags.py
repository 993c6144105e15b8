"""Arguments of the commands that look at a given plan: predict it, export it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.commands.flags import Force, Json, Target
from planner.errors import InstanceError


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(predict)
    app.command(short_help="Write the launch directory of a plan.")(export)


def predict(
    problem: Annotated[
        str | None,
        typer.Argument(
            help="Problem name or file; the one inside the plan where absent.", show_default=False
        ),
    ] = None,
    *,
    plan: Annotated[Path | None, typer.Option(help="Plan file.")] = None,
    from_script: Annotated[
        Path | None,
        typer.Option(
            help="Instead, a launch script of Megatron-LM or Megatron-Bridge, which runs with its launchers "
            "replaced, a FlagScale YAML, or a directory with either."
        ),
    ] = None,
    script_words: Annotated[
        str,
        typer.Option(
            help="What follows the script on its command line, such as 'A37B 1 16'.", show_default=False
        ),
    ] = "",
    from_args: Annotated[Path | None, typer.Option(help="File with arguments of pretrain_gpt.py.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Chips that the script or arguments run on, as for `plan`.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model that the script should train, or its config.json: others are refused."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes to run the script as.", min=1)] = None,
    stack: Annotated[str | None, typer.Option(help="Training software: see `hetplan list stacks`.")] = None,
    as_json: Json = False,
) -> int:
    """Predict time and memory of a plan, or of a launch script. Exit code 3 where it breaks a rule."""
    from planner.commands import predict as command

    if sum(given is not None for given in (plan, from_script, from_args)) != 1:
        raise InstanceError("give one of --plan, --from-script and --from-args", "command line")
    if plan is not None:
        return command.run(problem, plan, as_json=as_json)
    return command.run_from(
        problem,
        script=from_script,
        words=script_words,
        arguments=from_args,
        cluster=cluster,
        model=model,
        num_nodes=nodes,
        stack=stack,
        as_json=as_json,
    )


def export(
    plan: Annotated[Path, typer.Argument(help="Plan file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Directory to make.")] = None,
    target: Target = None,
    problem: Annotated[
        str | None, typer.Option(help="Problem name or file; the one inside the plan where absent.")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(help="Megatron core that will run it: 0.15 to 0.19. [default: the newest that does]"),
    ] = None,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files, write nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not name the files written.")] = False,
) -> int:
    """Write the launch directory of a plan, for any launcher that can run it."""
    from planner.commands.export import run

    return run(
        plan,
        target=target,
        out=out,
        problem_name=problem,
        version=version,
        force=force,
        dry_run=dry_run,
        quiet=quiet,
    )
