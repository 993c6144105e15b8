"""Stages that mix chips: the slowest replica sets the pace, the slowest link the synchronisation."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost.communication.replica_sync import (
    ReplicaPlace,
    left_by_switch,
    replica_gather_s,
    replica_reduce_s,
    tied_embedding_s,
)
from planner.data.changes import with_class
from planner.data.cluster import Cluster, Link
from planner.data.load import build_problem
from planner.data.plan import Plan, Replica, Stage
from planner.data.problem import Problem
from planner.data.save import to_yaml
from planner.rules.hosts import class_has_chips, hosts_exist, stages_are_packed
from planner.rules.megatron import violations
from planner.rules.target import target_violations
from planner.simulate.evaluate import evaluate
from planner.simulate.replicas import degrees_of_replicas, hosts_of_replicas
from tests.planner.simulate.synthetic import packed_plan


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Two nodes of 8 chips in each of two classes, 32 layers, 32 sequences."""
    return build_problem(
        cluster="2x8 h100-sxm-80gb, 2x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=8192,
        global_batch_size=32,
    )


def replica(problem: Problem, node_class: int, host: int, tp: int = 8) -> Replica:
    found = problem.cluster.classes[node_class]
    return Replica(
        node_class=found.name,
        chip=found.chip,
        hosts=(problem.cluster.hosts_of(node_class)[host],),
        tensor_parallel=tp,
    )


def mixed_plan(problem: Problem, rows: list[list[Replica]], layers: list[int], **changes: Any) -> Plan:
    """Stages of so many layers, each with its replicas."""
    first, stages = 0, []
    for row, count in zip(rows, layers, strict=True):
        stages.append(
            Stage(
                layers=(first, first + count - 1),
                chip=row[0].chip,
                node_class=row[0].node_class,
                hosts=tuple(dict.fromkeys(host for r in row for host in r.hosts)),
                tensor_parallel=row[0].tensor_parallel,
                data_parallel=len(row),
                replicas=tuple(row),
            )
        )
        first += count
    values: dict[str, Any] = {
        "target": "megatron-lm",
        "tensor_parallel": rows[0][0].tensor_parallel,
        "data_parallel": len(rows[0]),
        "microbatch_size": 1,
        "num_microbatches": problem.workload.global_batch_size // len(rows[0]),
        "sequence_parallel": True,
        "stages": tuple(stages),
    }
    return Plan(**(values | changes))


@pytest.fixture(scope="module")
def h100_and_a100(problem: Problem) -> Plan:
    """Two stages of 16 layers, each with one replica on an H100 node and one on an A100 node."""
    rows = [[replica(problem, 0, s), replica(problem, 1, s)] for s in range(2)]
    return mixed_plan(problem, rows, [16, 16])


def test_replicas_on_one_class_cost_what_the_plain_plan_costs(problem: Problem) -> None:
    plain = packed_plan(problem, [(0, 32)], tensor_parallel=8, data_parallel=2)
    listed = mixed_plan(problem, [[replica(problem, 0, 0), replica(problem, 0, 1)]], [32])
    one, other = evaluate(problem, plain), evaluate(problem, listed)
    assert other.step_s == pytest.approx(one.step_s, rel=1e-9)
    assert other.stages[0].memory_gib == one.stages[0].memory_gib
    assert other.mfu == pytest.approx(one.mfu)
    assert other.violations == one.violations == ()


def test_slowest_replica_sets_the_pace(problem: Problem, h100_and_a100: Plan) -> None:
    def makespan(plan: Plan) -> float:
        found = evaluate(problem, plan)
        return found.step_s - found.breakdown_s["dp"] - found.breakdown_s["optimizer"]

    fast = mixed_plan(problem, [[replica(problem, 0, s)] * 2 for s in range(2)], [16, 16])
    slow = mixed_plan(problem, [[replica(problem, 1, s)] * 2 for s in range(2)], [16, 16])
    assert makespan(fast) < 0.6 * makespan(slow)
    assert makespan(h100_and_a100) == pytest.approx(makespan(slow), rel=1e-9)
    parts = evaluate(problem, h100_and_a100)
    assert sum(parts.breakdown_s.values()) == pytest.approx(parts.step_s, rel=1e-9)


