"""The shipped instances: which there are, by what other names they go, what their files hold.

Read through importlib.resources, so that an installed wheel finds them. One look-up opens one file;
only an alias of a chip opens all chips, once.
"""

from __future__ import annotations

import importlib.resources
from functools import cache
from typing import Any

from planner.data.nearest import did_you_mean
from planner.data.read import decode, parse_text
from planner.errors import InstanceError

KINDS = ("chips", "models", "clusters", "problems", "stacks")
"""Kinds of shipped instances, each a folder of `instances/`."""

_ROOT = importlib.resources.files("planner.instances")
_SUFFIX = ".yaml"


@cache
def names(kind: str) -> tuple[str, ...]:
    """Return the names of the shipped instances of a kind: chips, models, clusters, problems or stacks.

    Raises
    ------
    InstanceError
        For another kind.
    """
    if kind not in KINDS:
        raise InstanceError(f"unknown kind {kind!r}; there are {', '.join(KINDS)}")
    files = (entry.name for entry in _ROOT.joinpath(kind).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX)))


@cache
def aliases(kind: str) -> dict[str, str]:
    """Map the other spellings of a kind's instances, in lower case, to their names."""
    if kind == "chips":
        return {
            alias.lower(): name
            for name in names("chips")
            for alias in shipped_values("chips", name).get("aliases", ())
        }
    table = parse_text(_ROOT.joinpath("aliases.yaml").read_text("utf-8"), "aliases.yaml")
    return {alias.lower(): name for alias, name in table.get(kind, {}).items()}


def shipped_name(kind: str, name: str) -> str | None:
    """Name of the shipped instance that a name or an alias means, case aside; None where there is none."""
    lower = name.strip().lower()
    if lower in names(kind):
        return lower
    return aliases(kind).get(lower)


def unknown(kind: str, name: str, where: str = "", extra: tuple[str, ...] = ()) -> InstanceError:
    """Error for a name that no instance of a kind bears, with the nearest names."""
    close = did_you_mean(name, (*extra, *names(kind), *aliases(kind)))
    shown = name if len(name) <= 60 else name[:57] + "..."
    # Stacks are few and have no list of their own on the command line.
    way_out = (
        f"there are {', '.join(names(kind))}" if kind == "stacks" else f"`hetplan list {kind}` shows all"
    )
    return InstanceError(f"unknown {kind[:-1]} {shown!r}{close or ';'} {way_out}", where)


def shipped_values(kind: str, name: str) -> dict[str, Any]:
    """Plain values of a shipped instance, its `schema:` line included.

    Raises
    ------
    InstanceError
        Where the file holds no table.
    """
    raw = _ROOT.joinpath(kind, name + _SUFFIX).read_bytes()
    where = f"{kind}/{name}{_SUFFIX}"
    values = parse_text(decode(raw, where), where)
    if not isinstance(values, dict):
        raise InstanceError("must be a table of keys", where)
    return values
