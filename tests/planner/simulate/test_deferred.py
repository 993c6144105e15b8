"""Activations that leave after the next gradient has come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.deferred import deferred_stage_ends_s
from planner.simulate.pipeline import stage_ends_s

PIPELINES = st.tuples(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**31))


def pipeline(p: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 2, (1, p)), rng.uniform(0.5, 4, (1, p)), rng.uniform(0, 1, (1, p))


@settings(max_examples=60, deadline=None)
@given(PIPELINES)
def test_without_sends_it_is_1f1b(case: tuple[int, int, int]) -> None:
    p, m, seed = case
    forward, backward, _ = pipeline(p, seed)
    nothing = np.zeros((1, p))
    expected = stage_ends_s(forward[..., None], backward[..., None], nothing, m)
    assert deferred_stage_ends_s(forward, backward, nothing, m) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(PIPELINES)
def test_waiting_for_the_gradient_never_helps(case: tuple[int, int, int]) -> None:
    p, m, seed = case
    forward, backward, sends = pipeline(p, seed)
    sends[:, -1] = 0.0
    late = deferred_stage_ends_s(forward, backward, sends, m)
    returning = np.concatenate([np.zeros((1, 1)), sends[:, :-1]], axis=1)
    blocked = stage_ends_s(
        (forward + sends)[..., None], (backward + returning)[..., None], np.zeros((1, p)), m
    )
    assert (late >= blocked - 1e-9).all()


def test_last_stage_waits_for_two_sends_a_microbatch() -> None:
    """Two stages, the last the slower: F = 1, B = 2 there, the first takes no time, a send takes 0.5.

    In steady state the gradient leaves (0.5), only then the next activation (0.5): 4 a micro-batch. The
    first activation comes at 0.5; the last gradient ends the step: 0.5 + 3 x 4 + (3 + 0.5).
    """
    forward, backward = np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]])
    ends = deferred_stage_ends_s(forward, backward, np.array([[0.5, 0.0]]), 4)
    assert ends[0, 0] == pytest.approx(0.5 + 3 * 4 + 3.5)
    # With the activation sent at once, one send a micro-batch is left: near-miss of 3 x 0.5.
    blocked = stage_ends_s(np.array([[[0.5], [1.0]]]), np.array([[[0.0], [2.5]]]), np.zeros((1, 2)), 4)
    assert blocked.max() == pytest.approx(0.5 + 4 * 3.5)


def test_first_stage_that_is_the_slower_waits_for_one_send_a_microbatch() -> None:
    """F = 1, B = 2 on the first stage: gradients have come long before, only its own send takes 0.5."""
    forward, backward = np.array([[1.0, 0.0]]), np.array([[2.0, 0.0]])
    m = 16
    ends = deferred_stage_ends_s(forward, backward, np.array([[0.5, 0.0]]), m)
    assert (ends.max() - deferred_stage_ends_s(forward, backward, np.array([[0.5, 0.0]]), m - 1).max()) == (
        pytest.approx(3.5)
    )


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("m", [1, 3, 9])
def test_many_candidates_end_as_each_alone(stages: int, m: int) -> None:
    pieces = list(np.random.default_rng(m).random((3, 20, stages)))
    alone = [deferred_stage_ends_s(*(one[i : i + 1] for one in pieces), m)[0] for i in range(20)]
    assert deferred_stage_ends_s(*pieces, m).tolist() == np.array(alone).tolist()
