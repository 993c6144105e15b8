"""How much slower plans of another kind are said to be."""

from __future__ import annotations

import pytest

from planner.report.explanation import format_slower


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
