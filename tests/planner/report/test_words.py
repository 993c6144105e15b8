"""Short wordings of hosts, layers and differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.data.plan import Replica
from planner.report import words
from planner.units import format_change, format_percent
from tests.planner.stubs import two_class_problem, two_stage_plan


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["node000", "node001", "node002"], "node000-node002"),
        (["node000", "node002"], "node000, node002"),
        (["node009", "node010"], "node009-node010"),
        (["n9", "n10", "n11"], "n9-n11"),
        # Not one run: the number grows but its width says that the names are of two series.
        (["n9", "n010"], "n9, n010"),
        (["a1.example", "a2.example", "b3.example"], "a1.example-a2.example, b3.example"),
        (["gpu", "cpu"], "gpu, cpu"),
        (["node002", "node001"], "node002, node001"),
        ([], ""),
    ],
)
def test_hosts_are_ranges_of_their_numbers(hosts: list[str], text: str) -> None:
    assert words.compact_hosts(hosts) == text


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_host_ranges_lose_no_host_and_keep_the_order(numbers: list[int]) -> None:
    hosts = [f"node{n:03d}" for n in numbers]
    told: list[str] = []
    for part in words.compact_hosts(hosts).split(", "):
        first, _, last = part.partition("-")
        start, end = int(first[4:]), int((last or first)[4:])
        told += [f"node{n:03d}" for n in range(start, end + 1)]
    assert told == hosts


def test_differences_name_what_changed_and_nothing_else() -> None:
    best = two_stage_plan(two_class_problem())
    other = best.model_copy(update={"tensor_parallel": 8, "data_parallel": 1, "microbatch_size": 2})
    assert words.differences(best, other) == "tp 8 (not 4); dp 1 (not 2); micro-batch size 2 (not 1)"
    turned = best.model_copy(update={"stages": best.stages[::-1]})
    assert words.differences(best, turned).startswith("1 stage h100-sxm-80gb, 1 stage a100-sxm-80gb")
    assert words.differences(best, best) == "hosts or rank order only"


def test_chips_that_stay_idle_are_counted_by_class() -> None:
    problem = two_class_problem(cluster="2x8 h100-sxm-80gb, 1x8 a100-sxm-80gb")
    assert words.idle_chips(problem, two_stage_plan(problem)) == "8 x h100-sxm-80gb"
    whole = two_class_problem()
    assert words.idle_chips(whole, two_stage_plan(whole)) == ""


def test_stage_of_mixed_replicas_names_each_chip_with_its_number() -> None:
    problem = two_class_problem()
    plan = two_stage_plan(problem)
    replicas = tuple(
        Replica(node_class=s.node_class, chip=s.chip, hosts=s.hosts, tensor_parallel=tensor_parallel)
        for s, tensor_parallel in zip(plan.stages, (2, 4), strict=True)
    )
    hosts = tuple(host for stage in plan.stages for host in stage.hosts)
    mixed = plan.stages[0].model_copy(update={"replicas": replicas, "hosts": hosts})
    assert words.chips_of(plan, mixed) == "2 x a100-sxm-80gb + 4 x h100-sxm-80gb"
    alone = plan.model_copy(update={"stages": (mixed,)})
    assert words.idle_chips(problem, alone) == "4 x h100-sxm-80gb, 6 x a100-sxm-80gb"


def test_layers_of_virtual_stages_are_listed_and_summed() -> None:
    stage = two_stage_plan(two_class_problem()).stages[0]
    chunks = stage.model_copy(update={"layers": ((0, 4), (10, 14), (20, 20)), "recompute_layers": 3})
    assert words.layers_of(chunks) == "0-4, 10-14, 20 (11)"
    # Three of each of the first two, the only one of the third.
    assert words.recompute_of(chunks) == "full 7/11"


def test_what_rounds_to_nothing_has_no_minus() -> None:
    assert (format_percent(-0.0001), format_percent(-0.012)) == ("0.0%", "-1.2%")
    assert (format_change(-0.0001), format_change(0.0), format_change(-0.012)) == ("+0.0%", "+0.0%", "-1.2%")
