"""Properties that every table of prices must have."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.cost.remembered import remembered_price
from planner.cost.stage import StageContent, exposed_reduce_s, slowed_s
from tests.planner.cost.problems import prices, problem, with_stack, without_assumptions_of_nics

POWERS = st.sampled_from([1, 2, 4, 8])


def rows(*choices: dict) -> Degrees:
    """Several rows of degrees."""
    singles = [Degrees.single(**c) for c in choices]
    values = {}
    for field in fields(Degrees):
        if field.name == "dp_mode":
            continue
        values[field.name] = np.concatenate([getattr(s, field.name) for s in singles])
    return Degrees(**values)


@pytest.mark.parametrize(
    ("model", "precision", "stack"),
    [
        ("mixtral-8x7b", "bf16", "megatron-core"),
        ("deepseek-v3", "fp8", "megatron-core"),
        ("nemotron-h-8b", "bf16", "megatron-core"),
        ("sailor-gpt-neo-2.7b", "fp16", "megatron-deepspeed"),
        ("llama3-70b", "fp8", "nemo"),
        ("llama3-8b", "bf16", "torchtitan"),
    ],
)
@pytest.mark.parametrize("dp_mode", ["distopt", "zero3"])
def test_a_row_of_many_equals_the_row_alone(model: str, precision: str, stack: str, dp_mode: str) -> None:
    # A row alone is priced in plain numbers, several in arrays: by the same formulas.
    of = problem(
        cluster="4x8 h100-sxm-80gb, 4x8 a100-sxm-80gb, 2x4 rtx-4090-24gb",
        model=model,
        seq_length=2048,
        precision=precision,
        stack=stack,
    )
    choices = [
        {
            "tensor_parallel": t,
            "data_parallel": d,
            "expert_parallel": e,
            "expert_tensor_parallel": 1,
            "sequence_parallel": t > 1,
            "microbatch_size": b,
        }
        for t, d, e, b in [(1, 8, 8, 1), (2, 8, 4, 2), (4, 2, 8, 1), (8, 1, 2, 4)]
    ]
    together = price(of, replace(rows(*choices), dp_mode=dp_mode))
    for i, choice in enumerate(choices):
        alone = price(of, Degrees.single(**choice, dp_mode=dp_mode))
        for field in fields(together):
            value = getattr(together.at(i), field.name)
            if isinstance(value, np.ndarray):
                np.testing.assert_allclose(value, getattr(alone, field.name), rtol=1e-12)
            else:
                assert value == getattr(alone, field.name)


@settings(max_examples=30, deadline=None)
@given(t=POWERS, c=st.sampled_from([1, 2]), d=POWERS, b=POWERS, moe=st.booleans())
def test_every_price_is_finite_and_no_negative(t: int, c: int, d: int, b: int, moe: bool) -> None:
    of = problem(cluster="8x8 h100-sxm-80gb, 2x4 t4-16gb", model="mixtral-8x7b" if moe else "llama3-8b")
    found = prices(
        of,
        tensor_parallel=t,
        context_parallel=c,
        data_parallel=d,
        microbatch_size=b,
        sequence_parallel=t > 1,
        expert_parallel=min(c * d, 8),
        expert_tensor_parallel=1,
    )
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, np.ndarray):
            assert np.all(np.isfinite(value)), field.name
            assert np.all(value >= 0), field.name
    assert np.all(found.layer_forward_s[..., 0] > 0)
    assert np.all(found.layer_backward_s[..., 0] > found.layer_forward_s[..., 0])


def test_one_replica_reduces_and_gathers_nothing() -> None:
    found = prices(problem(), tensor_parallel=8, sequence_parallel=True)
    for name in ("reduce", "gather"):
        for piece in ("layer", "embedding", "head"):
            assert not getattr(found, f"{piece}_{name}_s").any()
        assert not getattr(found, f"{name}_tail_s").any()


def test_nothing_hides_the_bucket_of_the_embedding() -> None:
    """Its gradient is complete last, its parameters are needed first; the head's may hide."""
    of = problem(stack="nemo")
    found = prices(of, data_parallel=32)
    assert not found.embedding_reduce_s.any()
    assert not found.embedding_gather_s.any()
    embedding, head, beside = found.end_shown_s[0, :, 0]
    apart = prices(with_stack(of, dp_overlap=False), data_parallel=32)
    exchange = float(apart.embedding_reduce_s[0, 0] + apart.embedding_gather_s[0, 0])
    assert embedding == pytest.approx(exchange, rel=0.1)
    assert head == beside == 0.0
    assert not apart.end_shown_s.any()
    # All of it is in the optimizer's price, of which reports say that it is synchronisation.
    assert found.embedding_optimizer_s[0, 0] == pytest.approx(apart.embedding_optimizer_s[0, 0] + embedding)
    whole = StageContent(
        0, ((0,) * 32,), has_embedding=True, has_head=True, recompute="none", recompute_layers=0
    )
    assert slowed_s(found, 0, whole) > embedding


