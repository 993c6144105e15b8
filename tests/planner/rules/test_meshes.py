"""Stages and pipelines of different degrees: a legal plan each, and each way of spoiling it."""

from __future__ import annotations

from typing import Any

import pytest

from planner.data.load import build_problem
from planner.data.plan import Pipeline, Plan
from planner.data.problem import Problem
from planner.rules import meshes
from planner.rules.megatron import violations
from tests.planner.simulate.synthetic import packed_plan

DEFAULTS = {"model": "llama3-8b", "seq_length": 8192, "global_batch_size": 64}


def problem_of(cluster: str, **changes: Any) -> Problem:
    return build_problem(cluster=cluster, **{**DEFAULTS, **changes})


def with_degrees(plan: Plan, *degrees: tuple[int, int]) -> Plan:
    """The plan with tensor and data parallelism of every stage."""
    stages = tuple(
        stage.model_copy(update={"tensor_parallel": tp, "data_parallel": dp})
        for stage, (tp, dp) in zip(plan.stages, degrees, strict=True)
    )
    return plan.model_copy(update={"stages": stages, "target": "flagscale"})


@pytest.fixture(scope="module")
def two_nodes() -> Problem:
    return problem_of("2x8 h100-sxm-80gb")


@pytest.fixture(scope="module")
def mesh(two_nodes: Problem) -> Plan:
    """Two stages of a node: 4 x 2 chips with micro-batches of 2, then 2 x 4 chips with micro-batches of 1."""
    plan = packed_plan(
        two_nodes,
        [(0, 16), (0, 16)],
        tensor_parallel=4,
        data_parallel=2,
        microbatch_size=2,
        target="flagscale",
    )
    return with_degrees(plan, (4, 2), (2, 4))


def test_a_sound_mesh_breaks_no_rule(two_nodes: Problem, mesh: Plan) -> None:
    assert violations(two_nodes, mesh) == ()


def test_a_stage_of_more_replicas_runs_smaller_micro_batches(mesh: Plan) -> None:
    assert [meshes.microbatch_size_of(mesh, stage) for stage in mesh.stages] == [2, 1]
    assert meshes.replicas_share_the_sequences(mesh) == ()
    (said,) = meshes.replicas_share_the_sequences(with_degrees(mesh, (4, 2), (1, 8)))
    assert said.startswith("stage 1: data_parallel 8 does not divide the 4 sequences that the 2 replicas")


def test_the_first_stage_has_the_degrees_of_the_plan(two_nodes: Problem, mesh: Plan) -> None:
    assert meshes.first_stage_leads(mesh) == ()
    turned = with_degrees(mesh, (2, 4), (4, 2))
    assert [said.split(";")[0] for said in meshes.first_stage_leads(turned)] == [
        "tensor_parallel 4: stage 0 has 2",
        "data_parallel 2: stage 0 has 4",
    ]
    assert set(meshes.first_stage_leads(turned)) <= set(violations(two_nodes, turned))


@pytest.mark.parametrize(
    ("degrees", "stage", "inside"),
    [
        # 2 chips, then groups of 4 that begin two chips into the first host.
        (((2, 1), (4, 1), (2, 1)), 1, 2),
        # 4, 2, then groups of 4 from the sixth chip on.
        (((4, 1), (2, 1), (4, 2)), 2, 6),
        # 2, 8, and groups of 4 from the tenth chip on, two chips into the second host.
        (((2, 1), (2, 4), (4, 1)), 2, 2),
        (((4, 1), (2, 2), (8, 1)), None, 0),
        (((2, 2), (4, 1), (8, 1)), None, 0),
    ],
)
def test_no_edge_of_a_host_cuts_a_tensor_parallel_group(
    degrees: tuple[tuple[int, int], ...], stage: int | None, inside: int
) -> None:
    problem = problem_of("4x8 h100-sxm-80gb")
    plan = with_degrees(packed_plan(problem, [(0, 10), (0, 11), (0, 11)]), *degrees)
    said = meshes.tensor_groups_stay_on_hosts(problem, plan)
    if stage is None:
        assert said == ()
        return
    assert said == (
        f"stage {stage}: begins {inside} chips into a host, whose edge cuts groups of tensor_parallel "
        f"{degrees[stage][0]}; put it before the smaller stages",
    )
    assert said[0] in meshes.mesh_violations(problem, plan)
    two = plan.model_copy(update={"context_parallel": 2})
    assert meshes.tensor_groups_stay_on_hosts(problem, two) != said, "twice the chips before it"


