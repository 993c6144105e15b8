"""The rows never exceed a pipeline simulated event by event, and are exact where they say so."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from formulations.pipeline_rows import (
    Floats,
    core_values,
    row_name,
    step_bound,
    through_name,
)
from formulations.written_rows import RowName, row_coefficients
from planner.simulate.deferred import deferred_stage_ends_s
from planner.simulate.pipeline import makespan_1f1b


def work_of_stage(p: int, s: int, m: int) -> list[tuple[str, int]]:
    """1F1B: p - s forwards (or all), then backward and forward in turn, then what is left."""
    ahead = min(p - s, m)
    work = [("F", k) for k in range(ahead)]
    for k in range(m):
        work.append(("B", k))
        if k + ahead < m:
            work.append(("F", k + ahead))
    return work


def stage_ends(forward: Floats, backward: Floats, send: Floats, m: int) -> Floats:
    """End of the last backward of every stage, arrays [case, stage]: run what can run until all has."""
    p = forward.shape[1]
    waiting = [work_of_stage(p, s, m) for s in range(p)]
    end: dict[tuple[str, int, int], Floats] = {}
    free = [np.zeros(len(forward)) for _ in range(p)]
    while any(waiting):
        for s in range(p):
            while waiting[s]:
                name, k = waiting[s][0]
                source = s - 1 if name == "F" else s + 1
                if 0 <= source < p:
                    if (name, source, k) not in end:
                        break
                    ready = end[name, source, k] + send[:, min(s, source)]
                else:
                    ready = np.zeros(len(forward))
                time = forward[:, s] if name == "F" else backward[:, s]
                free[s] = end[name, s, k] = np.maximum(free[s], ready) + time
                waiting[s].pop(0)
    return np.stack(free, axis=1)


def wild(rng: np.random.Generator, cases: int, p: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Forward, backward, sends of up to a forward, and what follows the end of a stage."""
    spread = rng.choice([0.05, 0.5, 5.0], (cases, 1))
    forward = 1 + spread * rng.random((cases, p))
    backward = rng.uniform(0.5, 3.0, (cases, 1)) + spread * rng.random((cases, p))
    send = rng.choice([0.0, 0.05, 0.3, 1.0], (cases, 1)) * rng.random((cases, p))
    after = rng.choice([0.0, 1.0, 30.0], (cases, 1)) * rng.random((cases, p))
    return forward, backward, send, after


def check_against_events(rng: np.random.Generator, cases: int, p: int, m: int) -> None:
    forward, backward, send, after = wild(rng, cases, p)
    ends = stage_ends(forward, backward, send, m)
    values = core_values(forward, backward, send, m)
    reached = values.fill + values.core + values.drain
    for s in range(p):
        for j in range(s + 1):
            assert (reached[:, s] - values.drain[:, j] <= ends[:, j] * (1 + 1e-12)).all(), (p, m, s, j)
    step = (ends + after).max(axis=1)
    assert (step_bound(forward, backward, send, m, after) <= step * (1 + 1e-12)).all(), (p, m)
    whole = values.through.max(axis=1) + after[:, 0]
    assert (whole <= (ends[:, 0] + after[:, 0]) * (1 + 1e-12)).all(), (p, m)


@pytest.mark.slow
def test_no_row_exceeds_the_events_where_activations_wait_for_gradients() -> None:
    """DeepSpeed's order of sends: to receive an activation takes part of every round, and of no pass."""
    rng = np.random.default_rng(21)
    closer = 0
    for p, m in itertools.product(range(1, 8), range(1, 20)):
        forward, backward, send, after = wild(rng, 60, p)
        send[:, -1] = 0.0
        ends = deferred_stage_ends_s(forward, backward, send, m)
        returning = np.concatenate([np.zeros((len(send), 1)), send[:, :-1]], axis=1)
        blocked = forward + send, backward + returning, np.zeros_like(send), m
        values = core_values(*blocked, returning)
        reached = values.fill + values.core + values.drain
        for s, j in itertools.combinations_with_replacement(range(p), 2):
            # Stage s <= j here: the row of j, followed up to the end of s.
            assert (reached[:, j] - values.drain[:, s] <= ends[:, s] * (1 + 1e-12)).all(), (p, m, s, j)
        step = (ends + after).max(axis=1)
        bound = step_bound(*blocked, after, returning)
        assert (bound <= step * (1 + 1e-12)).all(), (p, m)
        closer += int((bound > step_bound(*blocked, after) * (1 + 1e-6)).sum())
    assert closer > 2000


def test_no_row_exceeds_the_events_of_twenty_thousand_wild_pipelines() -> None:
    rng = np.random.default_rng(12)
    for p, m in itertools.product(range(1, 9), range(1, 25)):
        check_against_events(rng, 105, p, m)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 1), (4, 2), (4, 4), (5, 9), (8, 24)])