def test_what_stays_in_16_bits_beside_8_bit_weights_goes_with_the_last_bucket() -> None:
    """partition_buckets of Megatron-LM, case 3; and it is gathered in 16 bits."""
    narrow = problem(precision="fp8", stack="nemo")
    wide = with_stack(narrow, narrow_parameters=False)
    found, other = prices(narrow, data_parallel=32), prices(wide, data_parallel=32)
    assert found.layer_gather_s[0, 0, 0] < 0.7 * other.layer_gather_s[0, 0, 0]
    assert found.end_shown_s[0, 0, 0] == pytest.approx(other.end_shown_s[0, 0, 0])
    assert found.head_gather_s[0, 0] == pytest.approx(other.head_gather_s[0, 0])
    assert not found.head_beside_embedding_reduce_s.any()
    assert found.end_shown_s[0, 2, 0] > 0 == other.end_shown_s[0, 2, 0]


def test_tensor_parallelism_divides_the_work_less_than_by_its_degree() -> None:
    of = problem(model="llama3-70b")
    one = prices(of).layer_forward_s[0, 0, 0, 0]
    eight = prices(of, tensor_parallel=8, sequence_parallel=True).layer_forward_s[0, 0, 0, 0]
    assert one / 8 <= eight < one / 5


def test_a_larger_microbatch_is_more_efficient_but_slower() -> None:
    of = problem()
    one = prices(of).layer_forward_s[0, 0, 0, 0]
    four = prices(of, microbatch_size=4).layer_forward_s[0, 0, 0, 0]
    assert one < four <= 4 * one


@settings(max_examples=20, deadline=None)
@given(t=POWERS, d=st.sampled_from([4, 8, 16]), slow=st.floats(10, 400), more=st.floats(1.1, 8))
def test_a_wider_adapter_never_slows_a_price(t: int, d: int, slow: float, more: float) -> None:
    of = problem(cluster="16x8 h100-sxm-80gb")
    degrees = {"tensor_parallel": t, "data_parallel": d, "sequence_parallel": t > 1}
    narrow = prices(without_assumptions_of_nics(of, slow), **degrees)
    wide = prices(without_assumptions_of_nics(of, slow * more), **degrees)
    for name in ("send_s", "layer_reduce_s", "layer_gather_s", "reduce_tail_s", "layer_forward_s"):
        assert np.all(getattr(wide, name) <= getattr(narrow, name) * (1 + 1e-12)), name


def test_a_faster_chip_is_faster() -> None:
    of = problem(cluster="1x8 a100-sxm-80gb, 1x8 h100-sxm-80gb, 1x8 b200-180gb", model="llama3-70b")
    forward = prices(of, tensor_parallel=8, sequence_parallel=True).layer_forward_s[0, 0, :, 0]
    assert forward[0] > forward[1] > forward[2]


def test_8_bit_products_are_faster_but_less_than_twice() -> None:
    half = prices(problem(model="llama3-70b")).layer_forward_s[0, 0, 0, 0]
    eight = prices(problem(model="llama3-70b", precision="fp8")).layer_forward_s[0, 0, 0, 0]
    assert half / 2 < eight < half


def test_a_chip_without_tables_says_so() -> None:
    found = prices(problem(cluster="1x8 mi300x-192gb"))
    assert any("mi300x-192gb" in note for note in found.assumptions)
    assert found.error_band > prices(problem()).error_band
    measured = "h100-sxm-80gb: products and attention, collectives inside a node as measured on h100_sxm"
    assert measured in prices(problem()).assumptions
    small = "l4-24gb: collectives inside a node as measured on rtx_pro_6000_server"
    assert small in prices(problem(cluster="1x8 l4-24gb", model="llama3-8b")).assumptions
    assert not any("as measured on" in note and "products" in note for note in found.assumptions)


def test_scores_in_memory_cost_more_time_and_memory() -> None:
    fused = prices(problem(model="gpt3-175b", seq_length=2048))
    plain = prices(problem(model="gpt3-175b", seq_length=2048, stack="megatron-2022"))
    assert plain.layer_forward_s[0, 0, 0, 0] > fused.layer_forward_s[0, 0, 0, 0]
    assert plain.layer_activation_bytes[0, 0] > fused.layer_activation_bytes[0, 0]
    assert plain.layer_selective_s[0, 0, 0, 0] > fused.layer_selective_s[0, 0, 0, 0]


