"""Process groups of FlagScale, counted in closed form, against all of them one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from planner import predict
from planner.cost.communication.mesh_groups import further_communicator_bytes, group_counts
from planner.data.load import build_problem
from planner.data.plan import Plan, Stage
from planner.launchers.crowded_groups import MANY_GROUPS, crowded_groups
from planner.rules.flagscale import hetero_config
from planner.units import GIB
from tests.flagscale_groups import embedding_groups, pipelines
from tests.planner.launchers import plans
from tests.planner.launchers.test_flagscale import degrees_by_stage

PROBLEM = build_problem(
    cluster="64x8 h100-sxm-80gb", model="llama3-8b", seq_length=1024, global_batch_size=512
)


def with_degrees(degrees: list[tuple[int, int]]) -> Plan:
    """A plan of stages with tensor and data parallelism each; nothing else of it matters here."""
    stages = tuple(
        Stage(
            layers=(s, s),
            chip="h100-sxm-80gb",
            node_class=PROBLEM.cluster.classes[0].name,
            hosts=("node000",),
            tensor_parallel=tp,
            data_parallel=dp,
        )
        for s, (tp, dp) in enumerate(degrees)
    )
    tp, dp = degrees[0]
    return Plan(
        target="flagscale",
        tensor_parallel=tp,
        data_parallel=dp,
        microbatch_size=1,
        num_microbatches=4,
        sequence_parallel=True,
        stages=stages,
    )


@pytest.mark.parametrize("seed", range(60))
def test_groups_are_as_many_as_there_are_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    degrees = [(rng.choice([1, 1, 2, 4]), rng.choice([1, 2, 3, 4, 6])) for _ in range(rng.randint(1, 5))]
    plan = with_degrees(degrees)
    counts, config = group_counts(plan.stage_degrees), hetero_config(PROBLEM, plan)
    ways = list(pipelines(config))
    of_rank = Counter(rank for way in ways for rank in way)
    most = [max(n for (mesh, _, _), n in of_rank.items() if mesh == s) for s in range(len(degrees))]
    assert (counts.pipelines, counts.all_pipelines) == (tuple(most), len(ways))
    if len(degrees) > 1:
        pairs = embedding_groups(config)
        assert counts.embedding_pairs == tuple(
            max(Counter(pair[end] for pair in pairs).values()) for end in (0, 1)
        )


def test_equal_stages_have_one_group_each_and_alternating_ones_many() -> None:
    even = group_counts([(4, 8)] * 6)
    assert (set(even.pipelines), even.all_pipelines, even.embedding_pairs) == ({1}, 32, (1, 1))
    # By hand: every change from 2 to 1 and back doubles the ways, in tensor and in data parallelism alike.
    alternating = group_counts([(1, 8), (2, 4)] * 3)
    assert alternating.all_pipelines == 8 * 2**5
    assert max(alternating.pipelines) == 2**5


def test_what_all_degrees_have_in_common_makes_as_many_times_the_same_groups() -> None:
    few, many = group_counts([(1, 2), (2, 3), (4, 1)]), group_counts([(2, 10), (4, 15), (8, 5)])
    assert few.pipelines == many.pipelines
    assert many.all_pipelines == 2 * 5 * few.all_pipelines


def test_memory_of_a_plan_counts_the_communicators_of_all_its_groups() -> None:
    """A plan that just fitted ran out of memory when FlagScale warmed up its many groups."""
    problem, plan = degrees_by_stage()
    further = further_communicator_bytes(problem, plan.stage_degrees)
    assert max(further) > 0
    none = problem.stack.model_copy(update={"communicator_gib": 0.0, "far_communicator_gib": None})
    without = predict(problem.model_copy(update={"stack": none}), plan)
    seen = predict(problem, plan)
    inside = [
        a.memory_gib["context"] - b.memory_gib["context"]
        for a, b in zip(seen.stages, without.stages, strict=True)
    ]
    assert all(gib > size / GIB for gib, size in zip(inside, further, strict=True))
    _, equal = plans.uniform()
    assert further_communicator_bytes(problem, equal.stage_degrees) == [0.0] * len(equal.stages)


def test_a_start_that_makes_many_groups_is_told() -> None:
    assert crowded_groups(with_degrees([(4, 8)] * 6)) == ()
    assert crowded_groups(with_degrees([(1, MANY_GROUPS)] * 2)) == ()
    assert "pipeline groups" in crowded_groups(with_degrees([(1, 64), (2, 32)] * 6))[0]