def test_pipeline_that_changes_class_is_slower_than_either_replica_kept_apart(problem: Problem) -> None:
    """Replica 0 runs H100 then A100, replica 1 the other way: each waits for its A100 stage.

    With 16 layers a stage, one A100 stage is as slow as two, but for the filling of the pipeline.
    """
    rows = [
        [replica(problem, 0, 0), replica(problem, 1, 0)],
        [replica(problem, 1, 1), replica(problem, 0, 1)],
    ]
    crossed = evaluate(problem, mixed_plan(problem, rows, [16, 16]))
    assert crossed.stages[0].send_s > 0
    slow = evaluate(problem, mixed_plan(problem, [[replica(problem, 1, s)] * 2 for s in range(2)], [16, 16]))
    assert 0.8 * slow.step_s < crossed.step_s < 1.05 * slow.step_s


def test_ring_among_two_classes_runs_at_the_slower_link() -> None:
    """Two replicas of 8 ranks on 25 Gbit/s over TCP: 8 shards of 2 GB share what TCP leaves of 3.125 GB/s.

    Of 1,538 bytes of a frame, 1,448 are data. Reduce and gather each carry half the buffer: 2 x 8 x 1 GB /
    2.9421 GB/s, and two steps of latency.
    """
    found = build_problem(
        cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=8192,
        global_batch_size=32,
    )
    slow = {"nics_per_node": 1, "nic_gbit_per_s": 25.0, "transport": "tcp", "latency_us": 30.0}
    second = found.cluster.classes[1].model_copy(update=slow)
    cluster = found.cluster.model_copy(update={"classes": (found.cluster.classes[0], second)})
    found = found.model_copy(update={"cluster": cluster})
    places = [ReplicaPlace(c, (f"n{c}",), 8, 8) for c in (0, 1)]
    shards = [0.5e9, 0.5e9]  # parameters of a chip: 2 GB of fp32 gradients
    both = replica_reduce_s(found, places, shards, "ddp")
    assert both == pytest.approx(2 * (8e9 / 2.9421e9), rel=1e-3)
    assert replica_reduce_s(found, places, shards, "distopt") == pytest.approx(both / 2)
    assert replica_gather_s(found, places, shards, "ddp") == 0.0
    assert replica_gather_s(found, places, shards, "distopt") == pytest.approx(both / 4, rel=1e-3)
    assert replica_reduce_s(found, places[:1], shards[:1], "ddp") == 0.0
    # Of 9,039 bytes of a large frame, 8,949 are data.
    jumbo = found.model_copy(update={"cluster": cluster.model_copy(update={"mtu_bytes": 9001})})
    assert replica_reduce_s(jumbo, places, shards, "ddp") == pytest.approx(2 * 8e9 / 3.0939e9, rel=1e-3)
    # A rate that was measured is taken as it is.
    measured = second.model_copy(update={"rate_basis": "measured"})
    first = found.cluster.classes[0].model_copy(update={"rate_basis": "measured"})
    exact = found.model_copy(update={"cluster": cluster.model_copy(update={"classes": (first, measured)})})
    assert replica_reduce_s(exact, places, shards, "ddp") == pytest.approx(2 * 8e9 / 3.125e9, rel=1e-3)


def test_a_ring_among_replicas_leaves_an_oversubscribed_switch_more_slowly() -> None:
    """Two nodes below a switch, 8 to 1: a ring of one node gets 2 of 8 parts, one of two nodes 1 of 8."""
    found = build_problem(
        cluster="4x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=8192,
        global_batch_size=32,
    )
    switched = {"nodes_per_switch": 2, "oversubscription": 8.0}
    first = found.cluster.classes[0].model_copy(update=switched)
    cluster = found.cluster.model_copy(update={"classes": (first, found.cluster.classes[1])})
    found = found.model_copy(update={"cluster": cluster})

    def left(*hosts: tuple[int, ...]) -> float:
        one, other = (ReplicaPlace(0, tuple(f"node{h:03d}" for h in of), 8 * len(of), 8) for of in hosts)
        return left_by_switch(found, one, other)

    assert left((0,), (1,)) == 1.0
    assert left((1,), (2,)) == pytest.approx(2 / 8)
    assert left((0, 1), (2, 3)) == pytest.approx(1 / 8)
    places = [ReplicaPlace(0, (f"node{h:03d}",), 8, 8) for h in (1, 2)]
    near = [ReplicaPlace(0, (f"node{h:03d}",), 8, 8) for h in (0, 1)]
    assert replica_reduce_s(found, places, [1e9, 1e9], "ddp") == pytest.approx(
        4 * replica_reduce_s(found, near, [1e9, 1e9], "ddp"), rel=1e-3
    )


