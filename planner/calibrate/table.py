"""The scores as tables that a newcomer can read."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from planner.units import format_percent, format_seconds

NOTHING = "-"


def accuracy_table(scores: dict[str, Any]) -> RenderableType:
    """Tables of the scores: errors by suite, order of layouts, skipped runs, and runs where listed."""
    suites = scores["suites"]
    parts: list[RenderableType] = [errors_table("Step time against measured runs", suites, "step")]
    groups = split_groups(scores.get("groups", {}))
    if groups:
        parts.append(errors_table("Step time by number format and kind of layers", groups, "step"))
    if any(summary["memory"]["n"] for summary in suites.values()):
        parts.append(errors_table("Peak memory against measured runs", suites, "memory"))
    if scores.get("ranking"):
        parts.append(ranking_table(scores["ranking"]))
    parts.append(worst_table(suites))
    if any(summary["skipped"] for summary in suites.values()):
        parts.append(skipped_table(suites))
    if scores.get("rows"):
        parts.append(rows_table(scores["rows"]))
    return Group(parts[0], *(each for part in parts[1:] for each in ("", part)))


def errors_table(title: str, suites: dict[str, Any], what: Literal["step", "memory"]) -> Table:
    """Errors of one quantity by suite; suites without such runs are left out."""
    table = _table(title)
    table.caption = (
        "error = mean |predicted / measured - 1|; bias = mean of predicted / measured - 1: + is predicted "
        "too slow or too large; 90% below = what 90% of the runs stay under"
    )
    # Without anchors every run is unanchored, which says nothing.
    anchored = any(s["unanchored"] < max(s["step"]["n"], s["memory"]["n"]) for s in suites.values())
    extra = ("unanchored",) if anchored and what == "step" else ()
    _columns(table, "runs of", "scored", *extra, "error", "bias", "90% below")
    for name, summary in suites.items():
        errors = summary[what]
        if errors["n"]:
            table.add_row(
                name,
                str(errors["n"]),
                *(str(summary["unanchored"]) for _ in extra),
                _percent(errors["mape"]),
                _signed(errors["bias"]),
                _percent(errors["p90"]),
            )
    return table


def split_groups(groups: dict[str, Any]) -> dict[str, Any]:
    """Groups of the suites that have several; of the others the table of suites says all."""
    of_suite = Counter(name.split("/")[0] for name, summary in groups.items() if summary["step"]["n"])
    return {name: summary for name, summary in groups.items() if of_suite[name.split("/")[0]] > 1}


def worst_table(suites: dict[str, Any]) -> Table:
    """The run of each suite that is predicted worst, to look into."""
    table = _table("Worst predictions")
    _columns(table, "runs of")
    table.add_column("of", no_wrap=True)
    table.add_column("run", overflow="fold")
    for name, summary in suites.items():
        for what, label in (("step", "time"), ("memory", "memory")):
            if summary[what]["n"]:
                table.add_row(name, label, summary[what]["worst_id"])
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )


def _columns(table: Table, first: str, *numbers: str) -> None:
    """A first column of names and columns of numbers, none of which is ever broken."""
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)


def ranking_table(ranking: dict[str, Any]) -> Table:
    """How well predictions choose among layouts of the same model on the same cluster."""
    table = _table("Choosing a layout")
    table.caption = (
        "regret = how much slower the layout predicted best was measured than the best measured one; "
        "order = Spearman's rank correlation, 1 is perfect (median group)"
    )
    _columns(table, "runs of", "groups", "layouts", "regret", "worst regret", "order")
    for name, entry in ranking.items():
        table.add_row(
            name,
            str(entry["groups"]),
            str(entry["n"]),
            _percent(entry["regret"]),
            _percent(entry["worst_regret"]),
            f"{entry['rho']:.2f}",
        )
    return table


def skipped_table(suites: dict[str, Any]) -> Table:
    """Runs that were not scored, and why."""
    table = _table("Runs left out")
    _columns(table, "runs of", "number")
    table.add_column("because")
    for name, summary in suites.items():
        for reason, number in summary["skipped"].items():
            table.add_row(name, str(number), reason)
    return table


def rows_table(rows: list[dict[str, Any]]) -> Table:
    """Every run with its predicted and measured step and memory."""
    table = _table("Runs")
    _columns(table, "error", "predicted", "measured", "error GiB", "GiB", "anchor")
    table.columns[0].header, table.columns[0].justify = "error", "right"
    table.add_column("run, or why it is left out", overflow="fold")
    for row in rows:
        table.add_row(
            _signed(_error(row["predicted_step_s"], row["measured_step_s"])),
            _seconds(row["predicted_step_s"]),
            _seconds(row["measured_step_s"]),
            _signed(_error(row["predicted_memory_gib"], row["measured_memory_gib"])),
            _gib(row["measured_memory_gib"]),
            _anchor(row["anchor"]),
            row["id"] + (f": {row['skipped']}" if row["skipped"] else ""),
        )
    return table


def _error(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or measured is None else predicted / measured - 1


def _percent(fraction: float | None) -> str:
    return NOTHING if fraction is None else format_percent(fraction)


def _signed(fraction: float | None) -> str:
    return NOTHING if fraction is None else f"{100 * fraction:+.1f}%"


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_seconds(seconds)


def _gib(gib: float | None) -> str:
    return NOTHING if gib is None else f"{gib:.1f}"


def _anchor(anchor: float | dict[str, float] | None) -> str:
    if anchor is None:
        return NOTHING
    if isinstance(anchor, dict):
        return ", ".join(f"{chip} {factor:.3f}" for chip, factor in anchor.items())
    return f"{anchor:.3f}"
