"""Fills the text templates of the launch files.

A placeholder is `@{name}`, which means nothing to a shell, so that the templates stay valid scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_PLACEHOLDER = re.compile(r"@\{([a-z_]+)\}")


@cache
def template(name: str) -> str:
    """Text of a template, as it stands in the package."""
    return files("planner.launchers").joinpath("templates", name).read_text(encoding="utf-8")


def fill(name: str, values: Mapping[str, str | int] | None = None) -> str:
    """A template with its placeholders replaced; a line that holds nothing but an empty one goes.

    Raises
    ------
    KeyError
        Where a placeholder has no value.
    """
    values = values or {}
    lines = []
    for line in template(name).splitlines():
        whole = _PLACEHOLDER.fullmatch(line)
        if whole and values[whole[1]] == "":
            continue
        lines.append(_PLACEHOLDER.sub(lambda match: str(values[match[1]]), line))
    return "\n".join(lines) + "\n"
