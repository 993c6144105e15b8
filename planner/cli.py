"""The command line: arguments in, an exit code out.

Each command's work stands in a file of `planner/commands/`, imported when the command runs, so that
`hetplan --help` stays fast. Every wrong input ends in one line on standard error, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from planner import __version__
from planner.commands import batch_flags, look_flags, plan_flags, predict_flags, screen
from planner.commands.screen import ExitCode
from planner.errors import PlannerError, SolverError

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


for _flags in (plan_flags, predict_flags, look_flags, batch_flags):
    _flags.register(app)


@cache
def _command() -> Any:
    """All commands with their flags; who runs several of them in one process has these built once."""
    return get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    screen.open_streams()
    try:
        code = _command()(given or ["--help"], prog_name="hetplan", standalone_mode=False)
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
        if _was_interrupted(refused):
            screen.error("interrupted")
            return ExitCode.INTERRUPTED
        screen.error(f"{refused.filename or 'file system'}: {refused.strerror or refused}")
        return ExitCode.WRONG_INPUT
    except Exception as fault:
        # While pydantic builds a class, Ctrl-C comes out as an error of that class, with its name in words.
        if type(fault).__name__ != "SchemaError" or "KeyboardInterrupt" not in str(fault):
            raise
        screen.error("interrupted")
        return ExitCode.INTERRUPTED


def _was_interrupted(error: BaseException) -> bool:
    """Whether an error came up while Ctrl-C was taking things down, such as a closed file descriptor."""
    below = error.__context__
    while below is not None:
        if isinstance(below, KeyboardInterrupt):
            return True
        below = below.__context__
    return False


if __name__ == "__main__":
    sys.exit(main())
