"""Batch arithmetic, number formats, tensor-parallel groups in nodes: a legal and an illegal case a rule."""

from __future__ import annotations

import pytest

from planner.data.chip import Chip, Precision
from planner.data.load import load_chip
from planner.data.precision import chip_supports
from planner.data.workload import Workload
from planner.rules import batch, chips


def workload(global_batch_size: int) -> Workload:
    return Workload(seq_length=4096, global_batch_size=global_batch_size)


def test_batch_is_whole_microbatches_of_every_replica() -> None:
    assert batch.batch_divides(workload(252), 2, 7) is None
    message = batch.batch_divides(workload(256), 2, 7)
    assert message == (
        "global_batch_size 256: is no multiple of microbatch_size 2 x data_parallel 7 = 14; "
        "nearest legal: 252 or 266"
    )
    assert str(batch.batch_divides(workload(63), 1, 64)).endswith("nearest legal: 64")


def test_microbatch_count_follows_from_the_batch() -> None:
    assert batch.microbatches(workload(512), 2, 16) == 16
    assert batch.microbatches(workload(512), 3, 16) is None
    assert batch.microbatch_count_agrees(workload(512), 2, 16, 16) is None
    assert str(batch.microbatch_count_agrees(workload(512), 2, 16, 8)).endswith("is 16; write 16")
    # A batch that does not divide is the other rule's business.
    assert batch.microbatch_count_agrees(workload(512), 3, 16, 8) is None


def chip(**changes: object) -> Chip:
    fields: dict[str, object] = {
        "id": "c",
        "name": "C",
        "vendor": "nvidia",
        "backend": "cuda",
        "memory_gib": 80,
        "bf16_tflop_per_s": 300,
        "fp16_tflop_per_s": 300,
        "memory_bandwidth_gb_per_s": 2000,
        "intra_node_bandwidth_gb_per_s": 300,
        "chips_per_node": 8,
        "compute_capability": 8.0,
        "confidence": "guess",
        "source": "made up for the test",
        **changes,
    }
    return Chip.model_validate(fields)


A100 = chip()
V100 = chip(id="v100", bf16_tflop_per_s=None, compute_capability=7.0)
V100_LISTED_WITH_BF16 = chip(id="v100", bf16_tflop_per_s=125, compute_capability=7.0)
H100 = chip(id="h100", fp8_tflop_per_s=1979, compute_capability=9.0)
L40S = chip(id="l40s", fp8_tflop_per_s=733, compute_capability=8.9)
B200 = chip(id="b200", fp8_tflop_per_s=4500, compute_capability=10.0)
MI300X = chip(id="mi300x", backend="rocm", fp8_tflop_per_s=2615, compute_capability=None)
ASCEND = chip(id="910b", backend="ascend", compute_capability=None)


@pytest.mark.parametrize(
    ("which", "precision", "supported"),
    [
        (A100, "bf16", True),
        (V100, "bf16", False),
        (V100_LISTED_WITH_BF16, "bf16", False),
        (V100, "fp16", True),
        (ASCEND, "bf16", True),
        (A100, "fp8", False),
        (L40S, "fp8", True),
        (L40S, "fp8_block", False),
        (H100, "fp8_block", True),
        (H100, "mxfp8", False),
        (H100, "nvfp4", False),
        (B200, "mxfp8", True),
        (B200, "nvfp4", True),
        (MI300X, "fp8", True),
        (MI300X, "fp8_block", False),
    ],
)
def test_number_formats_need_a_peak_and_a_new_enough_chip(
    which: Chip, precision: Precision, supported: bool
) -> None:
    assert chips.chip_supports(which, precision) == supported
    assert (chips.precision_runs(which, precision) is None) == supported


def test_a_chip_without_the_format_is_told_what_it_has() -> None:
    assert chips.precision_runs(V100, "bf16") == (
        "precision bf16: chip v100 (compute capability 7.0) does not have it; it has fp16; "
        "change the precision or leave the chip out"
    )


def test_tensor_groups_fill_nodes_without_a_rest() -> None:
    assert chips.tp_fits_node(4, 8)
    assert not chips.tp_fits_node(16, 8)
    assert not chips.tp_fits_node(4, 6)
    assert chips.tensor_group_stays_in_node(8, 8, "a") is None
    assert "a node of class a has 6 chips" in str(chips.tensor_group_stays_in_node(4, 6, "a"))


@pytest.mark.parametrize(
    ("chip", "has_it"),
    [
        ("mi300x-192gb", False),
        ("mi355x-288gb", True),
        ("gaudi3-128gb", False),
        ("b200-180gb", True),
        ("h100-sxm-80gb", False),
    ],
)
def test_formats_with_scales_of_blocks_run_where_the_chip_has_them(chip: str, has_it: bool) -> None:
    # Any chip with 8 bits that is not on CUDA passed for one, so that MI300X was planned with MXFP8.
    assert chip_supports(load_chip(chip), "mxfp8") == has_it
    assert chip_supports(load_chip(chip), "fp8")
