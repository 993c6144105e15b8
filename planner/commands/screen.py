"""Standard output for results, standard error for everything else, and the exit codes."""

from __future__ import annotations

import enum
import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class ExitCode(enum.IntEnum):
    """What the shell sees."""

    PLAN = 0
    """The result is there."""
    FAULT = 1
    """Our bug, or a solver's: no answer is given."""
    WRONG_INPUT = 2
    """The input is wrong, or asks for what is not supported."""
    INFEASIBLE = 3
    """No plan exists, or the given plan breaks a rule."""
    NOT_FOUND = 4
    """No plan was found in time."""
    INTERRUPTED = 130
    """Ctrl-C; the best plan so far is printed all the same."""


LEAST_WIDTH, USUAL_WIDTH = 20, 80
"""Columns that no terminal has fewer of (some that start programs say 0 or 1), and what is then taken."""


def open_streams() -> None:
    """Give a program that was started without output somewhere to write, and let no letter stop it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def console(*, stderr: bool = False) -> Console:
    """A console that shows text as it stands: names may hold brackets and colons."""
    from rich.console import Console

    found = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if found.width < LEAST_WIDTH:
        found.width = USUAL_WIDTH
    return found


def show(*parts: RenderableType) -> None:
    """Write a result to standard output, its parts one below the other; an empty one is a blank line."""
    console().print(*parts, sep="\n")


def show_json(data: Any) -> None:
    """Write a result to standard output for programs; absent values are null, never NaN."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def note(message: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"hetplan: {one_line(message)}\n")
    sys.stderr.flush()


def error(message: str) -> None:
    """Write what went wrong as one line to standard error."""
    note(f"error: {message}")


def one_line(message: str) -> str:
    """A message without line breaks or control characters, which could hide the rest of it."""
    flat = " ".join(message.split())
    return "".join(c if c.isprintable() else "?" for c in flat)
