"""Measured layers in the place of the operator model: the table of prices, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.communication.inside_node import inside_s
from planner.cost.communication.networks import network_of
from planner.cost.prices import PARTS, Degrees, Prices
from planner.cost.pricing import price
from planner.cost.profiles import NOT_MEASURED_S, PROFILED_BAND, value_bytes
from planner.data.layer_profile import LayerProfile, PieceTimes, ProfilePoint
from planner.data.load import build_problem
from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.search.degrees import list_degrees
from planner.simulate.evaluate import evaluate
from planner.units import MIB, MS
from tests.planner.simulate.synthetic import packed_plan


def profile(chip: str, *sizes: int, memory: bool = False) -> LayerProfile:
    """Layer forward of 1 ms a sequence at tensor_parallel 2, backward 3 ms; embedding half, head twice."""

    def pieces(mbs: int) -> dict[str, PieceTimes]:
        return {
            name: PieceTimes(
                forward_ms=share * mbs,
                backward_ms=3 * share * mbs,
                update_ms=0.5 * share,
                memory_mib=10.0 + share * mbs if memory else None,
            )
            for name, share in (("embedding", 0.5), ("layer", 1.0), ("head", 2.0))
        }

    points = tuple(ProfilePoint(tensor_parallel=2, microbatch_size=m, **pieces(m)) for m in sizes)
    return LayerProfile(chip=chip, model="tiny", points=points, source="made up")


@pytest.fixture(scope="module")
def mixed() -> Problem:
    """Two classes; the first is profiled at tensor_parallel 2, micro-batches 1 to 4."""
    found = build_problem(
        cluster="2x8 h100-sxm-80gb, 2x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=8192,
        global_batch_size=32,
    )
    return found.model_copy(update={"profiles": (profile("h100-sxm-80gb", 1, 4),)})


def priced(problem: Problem, **degrees: int) -> Prices:
    return price(problem, Degrees.single(**{"tensor_parallel": 2, **degrees}))  # type: ignore[arg-type]


def test_profiled_class_takes_the_measured_times_and_the_other_keeps_its_own(mixed: Problem) -> None:
    found = priced(mixed, microbatch_size=2)
    bare = priced(mixed.model_copy(update={"profiles": ()}), microbatch_size=2)
    assert found.layer_forward_s[0, 0, 0] == pytest.approx([2 * MS] + [0.0] * (len(PARTS) - 1))
    assert found.layer_backward_s[0, 0, 0] == pytest.approx([6 * MS] + [0.0] * (len(PARTS) - 1))
    assert found.layer_full_s[0, 0, 0] == pytest.approx([2 * MS] + [0.0] * (len(PARTS) - 1))
    assert found.embedding_forward_s[0, 0, 0] == pytest.approx(1 * MS)
    assert found.head_backward_s[0, 0, 0] == pytest.approx(12 * MS)
    for name in ("layer_forward_s", "layer_backward_s", "layer_optimizer_s"):
        assert np.array_equal(getattr(found, name)[:, :, 1], getattr(bare, name)[:, :, 1])
    # Tensor-parallel collectives are inside the measured layers, those of the gradients are not.
    assert bare.layer_forward_s[0, 0, 0, 1] > 0
    assert np.array_equal(found.layer_reduce_s, bare.layer_reduce_s)


def test_core_attention_keeps_its_share_of_the_measured_forward(mixed: Problem) -> None:
    found = priced(mixed, microbatch_size=2)
    bare = priced(mixed.model_copy(update={"profiles": ()}), microbatch_size=2)
    share = bare.layer_selective_s[0, 0, 0].sum() / bare.layer_forward_s[0, 0, 0].sum()
    assert 0 < share < 1
    assert found.layer_selective_s[0, 0, 0, 0] == pytest.approx(share * 2 * MS)


def test_update_is_shared_by_the_ranks_of_the_distributed_optimizer(mixed: Problem) -> None:
    shared = priced(mixed, data_parallel=4)
    slowed = shared.slowed_fraction * (shared.layer_reduce_s + shared.layer_gather_s)[0, 0, 0]
    assert slowed > 0
    assert shared.layer_optimizer_s[0, 0, 0] == pytest.approx(0.5 * MS / 4 + slowed)
    embedding_shown = shared.end_shown_s[0, 0, 0]
    assert 0 < embedding_shown < shared.embedding_optimizer_s[0, 0]
    alone = price(mixed, Degrees.single(tensor_parallel=2, data_parallel=4, dp_mode="ddp"))
    slowed = alone.slowed_fraction * alone.layer_reduce_s[0, 0, 0]
    assert alone.layer_optimizer_s[0, 0, 0] == pytest.approx(0.5 * MS + slowed)


def test_missing_point_is_never_zero(mixed: Problem) -> None:
    for degrees in ({"microbatch_size": 8}, {"tensor_parallel": 4}, {"context_parallel": 2}):
        found = priced(mixed, **degrees)
        assert found.layer_forward_s[0, 0, 0, 0] == NOT_MEASURED_S
        assert found.layer_forward_s[0, 0, 1].sum() < 1.0


def test_referee_refuses_a_missing_point_by_name(mixed: Problem) -> None:
    plan = packed_plan(mixed, [(0, 16), (0, 16)], tensor_parallel=4, data_parallel=2, microbatch_size=2)
    with pytest.raises(InstanceError, match=r"stages\[0\].*no tensor_parallel 4; it has 2"):
        evaluate(mixed, plan)
    # The same degrees on the class without a profile are priced as ever.
    other = packed_plan(mixed, [(1, 16), (1, 16)], tensor_parallel=4, data_parallel=2, microbatch_size=2)
    assert evaluate(mixed, other).step_s < 100


def test_search_leaves_out_what_was_not_measured(mixed: Problem) -> None:
    table = list_degrees(mixed)
    tp, mbs = table.degrees.tensor_parallel, table.degrees.microbatch_size
    covered = (tp == 2) & (mbs <= 4)
    assert covered.any() and (~covered).any()
    assert (table.max_stages[~covered, 0] == 0).all()
    assert (table.max_stages[covered, 0] > 0).any() and (table.max_stages[~covered, 1] > 0).any()


def test_step_by_hand_from_measured_layers(mixed: Problem) -> None:
    """One stage of 32 layers on profiled chips: 16 micro-batches of 2 sequences, then the update.

    A micro-batch takes 32 x (2 + 6) + (1 + 3) + (4 + 12) = 276 ms.
    """
    plan = packed_plan(mixed, [(0, 32)], tensor_parallel=2, data_parallel=1, microbatch_size=2)
    found = evaluate(mixed, plan)
    assert found.breakdown_s["compute"] == pytest.approx(16 * 0.276, rel=1e-9)
    fixed_s = float(priced(mixed, microbatch_size=2).step_fixed_s[0, 0])
    assert found.breakdown_s["optimizer"] == pytest.approx(fixed_s + (32 + 0.5 + 2) * 0.5 * MS)
    assert any("layer times from a profile of tiny (made up)" in note for note in found.assumptions)


def test_activations_follow_a_profile_that_holds_memory(mixed: Problem) -> None:
    both = tuple(profile(chip, 1, 4, memory=True) for chip in ("h100-sxm-80gb", "a100-sxm-80gb"))
    found = priced(mixed.model_copy(update={"profiles": both}), microbatch_size=2)
    assert found.layer_activation_bytes[0, 0] == pytest.approx(2 * MIB)
    assert found.head_activation_bytes[0] == pytest.approx(4 * MIB)
    bare = priced(mixed.model_copy(update={"profiles": ()}), microbatch_size=2)
    assert np.array_equal(found.layer_state_bytes, bare.layer_state_bytes)
    assert found.error_band == PROFILED_BAND
    assert priced(mixed, microbatch_size=2).error_band == bare.error_band  # one class has none


def test_sends_carry_the_values_of_the_profile(mixed: Problem) -> None:
    half = priced(mixed, microbatch_size=2).send_s[0, 0, 1]
    full = mixed.profiles[0].model_copy(update={"value_bytes": 4.0})
    whole = priced(mixed.model_copy(update={"profiles": (full,)}), microbatch_size=2).send_s[0, 0, 1]
    assert 1.9 * half < whole < 2 * half  # but for the latency


def test_measured_rate_is_taken_as_it_is(mixed: Problem) -> None:
    classes = tuple(c.model_copy(update={"rate_basis": "measured"}) for c in mixed.cluster.classes)
    cluster = mixed.cluster.model_copy(update={"classes": classes})
    measured = mixed.model_copy(update={"cluster": cluster, "profiles": ()})
    rate, latency, _ = cluster.link_between(0, 1)
    size = 8192 * 4096 * 2
    # Two ranks of the stage share the node's adapters.
    assert priced(measured).send_s[0, 0, 1] == pytest.approx(latency + 2 * size / rate)


def gathered_s(of: Problem, node_class: int, ranks: int) -> float:
    """Gather of an activation inside a node of a class [s]."""
    whole = of.workload.seq_length * of.model.hidden_size * value_bytes(of)
    return float(inside_s(network_of(of, node_class), "all_gather", whole, float(ranks)))


def test_parted_sends_carry_a_share_of_each_rank_and_are_gathered(mixed: Problem) -> None:
    stack = mixed.stack.model_copy(update={"p2p_partitioned": True, "host_layer_floor_ms": 0.0})
    parted = mixed.model_copy(update={"stack": stack})
    gathers = [gathered_s(parted, node_class, 2) for node_class in (0, 1)]
    assert min(gathers) > 0
    # Either way ends on one of the two classes, which gathers the activation.
    on_the_wire = priced(parted).send_s[0, 0, 1] - sum(gathers) / 2
    assert on_the_wire == pytest.approx(priced(mixed).send_s[0, 0, 1] / 2, rel=0.1)
    inside = priced(parted).send_inside_s[0] - np.array(gathers)
    assert inside == pytest.approx(priced(mixed).send_inside_s[0] / 2, rel=0.1)
    alone = {"tensor_parallel": 1}
    assert priced(parted, **alone).send_s[0, 0, 1] == priced(mixed, **alone).send_s[0, 0, 1]


def test_hosts_launch_what_a_parted_activation_needs_while_chips_wait(mixed: Problem) -> None:
    def more_s(**degrees: int | bool) -> float:
        sends = []
        for floor_ms in (0.0, 3.1):  # 0.1 ms for each of a dense layer's 31 launches
            stack = mixed.stack.model_copy(update={"p2p_partitioned": True, "host_layer_floor_ms": floor_ms})
            sends.append(priced(mixed.model_copy(update={"stack": stack}), **degrees).send_s[0, 0, 1])
        return float(sends[1] - sends[0])

    # Two sends, two receives; the whole is cleared, gathered and copied; both that come forward are copied.
    assert more_s(tensor_parallel=2) == pytest.approx((2 + 2 + 3 + 2 / 2) * 0.1e-3)
    assert more_s(tensor_parallel=1) == 0
    assert more_s(tensor_parallel=2, sequence_parallel=True) == 0


def test_ranks_that_split_the_sequence_send_their_share_and_gather_nothing(mixed: Problem) -> None:
    stack = mixed.stack.model_copy(update={"p2p_partitioned": True})
    parted = mixed.model_copy(update={"stack": stack})
    split = {"tensor_parallel": 4, "sequence_parallel": True}
    assert priced(parted, **split).send_s == pytest.approx(priced(mixed, **split).send_s)


def test_gradients_that_are_not_parted_return_whole(mixed: Problem) -> None:
    def sends(**changes: bool) -> float:
        stack = mixed.stack.model_copy(update={"host_layer_floor_ms": 0.0} | changes)
        return float(priced(mixed.model_copy(update={"stack": stack}), tensor_parallel=4).send_s[0, 0, 1])

    # A quarter forward and the whole back: 5/8 of the activation either way.
    gather = (gathered_s(mixed, 0, 4) + gathered_s(mixed, 1, 4)) / 2
    returned_whole = sends(p2p_partitioned=True, p2p_gradient_partitioned=False) - gather
    assert returned_whole / sends() == pytest.approx(5 / 8, rel=0.05)
    assert sends(p2p_gradient_partitioned=False) == sends()


def test_a_mask_that_travels_along_adds_half_its_bytes_to_either_way(mixed: Problem) -> None:
    def sends(**changes: bool) -> float:
        stack = mixed.stack.model_copy(update=changes)
        return float(priced(mixed.model_copy(update={"stack": stack})).send_s[0, 0, 1])

    tokens, hidden = mixed.workload.seq_length, mixed.model.hidden_size
    # The activation has tokens x hidden values of two bytes, the mask tokens x tokens, sent forward alone.
    assert sends(p2p_sends_mask=True) / sends() == pytest.approx(1 + tokens / (2 * hidden), rel=0.05)
