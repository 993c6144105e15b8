"""`hetplan split`: which nodes each training of a fleet gets."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from formulations.fleet_split import Objective
from planner.batch.fleet import Split, split
from planner.batch.rows import read_rows
from planner.commands import screen
from planner.commands.screen import ExitCode
from planner.errors import InstanceError
from planner.units import format_percent, format_seconds


def run(store: Path, study: str, *, objective: str, as_json: bool) -> ExitCode:
    """Print the split."""
    known: dict[str, Objective] = {name: name for name in get_args(Objective)}
    if objective not in known:
        raise InstanceError(f"unknown objective {objective!r}; there are {', '.join(known)}", "--objective")
    found = split(read_rows(store), study, known[objective])
    if as_json:
        screen.show_json(found.as_json())
    else:
        show(found)
    return ExitCode.PLAN if found.rows else ExitCode.INFEASIBLE


def show(found: Split) -> None:
    """The split as a table, and its proof below."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = []
    if found.missing:
        lines.append(f"{found.missing} shares have no answer yet; run the batch again")
    if not found.rows:
        screen.show(Text("\n".join(["no split gives every training a plan", *lines])))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("training")
    table.add_column("nodes")
    for heading in ("tokens/s", "step"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("plan", overflow="fold")
    for row in found.rows:
        table.add_row(
            row["share"]["training"],
            _nodes(row["share"]["nodes"]),
            f"{row['tokens_per_s']:,.0f}",
            format_seconds(row["step_s"]),
            row["plan"],
        )
    lines.append(_worth(found))
    if any(found.idle.values()):
        lines.append(f"left idle: {_nodes(found.idle)}")
    if found.gap is not None:
        lines.append(
            f"proof: no split into such shares is predicted more than {format_percent(found.gap)} better"
        )
    screen.show(Group(table, *(Text(line) for line in lines)))


def _worth(found: Split) -> str:
    """What the split is worth, by its objective."""
    if found.objective == "sum":
        total = sum(row["tokens_per_s"] for row in found.rows)
        weighted = any(row["share"]["weight"] != 1 for row in found.rows)
        value = f", {found.value:,.0f} by weight" if weighted else ""
        return f"together {total:,.0f} tokens/s{value}"
    last = min(found.rows, key=lambda row: row["tokens_per_s"] / row["share"]["tokens"])
    return f"the last to finish is {last['share']['training']}, at {last['tokens_per_s']:,.0f} tokens/s"


def _nodes(nodes: dict[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in nodes.items() if count)
