"""Long products at the power limit, 8 bits beside 16, and the slowest of many chips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.communication.networks import network_of
from planner.cost.kernels import tables
from planner.cost.kernels.compute import MatmulTimes, matmul_times
from planner.cost.kernels.operators import Matmul
from planner.cost.kernels.power_limit import CHIP_SPREAD, slowest_of
from planner.cost.kernels.products import Products
from planner.data.changes import with_cluster, with_nodes
from tests.planner.cost.problems import prices, problem

Shape = tuple[float, float, float]


def times(shapes: list[Shape], precision: str = "bf16", cluster: str = "1x1 h100-sxm-80gb") -> MatmulTimes:
    """Times of products with weights on one chip, gradients summed in 16 bits."""
    of = problem(cluster=cluster, precision=precision)
    products = Products([Matmul("map", *shape, 1.0, after_norm=True) for shape in shapes])
    stack = of.stack.model_copy(update={"gradient_bytes": 2.0})
    return matmul_times(network_of(of, 0).relative, products, of.workload.precision, stack)


def rates(shapes: list[Shape], seconds: list[float]) -> list[float]:
    """TFLOP/s of products."""
    return [2 * m * n * k / s / 1e12 for (m, n, k), s in zip(shapes, seconds, strict=True)]


LONG: list[Shape] = [
    (4096.0, 14336.0, 8192.0),
    (16384.0, 6144.0, 6144.0),
    (8192.0, 12288.0, 6144.0),
    (2048.0, 49152.0, 12288.0),
]


def test_long_products_of_all_shapes_reach_one_rate() -> None:
    found = times(LONG)
    isolated = [float(tables.gemm_grid("h100_sxm", "bf16").latency_s(*shape)) for shape in LONG]
    assert np.ptp(rates(LONG, isolated)) > 20
    for seconds in (found.forward_s, found.dgrad_s):
        np.testing.assert_allclose(rates(LONG, seconds), 680, rtol=0.005)  # type: ignore[arg-type]


def test_products_pass_from_their_kernels_pace_to_the_limits_without_a_step() -> None:
    depth, width = 4096.0, 4096.0
    rows = np.geomspace(512, 32768, 400)
    seconds = np.array(times([(m, width, depth) for m in rows]).forward_s)
    assert np.all(np.diff(seconds) > 0) and np.all(np.diff(np.log(seconds)) < 0.1)
    short = rows[0]
    isolated = float(tables.gemm_grid("h100_sxm", "bf16").latency_s(short, width, depth))
    assert seconds[0] == pytest.approx(isolated * tables.relation("h100_sxm", "gemm", "forward"))


def test_weights_gradients_of_few_tokens_are_slower_as_they_write_as_much() -> None:
    few, many = (2048.0, 12288.0, 12288.0), (16384.0, 12288.0, 12288.0)
    slow, fast = rates([few, many], times([few, many]).wgrad_s)  # type: ignore[arg-type]
    assert 1.04 < fast / slow < 1.10


@pytest.mark.parametrize(
    ("shape", "measured_ms"),
    # One H100, PyTorch's products with one scale a tensor, medians of event timings.
    [
        ((2048, 8192, 8192), 0.185946),
        ((4096, 28672, 4096), 0.697824),
        ((8192, 8192, 3584), 0.39483),
        ((8192, 8192, 28672), 2.79722),
        ((16384, 6144, 4096), 0.634192),
        ((16384, 4096, 14336), 1.43669),
    ],
)
def test_8_bit_products_take_what_was_measured(shape: Shape, measured_ms: float) -> None:
    (seconds,) = times([shape], "fp8").forward_s
    assert seconds * 1e3 == pytest.approx(measured_ms, rel=0.15)


def test_8_bit_products_of_small_depth_gain_less() -> None:
    shapes: list[Shape] = [(8192.0, 16384.0, 2048.0), (8192.0, 16384.0, 28672.0)]
    wide, narrow = (times(shapes, precision).forward_s for precision in ("bf16", "fp8"))
    shallow, deep = (n / w for n, w in zip(narrow, wide, strict=True))
    assert deep == pytest.approx(0.5, abs=0.02) and 0.55 < shallow < 0.65


def compute_s(cluster: str) -> float:
    """Computation of one forward of a layer [s]."""
    return float(prices(problem(cluster=cluster, model="llama3-70b")).layer_forward_s[0, 0, 0, 0])


def test_a_job_waits_for_the_slowest_of_its_chips() -> None:
    one, node, many = (compute_s(f"{nodes} h100-sxm-80gb") for nodes in ("1x1", "1x8", "256x8"))
    # Norms and activations wait for memory, whose clock is the same on all.
    assert 1.015 < node / one < 1.025 and 1.04 < many / one < 1.052


def test_some_nodes_of_a_class_keep_the_pace_of_all() -> None:
    """Fewer nodes were faster each, so that a proof for many did not hold for a few of them."""
    whole = problem(cluster="8x8 h100-sxm-80gb", model="llama3-70b")
    few = with_nodes(whole.cluster, 0, 2)
    fewer = None if few is None else with_nodes(few, 0, 1)
    again = None if fewer is None else with_nodes(fewer, 0, 8)
    assert few is not None and fewer is not None and again is not None
    forwards = [
        float(prices(with_cluster(whole, cluster)).layer_forward_s[0, 0, 0, 0])
        for cluster in (whole.cluster, few, fewer, again)
    ]
    assert forwards == [forwards[0]] * 4
    assert compute_s("1x8 h100-sxm-80gb") < forwards[0]


def test_the_slowest_is_the_mean_largest_of_normal_draws() -> None:
    draws = np.random.default_rng(7).normal(size=(20000, 8)).max(axis=1).mean()
    of = [problem(cluster=f"1x{n} h100-sxm-80gb") for n in (1, 8)]
    alone, eight = (network_of(x, 0).relative.compute_scale for x in of)
    assert alone == 1.0 and not any("slowest" in note for note in prices(of[0]).assumptions)
    assert any("slowest of 8 sets the pace, 2.1% behind" in note for note in prices(of[1]).assumptions)
    assert eight - 1 == pytest.approx(CHIP_SPREAD * draws, rel=0.02)


@pytest.mark.parametrize("chip", ["a100-sxm-80gb", "mi300x-192gb", "ascend-910b-64gb"])
def test_chips_that_no_power_limit_was_seen_on_are_all_alike(chip: str) -> None:
    assert compute_s(f"1x8 {chip}") == pytest.approx(compute_s(f"64x8 {chip}"))


def test_the_slowest_chip_also_sustains_less() -> None:
    of = problem(cluster="1x8 h100-sxm-80gb")
    alone = network_of(problem(cluster="1x1 h100-sxm-80gb"), 0).relative
    limited = replace(alone, sustained_flop_per_s=6e14)
    slowest = slowest_of(limited, of.chip_of(0), 8)
    assert slowest.sustained_flop_per_s is not None
    slowdown = slowest.compute_scale / alone.compute_scale
    assert slowest.sustained_flop_per_s * slowdown == pytest.approx(6e14) and slowdown > 1.01
    assert slowest_of(alone, of.chip_of(0), 8).sustained_flop_per_s is None
