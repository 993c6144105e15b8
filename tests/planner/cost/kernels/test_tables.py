"""The shipped measurements come back as measured, and nothing falls out of them outside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.communication.collectives import PEAK_SHARE, SCALE_BYTES_PER_S, BetweenNodes, collective_s
from planner.cost.communication.inside_node import inside_s
from planner.cost.communication.networks import network_of
from planner.cost.communication.placement import spread_group
from planner.cost.communication.trees import channel_rates, tree_s
from planner.cost.kernels import tables
from planner.cost.kernels.grid import LogGrid
from planner.cost.kernels.relatives import link_of_pair, relative_of
from planner.data.load import load_chip
from tests.planner.cost.problems import problem, with_stack, without_assumptions_of_nics

SIZES = st.integers(min_value=16, max_value=500_000)


def test_a_grid_point_comes_back_exactly() -> None:
    rng = np.random.default_rng(0)
    axes = [np.array([128, 256, 1024]), np.array([512, 768]), np.array([1, 2, 4, 8])]
    latency = rng.uniform(1e-6, 1e-3, (3, 2, 4))
    grid = LogGrid(axes, latency, (0.5,) * 3, (1.0,) * 3)
    for index in np.ndindex(latency.shape):
        point = [axis[i] for axis, i in zip(axes, index, strict=True)]
        assert float(grid.latency_s(*point)) == pytest.approx(latency[index], rel=1e-12)


def test_between_two_points_the_logarithm_is_linear() -> None:
    grid = LogGrid([np.array([100, 400])], np.array([1.0, 4.0]), (0.0,), (1.0,))
    assert float(grid.latency_s(200)) == pytest.approx(2.0)


def test_outside_the_grid_the_latency_follows_the_powers() -> None:
    grid = LogGrid([np.array([100, 400])], np.array([1.0, 4.0]), (0.5,), (2.0,))
    assert float(grid.latency_s(25)) == pytest.approx(0.5)
    assert float(grid.latency_s(800)) == pytest.approx(16.0)


def test_a_hole_takes_its_neighbours_throughput() -> None:
    latency = np.array([[1.0, 2.0], [2.0, np.nan]])
    grid = LogGrid([np.array([10, 20]), np.array([10, 20])], latency, (1.0, 1.0), (1.0, 1.0))
    assert float(grid.latency_s(20, 20)) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("chip", "shape", "latency_ms"),
    [
        # Rows of gemm_fwd_aiconfigurator.csv.
        ("a100_sxm", (128, 512, 512), 0.006112),
        ("a100_sxm", (128, 512, 1024), 0.0086702),
    ],
)
def test_shipped_products_equal_the_published_rows(
    chip: str, shape: tuple[int, int, int], latency_ms: float
) -> None:
    assert float(tables.gemm_grid(chip, "bf16").latency_s(*shape)) == pytest.approx(latency_ms * 1e-3)


@settings(max_examples=50, deadline=None)
@given(m=SIZES, n=SIZES, k=SIZES)
def test_no_product_is_faster_than_the_chips_peak_or_free(m: int, n: int, k: int) -> None:
    latency = float(tables.gemm_grid("h100_sxm", "bf16").latency_s(m, n, k))
    assert np.isfinite(latency)
    assert 2.0 * m * n * k / latency < 989.4e12


def test_longer_sequences_cost_more_than_in_proportion() -> None:
    heads = np.array([8.0])
    short = tables.attention_s("h100_sxm", 128, np.array([16384.0]), heads)
    long = tables.attention_s("h100_sxm", 128, np.array([65536.0]), heads)
    assert 12 < float(long[0] / short[0]) <= 16


def test_every_collective_takes_longer_with_more_bytes() -> None:
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        grid, most = tables.collective_grid("h100_sxm", op)
        latency = grid.latency_s(float(most), np.array([2.0**20, 2.0**24, 2.0**28, 2.0**32]))
        assert np.all(np.diff(latency) > 0)


def test_of_two_measurements_of_a_collective_the_slower_counts() -> None:
    of = problem(cluster="1x8 b200-180gb", model="llama3-70b")
    network = network_of(of, 0)
    size, ranks = np.array([64.0 * 2**20]), np.array([8.0])
    grid, _ = tables.collective_grid("b200_sxm", "all_gather")
    fit = tables.collective_fit("b200_sxm", "all_gather")
    assert fit is not None
    line_s = fit.fixed_s + 7 * fit.step_s + 7 / 8 * size / fit.bytes_per_s
    assert line_s > grid.latency_s(ranks, size)
    np.testing.assert_allclose(inside_s(network, "all_gather", size, ranks), line_s)
    # Nobody else measured the exchange of all with all: the grid stands.
    exchanged, _ = tables.collective_grid("b200_sxm", "all_to_all")
    assert tables.collective_fit("b200_sxm", "all_to_all") is None
    np.testing.assert_allclose(
        inside_s(network, "all_to_all", size, ranks), exchanged.latency_s(ranks, size), rtol=1e-9
    )


def test_pairs_that_share_bridges_reach_what_a_group_of_all_does() -> None:
    network = network_of(problem(cluster="1x4 a10-24gb"), 0)
    size = np.array([64.0 * 2**20] * 2)
    pair, all_four = inside_s(network, "all_reduce", size, np.array([2.0, 4.0]))
    # Two pairs at once: each sends half of what a ring of four sends over 3/4, at the same rate.
    assert pair / all_four == pytest.approx((1 / 2) / (3 / 4), rel=0.02)


def test_chips_with_lanes_of_their_own_reach_in_any_group_what_a_pair_does() -> None:
    of = problem(cluster="1x4 t4-16gb", precision="fp16")
    size = np.array([64.0 * 2**20] * 2)
    pair, all_four = inside_s(network_of(of, 0), "all_reduce", size, np.array([2.0, 4.0]))
    assert pair / all_four == pytest.approx((1 / 2) / (3 / 4), rel=0.02)
    shared = of.chips["t4-16gb"].model_copy(update={"own_lanes": False})
    network = network_of(of.model_copy(update={"chips": {shared.id: shared}}), 0)
    # 36.5 GB/s of a pair against 25.0 among four, both of 64 MiB (the table's two rows).
    assert inside_s(network, "all_reduce", size, np.array([2.0, 4.0]))[1] / all_four == pytest.approx(
        36.47 / 24.97, rel=0.02
    )


@pytest.mark.parametrize(("chip", "peer"), [("mi300x-192gb", 64e9), ("ascend-910b-64gb", 28e9)])
def test_in_a_mesh_small_groups_reach_only_the_links_among_them(chip: str, peer: float) -> None:
    network = network_of(problem(cluster=f"1x8 {chip}"), 0)
    size = np.array([2.0**29] * 3)
    ranks = np.array([2.0, 4.0, 8.0])
    for op in ("all_gather", "reduce_scatter", "all_to_all"):
        rate = (ranks - 1) / ranks * size / inside_s(network, op, size, ranks)
        assert np.all(rate < (ranks - 1) * peer)
        assert np.all(rate > 0.5 * (ranks - 1) * peer)


def test_without_a_switch_an_all_reduce_is_a_scatter_and_a_gather() -> None:
    size, ranks = np.array([2.0**28]), np.array([8.0])
    for chip, summed_by_switch in (("mi300x-192gb", False), ("h100-sxm-80gb", True)):
        network = network_of(problem(cluster=f"1x8 {chip}"), 0)
        parts = [inside_s(network, op, size, ranks) for op in ("reduce_scatter", "all_gather")]
        reduced = inside_s(network, "all_reduce", size, ranks)
        assert (reduced < 0.9 * sum(parts)) == summed_by_switch


def test_among_many_nodes_trees_reduce_faster_than_the_ring() -> None:
    network = network_of(problem(cluster="128x8 a100-sxm-80gb"), 0)
    one = np.ones(1)
    spread = spread_group(1024 * one, one, 8.0)
    size = 2.0**28 * one
    both = collective_s(network, "all_reduce", size, spread, one)
    scatter, gather = (
        collective_s(network, op, size, spread, one) for op in ("reduce_scatter", "all_gather")
    )
    # A ring all-reduce is a scatter and a gather; its latency is that of 1,024 ranks.
    assert both < 0.6 * (scatter + gather)
    # Between two nodes a tree sends the buffer once each way where the ring sends 15/16 of it twice.
    slow = without_assumptions_of_nics(problem(cluster="2x8 a100-sxm-80gb"), 50.0)
    few, size, network = spread_group(16 * one, one, 8.0), 2.0**30 * one, network_of(slow, 0)
    ring = sum(collective_s(network, op, size, few, one) for op in ("reduce_scatter", "all_gather"))
    assert 1 / (2 * 15 / 16) * ring < collective_s(network, "all_reduce", size, few, one) < 0.8 * ring
    without = network_of(with_stack(slow, reduces_along_trees=False), 0)
    assert collective_s(without, "all_reduce", size, few, one) == pytest.approx(ring, rel=0.02)


@pytest.mark.parametrize(("nodes", "channel"), [(2, 23.6), (3, 17.8), (64, 17.8)])
def test_a_buffer_crosses_the_channels_of_a_tree_twice(nodes: int, channel: float) -> None:
    """perChMaxTreeBws of NCCL's tuning.cc, a channel for each 25 GB/s of an adapter."""
    for chip, gbit, channels in (("a100-sxm-80gb", 200.0, 8), ("a100-sxm-80gb", 400.0, 16)):
        of = without_assumptions_of_nics(problem(cluster=f"{nodes}x8 {chip}"), gbit)
        rates = network_of(of, 0).tree_channels_bytes_per_s
        assert rates[min(nodes, 3) - 2] == pytest.approx(channels * channel * 1e9)
        taken = tree_s(2.0**40, float(nodes), 0.0, 1e15, rates)
        assert taken == pytest.approx(2 * 2.0**40 / (channels * channel * 1e9))
    # NCCL knows no such limit for others, nor without adapters.
    assert channel_rates(load_chip("mi300x-192gb"), 8, 50e9) == (np.inf, np.inf)
    assert channel_rates(load_chip("a100-sxm-80gb"), 0, 0.0) == (np.inf, np.inf)


