"""The order of work on each stage, and the micro-batches in flight along it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.schedules import (
    _walked_peaks,
    in_flight_over_time,
    in_flight_peaks,
    num_warmup_forwards,
    order_of_work,
    peak_in_flight,
)
from tests.planner.simulate.naive import order_in_words

SHAPES = [(1, 5, 1), (4, 2, 1), (4, 9, 1), (2, 4, 3), (4, 4, 2), (4, 12, 2), (3, 6, 4), (8, 16, 2)]


@pytest.mark.parametrize(("p", "m", "v"), SHAPES)
def test_every_stage_works_in_the_order_of_the_paper(p: int, m: int, v: int) -> None:
    for s in range(p):
        order = order_of_work(p, s, m, v)
        found = [
            ("B" if back else "F", int(chunk), int(k))
            for back, chunk, k in zip(order.is_backward, order.chunk, order.microbatch, strict=True)
        ]
        assert found == order_in_words(p, s, m, v)


def test_interleaved_order_of_the_second_stage_by_hand() -> None:
    # p = 2, v = 2, m = 2: the last stage warms up (v - 1) p = 2 forwards, both micro-batches of
    # chunk 0; then a forward of chunk 1 and its backward in turn; then chunk 0 backwards.
    order = order_of_work(2, 1, 2, 2)
    pieces = list(
        zip(order.is_backward.tolist(), order.chunk.tolist(), order.microbatch.tolist(), strict=True)
    )
    F, B = False, True
    assert pieces == [(F, 0, 0), (F, 0, 1), (F, 1, 0), (B, 1, 0), (F, 1, 1), (B, 1, 1), (B, 0, 0), (B, 0, 1)]


@pytest.mark.parametrize(("p", "m"), [(1, 1), (4, 1), (4, 3), (4, 4), (4, 20), (16, 64)])
def test_1f1b_holds_the_remaining_depth_or_all_microbatches(p: int, m: int) -> None:
    for s in range(p):
        assert num_warmup_forwards(p, s, m) == min(p - 1 - s, m)
        assert peak_in_flight(p, s, m) == (min(m, p - s),)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 3), (4, 4, 2), (4, 12, 2), (3, 6, 4), (8, 16, 2)])
def test_interleaved_holds_the_published_number_of_virtual_microbatches(p: int, m: int, v: int) -> None:
    for s in range(p):
        assert sum(peak_in_flight(p, s, m, v)) == min(m * v, 2 * (p - 1 - s) + (v - 1) * p + 1)


def test_chunks_do_not_all_peak_at_once() -> None:
    # Stage 0 of 4 with 2 chunks and 8 micro-batches holds at most 8 on chunk 0 and at most 4 on
    # chunk 1, but 11 in all: the near miss, 12, would add up peaks of different moments.
    counts = in_flight_over_time(order_of_work(4, 0, 8, 2), 2)
    assert counts.max(axis=0).tolist() == [8, 4]
    assert in_flight_peaks(4, 0, 8, 2) == ((7, 4), (8, 3))


def test_the_heavier_chunk_decides_which_moment_is_the_peak() -> None:
    assert peak_in_flight(4, 0, 8, 2, kept_bytes=[10.0, 1.0]) == (8, 3)
    assert peak_in_flight(4, 0, 8, 2, kept_bytes=[1.0, 10.0]) == (7, 4)


@pytest.mark.parametrize("v", [1, 2, 3, 5])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_long_orders_bring_no_peak_that_their_first_groups_lack(p: int, v: int) -> None:
    for s in range(p):
        for groups in (2, 3, 5, 9):
            assert _walked_peaks(p, s, groups * p, v) == in_flight_peaks(p, s, groups * p, v)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.data())
def test_peaks_cover_every_moment(p: int, groups: int, v: int, data: st.DataObject) -> None:
    s, m = data.draw(st.integers(0, p - 1)), groups * p
    weights = data.draw(st.lists(st.integers(0, 9), min_size=v, max_size=v))
    counts = in_flight_over_time(order_of_work(p, s, m, v), v)
    worst = max(sum(n * w for n, w in zip(row, weights, strict=True)) for row in counts.tolist())
    peak = peak_in_flight(p, s, m, v, [float(w) for w in weights])
    assert sum(n * w for n, w in zip(peak, weights, strict=True)) == worst
