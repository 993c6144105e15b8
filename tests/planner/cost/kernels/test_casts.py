"""Casts of operands to fewer bits, counted by hand on products of two ranks that split the sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.communication.networks import network_of
from planner.cost.kernels.casts import MXFP8_CAST_BYTES, NVFP4_CAST_BYTES, cast_bytes
from planner.cost.kernels.operators import Matmul
from planner.cost.kernels.products import Products
from planner.cost.kernels.starts import KERNEL_S
from planner.data.chip import Precision
from planner.data.load import load_stack
from tests.planner.cost.problems import problem

ROWS, OWN = 16.0, 8.0
"""Tokens, of which each of two ranks has half before they are gathered."""

COLUMN = Matmul("fc1", ROWS, 4.0, 6.0, 1.0, "column", after_norm=True, own_rows=OWN)
ROW = Matmul("fc2", ROWS, 6.0, 2.0, 1.0, "row", own_rows=OWN)


def moved(
    matmul: Matmul, precision: Precision = "fp8", *, current: bool = False, turned: bool = True
) -> list[float]:
    """Bytes of forward, dgrad and wgrad."""
    stack = load_stack("megatron-core").model_copy(update={"current_scaling": current})
    return list(cast_bytes(Products([matmul]), precision, stack, turned=turned).ravel())


def test_the_norm_writes_the_input_of_a_column_which_is_turned_once_gathered() -> None:
    # Gradient of 16 rows and 4 columns: read 2, write 1, turned 1. Input of 16 by 6, read and written narrow.
    assert moved(COLUMN) == [0.0, 4.0 * ROWS * 4, 2.0 * ROWS * 6]


def test_a_row_casts_its_whole_input_but_only_its_own_rows_of_the_gradient() -> None:
    assert moved(ROW) == [4.0 * ROWS * 2, (3.0 * OWN + 2.0 * ROWS) * 6, 0.0]


def test_chips_that_read_either_dimension_turn_nothing() -> None:
    assert moved(COLUMN, turned=False) == [0.0, 3.0 * ROWS * 4, 0.0]
    assert moved(ROW, turned=False) == [3.0 * ROWS * 2, 3.0 * OWN * 6, 0.0]


def test_scales_of_the_tensor_itself_take_a_read_more_and_keep_norms_wide() -> None:
    more = np.array(moved(COLUMN, current=True)) - moved(COLUMN)
    np.testing.assert_allclose(more, [(2 + 3) * OWN * 6, 2 * ROWS * 4, 0])
    np.testing.assert_allclose(
        np.array(moved(ROW, current=True)) - moved(ROW), [2 * ROWS * 2, 2 * OWN * 6, 0]
    )


def test_without_gathering_cast_and_turn_are_one_kernel() -> None:
    alone = Matmul("fc2", ROWS, 6.0, 2.0, 1.0, "row")
    assert moved(alone) == [4.0 * ROWS * 2, 4.0 * ROWS * 6, 0.0]


@pytest.mark.parametrize(
    ("precision", "bytes_a_value"), [("mxfp8", MXFP8_CAST_BYTES), ("nvfp4", NVFP4_CAST_BYTES)]
)
def test_scales_of_blocks_are_written_along_both_dimensions_before_gathering(
    precision: Precision, bytes_a_value: float
) -> None:
    # The norm before a column writes 16 bits: its own rows are cast as all others are.
    inputs, gradients = bytes_a_value * OWN * 6, bytes_a_value * ROWS * 4
    assert moved(COLUMN, precision) == pytest.approx([inputs, gradients, 0.0])
    assert moved(ROW, precision) == pytest.approx([bytes_a_value * ROWS * 2, bytes_a_value * OWN * 6, 0.0])


def test_a_cast_to_mxfp8_takes_what_transformer_engine_was_measured_to_take() -> None:
    # 8,192 x 8,192 values on B200: 52.34 us, and then scales are put in the order that products want.
    rate = network_of(problem(cluster="1x8 b200-180gb"), 0).relative.memory_bytes_per_s
    took = (MXFP8_CAST_BYTES - 4 / 32) * 8192 * 8192 / rate + KERNEL_S
    assert took == pytest.approx(52.34e-6, rel=0.01)


def test_casts_to_nvfp4_take_what_transformer_engine_was_measured_to_take() -> None:
    # B300: twelve products of one layer, both operands cast before each, took 2.69 ms more than with operands
    # already cast: of activations at most all, of weights, which nothing transforms, at least 3 in 10.
    rate = network_of(problem(cluster="1x8 b300-288gb"), 0).relative.memory_bytes_per_s
    maps = ((4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096))
    tokens, weights = sum(2 * 15872 * (k + n) for k, n in maps), sum(2 * k * n for k, n in maps)
    share = 5.375 / 7.375
    # Of each operand the largest value is found, rows and columns are cast, and scales put in order.
    took = NVFP4_CAST_BYTES * (tokens + share * weights) / rate + 2 * 12 * 4 * KERNEL_S
    assert took == pytest.approx(2.69e-3, rel=0.01)


def test_products_of_activations_are_not_cast() -> None:
    assert moved(Matmul("scores", ROWS, 4.0, 6.0, 1.0, has_weight=False)) == [0.0, 0.0, 0.0]


def test_a_product_that_reads_what_another_read_casts_its_weight_and_gradient_alone() -> None:
    again = replace(COLUMN, input_again=True)
    for of in (COLUMN, again):
        assert moved(of, current=True)[1] == 6.0 * ROWS * 4
    assert moved(again, current=True) == [0.0, 6.0 * ROWS * 4, 0.0]
    assert moved(again, "fp8_block") == [0.0, 4.0 * ROWS * 4, 0.0]


def test_scales_by_rows_cast_both_ways_and_scale_what_gradients_products_wrote() -> None:
    stack = load_stack("torchtitan").model_copy(update={"row_scales": True})
    inputs, weights, gradients = ROWS * 6, 6.0 * 4, ROWS * 4
    once, again = (
        cast_bytes(Products([x]), "fp8", stack, turned=True).ravel()
        for x in (COLUMN, replace(COLUMN, input_again=True))
    )
    np.testing.assert_allclose(
        once,
        [
            5 * (inputs + weights),
            5 * gradients + 7 * weights + 4 * inputs,
            7 * (gradients + inputs) + 4 * weights,
        ],
    )
    np.testing.assert_allclose(once - again, [5 * inputs, 0, 7 * inputs])
