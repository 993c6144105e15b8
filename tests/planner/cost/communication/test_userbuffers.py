"""Tensor-parallel collectives beside pieces of their products, and what hidden synchronisation costs."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.communication.inside_node import inside_s
from planner.cost.communication.networks import network_of
from planner.cost.communication.overlap import OVERLAP_SLOWDOWN
from planner.cost.communication.userbuffers import (
    SCATTER_PIECES,
    SCATTER_SHARE,
    pipelined_scatter_s,
    ring_gather_s,
)
from planner.cost.prices import PARTS, Prices
from planner.data.problem import Problem
from tests.planner.cost.problems import prices, problem

TP = PARTS.index("tp")


def one(*times: float) -> np.ndarray:
    """Times of products for one choice, array [product, choice]."""
    return np.array([[t] for t in times])


def on_stack(of: Problem, **changes: object) -> Problem:
    """The problem on a stack that differs in some fields."""
    return of.model_copy(update={"stack": of.stack.model_copy(update=changes)})


def test_a_ring_exposes_what_outlasts_all_pieces_but_one() -> None:
    # Four pieces of 1 ms each, of which the first needs no gather: 3 ms hide 5 ms but for 2, and lose 13%.
    added = ring_gather_s(np.array([5.0]), (one(4.0), one(3.5)), np.array([4.0]))
    assert added == pytest.approx([0.5 + 2.0 + OVERLAP_SLOWDOWN * 3.0])
    # A gather that fits behind them costs the slowdown alone, and the pieces what they lose to the whole.
    assert ring_gather_s(np.array([1.0]), (one(4.0), one(3.5)), np.array([4.0])) == pytest.approx(
        [0.5 + OVERLAP_SLOWDOWN]
    )


def test_the_last_sum_is_exposed_and_the_products_share_the_chip() -> None:
    added = pipelined_scatter_s(np.array([2.0]), (one(4.0, 4.0), one(4.0, 3.0)))
    slowed = 4.0 / (1 - SCATTER_SHARE)
    assert added == pytest.approx([(slowed - 4.0) + (slowed - 3.0) + 2 * 2.0 / SCATTER_PIECES])


def test_user_buffers_hide_most_of_what_plain_collectives_expose() -> None:
    degrees = {"tensor_parallel": 4, "microbatch_size": 4, "sequence_parallel": True}
    plain = prices(problem(model="llama3-70b"), **degrees)
    hidden = prices(on_stack(problem(model="llama3-70b"), tp_userbuffers=True), **degrees)

    def exposed(found: Prices) -> float:
        return float(found.layer_forward_s[0, 0, 0, TP] + found.layer_backward_s[0, 0, 0, TP])

    assert 0.1 * exposed(plain) < exposed(hidden) < 0.8 * exposed(plain)
    # Without sequence parallelism there are no gathers to part: all-reduces stay exposed.
    degrees["sequence_parallel"] = False
    whole = prices(on_stack(problem(model="llama3-70b"), tp_userbuffers=True), **degrees)
    assert whole.layer_forward_s[0, 0, 0, TP] == pytest.approx(
        prices(problem(model="llama3-70b"), **degrees).layer_forward_s[0, 0, 0, TP]
    )


def test_sums_in_16_bits_make_weight_gradients_faster() -> None:
    wide, narrow = problem(), on_stack(problem(), gradient_bytes=2.0)
    assert prices(narrow).layer_backward_s[0, 0, 0, 0] < prices(wide).layer_backward_s[0, 0, 0, 0]
    assert prices(narrow).layer_forward_s[0, 0, 0, 0] == prices(wide).layer_forward_s[0, 0, 0, 0]


def test_parameters_in_8_bits_are_gathered_in_half_the_bytes() -> None:
    def gather(precision: str, narrow: bool) -> float:
        of = on_stack(problem(precision=precision), narrow_parameters=narrow)
        return float(prices(of, data_parallel=32).layer_gather_s[0, 0, 0])

    assert 0.4 < gather("fp8", True) / gather("fp8", False) < 0.7
    assert gather("fp8_block", True) == gather("fp8_block", False)


def test_hidden_synchronisation_slows_what_hides_it() -> None:
    """Of R behind B: max(0, R - B) and 13% of min(R, B), here as the parts that prices keep it in."""
    of = problem()
    found = prices(of, data_parallel=32)
    quiet = prices(on_stack(of, dp_overlap=False), data_parallel=32)
    assert quiet.slowed_fraction == 0.0
    kept = found.layer_reduce_s[0, 0, 0]
    for share in (0.2, 3.0):  # computation hides all of it, and a part
        raw = kept / (1 - OVERLAP_SLOWDOWN)
        beside = raw / share
        left = max(0.0, kept - (1 - OVERLAP_SLOWDOWN) * beside) + found.slowed_fraction * kept
        expected = max(0.0, raw - beside) + OVERLAP_SLOWDOWN * min(raw, beside)
        assert left == pytest.approx(expected)
    assert found.hidden_fraction == pytest.approx(0.9 * (1 - OVERLAP_SLOWDOWN))


def test_forward_sums_are_as_wide_as_the_stack_says() -> None:
    of = problem(model="llama3-70b", precision="fp8")

    def forward(**changes: object) -> float:
        stacked = on_stack(of, tp_userbuffers=True, **changes)
        degrees = {"tensor_parallel": 2, "microbatch_size": 1, "sequence_parallel": True}
        return float(prices(stacked, **degrees).layer_forward_s[0, 0, 0, TP])

    network = network_of(of, 0)
    size = of.workload.seq_length * of.model.hidden_size * np.ones(1)
    wide, narrow = (
        float(inside_s(network, "reduce_scatter", width * size, np.array([2.0]))[0]) for width in (2, 1)
    )
    # Of each sum a quarter follows the product; the rest hides behind it.
    longer = forward(tp_narrow_sums=False) - forward()
    assert longer == pytest.approx(2 * (wide - narrow) / SCATTER_PIECES, rel=0.01)


def test_where_the_batch_is_the_outermost_dimension_gathers_and_scatters_copy() -> None:
    of = problem(cluster="1x8 h100-sxm-80gb")
    copied = on_stack(of, tp_collectives_copy=True)
    layout = {"tensor_parallel": 4, "microbatch_size": 2, "sequence_parallel": True}
    plain, found = (prices(x, **layout) for x in (on_stack(of, tp_collectives_copy=False), copied))
    # Two gathers and two scatters each forward, of an activation that is read and written.
    activation = 2 * 2 * of.workload.seq_length * of.model.hidden_size
    expected_s = 4 * 2 * activation / network_of(of, 0).relative.memory_bytes_per_s
    more = found.layer_forward_s[..., TP] - plain.layer_forward_s[..., TP]
    assert more == pytest.approx(expected_s)
    assert np.all(found.layer_backward_s[..., TP] > plain.layer_backward_s[..., TP])
    whole = layout | {"sequence_parallel": False}
    a, b = (prices(x, **whole).layer_forward_s for x in (of, copied))
    np.testing.assert_array_equal(a, b)


def test_layers_of_routed_experts_alone_have_no_products_to_part() -> None:
    """A hybrid's layers without shared experts, which were once an error of ours."""
    of = problem(model="nemotron-3-nano-30b-a3b")
    assert of.model.moe is not None
    routed = of.model.moe.model_copy(update={"shared_ffn_hidden_size": 0})
    of = of.model_copy(update={"model": of.model.model_copy(update={"moe": routed})})
    degrees = {"tensor_parallel": 2, "sequence_parallel": True}
    found = prices(on_stack(of, tp_userbuffers=True), **degrees)
    kind = found.kinds.index("experts")
    assert found.layer_forward_s[0, kind] == pytest.approx(prices(of, **degrees).layer_forward_s[0, kind])
