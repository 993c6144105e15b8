"""Ranks on hosts, layers in the layout string: small cases worked out by hand."""

from __future__ import annotations

import pytest

from planner.errors import PlanRefusedError
from planner.launchers.megatron.pipeline_layout import pipeline_layout
from planner.launchers.placement import place_hosts, stage_of_rank
from tests.planner.launchers import plans


def test_layout_names_chunks_of_all_stages_before_the_next_chunk() -> None:
    _, plan = plans.virtual_stages()  # stage 0 holds 9 and 8 layers, stage 1 holds 8 and 7
    assert pipeline_layout(plan) == "Et*9|t*8|t*8|t*7L"


def test_prediction_layers_stand_with_the_loss() -> None:
    problem, plan = plans.latent_attention_and_prediction()
    assert pipeline_layout(plan, problem.model.mtp_num_layers) == "Et*3|t*2m*1L"


def test_a_stage_without_layers_keeps_its_place_in_the_layout() -> None:
    _, plan = plans.uniform()
    empty = plan.stages[0].model_copy(update={"layers": (0, -1)})
    whole = plan.stages[1].model_copy(update={"layers": (0, 31)})
    assert pipeline_layout(plan.model_copy(update={"stages": (empty, whole)})) == "E|t*32L"


def test_two_stages_share_a_host_and_the_next_node_has_fewer_chips() -> None:
    places = place_hosts(*plans.stages_share_a_host())
    assert [(p.first_rank, p.num_processes, p.num_chips, p.stages) for p in places] == [
        (0, 8, 8, (0, 1)),
        (8, 4, 4, (2,)),
    ]


def test_ranks_of_a_stage_lie_on_the_hosts_of_their_replicas() -> None:
    """The first rank's host had chips to spare and was given the next ranks, meant for other chips."""
    places = place_hosts(*plans.ranks_of_a_stage_on_two_classes())
    assert [(p.chip, p.first_rank, p.num_processes, p.stages) for p in places] == [
        ("h100-sxm-80gb", 0, 8, (0,)),
        ("a100-sxm-80gb", 8, 2, (1,)),
        ("h100-sxm-80gb", 10, 6, (1,)),
    ]


def test_with_replicas_outermost_every_host_holds_both_stages() -> None:
    problem, plan = plans.replicas_outermost()  # 2 ranks a stage and replica, 2 replicas a node
    assert [stage_of_rank(plan, rank) for rank in range(6)] == [0, 0, 1, 1, 0, 0]
    assert [place.stages for place in place_hosts(problem, plan)] == [(0, 1), (0, 1)]


def on_three_nodes(*hosts_of_stage: tuple[int, ...]) -> plans.Case:
    """Stages of four chips on given nodes of eight."""
    layers = [[8]] * len(hosts_of_stage)
    sketch = plans.Sketch(layers, [0] * len(layers), data_parallel=4)
    problem, plan = plans.case("llama3-8b", "3x8 h100-sxm-80gb", 8, 4096, sketch)
    names = problem.cluster.hosts_of(0)
    stages = tuple(
        stage.model_copy(update={"hosts": tuple(names[i] for i in hosts)})
        for stage, hosts in zip(plan.stages, hosts_of_stage, strict=True)
    )
    return problem, plan.model_copy(update={"stages": stages})


def test_stages_may_leave_chips_of_a_host_idle() -> None:
    places = place_hosts(*on_three_nodes((0,), (1,), (1,), (2,)))
    assert [place.num_processes for place in places] == [4, 8, 4]


@pytest.mark.parametrize(
    ("hosts", "complaint"),
    [
        ([(0,), (1,), (1,), (0,)], "without a break"),
        ([(0,), (0,), (0,), (1,)], "stage 2: its hosts node000 hold too few chips"),
        ([(0,), (0,), (1,), (1, 2)], "node002 is named by a stage but gets no rank"),
    ],
)
def test_hosts_that_torchrun_cannot_follow_are_refused(hosts: list[tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(PlanRefusedError, match=complaint):
        place_hosts(*on_three_nodes(*hosts))


def test_ranks_of_a_sequence_lie_on_one_stage_whatever_the_order() -> None:
    _, plan = plans.replicas_outermost()  # 2 ranks a stage and replica, each now on halves of a sequence
    halves = plan.model_copy(update={"context_parallel": 2})
    assert [stage_of_rank(halves, rank) for rank in range(10)] == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0]


def test_tensor_groups_wider_than_a_host_fill_one_after_the_other() -> None:
    sketch = plans.Sketch(
        [[16], [16]], [0, 0], 8, data_parallel=1, num_microbatches=2, sequence_parallel=True
    )
    places = place_hosts(*plans.case("llama3-8b", "4x4 gb200-186gb", 2, 8192, sketch))
    found = [(p.first_rank, p.num_processes, p.stages) for p in places]
    assert found == [(0, 4, (0,)), (4, 4, (0,)), (8, 4, (1,)), (12, 4, (1,))]