def test_bound_reads_m_plus_p_minus_1_pairs_on_even_stages_without_sends(p: int, m: int) -> None:
    nothing = np.zeros(p)
    bound = step_bound(np.full(p, 1.5), np.full(p, 3.0), nothing, m, nothing)
    assert float(bound) == pytest.approx((m + p - 1) * 4.5, rel=1e-12)


def test_closed_form_that_is_usual_elsewhere_is_no_bound() -> None:
    """Why the rows exist: sum t + (m - 1) max t lies above the events of an uneven pipeline.

    Three stages with t = 3, 6, 3 and two micro-batches, by hand: the middle stage runs F1 1-3, F2 3-5,
    the last one F1 3-4, B1 4-6, so the middle one B1 6-10, B2 10-14 and the first one B2 14-16. The usual
    form says 12 + 6 = 18; row (mirror) of the middle stage says 3 + (4 + 6 + 3) = 16.
    """
    forward, backward, nothing = np.array([1.0, 2.0, 1.0]), np.array([2.0, 4.0, 2.0]), np.zeros(3)
    assert float(stage_ends(forward[None], backward[None], nothing[None], 2).max()) == 16.0
    assert float(step_bound(forward, backward, nothing, 2, nothing)) == 16.0


def test_a_slow_stage_paces_the_warm_up_of_those_behind_it() -> None:
    """Three stages with f = 4, 2, 1, b twice that, and four micro-batches, by hand.

    Stage 1 runs F1 4-6, waits for F2, 8-10, and only then B1 10-14, though stage 2 has sent it at 9. Stage 0
    runs B1 14-22, F4 22-26 and three more B until 50. Round trips alone say 21 + 28 = 49.
    """
    forward, backward, nothing = np.array([4.0, 2.0, 1.0]), np.array([8.0, 4.0, 2.0]), np.zeros(3)
    assert float(stage_ends(forward[None], backward[None], nothing[None], 4).max()) == 50.0
    assert float(step_bound(forward, backward, nothing, 4, nothing)) == 50.0


def test_product_simulator_agrees_with_these_events() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        p, m = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        forward, backward, send, _ = (x[0] for x in wild(rng, 1, p))
        here = float(stage_ends(forward[None], backward[None], send[None], m).max())
        assert makespan_1f1b(forward, backward, send, m) == pytest.approx(here, rel=1e-12)


def test_written_out_coefficients_reproduce_the_best_core_of_every_stage() -> None:
    rng = np.random.default_rng(2)
    seen: set[str] = set()
    for _ in range(300):
        p, m = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        forward, backward, send, _ = (x[0] for x in wild(rng, 1, p))
        wait = rng.choice([0.0, 0.5]) * rng.random(p)
        values = core_values(forward, backward, send, m, wait)
        for s in range(p):
            name = row_name(values, s, forward, backward, send)
            seen.add(name.family)
            row = row_coefficients(name, p, m, send, wait)
            value = row.forward @ forward + row.backward @ backward + row.constant
            assert value == pytest.approx(values.core[s], rel=1e-12)
            name = through_name(values, s, m, forward, backward, send)
            seen.add(name.family)
            row = row_coefficients(name, p, m, send, wait)
            value = row.forward @ forward + row.backward @ backward + row.constant
            assert values.fill[s] + value + values.drain[s] == pytest.approx(values.through[s], rel=1e-12)
            assert min(row.forward.min(), row.backward.min(), row.constant) >= 0
    assert seen >= {"window", "mirror", "partial", "through", "flush"}


def test_every_row_written_out_stays_at_or_below_the_best_core() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        p, m = int(rng.integers(1, 7)), int(rng.integers(1, 15))
        forward, backward, send, _ = (x[0] for x in wild(rng, 1, p))
        core = core_values(forward, backward, send, m).core
        for s in range(p):
            names = [RowName(family, s, s) for family in ("window", "mirror", "work")]
            if m >= p - s + 1:
                sides = itertools.product(range(s, p), (True, False), (True, False))
                names += [RowName("partial", s, e, first, last) for e, first, last in sides]
            for name in names:
                row = row_coefficients(name, p, m, send)
                value = float(row.forward @ forward + row.backward @ backward + row.constant)
                assert value <= core[s] * (1 + 1e-12), name
                assert min(row.forward.min(), row.backward.min(), row.constant) >= 0


def test_many_pipelines_at_once_give_what_each_gives_alone() -> None:
    forward, backward, send, after = wild(np.random.default_rng(8), 5, 4)
    together = step_bound(forward, backward, send, 7, after)
    alone = [step_bound(forward[i], backward[i], send[i], 7, after[i]) for i in range(5)]
    assert together == pytest.approx(np.array(alone), rel=1e-14)
