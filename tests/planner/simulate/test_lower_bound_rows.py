"""The rows that bound a 1F1B step from below, held against the simulator.

The formulations minimise the largest of these rows; a row above the simulated step would make their
proofs void. Hops may differ from each other. Notation: t = f + b, q = p - 1 - s stages behind s,
d = time of one micro-batch from the end of s through all stages behind it and back, up = time before
the first forward of s plus time after its last backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.pipeline import simulate


@dataclass(frozen=True)
class Pipeline:
    forward: list[float]
    backward: list[float]
    hops: list[float]  # one fewer than stages
    m: int

    @property
    def total(self) -> list[float]:
        return [f + b for f, b in zip(self.forward, self.backward, strict=True)]

    def stage_ends(self) -> list[float]:
        ends = simulate(
            np.array(self.forward)[:, None],
            np.array(self.backward)[:, None],
            np.array([*self.hops, 0.0]),
            self.m,
        ).stage_end_s
        return [float(end) for end in ends]


def rows_from_stage(x: Pipeline, s: int) -> Iterator[tuple[str, float]]:
    """Rows of stage s without `up`: from the start of its first forward to the end of its last backward."""
    p, m, t = len(x.forward), x.m, x.total
    q = p - 1 - s
    f, b = x.forward[s], x.backward[s]
    d = sum(t[s + 1 :]) + 2 * sum(x.hops[s:])
    if m >= q + 2:
        yield "work", m * t[s] + max(0.0, d - q * f) + max(0.0, d - q * b)
    if m <= q + 1:
        yield "short", m * t[s]
        yield "short", t[s] + d + (m - 1) * f
        yield "short", t[s] + d + (m - 1) * b
    k, r = divmod(m - 1, q + 1)
    yield "window", r * f + (k + 1) * (t[s] + d)
    yield "window", r * b + (k + 1) * (t[s] + d)
    if m >= q + 2:
        first = max(t[s] + d, (q + 1) * f + b)
        last = max(t[s] + d, (q + 1) * b + f)
        for e in range(s, p):
            n = e - s + 1
            width = sum(t[s : e + 1]) + 2 * sum(x.hops[s:e])
            full, rest = divmod(m - 2 - q, n)
            yield "partial", first + last + full * width + rest * t[s]


def bounds(x: Pipeline) -> Iterator[tuple[str, float, int]]:
    """Kind of row, its value, and the stage whose end it bounds."""
    for s in range(len(x.forward)):
        fill = sum(x.forward[:s]) + sum(x.hops[:s])
        for kind, row in rows_from_stage(x, s):
            for j in range(s + 1):
                yield kind, fill + row + sum(x.backward[j:s]) + sum(x.hops[j:s]), j


def check(x: Pipeline) -> float:
    """Assert all rows; the best row for the whole step over the simulated step."""
    ends = x.stage_ends()
    best = 0.0
    for kind, row, j in bounds(x):
        assert row <= ends[j] * (1 + 1e-12), (kind, j, x)
        best = max(best, row)
    return best / max(ends)


@st.composite
def wild_pipelines(draw: st.DrawFn) -> Pipeline:
    p = draw(st.integers(1, 8))
    times = st.lists(st.floats(0.05, 10.0), min_size=p, max_size=p)
    hops = st.lists(st.floats(0.0, 10.0), min_size=p - 1, max_size=p - 1)
    return Pipeline(draw(times), draw(times), draw(hops), draw(st.integers(1, 24)))


@settings(max_examples=150, deadline=None)
@given(wild_pipelines())
def test_no_row_exceeds_the_end_of_the_stage_that_it_bounds(x: Pipeline) -> None:
    check(x)


@pytest.mark.slow
def test_no_row_exceeds_the_simulated_step_in_many_wild_pipelines() -> None:
    rng = np.random.default_rng(7)
    for _ in range(5000):
        p, m = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        spread = rng.choice([0.1, 1.0, 10.0])
        check(
            Pipeline(
                (1 + spread * rng.random(p)).tolist(),
                (1 + spread * rng.random(p)).tolist(),
                (rng.choice([0.0, 0.3, 1.0]) * rng.random(p - 1)).tolist(),
                m,
            )
        )


@pytest.mark.parametrize("m", [1, 3, 5, 8, 24])
def test_rows_are_exact_on_even_stages_without_sends(m: int) -> None:
    assert check(Pipeline([1.0] * 5, [2.0] * 5, [0.0] * 4, m)) == pytest.approx(1.0, abs=1e-12)


def test_rows_come_close_on_nearly_even_stages() -> None:
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(100):
        p, m = int(rng.integers(2, 9)), int(rng.integers(2, 25))
        f = (1 + 0.1 * rng.random(p)).tolist()
        ratios.append(check(Pipeline(f, [2 * x for x in f], [0.0] * (p - 1), m)))
    assert min(ratios) > 0.999