@pytest.mark.parametrize("nodes_per_switch", [None, 4])
def test_names_of_hosts_are_not_asked_for_at_every_link_of_a_ring(
    nodes_per_switch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which took minutes on thousands of hosts, so that searches ran over their time limits."""
    asked: list[int] = []
    hosts_of = Cluster.hosts_of

    def counted(self: Cluster, class_index: int) -> tuple[str, ...]:
        asked.append(class_index)
        return hosts_of(self, class_index)

    monkeypatch.setattr(Cluster, "hosts_of", counted)
    problem = build_problem(
        cluster="8x8 h100-sxm-80gb, 8x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=64,
    )
    for c in range(2):
        problem = with_class(problem, c, nodes_per_switch=nodes_per_switch)
    plan = mixed_plan(problem, [[replica(problem, c, host) for c in (0, 1) for host in range(8)]], [32])
    asked.clear()
    evaluate(problem, plan)
    assert len(asked) <= 3 * 2  # of each class by each rule, no more for 16 replicas


def test_the_last_bucket_of_a_mixed_ring_hides_behind_nothing(problem: Problem) -> None:
    """However long the backward is, a bucket of 40 million of the stage's parameters is left."""
    rows = [[replica(problem, 0, 0), replica(problem, 1, 0)]]
    count = problem.workload.global_batch_size // 8
    plan = mixed_plan(problem, rows, [32], microbatch_size=4, num_microbatches=count)
    found = evaluate(problem, plan)
    parameters = 8.03e9 / 8
    places = [ReplicaPlace(c, (f"n{c}",), 8, 8) for c in (0, 1)]
    ring_s = replica_reduce_s(problem, places, [parameters] * 2, plan.dp_mode)
    ring_s += replica_gather_s(problem, places, [parameters] * 2, plan.dp_mode)
    assert found.breakdown_s["dp"] == pytest.approx(40e6 / parameters * ring_s, rel=0.02)


def test_replicas_that_share_a_host_share_its_adapters_for_tied_embeddings(problem: Problem) -> None:
    def ends(host: str, count: int) -> list[tuple[ReplicaPlace, ReplicaPlace]]:
        return [(ReplicaPlace(0, (host,), 1, 1), ReplicaPlace(1, (f"m{i}",), 1, 1)) for i in range(count)]

    alone, both = tied_embedding_s(problem, ends("n", 1)), tied_embedding_s(problem, ends("n", 2))
    assert both == pytest.approx(2 * alone, rel=1e-2)


def test_replicas_of_a_stage_fill_its_hosts_one_after_the_other(problem: Problem) -> None:
    """The second stage goes on where the first one, which lists its replicas, left a host half full."""
    rows = [[replica(problem, 0, 0, tp=4), replica(problem, 1, 0, tp=4)]]
    plan = mixed_plan(problem, [*rows, *rows], [16, 16])
    hosts = (plan.stages[0].replicas or ())[1].hosts
    names = problem.cluster.hosts_of(1)
    stage = plan.stages[1].model_copy(
        update={
            "replicas": None,
            "node_class": problem.cluster.classes[1].name,
            "tensor_parallel": 4,
            "hosts": (hosts[0], names[1]),
        }
    )
    packed = plan.model_copy(update={"stages": (plan.stages[0], stage)})
    assert hosts_of_replicas(problem, packed)[1] == [(hosts[0],), (names[1],)]
    whole = stage.model_copy(update={"hosts": (names[1],)})
    packed = plan.model_copy(update={"stages": (plan.stages[0], whole)})
    assert hosts_of_replicas(problem, packed)[1] == [(names[1],), (names[1],)]


def test_fullest_chip_relative_to_its_limit_counts(problem: Problem, h100_and_a100: Plan) -> None:
    small = problem.cluster.classes[1].model_copy(update={"memory_gib": 8.0})
    cluster = problem.cluster.model_copy(update={"classes": (problem.cluster.classes[0], small)})
    tight = problem.model_copy(update={"cluster": cluster})
    found = evaluate(tight, h100_and_a100)
    assert found.stages[0].limit_gib == pytest.approx(8.0 * 0.96)
    assert any("stage 0" in violation and "needs" in violation for violation in found.violations)


def test_degrees_may_differ_between_replicas_where_nothing_has_to_launch_them(problem: Problem) -> None:
    rows = [[replica(problem, 0, 0, tp=4), replica(problem, 1, 0, tp=8)]]
    plan = mixed_plan(problem, rows, [32], target="unrestricted")
    free = problem.model_copy(update={"target": "unrestricted"})
    found = evaluate(free, plan)
    assert found.violations == () and plan.world_size == 12
    assert target_violations(plan.model_copy(update={"target": "megatron-lm"})) == (
        "stage 0: its replicas have tensor_parallel 4, 8; target megatron-lm has 4 for all of them",
    )


def test_each_target_says_whether_stages_may_mix(problem: Problem, h100_and_a100: Plan) -> None:
    assert violations(problem, h100_and_a100) == ()
    flagscale = h100_and_a100.model_copy(update={"target": "flagscale", "virtual_stages": 1})
    assert any("has one chip a stage" in violation for violation in target_violations(flagscale))


def test_chips_of_replicas_are_counted_and_used_once(problem: Problem, h100_and_a100: Plan) -> None:
    twice = mixed_plan(problem, [[replica(problem, 0, 0), replica(problem, 1, 0)]] * 2, [16, 16])
    (found,) = {v for v in stages_are_packed(problem, twice) if "8 chips too few" in v and "node000" in v}
    assert "no chip may be used twice" in found
    thrice = mixed_plan(
        problem, [[replica(problem, 0, s % 2), replica(problem, 1, s % 2)] for s in range(3)], [8, 8, 16]
    )
    assert any("uses 24 chips, it has 16" in found for found in class_has_chips(problem, thrice))
    stranger = replica(problem, 0, 0).model_copy(update={"hosts": ("node003",)})
    wrong = mixed_plan(problem, [[stranger, replica(problem, 1, 0)]], [32])
    assert "host node003 is in class" in hosts_exist(problem, wrong)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_parallel": 3}, "all three must agree"),
        ({"hosts": ("node000",)}, "must list the hosts of its replicas in order"),
        ({"node_class": "other"}, "both must agree"),
    ],
)
def test_stage_must_agree_with_its_replicas(
    problem: Problem, h100_and_a100: Plan, changes: dict[str, Any], words: str
) -> None:
    stage = h100_and_a100.stages[0].model_copy(update=changes)
    with pytest.raises(ValueError, match=words):
        Plan(**(dict(h100_and_a100) | {"stages": (stage, h100_and_a100.stages[1])}))


