"""The scatter of predicted over measured step times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InstanceError
from planner.report.accuracy_plot import accuracy_figure, write_accuracy_plot


def row(suite: str, predicted: float | None, measured: float | None) -> dict[str, Any]:
    return {
        "id": f"{suite}-run",
        "source": suite,
        "predicted_step_s": predicted,
        "measured_step_s": measured,
        "assumptions": ["distributed optimizer"],
    }


ROWS = [row("a", 1.1, 1.0), row("b", 3.0, 4.0), row("a", 2.0, 2.0), row("b", None, 1.0)]


@pytest.mark.slow
def test_every_scored_run_is_a_point_of_its_suite() -> None:
    figure = accuracy_figure(ROWS)
    points = {trace.name: list(zip(trace.x, trace.y, strict=True)) for trace in figure.data[:2]}
    assert points == {"a (2)": [(1.0, 1.1), (2.0, 2.0)], "b (1)": [(4.0, 3.0)]}
    assert "-25.0%" in figure.data[1].text[0] and "distributed optimizer" in figure.data[1].text[0]


def test_lines_mark_what_was_measured_and_the_errors_beside_it() -> None:
    lines = [trace for trace in accuracy_figure(ROWS).data if trace.mode == "lines"]
    assert [line.y[1] / line.x[1] for line in lines] == pytest.approx([1.0, 0.95, 1.05, 0.85, 1.15])


def test_the_page_stands_alone(tmp_path: Path) -> None:
    write_accuracy_plot(ROWS, tmp_path / "scatter.html")
    text = (tmp_path / "scatter.html").read_text()
    assert "measured step [s]" in text and 'src="https' not in text


def test_a_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match=r"end it in \.html"):
        write_accuracy_plot(ROWS, tmp_path / "scatter.png")


def test_no_scored_run_leaves_an_empty_figure() -> None:
    assert len(accuracy_figure([]).data) == 5


def test_no_two_suites_look_alike_and_both_axes_show_the_same_times() -> None:
    figure = accuracy_figure([row(f"suite{i}", 1.0, 1.0 + i) for i in range(26)])
    marks = [(number % 10, trace.marker.symbol) for number, trace in enumerate(figure.data[:26])]
    assert len(set(marks)) == 26
    assert figure.layout.xaxis.range == figure.layout.yaxis.range
    assert 10 ** figure.layout.xaxis.range[0] < 1.0 and 10 ** figure.layout.xaxis.range[1] > 26.0
