"""The command line: arguments in, an exit code out.

Each command's work stands in a file of `planner/commands/`, imported when the command runs, so that
`hetplan --help` stays fast. Every wrong input ends in one line on standard error, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from planner import __version__
from planner.commands import batch_flags, screen
from planner.commands.screen import ExitCode
from planner.errors import InstanceError, PlannerError, SolverError

app = typer.Typer(
    name="hetplan",
    help="Plans the training of large models on mixed clusters, with a proven gap to the best plan.",
    epilog="Exit codes: 0 plan, 2 wrong input, 3 no plan exists, 4 none found in time, 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the framed one would import rich, and read our [units] as markup.
    rich_markup_mode=None,
)

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""What typer raises for wrong arguments (click's ClickException, which newer versions keep to themselves)."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output directory where it exists.")]
Target = Annotated[
    str | None,
    typer.Option(help="Launcher that must be able to run the plan: see `hetplan list targets`."),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hetplan {__version__}")
        raise typer.Exit()


@app.callback()
def _all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def plan(
    problem: Annotated[
        str | None,
        typer.Argument(help="Name of a shipped problem, or a YAML or JSON file.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Shipped cluster, file, or nodes such as '4x8 h100-sxm-80gb, ...'.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Shipped model, or a file.")] = None,
    seq_length: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    global_batch_size: Annotated[int | None, typer.Option(help="Sequences of a training step.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp8, ...")] = None,
    stack: Annotated[str | None, typer.Option(help="Training software: see `hetplan list stacks`.")] = None,
    target: Target = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(help="Stop after this time, counted from process start [s]."),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(help="Stop at this proven gap to the best plan, as a fraction. [default: 0.01]"),
    ] = None,
    top: Annotated[int | None, typer.Option(help="How many plans to show. [default: 3]")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes; the plan does not depend on it (one is used so far).")
    ] = None,
    solver: Annotated[str | None, typer.Option(help="highs, cp_sat, scip or cbc. [default: highs]")] = None,
    memory_reserve: Annotated[
        float | None, typer.Option(help="Share of usable memory left free, as a fraction. [default: 0.04]")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            help="Fix a value, such as tp=8; also cp, pp, dp, ep, etp, mbs, sp (0 or 1). Repeatable."
        ),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(help="Rule a value out, such as recompute=full or tp=8. Repeatable."),
    ] = None,
    spare: Annotated[
        list[str] | None, typer.Option(help="Keep a node class of the cluster idle. Repeatable.")
    ] = None,
    max_pp: Annotated[int | None, typer.Option(help="Most pipeline stages.")] = None,
    keep_class_order: Annotated[
        bool, typer.Option("--keep-class-order", help="Stages follow the order of the cluster's classes.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the launch directory here.")] = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the fastest plan that fits, prove how far from the best it can be, write its launch files."""
    from planner.commands.plan import PlanRequest, run

    return run(
        PlanRequest(
            problem=problem,
            cluster=cluster,
            model=model,
            seq_length=seq_length,
            global_batch_size=global_batch_size,
            precision=precision,
            stack=stack,
            target=target,
            time_limit_s=time_limit_s,
            gap=gap,
            top=top,
            workers=workers,
            solver=solver,
            memory_reserve=memory_reserve,
            pin=pin,
            forbid=forbid,
            spare=spare,
            max_pp=max_pp,
            keep_class_order=keep_class_order or None,
            out=out,
            force=force,
            as_json=as_json,
            quiet=quiet,
        )
    )


@app.command()
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
        typer.Option(help="Megatron-LM launch script instead; it runs with its launchers replaced."),
    ] = None,
    from_args: Annotated[Path | None, typer.Option(help="File with arguments of pretrain_gpt.py.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Chips that the script or arguments run on, as for `plan`.")
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
        arguments=from_args,
        cluster=cluster,
        num_nodes=nodes,
        stack=stack,
        as_json=as_json,
    )


@app.command()
def export(
    plan: Annotated[Path, typer.Argument(help="Plan file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Directory to make.")] = None,
    target: Target = None,
    problem: Annotated[
        str | None, typer.Option(help="Problem name or file; the one inside the plan where absent.")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(help="Megatron core that will run it: 0.15 to 0.19. [default: 0.19]"),
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


@app.command()
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


@app.command(name="list")
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


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(help="problem, plan, cluster, chip, model, ...", show_default=False)],
) -> int:
    """Print the JSON Schema of a kind of file."""
    from planner.commands.schema import run

    return run(kind)


batch_flags.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(given or ["--help"], prog_name="hetplan", standalone_mode=False)
        sys.stdout.flush()
        # Typer turns Ctrl-C into a bare 130; a command that was interrupted has said so itself.
        if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):
            screen.error("interrupted")
        return int(code or ExitCode.PLAN)
    except _USAGE_ERROR as wrong:
        screen.error(wrong.format_message())  # type: ignore[attr-defined]
        return ExitCode.WRONG_INPUT
    except SolverError as fault:
        screen.error(str(fault))
        return ExitCode.FAULT
    except PlannerError as wrong:
        screen.error(str(wrong))
        return ExitCode.WRONG_INPUT
    except (KeyboardInterrupt, typer.Abort):
        screen.error("interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain again while it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.PLAN
    except OSError as refused:
        screen.error(f"{refused.filename or 'file system'}: {refused.strerror or refused}")
        return ExitCode.WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
