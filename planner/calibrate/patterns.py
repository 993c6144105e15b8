"""The tables of patterns by which the words of a measured run are understood.

The tables are data (`instances/tables/*_patterns.yaml`): a new source of runs adds lines there, not code.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from planner.data.read import parse_text


class SkipRun(Exception):
    """A run that is not scored; the message is the reason, the same words for every such run."""

    @property
    def reason(self) -> str:
        """Why."""
        return str(self)


@cache
def table(name: str) -> dict[str, Any]:
    """Values of `instances/tables/<name>.yaml`."""
    text = files("planner.instances").joinpath("tables", f"{name}.yaml").read_text(encoding="utf-8")
    values = parse_text(text, name)
    assert isinstance(values, dict)
    return values


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern that ignores case, compiled once."""
    return re.compile(pattern, re.IGNORECASE)


def occurs(pattern: str | None, text: str) -> bool:
    """Whether a pattern occurs in a text; a missing pattern always does."""
    return pattern is None or compiled(pattern).search(text) is not None