def test_another_class_begins_on_a_host_of_its_own() -> None:
    problem = problem_of("1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb")
    plan = with_degrees(packed_plan(problem, [(0, 16), (1, 16)]), (2, 1), (4, 1))
    assert meshes.tensor_groups_stay_on_hosts(problem, plan) == ()
    back = with_degrees(packed_plan(problem, [(0, 10), (1, 11), (0, 11)]), (2, 1), (4, 1), (4, 1))
    assert meshes.tensor_groups_stay_on_hosts(problem, back) == ()
    unknown = back.stages[2].model_copy(update={"node_class": "missing"})
    there = back.model_copy(update={"stages": (*back.stages[:2], unknown)})
    assert meshes.tensor_groups_stay_on_hosts(problem, there) == (), "said by the rule on classes"


def test_a_stage_splits_its_own_tokens(two_nodes: Problem, mesh: Plan) -> None:
    assert meshes.stage_degrees(two_nodes, mesh) == ()
    short = problem_of("2x8 h100-sxm-80gb", seq_length=8196)
    plan = with_degrees(mesh, (4, 2), (8, 1))
    (said,) = meshes.stage_degrees(short, plan)
    assert said.startswith(
        "stage 1: seq_length 8196: does not split over context_parallel 1 x tensor_parallel 8"
    )
    assert said in violations(short, plan)
    for legal in (
        plan.model_copy(update={"sequence_parallel": False}),
        with_degrees(mesh, (4, 2), (1, 4)),
        with_degrees(mesh, (4, 2), (4, 2)),
    ):
        assert meshes.stage_degrees(short, legal) == ()


def test_8_bit_rows_are_those_of_the_stages_own_micro_batch() -> None:
    """32 tokens by 1 on one rank of 1, by 2 on four ranks; on two of 1 they are 16 a rank, on four 8."""
    problem = problem_of("2x8 h100-sxm-80gb", seq_length=32, precision="fp8")
    plan = packed_plan(problem, [(0, 16), (0, 16)], tensor_parallel=4, data_parallel=2, microbatch_size=2)
    assert meshes.stage_degrees(problem, with_degrees(plan, (4, 2), (2, 4))) == ()
    (said,) = meshes.stage_degrees(problem, with_degrees(plan, (4, 2), (4, 4)))
    assert said.startswith(
        "stage 1: precision fp8: 32 tokens of a micro-batch on 4 ranks are no multiple of 16"
    )
    whole = with_degrees(plan, (4, 2), (4, 4)).model_copy(update={"sequence_parallel": False})
    assert meshes.stage_degrees(problem, whole) == ()
    alone = with_degrees(plan, (4, 2), (1, 4))
    assert meshes.stage_degrees(problem, alone) == (), "one rank splits no sequence"


def test_experts_divide_each_stages_own_ranks() -> None:
    problem = problem_of("2x8 h100-sxm-80gb", model="mixtral-8x7b")
    plan = packed_plan(
        problem, [(0, 16), (0, 16)], tensor_parallel=2, data_parallel=4, expert_parallel=8, microbatch_size=2
    )
    legal = with_degrees(plan, (2, 4), (4, 2))
    assert meshes.stage_degrees(problem, legal) == ()
    (said,) = meshes.stage_degrees(problem, with_degrees(plan, (2, 4), (2, 2)))
    assert said.startswith(
        "stage 1: expert_parallel 8: x expert_tensor_parallel 1 = 8 does not divide the 4 ranks"
    )
    apart = legal.model_copy(update={"sequence_parallel": False})
    (said,) = meshes.stage_degrees(problem, apart)
    assert said.startswith("stage 1: sequence_parallel: off with experts and tensor_parallel 4")
    # Experts are split no further than the stage's own tensor parallelism.
    narrow = with_degrees(plan, (2, 4), (1, 8)).model_copy(update={"expert_tensor_parallel": 2})
    assert meshes.stage_degrees(problem, narrow) == ()
    order = legal.model_copy(update={"rank_order": "tp-cp-ep-pp-dp"})
    (said,) = meshes.stage_degrees(problem, order)
    assert said.startswith("stage 1: rank_order tp-cp-ep-pp-dp: experts have 1 replicas, the rest 2")


