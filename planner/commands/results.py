"""`hetplan results`: what a store holds, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.batch.query import Row, in_order, matching, pareto
from planner.batch.rows import FIELDS, read_answer, read_rows
from planner.commands import screen
from planner.commands.plan import result_json
from planner.commands.screen import ExitCode
from planner.errors import InstanceError
from planner.units import format_change, format_percent, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 120
"""From this width on a plan is shown whole, not its degrees alone."""

NO_COST = {
    "cost": "give prices with `node_usd_per_hour: {CHIP: 20}` in the jobs file, and run the batch again",
    "chips": "their jobs gave no problem",
    "nodes": "their jobs gave no problem",
}
"""Why a front may be empty though jobs are answered."""

_A_NODE, _A_DOLLAR = ("a node", "gain_per_node"), ("a M$", "gain_per_million_usd")
_CHANGES = (
    ("change", "tokens_per_s_change"),
    _A_NODE,
    _A_DOLLAR,
    ("behind", "behind_best"),
    ("loads", "loaded_fraction"),
    ("best in", "best_fraction"),
    ("loses", "worst_loss"),
)
"""Columns of studies: heading and field."""

_SIGNED = ("change", "a node", "a M$")
"""Those of them that may be gains or losses."""

_WITH_PARTS = ("share", "change", "robustness")
"""Fields whose values have parts of their own."""


def run(
    store: Path,
    *,
    where: Sequence[str],
    sort: Sequence[str],
    front: str | None,
    result: str | None,
    as_json: bool,
    as_csv: bool,
    parquet: Path | None = None,
) -> ExitCode:
    """Print rows, or the whole result of one job as `hetplan plan --json` does."""
    if as_json + as_csv + (parquet is not None) > 1:
        raise InstanceError("give one of --json, --csv and --parquet", "command line")
    if result is not None:
        _, found = read_answer(store, result)
        screen.show_json(result_json(found))
        return ExitCode.PLAN
    rows = matching(read_rows(store), where)
    if front is not None:
        answered = any(row["step_s"] is not None for row in rows)
        rows = pareto(rows, front)
        if answered and not rows:
            screen.note(f"no row has a value for {front}; {NO_COST[front]}")
    rows = in_order(rows, sort)
    if parquet is not None:
        _write_parquet(rows, parquet)
    elif as_json:
        screen.show_json(rows)
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_flat, rows))
    else:
        screen.show(results_table(rows, by_cost=front == "cost"))
    return ExitCode.PLAN


def _flat(row: Row) -> Row:
    """A row whose values with parts of their own are JSON, for a table of plain columns."""
    return row | {field: json.dumps(row[field]) for field in _WITH_PARTS if row[field] is not None}


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the rows to a Parquet file, a column a field, whole or not at all."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InstanceError(
            "needs pyarrow; install it with `pip install 'hetplan[table]'`", "--parquet"
        ) from None
    texts = [_flat(row) for row in rows]
    columns = {field: [row[field] for row in texts] for field in FIELDS}
    beside = path.with_name(f".{path.name}.tmp")
    try:
        pyarrow.parquet.write_table(pyarrow.table(columns), beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    screen.note(f"{len(rows):,} rows written to {path}")


def results_table(rows: Sequence[Row], *, by_cost: bool = False) -> Table:
    """Rows for a reader: how each job ended, how fast its plan is, what its study changes, which plan.

    A front over cost shows prices in the place of what studies change.
    """
    from rich import box
    from rich.table import Table

    wide = screen.console().width >= WIDE
    plain, changes = _columns(rows, wide=wide, by_cost=by_cost)
    short = (bool(changes) or by_cost) and not wide
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("job", overflow="fold", min_width=12)
    table.add_column("status", no_wrap=True)
    for heading in (*plain, *(heading for heading, _ in changes)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("plan, or what happened", overflow="fold", min_width=12)
    for row in rows:
        plan = row["plan"] and (row["plan"] if wide else row["plan"].split(";")[0])
        texts = [text for text in (row["message"], plan) if text]
        cells = {
            "step": _step(row, short=short),
            "$/h": _or_dash(row["usd_per_hour"], "{:,.2f}"),
            "$/Mtok": _or_dash(row["usd_per_million_tokens"], "{:.3f}"),
            "gap": "-" if row["gap"] is None else format_percent(row["gap"]),
            "tokens/s": _or_dash(row["tokens_per_s"], "{:,.0f}"),
        }
        table.add_row(
            row["name"],
            row["termination"] if row["status"] == "done" else row["status"],
            *(cells[heading] for heading in plain),
            *(_share(heading, row[field]) for heading, field in changes),
            screen.one_line("; ".join(texts if wide else texts[:1])),
        )
    return table


def _columns(rows: Sequence[Row], *, wide: bool, by_cost: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """Headings of plain columns, and headings with fields of what studies change.

    On a narrow screen the latter take the room of the gap, the rate and the band, and gain per dollar that of
    gain per node.
    """
    changes = [c for c in _CHANGES if not by_cost and any(row[c[1]] is not None for row in rows)]
    if changes and not wide:
        if _A_DOLLAR in changes:
            changes.remove(_A_NODE)
        return ["step"], changes
    plain = ["step", "gap", "tokens/s"]
    if any(row["usd_per_million_tokens"] is not None for row in rows):
        plain = [heading for heading in plain if wide or heading != "gap"] + ["$/Mtok"]
    if by_cost:
        plain.insert(1, "$/h")
    return plain, changes


def _step(row: Row, *, short: bool) -> str:
    """The step time with its band, where there is room for that."""
    from planner.report.words import predicted

    if row["step_s"] is None:
        return "-"
    return format_seconds(row["step_s"]) if short else predicted(row["step_s"], row["error_band"] or 0.0)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _share(heading: str, value: float | None) -> str:
    """A fraction as a percentage, with its sign where it is a gain or a loss."""
    if value is None:
        return "-"
    return format_change(value) if heading in _SIGNED else format_percent(value)
