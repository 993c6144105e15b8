"""Ways down that keep the rows of a deadline, against the rows themselves point by point."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.walks.ways_down import first_way_ms, inner_ways_ms


def keeps_rows(m: int, q: int, sums: tuple[float, float], left: float, f: float, b: float, x: float) -> bool:
    """Whether an inner stage keeps all rows, as they are written."""
    t, (k, r) = f + b, divmod(m - 1, q + 1)
    if m >= q + 2:
        partial = sums[1] - x - t + m * t + max(0.0, x - q * f) + max(0.0, x - q * b)
        return partial <= left and sums[0] + k * (t + x) + r * max(f, b) <= left
    return sums[1] - x - t + m * t <= left and sums[0] + (m - 1) * max(f, b) <= left


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_kept_between_two_ways_and_nowhere_else(seed: int) -> None:
    random = np.random.default_rng(seed)
    kept = lost = 0
    for _ in range(400):
        m, q = int(random.integers(1, 14)), int(random.integers(0, 9))
        f, b = random.uniform(0.1, 3.0, 2)
        # The last stage has nothing behind it.
        ways = random.uniform(0.0, 4.0 * (q + 1), 40) if q else np.zeros(1)
        whole = float(random.uniform(0.5, 2.0) * (q + 2) * (f + b))
        before = whole - float(random.uniform(0.0, 0.2))
        left = float(random.uniform(0.8, 1.6) * (whole + (m - 1) * (f + b)))
        passes = np.array([f + b]), np.array([min(f, b)]), np.array([max(f, b)])
        shortest, longest, keeps = inner_ways_ms(m, q, (whole, before), left, passes)
        highest, begins = first_way_ms(m, q, left, passes)
        for x in ways.tolist():
            inner = bool(keeps[0] and shortest[0] <= x <= longest[0])
            assert inner == keeps_rows(m, q, (whole, before), left, f, b, x)
            # Before the first stage nothing lies: the sum is its own time and the way.
            first = bool(begins[0] and x <= highest[0])
            assert first == keeps_rows(m, q, (f + b + x, f + b + x), left, f, b, x)
            kept, lost = kept + inner + first, lost + (not inner) + (not first)
    assert min(kept, lost) > 1000
