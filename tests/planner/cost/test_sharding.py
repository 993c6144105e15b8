"""Full sharding, the host's floor, and the width of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.cost.communication.inside_node import inside_s
from planner.cost.communication.networks import network_of
from planner.cost.communication.overlap import OVERLAP_SLOWDOWN, SHARDS_SLOWDOWN
from planner.cost.kernels.host_waits import with_host_floor
from planner.cost.prices import PARTS
from planner.cost.sharding import LIST_TENSOR_S
from tests.planner.cost.problems import prices, problem, with_stack, without_assumptions_of_nics

DP, HOST = PARTS.index("dp"), PARTS.index("host")


@pytest.mark.parametrize("mode", ["zero3", "fsdp"])
def test_full_sharding_gathers_in_every_microbatch_and_no_more_once_a_step(mode: str) -> None:
    found = prices(problem(), data_parallel=8, dp_mode=mode)
    assert np.all(found.layer_forward_s[..., DP] > 0)
    assert np.all(found.layer_backward_s[..., DP] > found.layer_forward_s[..., DP])
    assert not found.layer_gather_s.any() and not found.layer_reduce_s.any()
    assert not found.reduce_tail_s.any()


def test_shards_are_copied_between_their_place_and_the_buffers_of_collectives() -> None:
    of = with_stack(problem(), dp_overlap=False, gradients_divided_apart=False)
    found = {
        copies: prices(with_stack(of, shard_copies=copies), data_parallel=8, dp_mode="fsdp")
        for copies in ("none", "gradients", "all")
    }
    rate = network_of(of, 0).relative.memory_bytes_per_s
    parameters = found["none"].layer_state_bytes[0, 0, 0] * 8 / 2  # 16-bit weights, an eighth on each rank

    divided = with_stack(of, shard_copies="gradients", gradients_divided_apart=True)
    found["gradients, divided"] = prices(divided, data_parallel=8, dp_mode="fsdp")

    def more(copies: str, direction: str) -> float:
        plain, copied = (getattr(found[c], f"layer_{direction}_s")[0, 0, 0, DP] for c in ("none", copies))
        return float(copied - plain) * rate / parameters

    width = of.stack.scattered_gradient_bytes
    assert more("gradients", "forward") == 0
    assert more("gradients", "backward") == pytest.approx(2 + width)  # 16 bits in, as they are summed out
    assert more("gradients, divided", "backward") == pytest.approx(2 + width + 2 * width)
    assert more("all", "forward") == pytest.approx(2 + 2)
    assert more("all", "backward") == pytest.approx(2 + 2 + 2 + width)


@pytest.mark.parametrize(("copies", "slowdown"), [("none", OVERLAP_SLOWDOWN), ("gradients", SHARDS_SLOWDOWN)])
def test_hidden_shards_take_more_of_what_hides_them_where_pytorch_moves_them(
    copies: str, slowdown: float
) -> None:
    behind, before = (
        prices(
            with_stack(problem(), dp_overlap=overlap, shard_copies=copies), data_parallel=8, dp_mode="fsdp"
        )
        for overlap in (True, False)
    )
    of_forward = behind.layer_forward_s[0, 0, 0, DP] / before.layer_forward_s[0, 0, 0, DP]
    assert of_forward == pytest.approx(slowdown)


@pytest.mark.parametrize("copies", ["none", "gradients"])
def test_the_root_is_gathered_once_and_scattered_last_behind_nothing(copies: str) -> None:
    of = with_stack(problem(), dp_overlap=True, shard_copies=copies)
    found, network = prices(of, data_parallel=8, dp_mode="fsdp"), network_of(of, 0)
    parameters, width = 128256 * 4096, of.stack.scattered_gradient_bytes
    gather, scatter = (
        float(inside_s(network, op, size * parameters, 8))
        for op, size in (("all_gather", 2), ("reduce_scatter", width))
    )
    assert of.stack.gradients_divided_apart
    moved = 2 * width + (2 + width if copies != "none" else 0.0)
    copied = parameters * moved / network.relative.memory_bytes_per_s
    assert found.embedding_forward_s[0, 0, DP] == pytest.approx(gather)
    assert found.embedding_backward_s[0, 0, DP] == pytest.approx(scatter + copied)
    # The head goes with it where PyTorch makes the unit; elsewhere its passes hide its own.
    shown = found.head_forward_s[0, 0, DP] / found.embedding_forward_s[0, 0, DP]
    assert shown == pytest.approx(1, rel=0.01) if copies != "none" else shown < 0.5


def test_lists_of_tensors_go_weight_by_weight_and_a_launch_for_every_rank() -> None:
    of = with_stack(problem(), dp_overlap=False, shards_tensor_by_tensor=True, host_layer_floor_ms=0.0)
    found = prices(of, data_parallel=8, dp_mode="zero3")
    network = network_of(of, 0)
    weights = [4096 * (4096 + 2 * 1024), 4096 * 4096, 4096 * 2 * 14336, 14336 * 4096]
    width, listed = of.stack.scattered_gradient_bytes, 8 * LIST_TENSOR_S

    def calls(op: str, size: float) -> float:
        return sum(float(inside_s(network, op, size * weight, 8)) for weight in weights)

    # Cleared, copied from the library's buffer; copied into it.
    copied = sum(weights) / network.relative.memory_bytes_per_s
    gather = calls("all_gather", 2) + 4 * listed + 3 * 2 * copied
    scatter = calls("reduce_scatter", width) + 4 * listed + 2 * width * copied
    norms = 2 * (listed + 7 * 1.9e-6)
    np.testing.assert_allclose(found.layer_forward_s[..., DP], gather)
    np.testing.assert_allclose(found.layer_full_s[..., DP], gather)
    np.testing.assert_allclose(found.layer_backward_s[..., DP], gather + scatter + norms)


def test_sharded_gradients_scatter_in_every_microbatch_and_parameters_gather_once_a_step() -> None:
    found = prices(problem(), data_parallel=8, dp_mode="zero2")
    assert not found.layer_forward_s[..., DP].any()
    assert np.all(found.layer_backward_s[..., DP] > 0)
    assert np.all(found.layer_gather_s > 0) and not found.layer_reduce_s.any()


def test_replicated_modes_leave_microbatches_alone() -> None:
    for mode in ("ddp", "distopt"):
        found = prices(problem(), data_parallel=8, dp_mode=mode)
        assert not found.layer_forward_s[..., DP].any() and not found.layer_backward_s[..., DP].any()


def test_nothing_is_sharded_among_one_rank() -> None:
    found = prices(problem(), tensor_parallel=8, dp_mode="fsdp")
    assert not found.layer_backward_s[..., DP].any()


def test_gathers_that_nothing_hides_cost_their_whole_time() -> None:
    hidden = problem()
    open_ = with_stack(hidden, dp_overlap=False)
    some = prices(hidden, data_parallel=8, dp_mode="fsdp").layer_forward_s[..., DP]
    whole = prices(open_, data_parallel=8, dp_mode="fsdp").layer_forward_s[..., DP]
    # Behind a long forward only the 13% that the overlap costs remain.
    np.testing.assert_allclose(some, 0.13 * whole, rtol=1e-9)


def test_a_fully_sharded_rank_holds_its_share_of_every_state() -> None:
    shard = prices(problem(), data_parallel=8, dp_mode="zero3")
    whole = prices(problem(), data_parallel=8, dp_mode="ddp")
    np.testing.assert_allclose(shard.layer_state_bytes, whole.layer_state_bytes / 8)
    # Two layers' weights, a gradient in 16 bits and its copy that is scattered.
    parameters = whole.layer_state_bytes[0, 0, 0] / 2
    held = (2 * 2 + 2 + problem().stack.scattered_gradient_bytes) * parameters
    np.testing.assert_allclose(shard.layer_working_bytes - whole.layer_working_bytes, held)


def test_fsdp2_keeps_fp32_shards_alone_and_the_ends_whole() -> None:
    of = problem(stack="torchtitan")
    fsdp, ddp = (prices(of, data_parallel=8, dp_mode=mode) for mode in ("fsdp", "ddp"))
    assert not fsdp.layer_state_bytes[..., 0].any()
    np.testing.assert_allclose(fsdp.layer_state_bytes[..., 1:], ddp.layer_state_bytes[..., 1:] / 8)
    np.testing.assert_allclose(fsdp.head_state_bytes[..., 0], ddp.head_state_bytes[..., 0])


def test_host_floor_holds_for_a_layer_with_its_collectives_and_not_beside_them() -> None:
    parts = np.zeros((len(PARTS), 3))
    parts[0], parts[1] = [0.2, 0.5, 2.0], [0.3, 0.5, 0.1]
    found = np.array(with_host_floor(list(parts), 0.9))
    # 0.2 + 0.3 of work leave 0.4 of waiting; 0.5 + 0.5 is above the floor already.
    np.testing.assert_allclose(found[HOST], [0.4, 0.0, 0.0])
    np.testing.assert_allclose(found.sum(axis=0), [0.9, 1.0, 2.1])


def test_small_layers_wait_for_the_host_and_recomputing_them_waits_again() -> None:
    of = problem(seq_length=128, stack="megatron-deepspeed")
    found = prices(of, tensor_parallel=8)
    floor_s = of.stack.host_layer_floor_ms / 1000
    np.testing.assert_allclose(found.layer_forward_s.sum(axis=-1), floor_s)
    # 31 launches, 4 maps and 2 products of attention again, sums of 4 weights' and 2 norms' gradients.
    np.testing.assert_allclose(found.layer_backward_s.sum(axis=-1), (31 + 6 + 6) / 31 * floor_s)
    np.testing.assert_allclose(found.layer_full_s.sum(axis=-1), floor_s)
    assert np.all(found.layer_forward_s[..., HOST] > 0)
    free = with_stack(of, host_layer_floor_ms=0.0)
    assert not prices(free, tensor_parallel=8).layer_forward_s[..., HOST].any()


def test_narrow_gradients_halve_their_reduction_and_their_memory() -> None:
    wide = problem()
    narrow = with_stack(wide, gradient_bytes=2.0)
    a, b = prices(wide, data_parallel=8, dp_mode="ddp"), prices(narrow, data_parallel=8, dp_mode="ddp")
    np.testing.assert_allclose(b.layer_state_bytes[..., 1], a.layer_state_bytes[..., 1] / 2)
    assert np.all(b.layer_reduce_s < 0.6 * a.layer_reduce_s)


def test_an_optimizer_shared_by_neighbours_gathers_inside_their_node() -> None:
    of = problem(cluster="16x8 a100-sxm-80gb")
    near = with_stack(of, optimizer_shard_size=8)
    all_, some = (prices(x, data_parallel=128, dp_mode="distopt") for x in (of, near))
    assert np.all(some.layer_gather_s < all_.layer_gather_s)
    # NVLink alone carries it, whatever the adapters.
    slow = without_assumptions_of_nics(near, 10.0)
    np.testing.assert_allclose(
        prices(slow, data_parallel=128, dp_mode="distopt").layer_gather_s, some.layer_gather_s
    )
    np.testing.assert_allclose(some.layer_state_bytes[..., 2], all_.layer_state_bytes[..., 2] * 16)
    np.testing.assert_allclose(some.layer_state_bytes[..., :2], all_.layer_state_bytes[..., :2])


def test_an_optimizer_shared_by_all_costs_what_it_does_unsaid() -> None:
    of = problem(cluster="16x8 a100-sxm-80gb")
    all_, said = (
        prices(x, data_parallel=128, dp_mode="distopt")
        for x in (of, with_stack(of, optimizer_shard_size=128))
    )
    for name in ("layer_reduce_s", "layer_gather_s", "layer_optimizer_s", "layer_state_bytes"):
        np.testing.assert_allclose(getattr(said, name), getattr(all_, name), rtol=1e-9)


def test_shards_within_a_node_are_gathered_there_and_their_gradients_summed_across() -> None:
    of = with_stack(problem(cluster="16x8 a100-sxm-80gb"), dp_overlap=False)
    near = with_stack(of, optimizer_shard_size=8)
    all_, some = (prices(x, data_parallel=128, dp_mode="fsdp") for x in (of, near))
    assert np.all(some.layer_forward_s[..., DP] < all_.layer_forward_s[..., DP])
    # Adapters carry the sum of the gradients' shards alone, which the backward waits for.
    slow = prices(without_assumptions_of_nics(near, 10.0), data_parallel=128, dp_mode="fsdp")
    np.testing.assert_allclose(slow.layer_forward_s, some.layer_forward_s)
    assert np.all(slow.layer_backward_s[..., DP] > some.layer_backward_s[..., DP])
    one_node = prices(near, data_parallel=8, dp_mode="fsdp")
    np.testing.assert_allclose(one_node.layer_forward_s, some.layer_forward_s)
    assert np.all(one_node.layer_backward_s[..., DP] < some.layer_backward_s[..., DP])
    np.testing.assert_allclose(some.layer_state_bytes, one_node.layer_state_bytes)
    np.testing.assert_allclose(some.layer_state_bytes, all_.layer_state_bytes * 16)
    np.testing.assert_allclose(some.layer_optimizer_s, one_node.layer_optimizer_s)


def test_shards_of_all_ranks_cost_what_they_do_unsaid() -> None:
    of = problem(cluster="16x8 a100-sxm-80gb")
    all_, said = (
        prices(x, data_parallel=128, dp_mode="fsdp") for x in (of, with_stack(of, optimizer_shard_size=128))
    )
    for name in ("layer_forward_s", "layer_backward_s", "layer_optimizer_s", "layer_state_bytes"):
        np.testing.assert_allclose(getattr(said, name), getattr(all_, name), rtol=1e-9)


def test_broadcasts_in_turn_cost_a_ring_for_every_sharer() -> None:
    of = with_stack(problem(cluster="128x8 a100-sxm-80gb"), parameters_broadcast=True)
    tails = [
        float(prices(x, data_parallel=1024, dp_mode="distopt").gather_tail_s[0, 0])
        for x in (of, with_stack(of, optimizer_shard_size=8))
    ]
    # 1,024 broadcasts along 896 links inside nodes and 128 between them; 8 along the 7 links of a node.
    assert tails[0] == pytest.approx(1024 * (896 * 1.9e-6 + 128 * 4.0e-6))
    assert tails[1] == pytest.approx(8 * 7 * 1.9e-6)


def test_zero3_gathers_once_more_for_recomputation_and_fsdp_does_not() -> None:
    of = with_stack(problem(), dp_overlap=False)
    zero3, fsdp = (prices(of, data_parallel=8, dp_mode=mode) for mode in ("zero3", "fsdp"))
    np.testing.assert_allclose(zero3.layer_full_s[..., DP], zero3.layer_forward_s[..., DP])
    assert not fsdp.layer_full_s[..., DP].any()


def test_a_step_that_neither_clips_nor_clears_moves_a_third_less() -> None:
    of = with_stack(problem(), gradients_checked=False)
    plain = with_stack(of, clips_gradients=False, clears_gradients=False)
    usual, less = (prices(x, dp_mode="ddp").layer_optimizer_s for x in (of, plain))
    # 34 bytes of Adam and the weight's copy, 12 of norm and clipping, at 0.83 of the rate of 4 of zeros.
    np.testing.assert_allclose(less / usual, (34 / 0.83) / (46 / 0.83 + 4))


def test_a_step_in_fp16_takes_the_scale_off_and_joins_what_it_widened() -> None:
    unchecked = with_stack(problem(), clears_gradients=False, gradients_checked=False)
    of = with_stack(unchecked, gradient_bytes=2, step_gradient_bytes=0)
    in_fp16 = of.model_copy(update={"workload": of.workload.model_copy(update={"precision": "fp16"})})
    wide = with_stack(in_fp16, step_gradient_bytes=4)
    steps = [of, in_fp16, wide, with_stack(wide, joined_gradient_bytes=4)]
    taken = [prices(x, dp_mode="ddp").layer_optimizer_s for x in steps]
    # fp32 gradients are read and written; made of two bytes; read and written again.
    for found, moved in zip(taken, (46, 46 + 8, 46 + 8 + 6, 46 + 8 + 6 + 8), strict=True):
        np.testing.assert_allclose(found / taken[0], moved / 46)


def test_sharded_gradients_are_cleared_by_the_shard() -> None:
    def clearing_s(mode: str) -> Any:
        kept, cleared = (
            prices(with_stack(problem(), clears_gradients=x), data_parallel=8, dp_mode=mode)
            for x in (False, True)
        )
        return cleared.layer_optimizer_s - kept.layer_optimizer_s

    np.testing.assert_allclose(clearing_s("distopt"), clearing_s("ddp"))
    for mode in ("zero2", "zero3", "fsdp"):
        np.testing.assert_allclose(8 * clearing_s(mode), clearing_s("ddp"))


def test_a_step_of_plain_operators_moves_what_they_read_and_write_and_copies_buckets() -> None:
    of = with_stack(
        problem(),
        clears_gradients=False,
        gradient_bytes=2,
        gradients_checked=False,
        gradients_divided_apart=False,
        dp_overlap=False,
    )
    eager = with_stack(of, optimizer_step_bytes=122, gradient_buckets_copied=True)
    for ranks, copied in ((8, 8), (1, 0)):
        usual, more = (prices(x, data_parallel=ranks, dp_mode="ddp").layer_optimizer_s for x in (of, eager))
        # Into the bucket and back: 2 + 2, twice, where ranks add up. Fused, 16-bit sums are read and written
        # in fp32 first.
        np.testing.assert_allclose(more / usual, (122 + copied) / ((46 + 2 + 4) / 0.83))


def test_gradients_are_looked_through_and_divided_before_they_are_reduced() -> None:
    of = with_stack(problem(), gradients_checked=False, gradients_divided_apart=False)

    def more_s(ranks: int, mode: str, **changes: bool) -> Any:
        plain, changed = (
            prices(x, data_parallel=ranks, dp_mode=mode) for x in (of, with_stack(of, **changes))
        )
        return changed.layer_optimizer_s - plain.layer_optimizer_s

    found = prices(of, dp_mode="ddp")
    parameters = found.layer_state_bytes[0, 0, 0] / 2
    pass_s = 4 * parameters / network_of(of, 0).relative.memory_bytes_per_s  # over fp32 sums
    for mode in ("ddp", "distopt"):
        # Read for their norm on a single rank, too; read and written where there is a mean to take.
        np.testing.assert_allclose(more_s(1, mode, gradients_checked=True), pass_s)
        np.testing.assert_allclose(more_s(8, mode, gradients_checked=True), pass_s)
        np.testing.assert_allclose(more_s(8, mode, gradients_divided_apart=True), 2 * pass_s)
        assert not more_s(1, mode, gradients_divided_apart=True).any()
    # In fp16 the loss scaler looks for what is no number, in the optimizer's step.
    of = of.model_copy(update={"workload": of.workload.model_copy(update={"precision": "fp16"})})
    assert not more_s(8, "distopt", gradients_checked=True).any()
    # Sharded gradients are divided in every micro-batch, if at all, and have no whole bucket.
    assert not more_s(8, "fsdp", gradients_checked=True, gradients_divided_apart=True).any()
