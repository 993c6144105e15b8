"""Layers, schedule, recomputation, hosts and targets: one legal plan, and each way of spoiling it."""

from __future__ import annotations

from typing import Any

import pytest

from planner.data.load import build_problem
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.rules import experts, hosts, pipeline, target, versions
from planner.rules.megatron import violations
from planner.simulate.step import schedulable_group
from tests.planner.simulate.synthetic import packed_plan


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Four nodes of 8 chips in each of two classes, 32 layers."""
    return build_problem(
        cluster="4x8 h100-sxm-80gb, 4x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=8192,
        global_batch_size=64,
    )


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    """Two stages of 12 chips on three A100 nodes, one of 12 on two H100 nodes (the last half empty)."""
    return packed_plan(
        problem, [(1, 8), (1, 8), (0, 16)], tensor_parallel=4, data_parallel=3, microbatch_size=1
    )


def spoil(plan: Plan, s: int, **changes: Any) -> Plan:
    stages = list(plan.stages)
    stages[s] = stages[s].model_copy(update=changes)
    return plan.model_copy(update={"stages": tuple(stages)})


def test_a_sound_plan_breaks_no_rule(problem: Problem) -> None:
    for sizes in ({"tensor_parallel": 4, "data_parallel": 4}, {"tensor_parallel": 8}, {"tensor_parallel": 2}):
        assert violations(problem, packed_plan(problem, [(1, 8), (1, 8), (0, 16)], **sizes)) == ()


def test_every_layer_comes_once_in_order(problem: Problem, plan: Plan) -> None:
    assert pipeline.layers_come_once_in_order(problem.model, plan) == ()
    lost = pipeline.layers_come_once_in_order(problem.model, spoil(plan, 1, layers=(9, 15)))
    assert lost == ("stage 1: starts at layer 9, but layer 8 is due and is lost",)
    twice = pipeline.layers_come_once_in_order(problem.model, spoil(plan, 1, layers=(7, 15)))
    assert twice == ("stage 1: starts at layer 7, but layer 8 is due and comes twice",)
    short = pipeline.layers_come_once_in_order(problem.model, spoil(plan, 2, layers=(16, 30)))
    assert "layers 0 to 30, but llama3-8b has layers 0 to 31" in short[0]
    assert pipeline.layers_come_once_in_order(problem.model, spoil(plan, 2, layers=(16, 32))) != ()


def test_virtual_stages_take_layers_in_rounds(problem: Problem, plan: Plan) -> None:
    stages = [((0, 3), (12, 15)), ((4, 7), (16, 19)), ((8, 11), (20, 31))]
    rounds = plan.model_copy(
        update={
            "virtual_stages": 2,
            "stages": tuple(
                stage.model_copy(update={"layers": layers})
                for stage, layers in zip(plan.stages, stages, strict=True)
            ),
        }
    )
    assert pipeline.layers_come_once_in_order(problem.model, rounds) == ()
    swapped = spoil(rounds, 0, layers=((0, 3), (4, 7)))
    assert pipeline.layers_come_once_in_order(problem.model, swapped) == (
        "stage 0, virtual stage 1: starts at layer 4, but layer 12 is due and comes twice",
    )


def test_every_stage_holds_a_layer(plan: Plan) -> None:
    assert pipeline.stages_hold_layers(plan) == ()
    assert (
        "stage 1: its layer range [8, 7] is empty"
        in pipeline.stages_hold_layers(spoil(plan, 1, layers=(8, 7)))[0]
    )


def test_virtual_stages_need_a_pipeline(plan: Plan) -> None:
    stage = plan.stages[0].model_copy(update={"layers": ((0, 15), (16, 31))})
    alone = plan.model_copy(update={"virtual_stages": 2, "stages": (stage,)})
    assert pipeline.virtual_stages_need_stages(plan) == ()
    assert "the pipeline has one stage" in pipeline.virtual_stages_need_stages(alone)[0]


@pytest.mark.parametrize(
    ("stages", "microbatches", "group", "legal"),
    [
        (4, 8, None, True),
        (6, 3, None, False),
        (4, 6, None, False),
        (4, 10, 5, True),
        (4, 9, 5, True),
        (4, 8, 5, False),
        (4, 8, 3, False),
    ],
)
def test_interleaving_runs_whole_groups(
    stages: int, microbatches: int, group: int | None, legal: bool
) -> None:
    assert pipeline.interleaving_is_legal(stages, microbatches, group) == legal


def test_interleaving_rule_binds_only_with_virtual_stages(plan: Plan) -> None:
    odd = plan.model_copy(update={"num_microbatches": 7})
    assert pipeline.interleaving_has_whole_groups(odd) == ()
    message = pipeline.interleaving_has_whole_groups(odd.model_copy(update={"virtual_stages": 2}))[0]
    assert message.startswith("num_microbatches 7: with virtual stages it must be a multiple of the 3")


@pytest.mark.parametrize(
    ("recompute", "layers", "legal"),
    [
        ("none", 0, True),
        ("selective", 0, True),
        ("full", 1, True),
        ("full", 8, True),
        ("none", 2, False),
        ("selective", 2, False),
        ("full", 0, False),
        ("full", 9, False),
    ],
)
def test_recomputed_layers_go_with_full_recomputation(
    plan: Plan, recompute: str, layers: int, legal: bool
) -> None:
    found = pipeline.recomputed_layers_exist(spoil(plan, 0, recompute=recompute, recompute_layers=layers))
    assert (found == ()) == legal


def test_world_is_whole_replicas() -> None:
    assert hosts.world_is_whole(64, 4, 4, 1) is None
    assert str(hosts.world_is_whole(50, 4, 1, 1)).endswith("use 48 of them")
    # 12 chips are whole sixes, but 2 x 2 chips that share a sequence by twos are eights.
    assert hosts.world_is_whole(16, 2, 2, 2) is None
    assert str(hosts.world_is_whole(12, 2, 2, 2)).endswith("= 8; use 8 of them")


def test_a_group_meets_over_tcp_on_all_nodes_or_on_none() -> None:
    for meet in (["rdma", "rdma"], ["tcp", "tcp"], ["rdma", "host_staged"], []):
        assert hosts.transports_meet(meet)
    assert not hosts.transports_meet(["rdma", "tcp"])


def test_key_value_heads_are_copied_from_core_016_on(problem: Problem) -> None:
    """Eight heads: sixteen ranks share them by twos."""
    for tp, refused in ((4, False), (8, False), (16, True)):
        plan = packed_plan(problem, [(1, 16), (0, 16)], tensor_parallel=tp)
        assert (versions.kv_heads_are_not_copied(problem, plan, "0.15") is not None) == refused


def test_whole_layers_of_hybrids_are_recomputed_from_core_018_on() -> None:
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb", model="nemotron-h-8b", seq_length=4096, global_batch_size=64
    )
    plan = packed_plan(problem, [(0, problem.model.num_layers)], tensor_parallel=8)
    full = spoil(plan, 0, recompute="full", recompute_layers=4)
    assert "does not recompute" in str(versions.hybrids_recompute(problem, full, "0.17"))
    assert versions.hybrids_recompute(problem, full, "0.18") is None
    assert versions.hybrids_recompute(problem, plan, "0.17") is None
    assert "cannot say which" in str(versions.hybrids_end_stages(problem, "0.16"))
    assert versions.hybrids_end_stages(problem, "0.17") is None


def test_stage_names_a_class_and_its_chip(problem: Problem, plan: Plan) -> None:
    assert hosts.classes_exist(problem, plan) == ()
    assert (
        "'v100' is not in the cluster" in hosts.classes_exist(problem, spoil(plan, 0, node_class="v100"))[0]
    )
    wrong = hosts.classes_exist(problem, spoil(plan, 0, chip="h100-sxm-80gb"))
    assert "write a100-sxm-80gb" in wrong[0]


def test_hosts_are_of_the_stage_s_class(problem: Problem, plan: Plan) -> None:
    assert hosts.hosts_exist(problem, plan) == ()
    assert (
        "host moon is not in the cluster"
        in hosts.hosts_exist(problem, spoil(plan, 0, hosts=("moon", "node005")))[0]
    )
    other = problem.cluster.hosts_of(0)[0]
    assert (
        f"host {other} is in class" in hosts.hosts_exist(problem, spoil(plan, 0, hosts=(other, "node005")))[0]
    )
    assert (
        "lists a host twice"
        in hosts.hosts_exist(problem, spoil(plan, 0, hosts=(plan.stages[0].hosts[0],) * 2))[0]
    )


def test_a_class_lends_no_more_chips_than_it_has(problem: Problem, plan: Plan) -> None:
    assert hosts.class_has_chips(problem, plan) == ()
    crowded = plan.model_copy(update={"stages": (plan.stages[0],) * 3})
    message = hosts.class_has_chips(problem, crowded)[0]
    assert message.startswith(f"class {plan.stages[0].node_class}: the plan uses 36 chips, it has 32")


def test_neighbouring_stages_share_the_host_between_them(problem: Problem, plan: Plan) -> None:
    # Stages of 12 chips on nodes of 8: the second node holds the end of stage 0 and the start of stage 1.
    assert plan.stages[0].hosts[-1] == plan.stages[1].hosts[0]
    assert hosts.stages_are_packed(problem, plan) == ()


def test_stages_on_hosts_of_their_own_are_refused_where_packing_shares_one(
    problem: Problem, plan: Plan
) -> None:
    a, b, c, d = problem.cluster.hosts_of(1)
    spread = spoil(spoil(plan, 0, hosts=(a, b)), 1, hosts=(c, d))
    message = hosts.stages_are_packed(problem, spread)[0]
    assert message.startswith(
        f"stage 1: lies on {b}, {c} when stages are packed in order, but lists {c}, {d}"
    )


def test_a_missing_or_extra_host_is_counted(problem: Problem, plan: Plan) -> None:
    short = spoil(plan, 2, hosts=plan.stages[2].hosts[:1])
    assert hosts.stages_are_packed(problem, short)[0].startswith(
        "stage 2: lists 1 hosts; its 12 chips lie on 2 hosts of 8 chips"
    )
    assert hosts.stages_are_packed(problem, spoil(plan, 2, hosts=()))[0].startswith("stage 2: lists 0 hosts")


def test_no_chip_serves_two_stages(problem: Problem) -> None:
    plan = packed_plan(problem, [(0, 16), (1, 8), (0, 8)])
    assert hosts.stages_are_packed(problem, plan) == ()
    same = spoil(plan, 2, hosts=plan.stages[0].hosts)
    assert any("its chips serve stages" in message for message in hosts.stages_are_packed(problem, same))
    neighbours = packed_plan(problem, [(0, 16), (0, 16)])
    twice = spoil(neighbours, 1, hosts=neighbours.stages[0].hosts)
    assert hosts.stages_are_packed(problem, twice) != ()


def test_only_some_targets_let_stages_differ(plan: Plan) -> None:
    def refused(changed: Plan, name: str) -> bool:
        return target.target_violations(changed.model_copy(update={"target": name})) != ()

    other_tp, other_dp = spoil(plan, 0, tensor_parallel=2), spoil(plan, 0, data_parallel=6)
    recomputed = spoil(plan, 0, recompute="full", recompute_layers=4)
    for name in target.TARGETS:
        assert not refused(plan, name)
        assert refused(other_tp, name) == (name in ("megatron-lm", "megatron-bridge"))
        assert refused(other_dp, name) == (name in ("megatron-lm", "megatron-bridge"))
        assert refused(recomputed, name) == (name == "megatron-bridge")
        assert refused(plan.model_copy(update={"context_parallel": 2}), name) == (name == "flagscale")
        assert refused(plan.model_copy(update={"virtual_stages": 2}), name) == (name == "flagscale")


def test_stages_that_recompute_all_their_layers_keep_to_one_number(plan: Plan) -> None:
    """With method `block` a stage of fewer layers recomputes all that it has."""
    counts = [stage.num_layers for stage in plan.stages]

    def refused(*recomputed: int) -> bool:
        changed = plan.model_copy(update={"target": "megatron-bridge"})
        for s, number in enumerate(recomputed):
            changed = spoil(changed, s, recompute="full", recompute_layers=number)
        return target.target_violations(changed) != ()

    assert len(set(counts)) > 1
    assert not refused(*counts)
    assert not refused(*[min(count, max(counts) - 1) for count in counts])
    assert refused(*[count - 1 for count in counts])


def test_all_breaches_are_told_at_once(problem: Problem, plan: Plan) -> None:
    # 64 sequences on 3 replicas, and a layer lost.
    found = violations(problem, spoil(plan, 2, layers=(16, 30)))
    assert any(message.startswith("global_batch_size 64: is no multiple") for message in found)
    assert any("llama3-8b has layers 0 to 31" in message for message in found)
    assert len(found) == 2


def test_every_degree_of_a_plan_is_checked(problem: Problem) -> None:
    stage = Stage(
        layers=(0, 31), chip="h100-sxm-80gb", node_class=problem.cluster.classes[0].name,
        hosts=problem.cluster.hosts_of(0)[:1], tensor_parallel=3, data_parallel=1,
    )  # fmt: skip
    plan = Plan(
        target="megatron-lm", tensor_parallel=3, data_parallel=1, microbatch_size=1, num_microbatches=32,
        sequence_parallel=True, context_parallel=1, expert_parallel=2, stages=(stage,),
    )  # fmt: skip
    found = " | ".join(violations(problem, plan))
    for start in (
        "tensor_parallel 3: 32 attention heads",
        "tensor_parallel 3: 8 key-value heads",
        "seq_length 8192: does not split",
        "expert_parallel 2: llama3-8b has no experts",
        "num_microbatches 32:",
        "tensor_parallel 3: a node of class",
    ):
        assert start in found


def test_what_keeps_the_exchange_of_tokens_from_hiding_is_named_alone() -> None:
    """One stage needs no virtual stages, and one prediction layer hides like none."""
    problem = build_problem(
        cluster="1x8 h100-sxm-80gb", model="mixtral-8x7b", seq_length=4096, global_batch_size=64
    )
    overlapping = problem.stack.model_copy(update={"ep_overlap": True})
    of_predictions = {
        count: problem.model_copy(
            update={
                "stack": overlapping,
                "model": problem.model.model_copy(update={"mtp_num_layers": count}),
            }
        )
        for count in (0, 1, 2)
    }
    plan = packed_plan(problem, [(0, 32)], data_parallel=8).model_copy(update={"expert_parallel": 8})
    assert experts.exchange_cannot_hide(of_predictions[0], plan) == ()
    assert experts.exchange_cannot_hide(of_predictions[1], plan) == ()
    assert "at most one prediction layer, not 2" in experts.exchange_cannot_hide(of_predictions[2], plan)[0]


def test_group_that_interleaving_cannot_run_is_timed_as_the_usual_one(problem: Problem) -> None:
    """A group of 10^12 micro-batches once ran them all."""
    plan = packed_plan(problem, [(1, 16), (0, 16)], tensor_parallel=8)
    for group, timed in ((None, None), (1, None), (2, 2), (plan.num_microbatches, plan.num_microbatches)):
        asked = plan.model_copy(update={"microbatch_group_size": group})
        assert schedulable_group(asked) == timed
    assert schedulable_group(plan.model_copy(update={"microbatch_group_size": 10**12})) is None