def test_slower_adapters_reach_as_much_of_their_rate_with_smaller_buffers() -> None:
    one = np.ones(1)
    spread = spread_group(32 * one, one, 8.0)
    of = problem(cluster="4x8 a100-sxm-80gb")

    def shares(gbit: float, size: float) -> float:
        """Share of the rate of eight adapters that a gather reaches."""
        network = network_of(without_assumptions_of_nics(of, gbit), 0)
        taken = float(collective_s(network, "all_gather", size * one, spread, one)[0])
        return 31 / 32 * size / (gbit * 1e9) / taken

    assert shares(12.5, 2.0**24) == pytest.approx(shares(50.0, 2.0**26), rel=0.05)
    assert shares(12.5, 2.0**24) > 1.1 * shares(50.0, 2.0**24)


def test_rings_pass_on_all_but_a_ranks_own_share_from_node_to_node() -> None:
    one, size = np.ones(1), 2.0**30
    spread = spread_group(16 * one, one, 8.0)
    for chip, rate in (("a100-sxm-80gb", 200e9), ("h100-sxm-80gb", 400e9)):
        scaled = size * SCALE_BYTES_PER_S / rate
        reached = PEAK_SHARE * float(tables.scale_grid("allreduce_nic").latency_s(2.0, scaled))
        network = network_of(problem(cluster=f"2x8 {chip}"), 0)
        gather = float(collective_s(network, "all_gather", size * one, spread, one)[0])
        inside = float(inside_s(network, "all_gather", size * one, 8 * one)[0])
        between = 15 / 16 * size / (rate * reached)
        slow, fast = max(between, inside), min(between, inside)
        assert gather == pytest.approx(slow + 0.1 * fast, rel=0.01)
    # The switch of the second sums a node's ranks, which then send half of the buffer twice.
    reduced = float(collective_s(network, "all_reduce", size * one, spread, one)[0])
    inside = float(inside_s(network, "all_reduce", size * one, 8 * one)[0])
    between = size / (rate * reached)
    assert reduced == pytest.approx(max(between, inside) + 0.1 * min(between, inside), rel=0.01)


