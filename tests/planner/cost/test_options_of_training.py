"""What users may set beside the degrees: load of experts, context exchange, switches, sharding."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from planner.cost.communication.layer_communication import context_layer_s
from planner.cost.communication.oversubscription import rate_left
from planner.cost.communication.placement import spread_group
from planner.cost.kernels.starts import COUNTING, COUNTING_CAPACITY, DROPPING, KERNEL_S
from planner.cost.prices import PARTS, Degrees, Prices
from planner.cost.pricing import price
from planner.cost.sizes import Sizes, context_levels
from planner.data.cluster import NodeClass
from planner.data.experts_spec import MoeSpec
from planner.data.problem import Problem
from planner.simulate.evaluate import evaluate
from planner.units import GIB
from tests.planner.cost.problems import prices, problem
from tests.planner.simulate.synthetic import packed_plan

COMPUTE, CP, EP = PARTS.index("compute"), PARTS.index("cp"), PARTS.index("ep")


def mixtral(imbalance: float = 1.0, **experts: object) -> Problem:
    of = problem(model="mixtral-8x7b")
    assert of.model.moe is not None
    return of.model_copy(
        update={
            "workload": of.workload.model_copy(update={"expert_imbalance": imbalance}),
            "model": of.model.model_copy(update={"moe": of.model.moe.model_copy(update=experts)}),
        }
    )


def priced(of: Problem) -> Prices:
    return prices(of, data_parallel=32, expert_parallel=8, expert_tensor_parallel=1)


def test_the_busiest_rank_sets_the_pace_of_experts_and_fills_their_memory() -> None:
    even, uneven = priced(mixtral()), priced(mixtral(1.5))
    exchange = uneven.layer_forward_s[0, 0, 0, EP] / even.layer_forward_s[0, 0, 0, EP]
    compute = uneven.layer_forward_s[0, 0, 0, COMPUTE] / even.layer_forward_s[0, 0, 0, COMPUTE]
    assert 1.3 < exchange <= 1.5
    assert 1.2 < compute < 1.5  # attention and norms see the same tokens
    assert uneven.layer_activation_bytes[0, 0] > even.layer_activation_bytes[0, 0]
    assert any("1.5 of an even share" in note for note in uneven.assumptions)
    assert any("evenly loaded" in note for note in even.assumptions)


def test_a_capacity_cuts_the_load_and_padding_fills_it() -> None:
    for limited, load, kernels in (
        (mixtral(1.5, capacity_factor=1.0), mixtral(), DROPPING[0]),
        (mixtral(1.2, capacity_factor=2.0), mixtral(1.2), DROPPING[0]),
        # Nobody counts tokens where all experts get as many.
        (
            mixtral(capacity_factor=2.0, pad_to_capacity=True),
            mixtral(2.0),
            DROPPING[0] + COUNTING_CAPACITY - COUNTING,
        ),
    ):
        more = priced(limited).layer_forward_s[0, 0, 0] - priced(load).layer_forward_s[0, 0, 0]
        assert more[COMPUTE] == pytest.approx(kernels * KERNEL_S, abs=1e-12)
        assert np.delete(more, COMPUTE) == pytest.approx(0.0)
    with pytest.raises(ValidationError, match="capacity_factor"):
        MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=1, pad_to_capacity=True)


def with_exchange(kind: str, cluster: str = "4x8 h100-sxm-80gb") -> Problem:
    of = problem(cluster=cluster, seq_length=65_536)
    return of.model_copy(update={"stack": of.stack.model_copy(update={"cp_exchange": kind})})


def exchange_s(kind: str, cp: int) -> float:
    found = prices(with_exchange(kind), context_parallel=cp, data_parallel=32 // cp)
    return float((found.layer_forward_s + found.layer_backward_s)[0, 0, 0, CP])


def test_gathered_keys_are_exposed_where_a_ring_hides_them() -> None:
    assert exchange_s("p2p", 8) < 0.5 * exchange_s("all_gather", 8)
    assert exchange_s("all_gather", 1) == exchange_s("p2p", 1) == 0.0


def test_two_levels_exchange_heads_inside_nodes_and_pass_keys_between_them() -> None:
    sizes = Sizes.of(with_exchange("a2a+p2p"), Degrees.single(tensor_parallel=2, context_parallel=16))
    inner, outer = context_levels(with_exchange("a2a+p2p").stack, sizes, 8.0)
    assert (inner[0], outer[0]) == (4.0, 4.0)
    # Inside one node there is no ring to join: both name the same exchange.
    assert exchange_s("a2a+p2p", 8) == exchange_s("a2a", 8)
    assert exchange_s("a2a+p2p", 32) != exchange_s("a2a", 32)


def test_no_context_parallelism_costs_nothing() -> None:
    of = with_exchange("all_gather")
    sizes, zero = Sizes.of(of, Degrees.single()), np.zeros(1)
    assert context_layer_s(None, of.model, of.stack, sizes, zero, zero)[0] == 0.0  # type: ignore[arg-type]


def test_a_ring_leaves_its_switch_once_and_an_exchange_all_the_time() -> None:
    # 16 nodes, 4 under a switch, uplinks for one of four: one ring needs one node's rate, which they have.
    one = spread_group(np.array([128.0]), np.array([1.0]), 8.0)
    assert rate_left("all_reduce", one, 4.0, 4.0) == 1.0
    # An exchange sends 12 of 15 parts out of the switch, through a quarter of the rate.
    assert rate_left("all_to_all", one, 4.0, 4.0) == pytest.approx(1 / (4 * 12 / 15))
    # Groups of every second node: two rings leave each switch.
    two = spread_group(np.array([8.0]), np.array([16.0]), 8.0)
    assert rate_left("all_reduce", two, 4.0, 4.0) == pytest.approx(0.5)
    inside = spread_group(np.array([32.0]), np.array([1.0]), 8.0)
    assert rate_left("all_to_all", inside, 4.0, 4.0) == 1.0


def behind_switches(oversubscription: float) -> Prices:
    of = problem(cluster="16x8 h100-sxm-80gb")
    node_class = of.cluster.classes[0].model_copy(
        update={"nodes_per_switch": 4, "oversubscription": oversubscription}
    )
    cluster = of.cluster.model_copy(update={"classes": (node_class,)})
    return prices(of.model_copy(update={"cluster": cluster}), tensor_parallel=8, data_parallel=8)


def test_oversubscribed_switches_slow_sends_between_stages() -> None:
    free, shared = behind_switches(1.0), behind_switches(4.0)
    latency = 5e-6
    assert shared.send_s[0, 0, 0] - latency == pytest.approx(4 * (free.send_s[0, 0, 0] - latency))
    assert shared.send_inside_s[0, 0] == free.send_inside_s[0, 0]
    assert not any("nodes_per_switch" in note for note in free.assumptions)
    assert any("nodes_per_switch" in note for note in prices(problem()).assumptions)
    with pytest.raises(ValidationError, match="needs nodes_per_switch"):
        NodeClass(
            name="a",
            chip="h100-sxm-80gb",
            num_nodes=8,
            chips_per_node=8,
            nics_per_node=8,
            nic_gbit_per_s=400,
            oversubscription=2.0,
        )


def test_a_prediction_layer_keeps_a_layer_and_its_logits_with_the_head() -> None:
    of = problem(model="deepseek-v3")
    without = of.model_copy(update={"model": of.model.model_copy(update={"mtp_num_layers": 0})})
    degrees = {"data_parallel": 32, "expert_parallel": 32, "expert_tensor_parallel": 1}
    found, bare = price(of, Degrees.single(**degrees)), price(without, Degrees.single(**degrees))  # type: ignore[arg-type]
    moe = found.kinds.index("moe")
    more = found.head_activation_bytes[0] - bare.head_activation_bytes[0]
    # One layer of experts, and six more states of 4,096 tokens of 7,168 values in 16 bits.
    assert more == pytest.approx(found.layer_activation_bytes[0, moe] + 6 * 4096 * 7168 * 2)
    assert found.head_peak_bytes[0] > 1.3 * bare.head_peak_bytes[0]


def test_sharded_parameters_are_whole_while_a_layer_computes() -> None:
    of = problem()
    whole = prices(of, data_parallel=32)
    full, grads = prices(of, data_parallel=32, dp_mode="fsdp"), prices(of, data_parallel=32, dp_mode="zero2")
    # A llama3-8b layer has 218.1 million parameters: two layers of 16-bit values, one gradient as the
    # backward leaves it and as it is sent.
    layer = 218_112_000
    assert full.layer_working_bytes[0, 0] - whole.layer_working_bytes[0, 0] == pytest.approx(8 * layer)
    assert grads.layer_working_bytes[0, 0] - whole.layer_working_bytes[0, 0] == pytest.approx(4 * layer)
    alone = prices(of, data_parallel=1, dp_mode="fsdp")
    assert alone.layer_working_bytes[0, 0] == prices(of, data_parallel=1).layer_working_bytes[0, 0]


def test_allocated_and_reserved_memory_are_told_apart() -> None:
    of = problem()
    seen = evaluate(of, packed_plan(of, [(0, 16), (0, 16)], tensor_parallel=8)).stages[1]
    terms = seen.memory_gib
    assert seen.peak_memory_gib == pytest.approx(sum(terms.values()))
    outside = terms["fragmentation"] + terms["context"]
    assert seen.allocated_memory_gib == pytest.approx(seen.peak_memory_gib - outside)
    # 4,096 tokens of a vocabulary of 128,256 padded to 129,024 over 8 ranks, six bytes a logit; beside them
    # one 16-bit placeholder for each of a layer's four weights, and the head's input, gathered.
    layer = 4096 * (32 + 8 + 8 + 32) * 128 + 3 * 4096 * 14_336
    gathered = 4096 * 4096 * 2
    assert terms["logits"] == pytest.approx(((4096 * 129_024 * 6 + 2 * layer) / 8 + gathered) / GIB)
    assert terms["working"] == terms["recompute"] == 0.0


def test_the_host_adds_the_same_to_every_step() -> None:
    usual = problem()
    silent, busy = (
        usual.model_copy(update={"stack": usual.stack.model_copy(update={"step_host_ms": x})})
        for x in (0.0, 7.0)
    )
    np.testing.assert_allclose(prices(silent).step_fixed_s, 0.0)
    np.testing.assert_allclose(prices(usual).step_fixed_s, 5e-3)
    np.testing.assert_allclose(prices(busy).step_fixed_s, 7e-3)
