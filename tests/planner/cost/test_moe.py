"""Experts: dispatchers that send a token once a node, launches, and modules that are recomputed."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from planner.cost.communication.layer_communication import hybridep_s
from planner.cost.communication.networks import network_of
from planner.cost.communication.overlap import OVERLAP_SLOWDOWN
from planner.cost.communication.routing import distinct_share
from planner.cost.kernels import tables
from planner.cost.kernels.casts import cast_bytes
from planner.cost.kernels.compute import MatmulTimes, matmul_times
from planner.cost.kernels.launches import launches
from planner.cost.kernels.operators import Matmul
from planner.cost.kernels.products import Products
from planner.cost.kernels.relatives import relative_of
from planner.cost.kernels.sorting import sorting_bytes
from planner.cost.prices import PARTS, Degrees, Prices
from planner.cost.pricing import price
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
from planner.data.problem import Problem
from planner.units import MS
from tests.planner.cost.problems import problem

EP = PARTS.index("ep")


def on_stack(of: Problem, *, ep: int = 8, **changes: object) -> Prices:
    """Prices on a stack that differs in some fields."""
    changed = of.model_copy(update={"stack": of.stack.model_copy(update=changes)})
    return price(changed, Degrees.single(data_parallel=32, expert_parallel=ep, expert_tensor_parallel=1))


def deepseek(cluster: str = "4x8 h100-sxm-80gb") -> Problem:
    return problem(cluster=cluster, model="deepseek-v3")


def test_a_token_that_meets_every_node_is_not_sent_twice_to_one() -> None:
    # Two copies over two nodes: with even chances both on one node half of the time, 1.5 nodes of 2.
    assert distinct_share(problem(model="mixtral-8x7b").model, np.array([2.0]))[0] == pytest.approx(0.75)
    assert distinct_share(deepseek().model, np.array([1.0]))[0] == pytest.approx(1 / 8)


def test_tokens_that_visit_some_groups_of_experts_meet_as_many_places_as_counted_one_by_one() -> None:
    of = problem(model="mixtral-8x7b").model
    groups = of.constants.model_copy(update={"expert_groups": 4, "groups_visited": 2})
    model = of.model_copy(update={"constants": groups})
    for places in (1, 2, 4, 8):
        found = []
        # Both choices fall on any of the groups visited, each of which is as likely as another.
        for visited in combinations(range(4), 2):
            places_of_group = [{g * places // 4} if places <= 4 else {2 * g, 2 * g + 1} for g in range(4)]
            near = [place for g in visited for place in sorted(places_of_group[g])]
            found += [len({a, b}) / 2 for a in near for b in near]
        assert float(distinct_share(model, float(places))) == pytest.approx(np.mean(found))


def test_deduplicating_dispatcher_sends_less_across_nodes_and_sorts_less() -> None:
    plain = on_stack(deepseek(), ep=32)
    once = on_stack(deepseek(), ep=32, moe_dispatcher="deduplicating")
    moe = plain.kinds.index("moe")
    assert once.layer_forward_s[0, moe, 0, EP] < 0.6 * plain.layer_forward_s[0, moe, 0, EP]
    assert once.layer_forward_s[0, moe, 0, 0] < plain.layer_forward_s[0, moe, 0, 0]


@pytest.mark.parametrize("library", ["deepep", "hybridep"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_deduplicating_dispatcher_is_none_where_all_experts_are_on_one_rank(
    library: str, precision: str
) -> None:
    """Launch files then start the other one, of which the host launches more."""
    of = problem(model="qwen3-30b-a3b", precision=precision)
    assert of.stack.host_layer_floor_ms > 0
    once, plain = (
        on_stack(of, ep=1, moe_dispatcher=kind, dispatcher_library=library)
        for kind in ("deduplicating", "alltoall")
    )
    assert np.array_equal(once.layer_forward_s, plain.layer_forward_s)
    assert np.array_equal(once.layer_backward_s, plain.layer_backward_s)


def test_layers_with_experts_need_more_launches_and_more_with_more_local_experts() -> None:
    of = deepseek()
    few, many = (
        Sizes.of(of, Degrees.single(data_parallel=32, expert_parallel=ep, expert_tensor_parallel=1))
        for ep in (32, 8)
    )
    dense = float(launches(of.model, "dense", of.stack, few)[0])
    assert dense > 1.0  # latent attention launches more than plain attention does
    assert float(launches(problem().model, "dense", of.stack, few)[0]) == 1.0
    assert (
        float(launches(of.model, "moe", of.stack, many)[0])
        > float(launches(of.model, "moe", of.stack, few)[0])
        > 2 * dense
    )


@pytest.mark.parametrize("module", ["mla_up_proj", "moe_act", "layernorm"])
def test_recomputing_a_module_frees_memory_for_a_part_of_the_forward(module: str) -> None:
    found = on_stack(deepseek(), selective_modules=(module,))
    moe = found.kinds.index("moe")
    freed = found.layer_activation_bytes[0, moe] - found.layer_activation_selective_bytes[0, moe]
    assert 0 < freed < found.layer_activation_bytes[0, moe]
    again = found.layer_selective_s[0, moe, 0].sum()
    assert 0 < again < 0.3 * found.layer_forward_s[0, moe, 0].sum()


def test_recomputed_modules_add_up() -> None:
    each = [on_stack(deepseek(), selective_modules=(m,)) for m in ("core_attn", "mla_up_proj", "moe_act")]
    together = on_stack(deepseek(), selective_modules=("core_attn", "mla_up_proj", "moe_act"))
    np.testing.assert_allclose(together.layer_selective_s, sum(p.layer_selective_s for p in each))
    freed = [p.layer_activation_bytes - p.layer_activation_selective_bytes for p in (*each, together)]
    np.testing.assert_allclose(freed[-1], sum(freed[:-1]))


def expert_times(chip: str, **changes: object) -> MatmulTimes:
    """Passes of 32 experts' first maps over 1,024 rows each, as DeepSeek-V3 has them on 8 ranks."""
    of = problem(cluster=f"1x8 {chip}")
    stack = of.stack.model_copy(update=changes)
    products = Products([Matmul("expert1", 1024.0, 4096.0, 7168.0, 32.0, grouped=True)])
    return matmul_times(network_of(of, 0).relative, products, "bf16", stack)


