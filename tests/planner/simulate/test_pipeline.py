"""Start and end of every piece of work."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.pipeline import SimulatedPipeline, makespan_1f1b, simulate, stage_ends_s
from tests.planner.simulate.naive import longest_path


def run(
    forward: list[list[float]], backward: list[list[float]], send: list[float], m: int
) -> SimulatedPipeline:
    return simulate(np.array(forward), np.array(backward), np.array(send), m)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 7), (2, 1), (4, 2), (4, 4), (8, 64), (16, 100)])
def test_even_stages_without_sends_take_the_textbook_time(p: int, m: int) -> None:
    f, b = 0.0123, 0.0271
    found = run([[f]] * p, [[b]] * p, [0.0] * p, m)
    assert found.makespan_s == pytest.approx((m + p - 1) * (f + b), rel=1e-12)
    makespan = makespan_1f1b(np.full(p, f), np.full(p, b), np.zeros(p), m)
    assert makespan == pytest.approx((m + p - 1) * (f + b), rel=1e-12)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (2, 8, 4), (4, 4, 2), (4, 16, 3), (8, 64, 4)])
def test_even_interleaved_stages_shorten_the_fill_by_the_chunks(p: int, m: int, v: int) -> None:
    f, b = 0.0123 / v, 0.0271 / v
    found = run([[f] * v] * p, [[b] * v] * p, [0.0] * p, m)
    t = v * (f + b)
    assert found.makespan_s == pytest.approx(m * t + (p - 1) * t / v, rel=1e-12)


def test_slow_second_stage_by_hand() -> None:
    # Stage 0: f 1, b 1; stage 1: f 3, b 4; two micro-batches, sends of 0.5.
    #   stage 1: F0 1.5-4.5, B0 4.5-8.5, F1 8.5-11.5, B1 11.5-15.5
    #   stage 0: F0 0-1, F1 1-2, B0 from 8.5 + 0.5 = 9 to 10, B1 from 15.5 + 0.5 = 16 to 17.
    # The near miss 16 forgets that the last gradient travels back.
    found = run([[1.0], [3.0]], [[1.0], [4.0]], [0.5, 0.0], 2)
    assert found.forward_start_s[1, 0].tolist() == [1.5, 8.5]
    assert found.backward_end_s[1, 0].tolist() == [8.5, 15.5]
    assert found.backward_start_s[0, 0].tolist() == [9.0, 16.0]
    assert found.stage_end_s.tolist() == [17.0, 15.5]
    assert found.makespan_s == 17.0


def test_a_send_delays_the_receiver_and_occupies_nobody() -> None:
    # Stage 0 is slow (f 4, b 4), stage 1 fast (f 1, b 1): after its first forward stage 0 goes on
    # at once, though the send takes 2. Stage 0: F0 0-4, F1 4-8, then waits for B0: stage 1 runs F0
    # 6-7, B0 7-8, which arrives at 10; B0 10-14; F1 10-11, B1 11-12 arrived at 14; B1 14-18.
    found = run([[4.0], [1.0]], [[4.0], [1.0]], [2.0, 0.0], 2)
    assert found.forward_start_s[0, 0].tolist() == [0.0, 4.0]
    assert found.stage_end_s.tolist() == [18.0, 12.0]


def test_the_sum_of_stages_and_slowest_stage_is_no_bound_on_uneven_stages() -> None:
    # Middle stage slow only in its backward: the usual closed form overstates the step.
    forward, backward = [[1.0], [1.0], [4.0]], [[1.0], [9.0], [1.0]]
    found = run(forward, backward, [0.0] * 3, 8)
    totals = [f[0] + b[0] for f, b in zip(forward, backward, strict=True)]
    assert found.makespan_s < sum(totals) + 7 * max(totals)


def test_interleaved_wrap_hop_counts_only_between_last_and_first_stage() -> None:
    # One micro-batch group of 2 on 2 stages with 2 chunks; each piece 1. The wrap hop of 5 delays
    # chunk 1 of stage 0 forwards and chunk 0 of stage 1 backwards, each once on the path.
    even = [[1.0, 1.0], [1.0, 1.0]]
    without = run(even, even, [0.0, 0.0], 2)
    with_wrap = run(even, even, [0.0, 5.0], 2)
    assert without.makespan_s == 10.0
    assert with_wrap.makespan_s == longest(even, even, [0.0, 5.0], 2)
    assert run([[1.0], [1.0]], [[1.0], [1.0]], [0.0, 5.0], 2).makespan_s == 6.0


def longest(forward: list[list[float]], backward: list[list[float]], send: list[float], m: int) -> float:
    return max(end for _, end in longest_path(forward, backward, send, m).values())


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], list[float], int]:
    p, v = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    m = draw(st.integers(1, 9)) if v == 1 else p * draw(st.integers(1, 3))
    times = st.lists(st.floats(0.1, 10.0), min_size=v, max_size=v)
    stages = st.lists(times, min_size=p, max_size=p)
    sends = st.lists(st.floats(0.0, 5.0), min_size=p, max_size=p)
    return draw(stages), draw(stages), draw(sends), m


@settings(max_examples=150, deadline=None)
@given(pipelines())
def test_every_piece_starts_and_ends_as_the_longest_path_says(
    case: tuple[list[list[float]], list[list[float]], list[float], int],
) -> None:
    found = run(*case)
    truth = longest_path(*case)
    for (name, s, chunk, k), (start, end) in truth.items():
        starts = found.forward_start_s if name == "F" else found.backward_start_s
        ends = found.forward_end_s if name == "F" else found.backward_end_s
        assert starts[s, chunk, k] == pytest.approx(start, rel=1e-12, abs=1e-12)
        assert ends[s, chunk, k] == pytest.approx(end, rel=1e-12)
    assert found.makespan_s == pytest.approx(max(end for _, end in truth.values()), rel=1e-12)
    for s in range(len(case[0])):
        stage_end = max(end for piece, (_, end) in truth.items() if piece[1] == s)
        assert found.stage_end_s[s] == pytest.approx(stage_end, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(pipelines(), st.floats(1.0, 3.0))
def test_slower_pieces_or_links_never_end_the_step_earlier(
    case: tuple[list[list[float]], list[list[float]], list[float], int], factor: float
) -> None:
    forward, backward, send = (np.array(values) for values in case[:3])
    before = simulate(forward, backward, send, case[3]).makespan_s
    assert simulate(forward, backward, factor * send, case[3]).makespan_s >= before - 1e-12
    assert simulate(factor * forward, backward, send, case[3]).makespan_s >= before - 1e-12
    scaled = simulate(factor * forward, factor * backward, factor * send, case[3]).makespan_s
    assert scaled == pytest.approx(factor * before, rel=1e-12)


@pytest.mark.parametrize(
    ("p", "v", "m"), [(4, 2, 8), (4, 1, 8), (5, 1, 2), (2, 1, 1), (7, 1, 7), (7, 1, 8), (1, 1, 3), (3, 1, 30)]
)
def test_candidates_side_by_side_equal_candidates_one_by_one(p: int, v: int, m: int) -> None:
    rng = np.random.default_rng(0)
    forward, backward = rng.uniform(1, 2, (5, p, v)), rng.uniform(1, 2, (5, p, v))
    send = rng.uniform(0, 1, (5, p))
    together = stage_ends_s(forward, backward, send, m)
    for i in range(5):
        alone = simulate(forward[i], backward[i], send[i], m)
        assert together[i].tolist() == pytest.approx(alone.stage_end_s.tolist(), rel=1e-14)


def test_large_pipelines_are_fast() -> None:
    forward = np.full((64, 1), 1.0)
    simulate(forward, forward, np.zeros(64), 512)  # lays the graph out once
    start = time.process_time()
    simulate(forward, forward, np.zeros(64), 512)
    assert time.process_time() - start < 0.1
