"""What hosts must load: nothing for the plan that they run, little where hosts of a class change places."""

from __future__ import annotations

import itertools
import random

import pytest

from planner.api import load_problem
from planner.cost.parameters import total_parameters
from planner.data.plan import Plan, Stage
from planner.explain.moves import held, moves, on_hosts_that_hold_most, piece_weights, renamed
from tests.planner.explain.samples import plan_of

PROBLEM = load_problem("llama3-8b-h100-a100-16")


def four_hosts(*layers: int, hosts: str = "abcd") -> Plan:
    """A stage on each host of one class."""
    ends = list(itertools.accumulate(layers))
    stages = tuple(
        Stage(
            layers=(end - count, end - 1),
            chip="h100-sxm-80gb",
            node_class="n",
            hosts=(host,),
            tensor_parallel=8,
            data_parallel=1,
        )
        for end, count, host in zip(ends, layers, hosts, strict=True)
    )
    return Plan(
        target="megatron-lm",
        tensor_parallel=8,
        data_parallel=1,
        microbatch_size=1,
        num_microbatches=8,
        stages=stages,
    )


def test_plan_in_use_loads_nothing_and_one_on_empty_hosts_everything() -> None:
    plan = four_hosts(8, 8, 8, 8)
    assert moves(PROBLEM.model, held(PROBLEM.model, plan), plan).loaded_fraction == 0
    empty = moves(PROBLEM.model, {}, plan)
    assert (empty.loaded_fraction, empty.layers) == (1, 32)


def test_moved_layer_counts_by_its_parameters() -> None:
    before, after = four_hosts(8, 8, 8, 8), four_hosts(8, 9, 7, 8)
    weights = piece_weights(PROBLEM.model)
    found = moves(PROBLEM.model, held(PROBLEM.model, before), after)
    # Layer 16 goes from the third host to the second.
    assert found.layers == 1
    assert found.loaded_fraction == pytest.approx(weights[16] / sum(weights.values()))
    assert sum(weights.values()) == total_parameters(PROBLEM.model)


def test_hosts_change_places_where_that_saves_loading() -> None:
    cluster = PROBLEM.cluster.model_copy(
        update={
            "classes": (
                PROBLEM.cluster.classes[0].model_copy(
                    update={"name": "n", "num_nodes": 4, "hosts": ("a", "b", "c", "d")}
                ),
            )
        }
    )
    rng = random.Random(3)
    for _ in range(30):
        before = held(PROBLEM.model, four_hosts(*cuts(rng)))
        plan = four_hosts(*cuts(rng), hosts="".join(rng.sample("abcd", 4)))
        found = moves(PROBLEM.model, before, on_hosts_that_hold_most(PROBLEM.model, cluster, before, plan))
        all_orders = [
            moves(PROBLEM.model, before, renamed(plan, dict(zip("abcd", order, strict=True)))).loaded_fraction
            for order in itertools.permutations("abcd")
        ]
        assert min(all_orders) <= found.loaded_fraction <= moves(PROBLEM.model, before, plan).loaded_fraction
        assert found.loaded_fraction <= min(all_orders) + 0.02


def cuts(rng: random.Random) -> list[int]:
    ends = sorted(rng.sample(range(1, 32), 3))
    return [b - a for a, b in itertools.pairwise([0, *ends, 32])]


def test_hosts_that_two_stages_share_hold_the_layers_of_both() -> None:
    plan = plan_of("llama3-8b-h100-8", {"tp": 2, "pp": 4})
    (pieces,) = held(load_problem("llama3-8b-h100-8").model, plan).values()
    assert pieces == {*range(32), "embedding", "head"}


def test_ends_lie_on_the_first_and_the_last_stage_where_these_have_no_layer() -> None:
    """The neighbours, which hold the first and the last layer, counted as if they held the ends too."""
    pieces = held(PROBLEM.model, four_hosts(0, 16, 16, 0))
    assert pieces["a"] == {"embedding"} and pieces["d"] == {"head"}
    assert pieces["b"] == set(range(16)) and pieces["c"] == set(range(16, 32))
