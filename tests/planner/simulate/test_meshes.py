"""Stages of different tensor and data parallelism: what each costs alone, and what passes between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.cost.communication.resharding import (
    StageShape,
    hop_between_s,
    message_latency_s,
    most_overlaps,
    num_messages,
)
from planner.cost.memory.communicators import TWO_RANKS
from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.data.load import build_problem
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.simulate.evaluate import evaluate
from tests.planner.simulate.synthetic import packed_plan


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Two nodes of 8 chips in each of two classes, 32 layers, 32 sequences."""
    return build_problem(
        cluster="2x8 h100-sxm-80gb, 2x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=32,
        target="flagscale",
    )


def meshes(problem: Problem, degrees: list[tuple[int, int]], microbatch_size: int, **changes: Any) -> Plan:
    """Two stages of 16 layers on 16 H100 and 16 A100, with (tp, dp) of each."""
    plain = packed_plan(problem, [(0, 16), (1, 16)], tensor_parallel=8, data_parallel=2)
    stages = tuple(
        stage.model_copy(update={"tensor_parallel": tp, "data_parallel": dp})
        for stage, (tp, dp) in zip(plain.stages, degrees, strict=True)
    )
    own = {
        "tensor_parallel": degrees[0][0],
        "data_parallel": degrees[0][1],
        "microbatch_size": microbatch_size,
        "num_microbatches": 32 // (degrees[0][1] * microbatch_size),
        "stages": stages,
    }
    return plain.model_copy(update=own | changes)


def test_each_stage_costs_what_it_costs_among_its_like(problem: Problem) -> None:
    # Four sequences run at a time: two on each of 2 replicas, then one on each of 4.
    mixed = evaluate(problem, meshes(problem, [(8, 2), (4, 4)], 2))
    first = evaluate(problem, meshes(problem, [(8, 2), (8, 2)], 2))
    second = evaluate(problem, meshes(problem, [(4, 4), (4, 4)], 1))
    assert mixed.violations == ()
    # A rank is in two pipelines: one of stage 0 meets two replicas, one of stage 1 two halves of a layer.
    one_more = problem.stack.communicator_gib * TWO_RANKS
    for s, alike in ((0, first), (1, second)):
        assert mixed.stages[s].peak_memory_gib == pytest.approx(
            alike.stages[s].peak_memory_gib + one_more, rel=1e-12
        )
    # Nothing leaves stage 0 after its backward, nor stage 1 after its forward: no hop stands in these.
    assert mixed.stages[0].backward_s == pytest.approx(first.stages[0].backward_s)
    assert mixed.stages[1].forward_s == pytest.approx(second.stages[1].forward_s)


def test_a_plan_between_two_uniform_ones_takes_a_time_between_theirs_but_for_the_hop(
    problem: Problem,
) -> None:
    steps = [
        evaluate(problem, meshes(problem, degrees, mbs)).step_s
        for degrees, mbs in (([(8, 2), (8, 2)], 2), ([(8, 2), (4, 4)], 2), ([(4, 4), (4, 4)], 1))
    ]
    assert min(steps[0], steps[2]) * 0.999 < steps[1] < max(steps[0], steps[2]) * 1.001


@pytest.mark.parametrize(
    ("parts", "others", "expected"), [(1, 1, 1), (2, 8, 4), (8, 2, 1), (2, 3, 2), (3, 2, 2), (4, 6, 2)]
)
def test_overlaps_are_those_of_equal_pieces(parts: int, others: int, expected: int) -> None:
    # Counted on parts * others marks: piece i of one covers marks [i others, (i + 1) others).
    counted = max(len({mark // parts for mark in range(i * others, (i + 1) * others)}) for i in range(parts))
    assert most_overlaps(parts, others) == counted == expected


def test_a_hop_between_shapes_moves_the_larger_side_and_waits_for_each_message(problem: Problem) -> None:
    def row(tp: int, dp: int) -> Degrees:
        return Degrees.single(
            tensor_parallel=tp, data_parallel=dp, microbatch_size=8 // dp, sequence_parallel=True
        )

    def hop(first: tuple[int, int], second: tuple[int, int]) -> tuple[float, int]:
        both = [row(*first), row(*second)]
        degrees = Degrees(
            *(
                np.concatenate([getattr(d, name) for d in both])
                for name in (
                    "tensor_parallel",
                    "context_parallel",
                    "expert_parallel",
                    "expert_tensor_parallel",
                    "data_parallel",
                    "microbatch_size",
                    "sequence_parallel",
                )
            )
        )
        shapes = [StageShape(i, i, tp, dp, tp * dp) for i, (tp, dp) in enumerate((first, second))]
        found = hop_between_s(problem, price(problem, degrees), shapes[0], shapes[1], inside=False)
        return found, num_messages(*shapes)

    alike, one = hop((8, 2), (8, 2))
    finer, two = hop((8, 2), (4, 4))
    assert (one, two) == (1, 2)
    # Both sides hold a sixteenth of the 8 sequences on each of 16 chips: only the second message is new.
    assert finer == pytest.approx(alike + message_latency_s(problem, 0, 1))
    # Eight chips of one node hold twice as much each, behind one node's adapters instead of two.
    narrow, messages = hop((8, 2), (8, 1))
    assert messages == 2
    assert narrow > 1.9 * alike


@pytest.mark.parametrize(
    ("degrees", "changes", "complaint"),
    [
        ([(8, 2), (4, 4)], {"microbatch_size": 1}, "data_parallel 4 does not divide the 2 sequences"),
        ([(8, 2), (4, 4)], {"tensor_parallel": 4}, "write 8"),
    ],
)
def test_sequences_that_do_not_split_are_refused_on_any_target(
    problem: Problem, degrees: list[tuple[int, int]], changes: dict[str, Any], complaint: str
) -> None:
    plan = meshes(problem, degrees, 2, target="unrestricted").model_copy(update=changes)
    assert any(complaint in said for said in evaluate(problem, plan).violations)


def test_a_group_cut_by_the_edge_of_a_host_is_refused() -> None:
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=4,
        target="flagscale",
    )
    plain = packed_plan(problem, [(0, 16), (0, 16)], tensor_parallel=2, data_parallel=1)

    def order(first: int, second: int) -> Plan:
        stages = tuple(
            stage.model_copy(update={"tensor_parallel": tp})
            for stage, tp in zip(plain.stages, (first, second), strict=True)
        )
        return plain.model_copy(update={"stages": stages, "tensor_parallel": first})

    assert evaluate(problem, order(4, 2)).violations == ()
    assert any("2 chips into a host" in said for said in evaluate(problem, order(2, 4)).violations)
