"""The scores as tables that a newcomer can read."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from planner.units import format_percent, format_seconds

NOTHING = "-"


def accuracy_table(scores: dict[str, Any]) -> RenderableType:
    """Tables of the scores: errors by suite, order of layouts, skipped runs, and runs where listed."""
    parts: list[RenderableType] = [suites_table(scores["suites"])]
    if scores.get("ranking"):
        parts.append(ranking_table(scores["ranking"]))
    if any(summary["skipped"] for summary in scores["suites"].values()):
        parts.append(skipped_table(scores["suites"]))
    if scores.get("rows"):
        parts.append(rows_table(scores["rows"]))
    return Group(*parts)


def suites_table(suites: dict[str, Any]) -> Table:
    """Errors of time and memory by suite of runs."""
    table = Table(
        title="Predictions against measured runs",
        caption=(
            "error = |predicted / measured - 1|: mean, and the value that 90% of the runs stay below; "
            "bias = mean of predicted / measured - 1, so + means predicted too slow or too large"
        ),
    )
    table.add_column("runs of")
    for name in ("scored", "skipped", "unanchored"):
        table.add_column(name, justify="right")
    for name in ("step error", "bias", "90% below"):
        table.add_column(name, justify="right", style="bold" if name == "step error" else None)
    table.add_column("worst run", overflow="fold")
    for name in ("memory runs", "memory error", "bias"):
        table.add_column(name, justify="right")
    for name, summary in suites.items():
        step, memory = summary["step"], summary["memory"]
        table.add_row(
            name,
            str(step["n"]),
            str(sum(summary["skipped"].values())),
            str(summary["unanchored"]),
            _percent(step["mape"]),
            _signed(step["bias"]),
            _percent(step["p90"]),
            step["worst_id"] or NOTHING,
            str(memory["n"]) if memory["n"] else NOTHING,
            _percent(memory["mape"]),
            _signed(memory["bias"]),
        )
    return table


def ranking_table(ranking: dict[str, Any]) -> Table:
    """How well predictions choose among layouts of the same model on the same cluster."""
    table = Table(
        title="Choosing a layout",
        caption=(
            "regret = how much slower the layout predicted best was measured than the best measured one; "
            "order = Spearman's rank correlation, 1 is perfect (median group)"
        ),
    )
    table.add_column("runs of")
    for name in ("groups", "layouts", "regret", "worst regret", "order"):
        table.add_column(name, justify="right")
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
    table = Table(title="Runs left out")
    table.add_column("runs of")
    table.add_column("number", justify="right")
    table.add_column("because")
    for name, summary in suites.items():
        for reason, number in summary["skipped"].items():
            table.add_row(name, str(number), reason)
    return table


def rows_table(rows: list[dict[str, Any]]) -> Table:
    """Every run with its predicted and measured step and memory."""
    table = Table(title="Runs")
    table.add_column("run", overflow="fold")
    for name in ("predicted", "measured", "error", "predicted GiB", "measured GiB", "error", "anchor"):
        table.add_column(name, justify="right")
    table.add_column("left out because")
    for row in rows:
        table.add_row(
            row["id"],
            _seconds(row["predicted_step_s"]),
            _seconds(row["measured_step_s"]),
            _signed(_error(row["predicted_step_s"], row["measured_step_s"])),
            _gib(row["predicted_memory_gib"]),
            _gib(row["measured_memory_gib"]),
            _signed(_error(row["predicted_memory_gib"], row["measured_memory_gib"])),
            _anchor(row["anchor"]),
            row["skipped"] or "",
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