def test_plan_without_replicas_does_not_mention_them(problem: Problem, h100_and_a100: Plan) -> None:
    assert "replicas" not in to_yaml(packed_plan(problem, [(0, 32)]))
    assert to_yaml(h100_and_a100).count("replicas:") == 2


def test_sharded_parameters_cross_the_link_between_classes_in_every_microbatch(
    problem: Problem, h100_and_a100: Plan
) -> None:
    slow_link = Link(between=("h100-sxm-80gb", "a100-sxm-80gb"), gbit_per_s=10)
    names = tuple(c.name for c in problem.cluster.classes)
    slow_link = slow_link.model_copy(update={"between": names})
    slow = problem.model_copy(update={"cluster": problem.cluster.model_copy(update={"links": (slow_link,)})})
    found = {
        mode: evaluate(slow, h100_and_a100.model_copy(update={"dp_mode": mode})).breakdown_s["dp"]
        for mode in ("distopt", "zero2", "fsdp")
    }
    assert found["distopt"] < found["zero2"] < found["fsdp"]
    # Half of a stage's 4 billion parameters over 8 tensor ranks: 2 gathers of 2 bytes and one scatter of 2
    # each micro-batch, all ranks of the node over 1.25 GB/s.
    m = h100_and_a100.num_microbatches
    passes_s = 8 * (4.0e9 / 8) * (2 + 2 + 2) / 2 / 1.25e9
    assert found["fsdp"] == pytest.approx(m * passes_s, rel=0.15)


def test_experts_of_a_replica_split_no_further_than_its_ranks(problem: Problem) -> None:
    rows = [[replica(problem, 0, 0, tp=8), replica(problem, 1, 0, tp=4)]]
    degrees = degrees_of_replicas(mixed_plan(problem, rows, [32], expert_tensor_parallel=8))
    assert degrees.tensor_parallel.tolist() == degrees.expert_tensor_parallel.tolist() == [8, 4]
