"""Scatter of predicted over measured step times: a pure function from scored rows to a plotly figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from planner.data.save import write_atomic
from planner.errors import InstanceError
from planner.units import format_percent, format_seconds

BANDS = (0.05, 0.15)
"""Relative errors that the figure draws lines at."""

NUM_COLOURS = 10
"""Colours of plotly's white template; more suites take them again, with another symbol."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
"""Marks of the first ten suites, of the next ten and so on."""

MARGIN = 0.1
"""Room around the runs, in powers of ten."""

SUFFIXES = (".html", ".htm")
"""Files that a figure is written to; pictures would need a browser."""


def accuracy_figure(rows: Sequence[dict[str, Any]]) -> go.Figure:
    """Predicted over measured step time, one point a run, one mark a suite, both axes logarithmic.

    Parameters
    ----------
    rows
        The `rows` of `planner.calibrate.accuracy.score`; runs without both times are left out.
    """
    shown = [r for r in rows if r["predicted_step_s"] and r["measured_step_s"]]
    figure = go.Figure()
    for number, suite in enumerate(dict.fromkeys(row["source"] for row in shown)):
        members = [row for row in shown if row["source"] == suite]
        figure.add_trace(
            go.Scatter(
                x=[row["measured_step_s"] for row in members],
                y=[row["predicted_step_s"] for row in members],
                mode="markers",
                name=f"{suite} ({len(members)})",
                text=[_label(row) for row in members],
                hoverinfo="text",
                marker={"size": 6, "opacity": 0.7, "symbol": SYMBOLS[number // NUM_COLOURS % len(SYMBOLS)]},
            )
        )
    times = [row[key] for row in shown for key in ("measured_step_s", "predicted_step_s")]
    ends = [min(times, default=0.1), max(times, default=1.0)]
    for error, dash in ((0.0, "solid"), *((sign * band, "dot") for band in BANDS for sign in (-1, 1))):
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[(1 + error) * end for end in ends],
                mode="lines",
                line={"color": "grey", "width": 1, "dash": dash},
                name=f"{error:+.0%}" if error else "as measured",
                hoverinfo="skip",
                showlegend=False,
            )
        )
    # Both axes over the same times, on a square, so that runs as predicted lie on its diagonal.
    span = [math.log10(ends[0]) - MARGIN, math.log10(ends[1]) + MARGIN]
    figure.update_xaxes(type="log", title="measured step [s]", range=span, constrain="domain")
    figure.update_yaxes(
        type="log", title="predicted step [s]", range=span, constrain="domain", scaleanchor="x"
    )
    title = f"{len(shown):,} runs; solid line: as measured, dotted: 5% and 15% off"
    figure.update_layout(title=title, template="plotly_white")
    return figure


def _label(row: dict[str, Any]) -> str:
    """What a reader sees who points at a run."""
    error = row["predicted_step_s"] / row["measured_step_s"] - 1
    sign = "+" if error >= 0 else "-"
    return "<br>".join(
        (
            row["id"],
            f"measured {format_seconds(row['measured_step_s'])}",
            f"predicted {format_seconds(row['predicted_step_s'])} ({sign}{format_percent(abs(error))})",
            *row["assumptions"][:3],
        )
    )


def write_accuracy_plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the figure as a page that opens without a network.

    Raises
    ------
    InstanceError
        Where the file's name is no page's.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InstanceError(f"{path.name!r} is no page; end it in .html", "--plot")
    write_atomic(path, accuracy_figure(rows).to_html(include_plotlyjs=True, full_html=True))