def test_a_pairs_rate_gives_the_rate_of_its_chips_links() -> None:
    volta, turing = load_chip("v100-sxm-16gb"), load_chip("t4-16gb")
    # Two V100s reach 22.5 of the 150 GB/s of their six links (nccl_allreduce_vtrain.csv).
    assert link_of_pair(volta, 22.5) == pytest.approx(150, rel=0.01)
    for chip, pair in ((volta, 21.25), (turing, 6.25)):
        node = f"1x4 {chip.id}"
        network = network_of(problem(cluster=node, precision="fp16"), 0)
        network = replace(network, relative=relative_of(chip, "fp16", link_of_pair(chip, pair)))
        size = np.array([2.0**29])
        sent = size / inside_s(replace(network, chips_per_node=2.0), "all_reduce", size, np.array([2.0]))
        assert float(sent[0]) == pytest.approx(pair * 1e9, rel=0.03)


def test_on_links_between_pairs_that_were_measured_as_such_no_link_is_taken_off_twice() -> None:
    network = network_of(problem(cluster="1x8 v100-sxm-16gb", precision="fp16"), 0)
    size = np.array([2.0**30] * 3)
    ranks = np.array([2.0, 4.0, 8.0])
    rate = 2 * (ranks - 1) / ranks * size / inside_s(network, "all_reduce", size, ranks)
    assert rate / 1e9 == pytest.approx([22.6, 86, 133], rel=0.03)
    assert network.peer_bytes_per_s == 25e9