@pytest.mark.parametrize(("gradient_bytes", "measured_ms"), [(4.0, 2.96), (2.0, 2.46)])
def test_experts_gradients_on_b200_wait_for_the_sums_they_add_to(
    gradient_bytes: float, measured_ms: float
) -> None:
    found = expert_times("b200-180gb", gradient_bytes=gradient_bytes)
    assert float(found.wgrad_s[0]) == pytest.approx(measured_ms * MS, rel=0.2)
    assert float(found.wgrad_s[0]) > float(found.dgrad_s[0])


@pytest.mark.parametrize("chip", ["gb200-186gb", "b200-180gb", "a100-sxm-80gb"])
def test_one_expert_on_a_rank_is_a_product_as_any_other(chip: str) -> None:
    # It was priced as grouped kernels of several are, though only one product is launched.
    of = problem(cluster=f"1x8 {chip}")
    relative = network_of(of, 0).relative

    def times_s(experts: float, *, grouped: bool) -> list[float]:
        products = Products([Matmul("expert1", 512.0, 2048.0, 2048.0, experts, grouped=grouped)])
        found = matmul_times(relative, products, "bf16", of.stack)
        return [float(found.forward_s[0]), float(found.dgrad_s[0])]

    assert times_s(1.0, grouped=True) == times_s(1.0, grouped=False)
    assert times_s(8.0, grouped=True) != times_s(8.0, grouped=False)


def test_single_products_make_up_for_slow_grouped_kernels_where_those_were_measured() -> None:
    # On H100 one grouped kernel was timed, on B200 what Transformer Engine launches anyway.
    for chip, gains in (("h100-sxm-80gb", True), ("b200-180gb", False)):
        single, grouped = (
            float(expert_times(chip, experts_as_single_products=how).dgrad_s[0]) for how in (True, False)
        )
        assert (single < grouped) == gains


def test_experts_that_are_modules_of_their_own_run_one_by_one_and_are_joined() -> None:
    of = problem(cluster="1x8 h100-sxm-80gb", model="mixtral-8x7b")
    relative = network_of(of, 0).relative
    shape = ("expert1", 2048.0, 4096.0, 6144.0, 4.0)
    apart = of.stack.model_copy(update={"experts_apart": True, "experts_as_single_products": False})
    one_by_one = matmul_times(relative, Products([Matmul(*shape, grouped=True)]), "bf16", apart)
    alone = matmul_times(relative, Products([Matmul(*shape)]), "bf16", of.stack)
    for name in ("forward_s", "dgrad_s", "wgrad_s"):
        assert getattr(one_by_one, name)[0] == pytest.approx(getattr(alone, name)[0])
    # Results of two experts are read and written once more each way; of one nothing is joined.
    for ep, joined in ((4, 4.0), (8, 0.0)):
        sizes = Sizes.of(of, Degrees.single(data_parallel=8, expert_parallel=ep, expert_tensor_parallel=1))
        rows = float(np.max(sizes.expert_rows(2)))
        more = sorting_bytes(of.model, apart, sizes, False) - sorting_bytes(of.model, of.stack, sizes, False)
        assert float(np.max(more)) == pytest.approx(joined * rows * 4096)
    few, many = (float(launches(of.model, "moe", stack, sizes)[0]) for stack in (of.stack, apart))
    assert many > few  # modules of Python, each with its own launches


