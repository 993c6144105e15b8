"""How much slower plans of another kind are said to be, and what is said of cuts and costs."""

from __future__ import annotations

import io
from typing import Literal

import pytest
from rich.console import Console, RenderableType

from planner.data.explanation import Economy, Explanation
from planner.report.explanation import economy_report, explanation_report, format_slower
from planner.search.infeasible import ASK_FOR_CHANGES


@pytest.mark.parametrize(
    ("least", "most", "text"),
    [
        (None, None, "-"),
        (None, 0.012, "at most 1.2%"),
        (-0.02, 0.012, "-2.0 to 1.2%"),
        (0.005, 0.012, "0.5 to 1.2%"),
        (0.0, -1e-5, "0.0 to 0.0%"),
        # A plan that is proven to 1% may be beaten by less than that when another question is asked.
        (0.0, -0.004, "0.4% faster"),
    ],
)
def test_a_range_has_its_smaller_end_first(least: float | None, most: float | None, text: str) -> None:
    assert format_slower(least, most) == text


def printed(report: RenderableType) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(report)
    return text.getvalue()


def test_who_asks_for_changes_is_not_told_to_and_hears_that_they_were_cut() -> None:
    """`hetplan explain` sent readers to itself, and said nothing where time was up before any change."""
    reason = f"it does not fit. {ASK_FOR_CHANGES}"
    asked = Explanation(
        problem="p", step_s=None, critical_stage=None, bubble_fraction=None, reason=reason, infeasible=True
    )
    words = printed(explanation_report(asked.model_copy(update={"interrupted": True})))
    assert "it does not fit." in words and "hetplan explain" not in words
    assert "was cut; give it more time" in words
    assert "no single change" in printed(explanation_report(asked))


@pytest.mark.parametrize(
    ("objective", "gap", "words"),
    [
        ("cost", 0.01, "be more than 1.0% cheaper (bound 0.99 x)"),
        ("cost", 0.0, "be cheaper ("),
        ("energy", 0.01, "take more than 1.0% less energy ("),
        ("energy", 0.0, "take less energy ("),
    ],
)
def test_what_is_proven_of_nodes_is_of_what_was_asked(
    objective: Literal["cost", "energy"], gap: float, words: str
) -> None:
    """Less energy was called cheaper, and bounds came without a unit."""
    economy = Economy(
        objective=objective,
        reach_step_s=None,
        unit="x",
        value=1.0,
        bound=0.99,
        gap=gap,
        nodes={},
        searches=1,
        interrupted=False,
        words="",
    )
    assert f"no choice of nodes can {words}" in printed(economy_report(economy))