def pipelines_plan(problem: Problem) -> Plan:
    """Two pipelines of a node: 2 x 4 chips with 5 micro-batches of 2, and 8 x 1 with 6 of 4."""
    plan = packed_plan(
        problem, [(0, 32), (0, 32)], tensor_parallel=2, data_parallel=4, microbatch_size=2, num_microbatches=5
    )
    whole = tuple(stage.model_copy(update={"layers": (0, 31)}) for stage in plan.stages)
    plan = with_degrees(plan.model_copy(update={"stages": whole}), (2, 4), (8, 1))
    pipelines = (
        Pipeline(num_stages=1, microbatch_size=2, num_microbatches=5),
        Pipeline(num_stages=1, microbatch_size=4, num_microbatches=6),
    )
    return plan.model_copy(update={"target": "unrestricted", "pipelines": pipelines})


def test_pipelines_share_the_batch_and_keep_their_own_rules(two_nodes: Problem) -> None:
    plan = pipelines_plan(two_nodes)
    assert violations(two_nodes, plan) == ()
    assert plan.pipelines is not None
    more = plan.pipelines[1].model_copy(update={"num_microbatches": 7})
    (said,) = violations(two_nodes, plan.model_copy(update={"pipelines": (plan.pipelines[0], more)}))
    assert said.startswith("pipelines: run 68 sequences a step, global_batch_size is 64")
    short = plan.stages[1].model_copy(update={"layers": (0, 30)})
    (said,) = violations(two_nodes, plan.model_copy(update={"stages": (plan.stages[0], short)}))
    assert said.startswith("pipeline 1: layers: the stages hold layers 0 to 30")
    odd = problem_of("2x8 h100-sxm-80gb", seq_length=8196)
    (said,) = violations(odd, plan)
    assert said.startswith("pipeline 1: seq_length 8196: does not split")


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"node_class": "missing"}, "stage 1: node class 'missing' is not in the cluster"),
        ({"hosts": ("nowhere",)}, "stage 1: host nowhere is not in the cluster"),
        ({"hosts": ("node000",)}, "stage 1: lists node000, whose chips the stages before it take"),
        ({"tensor_parallel": 16, "data_parallel": 1}, "tensor_parallel 16: a node of class"),
        (
            {"tensor_parallel": 16, "data_parallel": 1},
            "class h100-sxm-80gb: the plan uses 24 chips, it has 16",
        ),
        ({"tensor_parallel": 16, "data_parallel": 1}, "stage 1: begins 0 chips into a host"),
    ],
)
def test_pipelines_stand_on_hosts_that_there_are(
    two_nodes: Problem, changes: dict[str, object], begins: str
) -> None:
    plan = pipelines_plan(two_nodes)
    stages = (plan.stages[0], plan.stages[1].model_copy(update=changes))
    said = violations(two_nodes, plan.model_copy(update={"stages": stages}))
    assert any(one.startswith(begins) for one in said), said


