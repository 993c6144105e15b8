"""Which hop runs inside a host, what it costs, and who waits for it."""

from __future__ import annotations

import numpy as np

from planner.cost.communication.hops import block_on_sends, hop_send_s, hops_inside_host
from planner.simulate.pipeline import simulate


def test_two_stages_of_half_a_node_share_a_host() -> None:
    # Stages of 4 chips on nodes of 8: stages 0 and 1 on the first host, 2 and 3 on the second.
    assert hops_inside_host([0, 0, 0, 0], 4, [8]) == (True, False, True, False)


def test_the_way_back_is_inside_where_the_whole_pipeline_is() -> None:
    assert hops_inside_host([0, 0], 4, [8]) == (True, True)
    assert hops_inside_host([0, 0, 0], 4, [8]) == (True, False, False)


def test_a_stage_of_a_whole_node_never_shares() -> None:
    assert hops_inside_host([0, 0, 0], 8, [8]) == (False, False, False)
    assert hops_inside_host([0, 0, 0], 16, [8]) == (False, False, False)


def test_a_run_starts_on_a_fresh_host() -> None:
    # A, B, B, A with 2 chips a stage on nodes of 4: the two B share; the second A does not join the first.
    assert hops_inside_host([0, 1, 1, 0], 2, [4, 4]) == (False, True, False, False)


def test_a_stage_that_straddles_two_hosts_shares_with_nobody() -> None:
    # 3 chips a stage on nodes of 4: chips 0-2 | 3-5 | 6-8 | 9-11 lie on hosts 0 | 0-1 | 1-2 | 2.
    assert hops_inside_host([0, 0, 0, 0], 3, [4]) == (False, False, False, False)


def test_hops_take_the_link_between_their_classes() -> None:
    network = np.array([[1.0, 2.0], [3.0, 4.0]])
    inside = np.array([0.1, 0.2])
    assert hop_send_s(network, inside, [0, 0, 1, 1], 4, [8, 4]).tolist() == [0.1, 2.0, 4.0, 3.0]
    assert hop_send_s(network, inside, [1], 4, [8, 4]).tolist() == [0.0]


def test_overlapped_sends_leave_the_work_alone() -> None:
    f, b, c = np.ones((3, 2)), np.ones((3, 2)), np.array([0.1, 0.2, 0.3])
    seen = block_on_sends(f, b, c, p2p_overlap=True)
    assert all(found is given for found, given in zip(seen, (f, b, c), strict=True))


def test_blocking_sends_occupy_the_sender() -> None:
    # Forward: stage 0 sends over hop 0, stage 1 over hop 1, stage 2 only chunk 0 (back to stage 0).
    # Backward: stage 0 sends only chunk 1 (to stage 2), stage 1 over hop 0, stage 2 over hop 1.
    f, b, c = block_on_sends(
        np.ones((3, 2)), np.full((3, 2), 2.0), np.array([0.1, 0.2, 0.3]), p2p_overlap=False
    )
    assert f.tolist() == [[1.1, 1.1], [1.2, 1.2], [1.3, 1.0]]
    assert b.tolist() == [[2.0, 2.3], [2.1, 2.1], [2.2, 2.2]]
    assert c.tolist() == [0.0, 0.0, 0.0]


def test_a_blocking_send_is_never_faster_than_an_overlapped_one() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        f, b, c = rng.uniform(1, 2, (4, 1)), rng.uniform(1, 2, (4, 1)), rng.uniform(0, 1, 4)
        blocked = simulate(*block_on_sends(f, b, c, p2p_overlap=False), 6).makespan_s
        assert blocked >= simulate(f, b, c, 6).makespan_s - 1e-12