@pytest.mark.parametrize(
    ("ranks", "dispatch_gb_per_s", "combine_gb_per_s"), [(8, 764.0, 737.1), (36, 632.3, 597.0)]
)
def test_hybridep_takes_what_it_was_measured_to_take_within_fast_links(
    ranks: int, dispatch_gb_per_s: float, combine_gb_per_s: float
) -> None:
    network = network_of(problem(cluster="9x4 gb200-186gb"), 0)
    received = 4096 * 8 * 7168 * 2.0 * float(distinct_share(deepseek().model, float(ranks)))
    both = 2 * float(hybridep_s(network, received, float(ranks)))
    assert both == pytest.approx(received / 1e9 * (1 / dispatch_gb_per_s + 1 / combine_gb_per_s), rel=0.01)


def test_hybridep_serves_where_fast_links_join_all_ranks_alone() -> None:
    for cluster, faster in (("16x4 gb200-186gb", True), ("8x8 h100-sxm-80gb", False)):
        of = problem(cluster=cluster, model="deepseek-v3")
        deepep, hybridep = (
            on_stack(of, ep=32, moe_dispatcher="deduplicating", dispatcher_library=library)
            for library in ("deepep", "hybridep")
        )
        moe = deepep.kinds.index("moe")
        times = [float(x.layer_forward_s[0, moe, 0, EP]) for x in (hybridep, deepep)]
        assert times[0] < times[1] if faster else times[0] == times[1]


@pytest.mark.parametrize("chip", ["gb200-186gb", "b200-180gb", "gb300-288gb"])
def test_blackwell_multiplies_8_bits_at_one_rate_however_they_are_scaled(chip: str) -> None:
    # Products with one scale a tensor were measured slower than those with scales of small blocks, with
    # kernels that nobody had tuned: Llama 3.1 405B on GB200 took 5% longer than in MLPerf's logs.
    of = problem(cluster=f"1x8 {chip}")
    grouped = Products([Matmul("expert1", 4096.0, 4096.0, 7168.0, 8.0, grouped=True)])
    formats: tuple[Precision, ...] = ("fp8", "mxfp8")

    def alone_s(precision: Precision) -> float:
        relative = relative_of(of.chips[chip], precision, 900.0)
        found = matmul_times(relative, grouped, precision, of.stack)
        cast = cast_bytes(grouped, precision, of.stack, turned=False)
        return float(found.forward_s[0]) - float(cast[0, 0, 0]) / relative.memory_bytes_per_s

    narrow, blocks = (alone_s(precision) for precision in formats)
    assert narrow == pytest.approx(blocks)


@pytest.mark.parametrize(("chip", "watts"), [("gb200-186gb", 1200.0), ("b200-180gb", 1000.0)])
def test_long_products_run_at_what_the_power_sustains(chip: str, watts: float) -> None:
    # GB200's kept the pace of isolated kernels, which outrun it: its dense steps were 3 to 10% too short.
    of = problem(cluster=f"1x8 {chip}")
    long = Products([Matmul("fc1", 32768.0, 16384.0, 16384.0, 1.0)])
    relative = relative_of(of.chips[chip], "bf16", 900.0)
    found = matmul_times(relative, long, "bf16", of.stack)
    sustained = (
        tables.relation("b200_sxm", "gemm", "sustained_tflop_per_s") * 1e12 * math.sqrt(watts / 1000.0)
    )
    assert float(found.forward_s[0]) == pytest.approx(float(long.flop[0, 0]) / sustained)


def test_exchanges_hide_no_more_than_the_schedule_lets_run_beside_products() -> None:
    def ep_s(**changes: object) -> float:
        found = on_stack(deepseek(), ep=8, **changes)
        return float(found.layer_forward_s[0, found.kinds.index("moe"), 0, EP])

    whole, half, none = (ep_s(ep_overlap=True, ep_overlap_share=share) for share in (1.0, 0.5, 0.0))
    exposed = ep_s()
    assert none == pytest.approx(exposed)
    assert half == pytest.approx(exposed * (0.5 + 0.5 * OVERLAP_SLOWDOWN))
    assert whole == pytest.approx(exposed * OVERLAP_SLOWDOWN)
    assert whole < ep_s(ep_overlap=True) < exposed


def test_what_tensor_parallel_ranks_of_experts_gather_hides_behind_nothing() -> None:
    """Scripts ask for exchanges behind computation with expert-parallel ranks alone."""

    def times(**changes: object) -> list[float]:
        of = deepseek()
        changed = of.model_copy(update={"stack": of.stack.model_copy(update=changes)})
        degrees = Degrees.single(
            tensor_parallel=8, data_parallel=4, expert_tensor_parallel=8, sequence_parallel=True
        )
        found = price(changed, degrees)
        kind = found.kinds.index("moe")
        return [*found.layer_forward_s[0, kind, 0], *found.layer_backward_s[0, kind, 0]]

    assert times(ep_overlap=True)[EP] > 0
    assert times(ep_overlap=True, waits_for_token_counts=False) == pytest.approx(
        times(waits_for_token_counts=False)
    )