def test_a_fully_recomputed_layer_costs_its_forward_again() -> None:
    found = prices(problem(), tensor_parallel=2, sequence_parallel=True)
    np.testing.assert_allclose(found.layer_full_s[..., 0], found.layer_forward_s[..., 0])


def test_without_sequence_parallelism_each_rank_sends_the_whole_activation() -> None:
    of = problem(cluster="16x8 h100-sxm-80gb", model="llama3-70b", seq_length=8192)
    plain = prices(of, tensor_parallel=8).send_s[0, 0, 0]
    split = prices(of, tensor_parallel=8, sequence_parallel=True).send_s[0, 0, 0]
    assert 6 < plain / split < 8


@pytest.mark.parametrize(("mtu_bytes", "data"), [(1500, 1448 / 1538), (9001, 8949 / 9039)])
def test_sends_over_tcp_reach_what_packets_leave_of_the_adapter(mtu_bytes: int, data: float) -> None:
    of = problem(cluster="2x8 h100-sxm-80gb", model="llama3-8b", seq_length=4096)
    slow = {"nics_per_node": 1, "nic_gbit_per_s": 10.0, "transport": "tcp", "latency_us": 30.0}
    nodes = of.cluster.classes[0].model_copy(update=slow)
    cluster = of.cluster.model_copy(update={"classes": (nodes,), "mtu_bytes": mtu_bytes})
    of = of.model_copy(update={"cluster": cluster})
    (sent,) = prices(of, tensor_parallel=2).send_s[0, 0]
    # Two chips send an activation of 4,096 tokens whole, and each way takes two latencies of 30 us.
    assert sent - 60e-6 == pytest.approx(2 * 4096 * 4096 * 2 / (1.25e9 * data), rel=1e-3)


def test_stages_that_fill_a_rack_send_through_its_adapters() -> None:
    of = problem(cluster="32x4 gb200-186gb", model="llama3-70b", seq_length=8192)
    within = prices(of, tensor_parallel=4, data_parallel=8, sequence_parallel=True).send_s[0, 0, 0]
    beyond = prices(of, tensor_parallel=4, data_parallel=16, sequence_parallel=True).send_s[0, 0, 0]
    # 64 chips of a rack reach each other at 900 GB/s, their adapters have 50 GB/s each; latencies are alike.
    assert 15 < beyond / within < 18


def test_pricing_is_fast_enough_to_enumerate() -> None:
    of = problem()
    choice = {"tensor_parallel": 8, "data_parallel": 4, "sequence_parallel": True}
    many = rows(*[choice] * 500)
    price(of, many)
    start = time.process_time()
    price(of, many)
    assert time.process_time() - start < 0.2


def test_prices_asked_for_again_are_the_same_and_cannot_be_changed() -> None:
    of, other = problem(model="llama3-8b"), problem(model="llama3-8b", seq_length=4096)
    degrees = Degrees.single(tensor_parallel=2, data_parallel=4)
    first = remembered_price(of, degrees)
    assert remembered_price(of, Degrees.single(tensor_parallel=2, data_parallel=4)) is first
    for asked, row in ((other, degrees), (of, Degrees.single(tensor_parallel=4, data_parallel=4))):
        again, fresh = remembered_price(asked, row), price(asked, row)
        assert again is not first
        assert again.layer_forward_s.tolist() == fresh.layer_forward_s.tolist()
    with pytest.raises(ValueError, match="read-only"):
        first.layer_forward_s[0] = 0.0


def test_a_later_stage_reduces_in_one_bucket_that_hides_behind_nothing_of_its_own() -> None:
    of = problem(cluster="4x8 h100-sxm-80gb")
    priced = prices(of, tensor_parallel=4, data_parallel=4)
    content = StageContent(
        0, ((0,) * 16,), has_embedding=False, has_head=False, recompute="none", recompute_layers=0
    )
    whole = 16 * float(priced.layer_reduce_s[0, 0, 0])
    in_buckets = replace(priced, later_stages_have_one_bucket=False)
    for backward_s in (0.0, 0.5 * whole, 10 * whole):
        found = exposed_reduce_s(priced, 0, content, backward_s)
        assert found == pytest.approx(max(whole, exposed_reduce_s(in_buckets, 0, content, backward_s)))
        first = replace(content, has_embedding=True)
        assert exposed_reduce_s(priced, 0, first, backward_s) == exposed_reduce_s(
            in_buckets, 0, first, backward_s
        )
    # Of two virtual stages the second has reduced before the first ends.
    halves = replace(content, chunks=((0,) * 8, (0,) * 8))
    assert exposed_reduce_s(priced, 0, halves, 10 * whole) == pytest.approx(
        max(whole / 2, exposed_reduce_s(in_buckets, 0, halves, 10 * whole))
    )
