"""Kernels that a layer runs beside its products, counted by hand, and what their starts take."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.kernels.operators import layer_matmuls
from planner.cost.kernels.starts import CAPTURED_S, KERNEL_S, end_starts_s, layer_starts_s
from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.cost.sizes import Sizes
from planner.data.chip import Precision
from tests.planner.cost.problems import prices, problem, with_stack


def kernels(
    model: str,
    kind: str = "dense",
    precision: Precision = "bf16",
    expert_parallel: int = 1,
    each_s: float = KERNEL_S,
    **changes: object,
) -> tuple[float, float]:
    """Forward and backward of one layer on eight data-parallel ranks."""
    of = problem(model=model, seq_length=2048)
    stack = of.stack.model_copy(update=changes)
    degrees = Degrees.single(data_parallel=8, expert_parallel=expert_parallel)
    sizes = Sizes.single(of, degrees)
    products = layer_matmuls(of.model, kind, sizes)  # type: ignore[arg-type]
    starts = layer_starts_s(of.model, kind, stack, sizes, products, precision)  # type: ignore[arg-type]
    forward, backward = (round(float(x) / each_s, 9) for x in starts)
    return forward, backward


def test_a_dense_layer_runs_as_many_as_its_modules_do() -> None:
    # Norm and residual sum twice, positions of queries and keys, both copied with values, activation;
    # each norm's backward is two kernels, and the gradients of both norms' weights are added.
    assert kernels("llama3-8b") == (2 * 2 + 2 + 2 + 1, 2 * 3 + 2 + 2 + 1 + 1)
    # Cast before each product but those that norms feed, and gradients of all four.
    assert kernels("llama3-8b", precision="fp8") == (9 + 2, 12 + 4)
    assert kernels("llama3-8b", precision="fp8", current_scaling=True) == (9 + 4 * 4, 12 + 4 * 4)
    assert kernels("llama3-8b", precision="mxfp8") == (9 + 4 * 3, 12 + 4 * 5)


def test_queries_and_values_that_lie_as_attention_reads_them_are_not_copied() -> None:
    # Megatron-LM's joined map of GPT, without positions: norm and sum twice, activation.
    forward, backward = kernels("gpt3-175b")
    assert forward == 2 * 2 + 1
    assert backward == 2 * 3 + 1 + 2 * 2 + 4  # two vectors a norm, four biases


def test_experts_are_cast_one_by_one_but_with_scales_from_earlier_steps() -> None:
    def more(precision: Precision, **changes: object) -> float:
        cast = kernels("mixtral-8x7b", "moe", precision, 2, **changes)  # type: ignore[arg-type]
        return cast[0] - kernels("mixtral-8x7b", "moe", expert_parallel=2)[0]

    # The norm casts the input of the joined map; kernels pad rows and cut them.
    assert more("fp8") == pytest.approx(1 + 2 + 2)
    assert more("fp8", pads_narrow_experts=False) == pytest.approx(1 + 2)
    assert more("fp8", current_scaling=True) == pytest.approx(4 * (2 + 2 * 4) + 2)
    assert more("fp8_block") == pytest.approx(2 + 2 * 4 + 2)
    assert more("mxfp8") == pytest.approx(2 * 3 + 2 * (4 + 2) + 2)
    hybrid = {"moe_dispatcher": "deduplicating", "dispatcher_library": "hybridep"}
    assert more("mxfp8", **hybrid) - more("mxfp8", pads_narrow_experts=False) == pytest.approx(
        kernels("mixtral-8x7b", "moe", expert_parallel=2, **hybrid)[0]
        - kernels("mixtral-8x7b", "moe", expert_parallel=2)[0]
    )


def test_graphs_start_kernels_of_captured_modules_sooner() -> None:
    captured = kernels("llama3-8b", each_s=CAPTURED_S, host_layer_floor_ms=0.0)
    assert captured == kernels("llama3-8b")
    eager, partly = (kernels("mixtral-8x7b", "moe", captured_modules=x)[0] for x in ((), ("moe_router",)))
    # Router by softmax with its auxiliary loss, norm and sum.
    assert eager - partly == pytest.approx((26 + 2) * (1 - CAPTURED_S / KERNEL_S))


def test_ends_run_as_many_as_their_modules_do() -> None:
    def starts(tp: int = 1, **changes: object) -> list[float]:
        of = with_stack(problem(), **changes)
        sizes = Sizes.single(of, Degrees.single(tensor_parallel=tp))
        ends = end_starts_s(of.model, of.stack, sizes)
        return [float(np.max(seconds)) / KERNEL_S for end in ends for seconds in end]

    # Rows, their order; zeros, sorting, the sum. A norm each way and 27 + 12 kernels of the loss.
    assert starts() == pytest.approx([2, 11, 1 + 27, 2 + 12])
    assert starts(tp=2) == pytest.approx([2 + 6, 11 + 1, 1 + 27, 2 + 12])
    assert starts(fused_cross_entropy=True) == pytest.approx([2, 11, 1 + 13, 2 + 5])
    assert starts(megatron_groups=False) == pytest.approx([2, 11, 1 + 4, 2 + 4])
    captured = starts(host_layer_floor_ms=0.0)
    assert captured == pytest.approx([x * CAPTURED_S / KERNEL_S for x in starts()])


def test_prices_of_ends_hold_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    of = problem()
    found = prices(of)
    monkeypatch.setattr("planner.cost.kernels.work.end_starts_s", lambda *_: ((0.0, 0.0), (0.0, 0.0)))
    without = price(of.model_copy(update={"name": "other"}), Degrees.single())
    for name, kernels_of in (
        ("embedding_forward_s", 2),
        ("embedding_backward_s", 11),
        ("head_forward_s", 28),
        ("head_backward_s", 14),
    ):
        more = getattr(found, name)[0, 0].sum() - getattr(without, name)[0, 0].sum()
        assert more == pytest.approx(kernels_of * KERNEL_S, rel=1e-3), name