@given(st.sampled_from([2, 3, 8, 12, 16, 64, 100, 128]), st.sampled_from(["allreduce_nic", "alltoall"]))
def test_no_buffer_between_nodes_takes_longer_than_a_larger_one(nodes: int, name: str) -> None:
    sizes = np.geomspace(2.0**12, 2.0**36, 200)
    reached = tables.scale_grid(name).latency_s(float(nodes), sizes)
    assert np.all(np.diff(sizes / reached) >= -1e-9 * (sizes / reached)[:-1])


def test_an_all_reduce_on_two_nodes_of_aws_takes_what_was_measured() -> None:
    """35.2 ms for 1 GiB on two p4d.24xlarge, four adapters of 100 Gbit/s each (NVIDIA/nccl, issue 527)."""
    of = without_assumptions_of_nics(problem(cluster="2x8 a100-sxm-40gb"), 50.0)
    one = np.ones(1)
    reduced = collective_s(
        network_of(of, 0), "all_reduce", 2.0**30 * one, spread_group(16 * one, one, 8.0), one
    )
    assert float(reduced[0]) == pytest.approx(35.2e-3, rel=0.2)


@pytest.mark.parametrize(("op", "known"), [("all_gather", 128), ("all_to_all", 16)])
def test_among_more_nodes_than_are_known_latency_grows_with_their_number(op: str, known: int) -> None:
    one, size = np.ones(1), 2.0**29

    def share(nodes: int, size_bytes: float) -> float:
        """Share of the adapters' rate."""
        network = network_of(problem(cluster=f"{nodes}x8 h100-sxm-80gb"), 0)
        spread = spread_group(8 * nodes * one, one, 8.0)
        taken = float(collective_s(network, op, size_bytes * one, spread, one)[0])
        sent = size_bytes * (1 - 1 / nodes) * (8 if op == "all_to_all" else 1)
        return sent / 400e9 / taken

    assert share(2 * known, size) == pytest.approx(share(known, size / 2), rel=0.05)
    assert share(2 * known, size) < 0.95 * share(known, size)
    assert share(2 * known, 2 * size) == pytest.approx(share(known, size), rel=0.05)


@pytest.mark.parametrize(("op", "passes"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_collective_waits_for_a_message_on_every_level_of_every_pass(op: str, passes: int) -> None:
    near = replace(network_of(problem(cluster="8x8 a100-sxm-80gb"), 0), reduces_along_trees=False)
    far = replace(near, latency_s=near.latency_s + 1.0)
    spread = spread_group(64.0, 1.0, 8.0)
    longer_s = collective_s(far, op, 1.0, spread, 1.0) - collective_s(near, op, 1.0, spread, 1.0)
    assert longer_s == pytest.approx(passes * 3, abs=1e-3)


@pytest.mark.parametrize("inside", [1, 4])
def test_ranks_of_a_node_send_no_faster_than_their_own_links(inside: int) -> None:
    """However fast the adapters of the node are: those of other ranks are reached through its links."""
    network = replace(network_of(problem(cluster="2x8 a100-sxm-80gb"), 0), link_bytes_per_s=1e9)
    spread = spread_group(2.0 * inside, 8.0 / inside, 8.0)
    took_s = BetweenNodes(network, "all_to_all", spread, 1.0).time_s(1e9, 1.0)
    assert took_s == pytest.approx(0.5, rel=1e-3)  # half of all `inside` buffers, over as many links
