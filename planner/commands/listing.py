"""`hetplan list`: what is shipped, with its key facts and sources."""

from __future__ import annotations

from typing import Any

from planner.commands import screen
from planner.commands.screen import ExitCode
from planner.data import load
from planner.data.nearest import did_you_mean
from planner.errors import InstanceError

KINDS = ("chips", "models", "clusters", "problems", "targets", "stacks")
"""What can be listed."""


def run(kind: str, contains: str | None, *, as_json: bool) -> ExitCode:
    """Print a table, or the records themselves as JSON."""
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f"; there are {', '.join(KINDS)}"
        raise InstanceError(f"nothing to list under {kind!r}{hint}", "hetplan list")
    from planner.report import listing

    if kind == "targets":
        targets = listing.target_records()
        if as_json:
            screen.show_json(targets)
        else:
            screen.show(listing.targets_table(targets))
        return ExitCode.PLAN
    names = [n for n in load.names(kind) if contains is None or contains.lower() in n.lower()]
    if not names:
        raise InstanceError(f"no name among the {kind} holds {contains!r}", "hetplan list")
    records = [_load(kind, name) for name in names]
    if as_json:
        screen.show_json([r.model_dump(mode="json") for r in records])
    else:
        screen.show(listing.listing(kind, records))
    return ExitCode.PLAN


def _load(kind: str, name: str) -> Any:
    """One shipped record."""
    loaders = {
        "chips": load.load_chip,
        "models": load.load_model,
        "clusters": load.load_cluster,
        "problems": load.load_problem,
        "stacks": load.load_stack,
    }
    return loaders[kind](name)
