"""One tiny instance for each constraint group; both forms must find the optimum worked out in the comment.

Plain stages (`by_hand`) take t = f + b = 3 ms a layer and 1 GiB. With one micro-batch on two stages the
step is the sum of both stages; with m on even stages it is (m + 1) t.
"""

from __future__ import annotations

import pytest

from formulations.options import SolverName
from formulations.stage_selection_data import StageSelectionData
from tests.formulations.instances import by_hand
from tests.formulations.solving import solve

forms = pytest.mark.parametrize("solver", ["highs", "cp_sat"])


def check(
    data: StageSelectionData,
    solver: SolverName,
    objective_ms: float,
    layers: tuple[int, ...] | None = None,
    recompute: tuple[str, ...] | None = None,
    recompute_layers: tuple[int, ...] | None = None,
) -> None:
    result = solve(data, solver)
    assert result.status == "optimal" and result.choice is not None
    assert result.objective_ms == pytest.approx(objective_ms, rel=1e-6)
    assert layers is None or result.choice.layers == layers
    assert recompute is None or result.choice.recompute == recompute
    assert recompute_layers is None or result.choice.recompute_layers == recompute_layers


@forms
def test_assign_and_pipeline_even_stages_take_even_layers(solver: SolverName) -> None:
    """4 layers, m = 3: (2, 2) runs (3 + 1) 6 = 24. (1, 3) has a stage of 9: 3 x 9 and 3 before it = 30."""
    check(by_hand(2, 4, 3), solver, 24.0, (2, 2))


@forms
def test_forward_and_backward_time_slow_stage_takes_fewer_layers(solver: SolverName) -> None:
    """Stage 1 is twice as slow, m = 10. (2, 1): both stages take 6, (10 + 1) 6 = 66. (1, 2): one takes 12."""
    data = by_hand(2, 3, 10, forward_ms=[1, 2], backward_ms=[2, 4])
    check(data, solver, 66.0, (2, 1))


@forms
def test_base_time_head_weighs_as_two_layers(solver: SolverName) -> None:
    """A head of f 2, b 4 on stage 1, m = 10: (3, 1) is 9 and 9, 11 x 9 = 99; (2, 2) has a stage of 12."""
    data = by_hand(2, 4, 10, base_forward_ms=[0, 2], base_backward_ms=[0, 4])
    check(data, solver, 99.0, (3, 1))


@forms
def test_send_is_paid_down_and_up(solver: SolverName) -> None:
    """One layer each, m = 1: 3 + 3 and the hop of 0.5 twice. Behind the last stage is no hop."""
    check(by_hand(2, 2, 1, send_ms=[0.5, 9.0]), solver, 7.0)


@forms
def test_memory_pushes_layers_to_the_stage_with_room(solver: SolverName) -> None:
    """Even would be 24, but stage 0 has 1.5 GiB and saves nothing: (1, 3) takes 3 x 9 + 3 = 30."""
    check(by_hand(2, 4, 3, limit_gib=[1.5, 100]), solver, 30.0, (1, 3))


@forms
def test_memory_of_all_else_counts(solver: SolverName) -> None:
    """3 GiB hold 2 layers beside 1 GiB of all else, not beside 1.01: then (1, 3) is left, as above."""
    check(by_hand(2, 4, 3, limit_gib=[3, 100], base_gib=[1, 0]), solver, 24.0, (2, 2))
    check(by_hand(2, 4, 3, limit_gib=[3, 100], base_gib=[1.01, 0]), solver, 30.0, (1, 3))


@forms
def test_recomputed_no_more_layers_than_needed(solver: SolverName) -> None:
    """One stage, 4 layers of 1 GiB in 2.7: each recomputed one saves 0.8, so two (2.4), m = 2.

    (12 + 2) x 2 = 28. One alone leaves 3.2 GiB; three would fit too and take 30.
    """
    data = by_hand(1, 4, 2, limit_gib=[2.7], full_saves_gib=[0.8])
    check(data, solver, 28.0, (4,), ("full",), (2,))


@forms
def test_recomputed_passing_memory_asks_for_one_more_layer(solver: SolverName) -> None:
    """As above, but a recomputed layer exists again for a while, 0.5 GiB: 4 - 1.6 + 0.5 = 2.9, so three."""
    data = by_hand(1, 4, 2, limit_gib=[2.7], full_saves_gib=[0.8], full_peak_gib=[0.5])
    check(data, solver, 30.0, (4,), ("full",), (3,))


@forms
def test_selective_is_all_layers_of_a_stage_and_cheaper_where_it_suffices(solver: SolverName) -> None:
    """Core attention saves 0.4 a layer: 4 - 1.6 = 2.4 of 2.7 GiB, for 4 x 0.25 = 1 ms: (12 + 1) 2 = 26.

    In 3 of 4 layers it would save enough for 0.75 ms, but it is all or none. Saving 0.3 a layer (2.8 GiB)
    is the near-miss: then two whole layers, 28.
    """
    data = by_hand(1, 4, 2, limit_gib=[2.7], full_saves_gib=[0.8], selective_saves_gib=[0.4])
    check(data, solver, 26.0, (4,), ("selective",), (0,))
    data = by_hand(1, 4, 2, limit_gib=[2.7], full_saves_gib=[0.8], selective_saves_gib=[0.3])
    check(data, solver, 28.0, (4,), ("full",), (2,))


