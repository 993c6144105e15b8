"""Older attention kernels, products that stay in 16 bits, chips at their power limit."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.communication.networks import network_of
from planner.cost.kernels import compute
from planner.cost.kernels.compute import matmul_times
from planner.cost.kernels.operators import Matmul
from planner.cost.kernels.products import Products
from planner.cost.kernels.starts import KERNEL_S
from planner.cost.prices import PARTS, Prices
from planner.data.chip import Chip
from planner.data.load import load_chip
from planner.data.problem import Problem
from tests.planner.cost.problems import prices, problem, with_stack


def on_stack(of: Problem, **changes: object) -> Prices:
    """Prices on a stack that differs in some fields."""
    return prices(of.model_copy(update={"stack": of.stack.model_copy(update=changes)}))


def core(found: Prices) -> float:
    """Forward of the core attention [s]."""
    return float(found.layer_selective_s[0, 0, 0, 0])


@pytest.mark.parametrize(
    ("cluster", "kernel", "times"),
    [
        ("1x8 h100-sxm-80gb", "flash2", 1.95),
        ("1x8 a100-sxm-80gb", "flash2", 1.0),
        ("1x8 a100-sxm-80gb", "flash1", 2.0),
        ("1x8 h100-sxm-80gb", "triton", 1.95 * 1.9),
    ],
)
def test_older_attention_is_slower_by_the_measured_factor(cluster: str, kernel: str, times: float) -> None:
    of = problem(cluster=cluster)
    assert core(on_stack(of, attention_kernel=kernel)) == pytest.approx(times * core(prices(of)))


def test_latent_attention_takes_what_was_measured_of_it() -> None:
    # cuDNN on one GB300: 0.813 ms for two sequences of 128 heads (NVIDIA/cudnn-frontend).
    of = problem(cluster="2x4 gb300-288gb", model="deepseek-v3")
    found = prices(of, microbatch_size=2, expert_parallel=8)
    assert core(found) == pytest.approx(0.813e-3, rel=1e-3)


def test_attention_in_8_bits_takes_what_was_measured_and_casts_what_it_reads() -> None:
    of = problem(cluster="2x4 gb300-288gb", model="deepseek-v3", precision="mxfp8")
    found, wide = on_stack(of, attention_kernel="mxfp8"), on_stack(of)
    # 192 values of a query and a key, 128 of a value, 128 heads; 2 bytes read, 2 1/16 written.
    cast_s = (
        4096 * 128 * (192 + 192 + 128) * (2 + 2 * 33 / 32) / network_of(of, 0).relative.memory_bytes_per_s
    )
    assert core(found) == pytest.approx(0.668 * core(wide) + cast_s, rel=1e-6)
    assert np.all(found.layer_backward_s[..., 0] < wide.layer_backward_s[..., 0])


def test_the_head_gains_nothing_from_8_bit_products_unless_it_is_one() -> None:
    half, eight = prices(problem()), prices(problem(precision="fp8"))
    np.testing.assert_allclose(eight.head_forward_s, half.head_forward_s)
    np.testing.assert_allclose(eight.head_backward_s, half.head_backward_s)
    assert np.all(eight.layer_forward_s[..., 0] < half.layer_forward_s[..., 0])
    narrow = on_stack(problem(precision="fp8"), narrow_head=True)
    assert np.all(narrow.head_forward_s[..., 0] < half.head_forward_s[..., 0])
    same = on_stack(problem(), narrow_head=True)
    np.testing.assert_allclose(same.head_forward_s, half.head_forward_s)


def with_chip(of: Problem, **changes: object) -> Problem:
    """The problem on a chip that differs in some fields."""
    (chip,) = of.chips.values()
    return of.model_copy(update={"chips": {chip.id: chip.model_copy(update=changes)}})


def test_a_lower_power_limit_slows_products_by_its_root_and_says_so() -> None:
    of = problem(model="llama3-70b")
    low = prices(with_chip(of, power_limit_w=175.0))
    usual = prices(of)
    # A quarter of 700 W: products and attention take twice as long, what memory bounds does not.
    ratio = low.layer_forward_s[..., 0] / usual.layer_forward_s[..., 0]
    assert np.all((ratio > 1.8) & (ratio <= 2.0))
    assert any("power limit" in note for note in low.assumptions)
    high = prices(with_chip(of, power_limit_w=1000.0))
    np.testing.assert_allclose(high.layer_forward_s, usual.layer_forward_s)


def test_no_product_outruns_a_measured_sustained_rate() -> None:
    of = problem(cluster="1x4 t4-16gb", precision="fp16")
    t4: Chip = load_chip("t4-16gb")
    assert t4.sustained_tflop_per_s is not None
    h, f, kv = 4096, 14336, 1024
    flop = 2 * 4096 * (h * (h + 2 * kv) + h * h + 3 * h * f)
    floor_s = flop / (t4.sustained_tflop_per_s * 1e12)
    assert float(prices(of).layer_forward_s[0, 0, 0, 0]) >= floor_s
    free = prices(with_chip(of, sustained_tflop_per_s=None))
    assert float(free.layer_forward_s[0, 0, 0, 0]) < floor_s


def test_products_of_nvfp4_take_what_transformer_engine_was_measured_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One layer's forward, dgrad and wgrad of 15,872 tokens on a B300 [ms], 5.1 PFLOP/s without casts.
    monkeypatch.setattr(compute, "cast_bytes", lambda products, *_, **__: np.zeros_like(products.flop))
    maps = ((4096.0, 12288.0), (4096.0, 4096.0), (4096.0, 16384.0), (16384.0, 4096.0))
    products = Products([Matmul("map", 15872.0, n, k, 1.0) for k, n in maps])

    def took_ms(chip: str) -> list[float]:
        of = problem(cluster=f"1x1 {chip}", precision="nvfp4")
        stack = of.stack.model_copy(update={"gradient_bytes": 2.0})
        times = matmul_times(network_of(of, 0).relative, products, "nvfp4", stack)
        return [1e3 * sum(of_pass) for of_pass in (times.forward_s, times.dgrad_s, times.wgrad_s)]

    assert took_ms("b300-288gb") == pytest.approx([1.254, 1.305, 1.205], rel=0.01)
    # The same cores at a higher clock; B200's and GB200's have two thirds of their rate in 4 bits.
    assert 0.85 * 3.764 < sum(took_ms("gb300-288gb")) < 3.764
    assert sum(took_ms("gb200-186gb")) > 1.2 * 3.764


def test_chips_without_tables_scale_by_the_fastest_product_found_on_them() -> None:
    of = problem(cluster="1x8 mi355x-288gb", model="llama3-70b")
    found, by_peak = prices(of), prices(with_chip(of, best_matmul_tflop_per_s=None))
    # 1,565 of 2,500 TFLOP/s, where the relative reaches 794.5 of 989.4: 28% slower than peaks promise.
    ratio = found.layer_forward_s[..., 0] / by_peak.layer_forward_s[..., 0]
    assert np.all((ratio > 1.2) & (ratio < 1.29))


def test_narrow_weights_are_cast_once_a_step() -> None:
    half, eight = prices(problem()), prices(problem(precision="fp8"))
    more = eight.layer_optimizer_s - half.layer_optimizer_s
    assert np.all(more > 0) and np.all(more < 0.2 * half.layer_optimizer_s)


def product_s(chip: str, precision: str) -> float:
    """Forward of one square product [s]."""
    of = problem(cluster=f"1x8 {chip}", precision=precision)
    square = Products([Matmul("map", 8192.0, 8192.0, 8192.0, 1.0)])
    times = matmul_times(network_of(of, 0).relative, square, of.workload.precision, of.stack)
    return float(times.forward_s[0])


@pytest.mark.parametrize(
    ("chip", "half"), [("gaudi3-128gb", True), ("trainium1-32gb", True), ("mi300x-192gb", False)]
)
def test_chips_whose_8_bit_peak_is_their_16_bit_peak_gain_half_of_what_others_do(
    chip: str, half: bool
) -> None:
    gain, usual = (product_s(c, "bf16") / product_s(c, "fp8") for c in (chip, "h100-sxm-80gb"))
    assert gain / usual == pytest.approx(0.5 if half else 1.0, rel=0.1)


def test_both_16_bit_formats_of_a_geforce_run_at_the_rate_of_fp32_sums() -> None:
    assert product_s("rtx-4090-24gb", "fp16") == product_s("rtx-4090-24gb", "bf16")


def test_scales_of_rows_cast_every_operand_along_both_dimensions() -> None:
    """A product of 16 rows, 8 columns and depth 4: 64 inputs, 32 weights, 128 gradients."""
    of = problem(cluster="1x8 h100-sxm-80gb", precision="fp8")
    relative = network_of(of, 0).relative
    matmul = Products([Matmul("fc", 16.0, 8.0, 4.0, 1.0)])

    def passes(**changes: object) -> np.ndarray:
        times = matmul_times(relative, matmul, "fp8", of.stack.model_copy(update=changes))
        return np.array([times.forward_s, times.dgrad_s, times.wgrad_s]).ravel()

    moved = (passes(row_scales=True) - passes()) * relative.memory_bytes_per_s
    tensor = np.array([4 * 64, 4 * 128, 0])
    # Gradients of input and weight are multiplied by the scales once written: 4 bytes a value.
    by_rows = np.array([5 * (64 + 32), 5 * 128 + 7 * 32 + 4 * 64, 7 * (128 + 64) + 4 * 32])
    np.testing.assert_allclose(moved, by_rows - tensor, rtol=1e-6)


def test_operands_with_scales_of_rows_are_gathered_in_16_bits() -> None:
    def gathered(precision: str, **changes: object) -> float:
        of = problem(model="llama3-70b", cluster="1x8 h100-sxm-80gb", precision=precision)
        stack = of.stack.model_copy(update=changes)
        of = of.model_copy(update={"stack": stack})
        found = prices(of, tensor_parallel=8, sequence_parallel=True)
        return float(found.layer_forward_s[0, 0, 0, PARTS.index("tp")])

    assert gathered("fp8") < 0.9 * gathered("bf16")
    assert gathered("fp8", row_scales=True) == pytest.approx(gathered("bf16"))


def test_rowwise_steps_are_as_much_slower_as_torchtitan_measured() -> None:
    """Llama-3 8B under FSDP on eight H100s: 5,760, 6,424 and 7,186 tokens a second in bf16, with scales of
    rows and of tensors (pytorch/torchtitan, commit 7a04053)."""
    seconds = []
    for precision, by_rows in (("bf16", False), ("fp8", True), ("fp8", False)):
        of = problem(cluster="1x8 h100-sxm-80gb", seq_length=8192, precision=precision, stack="torchtitan")
        found = on_stack(of, row_scales=by_rows)
        layer = found.layer_forward_s + found.layer_backward_s + found.layer_selective_s
        head = found.head_forward_s + found.head_backward_s
        seconds.append(32 * float(layer[0, 0, 0].sum()) + float(head[0, 0].sum()))
    half, rows, tensor = seconds
    assert half / rows == pytest.approx(6424 / 5760, rel=0.05)
    assert half / tensor == pytest.approx(7186 / 5760, rel=0.05)


@pytest.mark.parametrize(("chip", "add_s"), [("a100-sxm-80gb", None), ("h200-sxm-141gb", 1 / 2.6e11)])
def test_gradients_added_by_a_kernel_of_their_own_leave_the_product_narrow(
    chip: str, add_s: float | None
) -> None:
    of = problem(cluster=f"1x8 {chip}")
    relative = network_of(of, 0).relative
    parameters = 4096.0 * 4096.0
    matmul = Products([Matmul("fc", 4096.0, 4096.0, 4096.0, 1.0)])

    def wgrad_s(**changes: object) -> float:
        stack = of.stack.model_copy(update=changes)
        return float(matmul_times(relative, matmul, "bf16", stack).wgrad_s[0])

    narrow = wgrad_s(gradient_bytes=2.0)
    # One more gradient is read, the sum read and written, or cast value by value.
    added = parameters * (add_s or (2 + 2 * 4) / relative.memory_bytes_per_s)
    assert wgrad_s() > 1.02 * narrow
    assert wgrad_s(gradient_accumulation_fusion=False) == pytest.approx(narrow + added)
    assert wgrad_s(gradient_accumulation_fusion=False, shard_copies="all") == pytest.approx(narrow)


def test_the_embedding_s_whole_gradient_is_filled_and_added_in_every_micro_batch() -> None:
    of = problem(cluster="1x8 a100-sxm-80gb")
    rate = network_of(of, 0).relative.memory_bytes_per_s
    vocab, width = 129024, 4096

    def backward_s(**changes: object) -> float:
        found = prices(with_stack(of, **changes), tensor_parallel=8, sequence_parallel=False)
        return float(found.embedding_backward_s[0, 0, PARTS.index("compute")]) - started_s

    started_s = 12 * KERNEL_S
    rows_s = 4096 * width * 3 * 2 / (0.5 * rate)
    filled_s, added_s = (vocab / 8 * width * moved / rate for moved in (2, 2 + 2 * 4))
    assert backward_s() == pytest.approx(rows_s + filled_s + added_s)
    assert backward_s(shard_copies="gradients") == pytest.approx(rows_s + filled_s)