def test_every_family_of_rules_is_asked(two_nodes: Problem, mesh: Plan) -> None:
    plan = packed_plan(two_nodes, [(0, 16), (0, 16)], tensor_parallel=4, data_parallel=2)
    assert violations(two_nodes, plan) == ()
    wrong = {
        "stage 1: tensor_parallel": mesh.model_copy(update={"target": "megatron-lm"}),
        "dp_mode fsdp: target flagscale": mesh.model_copy(update={"dp_mode": "fsdp"}),
        "tensor_parallel 4: stage 0 has 2": with_degrees(mesh, (2, 4), (4, 2)),
        "expert_parallel 2": plan.model_copy(update={"expert_parallel": 2}),
        "num_microbatches 31": plan.model_copy(update={"num_microbatches": 31}),
        "layers: ": plan.model_copy(update={"stages": (plan.stages[0],)}),
        "stage 1: ": spoilt(plan, hosts=("nowhere",)),
    }
    for begins, one in wrong.items():
        assert any(said.startswith(begins) for said in violations(two_nodes, one)), begins
    fp8 = problem_of("1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb", precision="fp8")
    (said,) = violations(fp8, packed_plan(fp8, [(0, 16), (1, 16)]))
    assert "a100-sxm-80gb" in said and "fp8" in said


def spoilt(plan: Plan, **changes: object) -> Plan:
    """The plan with its last stage changed."""
    return plan.model_copy(update={"stages": (*plan.stages[:-1], plan.stages[-1].model_copy(update=changes))})


def test_each_stage_of_a_pipeline_meets_the_rules_with_its_own_degrees() -> None:
    """The first pipeline's second stage has 8 chips a group, over which 8196 tokens do not split."""
    problem = problem_of("3x8 h100-sxm-80gb", seq_length=8196)
    plan = packed_plan(
        problem, [(0, 16), (0, 16), (0, 32)], tensor_parallel=4, data_parallel=2, num_microbatches=16
    )
    stages = (*plan.stages[:2], plan.stages[2].model_copy(update={"layers": (0, 31)}))
    plan = with_degrees(plan.model_copy(update={"stages": stages}), (4, 2), (8, 1), (4, 2))
    pipelines = (
        Pipeline(num_stages=2, microbatch_size=1, num_microbatches=16),
        Pipeline(num_stages=1, microbatch_size=1, num_microbatches=16),
    )
    said = violations(problem, plan.model_copy(update={"target": "unrestricted", "pipelines": pipelines}))
    assert [one.split(":")[:3] for one in said] == [["pipeline 0", " stage 1", " seq_length 8196"]]


def test_degrees_of_all_stages_are_held_against_the_model(two_nodes: Problem, mesh: Plan) -> None:
    third = with_degrees(mesh, (4, 2), (3, 2))
    assert any(said.startswith("tensor_parallel 3: ") for said in violations(two_nodes, third))
    narrow = packed_plan(
        two_nodes, [(0, 16), (0, 16)], tensor_parallel=1, data_parallel=8, sequence_parallel=True
    )
    assert any("sequence_parallel" in said for said in violations(two_nodes, narrow))
    assert (
        violations(two_nodes, with_degrees(narrow, (1, 8), (4, 2)).model_copy(update={"microbatch_size": 1}))
        == ()
    )


def test_tokens_need_not_split_without_sequence_parallelism() -> None:
    problem = problem_of("2x8 h100-sxm-80gb", seq_length=8196)
    plan = packed_plan(problem, [(0, 16), (0, 16)], tensor_parallel=8)
    (said,) = violations(problem, plan)
    assert said.startswith("seq_length 8196: does not split")
    assert violations(problem, plan.model_copy(update={"sequence_parallel": False})) == ()


def test_experts_divide_the_ranks_of_stages_that_are_all_alike() -> None:
    problem = problem_of("2x8 h100-sxm-80gb", model="mixtral-8x7b")
    stages = [(0, 16), (0, 16)]
    legal = packed_plan(problem, stages, tensor_parallel=2, data_parallel=4, expert_parallel=8)
    assert violations(problem, legal) == ()
    (said,) = violations(problem, legal.model_copy(update={"expert_tensor_parallel": 2}))
    assert said.startswith("expert_parallel 8: x expert_tensor_parallel 2 = 16 does not divide the 8 ranks")
    (said,) = violations(problem, legal.model_copy(update={"rank_order": "tp-cp-ep-pp-dp"}))
    assert said.startswith("rank_order tp-cp-ep-pp-dp: experts have 1 replicas, the rest 4")