@forms
def test_one_kind_both_recomputations_together_are_no_way_out(solver: SolverName) -> None:
    """4 GiB in 1.5: whole layers leave 4 - 2 = 2, core attention 4 - 1.2; only both would fit."""
    data = by_hand(1, 4, 2, limit_gib=[1.5], full_saves_gib=[0.5], selective_saves_gib=[0.3])
    assert solve(data, solver).status == "infeasible"


@forms
def test_reduction_lengthens_the_end_of_its_stage_alone(solver: SolverName) -> None:
    """m = 1, one layer each: stage 1 ends at 1 + 3 = 4 and stage 0 at 6.

    A reduction of 1.5 on stage 1 ends at 5.5 and hides; on stage 0 it ends at 7.5; a tail adds to either.
    """
    check(by_hand(2, 2, 1, reduce_ms=[0, 1.5]), solver, 6.0)
    check(by_hand(2, 2, 1, base_reduce_ms=[1.5, 0]), solver, 7.5)
    check(by_hand(2, 2, 1, reduce_ms=[0, 1.5], reduce_tail_ms=[0, 1.0]), solver, 6.5)


@forms
def test_reduction_hides_behind_the_last_backward(solver: SolverName) -> None:
    """Stage 0 as above, but 60% of the backward of 2 ms hides 1.2 of the 1.5: 6.3. Of 1.0 nothing shows."""
    check(by_hand(2, 2, 1, reduce_ms=[1.5, 0], hidden_fraction=0.6), solver, 6.3)
    check(by_hand(2, 2, 1, reduce_ms=[1.0, 0], hidden_fraction=0.6), solver, 6.0)


@forms
def test_reduction_in_one_bucket_hides_only_behind_the_stages_before(solver: SolverName) -> None:
    """Stage 1 as above has 2.5 to reduce, behind 60% of its own backward but for one bucket: until 6.5."""
    terms = {"reduce_ms": [0, 2.5], "hidden_fraction": 0.6, "reduce_tail_ms": [0, 0.5]}
    check(by_hand(2, 2, 1, **terms), solver, 6.0)
    check(by_hand(2, 2, 1, **terms, bucket_ms=[0, 2.5]), solver, 6.5)
    check(by_hand(2, 2, 1, **terms, bucket_ms=[0, 2.0], base_bucket_ms=[0, 0.75]), solver, 6.75)


@forms
def test_gathering_hides_behind_the_first_forward(solver: SolverName) -> None:
    """60% of a forward of 1 ms hides 0.6 of 1.5: 6.9, the tail always shows. Of 0.5 nothing shows."""
    check(by_hand(2, 2, 1, gather_ms=[1.5, 0], hidden_fraction=0.6), solver, 6.9)
    check(
        by_hand(2, 2, 1, base_gather_ms=[0, 0.5], gather_tail_ms=[0, 0.2], hidden_fraction=0.6), solver, 6.2
    )


@forms
def test_follow_up_is_the_slowest_stage_and_not_the_sum(solver: SolverName) -> None:
    """Optimizers of 2 and 1 a layer and 0.5 more on stage 1: max(2, 1.5) = 2 after 6."""
    check(by_hand(2, 2, 1, optimizer_ms=[2, 1], base_optimizer_ms=[0, 0.5]), solver, 8.0)


@forms
def test_constant_is_part_of_objective_and_bound(solver: SolverName) -> None:
    """Two stages of one layer and 5 ms that every choice pays."""
    result = solve(by_hand(2, 2, 1, constant_ms=5.0), solver)
    assert result.objective_ms == pytest.approx(11.0, rel=1e-6)
    assert result.bound_ms == pytest.approx(11.0, rel=1e-6)


@forms
def test_exclude_leaves_the_second_best_then_none(solver: SolverName) -> None:
    """3 layers, m = 1, a reduction of 1 a layer on stage 0: (1, 2) takes 10, (2, 1) 11, no third."""
    data = by_hand(2, 3, 1, reduce_ms=[1, 0])
    check(data, solver, 10.0, (1, 2))
    second = solve(data, solver, exclude=[(1, 2)])
    assert second.choice is not None and second.choice.layers == (2, 1)
    assert second.objective_ms == pytest.approx(11.0, rel=1e-6)
    assert solve(data, solver, exclude=[(1, 2), (2, 1)]).status == "infeasible"


@forms
def test_fewer_layers_than_stages_and_too_little_memory_are_infeasible(solver: SolverName) -> None:
    """A stage holds at least one layer; two stages of 1.5 GiB hold two of three layers."""
    assert solve(by_hand(3, 2, 4), solver).status == "infeasible"
    result = solve(by_hand(2, 3, 4, limit_gib=[1.5, 1.5]), solver)
    assert (result.status, result.choice, result.objective_ms) == ("infeasible", None, None)
    assert solve(by_hand(2, 3, 4, limit_gib=[0.5, 9]), solver).status == "infeasible"


@forms
def test_one_stage_takes_all_layers(solver: SolverName) -> None:
    """m t = 5 x 12."""
    check(by_hand(1, 4, 5), solver, 60.0, (4,))
