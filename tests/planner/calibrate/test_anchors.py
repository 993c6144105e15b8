"""Factors from other runs, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.calibrate.anchors import NEAREST_RUNS, Anchorable, leave_one_out
from planner.calibrate.stacks import release_year


def anchorable(
    ratio: float,
    layout: str,
    chips: tuple[str, ...] = ("h100",),
    stack: str = "nemo",
    vendors: tuple[str, ...] = ("NVIDIA",),
    kind: str = "dense",
    launch_bound: bool = False,
) -> Anchorable:
    return Anchorable(chips, vendors, stack, layout, ratio, kind, launch_bound)


def test_factor_is_the_median_of_others_with_another_layout() -> None:
    runs = [
        anchorable(9.0, "a"),
        anchorable(8.0, "a"),
        anchorable(1.0, "b"),
        anchorable(1.2, "c"),
        anchorable(1.6, "d"),
    ]
    # Of layout a: median(1.0, 1.2, 1.6); the other run of layout a (8.0) never helps.
    (anchor,) = leave_one_out(runs)[0]
    assert anchor is not None
    assert (anchor.factor, anchor.basis, anchor.num_runs) == (1.2, "chip and stack, of this kind and pace", 3)


def test_own_time_never_changes_the_own_factor() -> None:
    for own in (0.5, 50.0):
        runs = [anchorable(own, "a"), anchorable(1.1, "b"), anchorable(1.3, "c")]
        (anchor,) = leave_one_out(runs)[0]
        assert anchor is not None and abs(anchor.factor - 1.2) < 1e-12


def test_uniform_run_falls_back_to_stack_then_vendor_then_nothing() -> None:
    runs = [
        anchorable(1.0, "a", chips=("b200",)),
        anchorable(1.1, "b"),
        anchorable(1.2, "c", chips=("a100",), stack="other"),
        anchorable(1.3, "d", chips=("mi300x",), stack="rocm", vendors=("AMD",)),
    ]
    by_stack, _, by_vendor, alone = leave_one_out(runs)
    assert by_stack[0] is not None and (by_stack[0].factor, by_stack[0].basis) == (1.1, "stack, of this kind")
    assert by_vendor[0] is not None and by_vendor[0].basis == "vendor"
    assert abs(by_vendor[0].factor - 1.05) < 1e-12  # median of 1.0 and 1.1
    assert alone == (None,)


def test_experts_anchor_a_dense_run_only_where_nothing_dense_was_measured_with_its_stack() -> None:
    runs = [
        anchorable(1.0, "a"),
        anchorable(2.0, "b", kind="moe"),
        anchorable(1.1, "c", chips=("b200",)),
        anchorable(3.0, "d", stack="other", kind="moe"),
        anchorable(1.0, "e", stack="other"),
    ]
    dense, moe, other_chip, _, lonely = leave_one_out(runs)
    # A dense run on another chip is nearer than an expert run on the same one.
    assert dense[0] is not None and (dense[0].factor, dense[0].basis) == (1.1, "stack, of this kind")
    assert moe[0] is not None and (moe[0].factor, moe[0].basis) == (1.0, "chip and stack")
    assert other_chip[0] is not None and other_chip[0].factor == 1.0
    assert lonely[0] is not None and (lonely[0].factor, lonely[0].basis) == (3.0, "chip and stack")


def test_two_runs_give_way_to_more_of_the_same_software_on_other_chips_but_to_nothing_farther() -> None:
    runs = [
        anchorable(2.0, "a"),
        anchorable(2.0, "b"),
        anchorable(1.0, "c", chips=("b200",)),
        anchorable(1.0, "d", chips=("b200",)),
        anchorable(1.0, "e", chips=("b200",)),
        anchorable(3.0, "f", stack="other"),
        anchorable(4.0, "g", stack="other"),
    ]
    first, *_, lonely = leave_one_out(runs)
    # One other run on its chip (2.0) is too few; the stack has 2.0 and three times 1.0.
    assert first[0] is not None and (first[0].factor, first[0].num_runs) == (1.0, 4)
    # One run of the same stack is few, but nearer than all of the vendor's.
    assert lonely[0] is not None and (lonely[0].factor, lonely[0].num_runs) == (3.0, 1)


def test_runs_that_wait_for_launches_anchor_each_other() -> None:
    runs = [anchorable(0.8, f"small {i}", launch_bound=True) for i in range(4)]
    runs += [anchorable(1.2, f"large {i}") for i in range(5)]
    anchors = leave_one_out(runs)
    assert [a.factor for (a,) in anchors if a is not None] == [0.8] * 4 + [1.2] * 5


def test_of_many_runs_the_most_alike_count() -> None:
    near = [replace(anchorable(1.0, f"near {i}"), place=(float(i), 0.0)) for i in range(NEAREST_RUNS + 1)]
    far = [replace(anchorable(9.0, f"far {i}"), place=(0.0, 1000.0 + i)) for i in range(3 * NEAREST_RUNS)]
    anchors = leave_one_out(near + far)
    first, last = anchors[0][0], anchors[-1][0]
    # Three of four others are far, and would set the median.
    assert first is not None and (first.factor, first.num_runs) == (1.0, NEAREST_RUNS)
    assert last is not None and last.factor == 9.0


def test_an_unknown_coordinate_sets_nobody_apart() -> None:
    unknown = [
        replace(anchorable(1.0, f"unknown {i}"), place=(0.0, math.nan)) for i in range(NEAREST_RUNS + 1)
    ]
    far = [replace(anchorable(9.0, f"far {i}"), place=(5.0, 24.0)) for i in range(2 * NEAREST_RUNS)]
    known = replace(anchorable(2.0, "known"), place=(0.0, 24.0))
    anchors = leave_one_out([known, *unknown, *far])
    assert anchors[0][0] is not None and anchors[0][0].factor == 1.0
    assert anchors[1][0] is not None and anchors[1][0].factor == 1.0


@pytest.mark.parametrize(
    ("software", "year"),
    [
        ("NeMo (dgxc-benchmarking v24.11.1)", 24 + 10 / 12),
        ("Megatron-Bridge / NeMo container 26.02.01", 26 + 1 / 12),
        ("torchtitan 2025-06", 25 + 5 / 12),
        ("NeMo 24.07+vboost", 24.5),
    ],
)
def test_release_is_read_from_the_words_for_software(software: str, year: float) -> None:
    assert release_year(software) == pytest.approx(year)


@pytest.mark.parametrize("software", ["Megatron-LM", "Megatron-Core 0.6.0", "TE 2.11, torch 2.10, CUDA 13.1"])
def test_software_without_a_release_has_no_year(software: str) -> None:
    assert math.isnan(release_year(software))


def test_mixed_run_takes_each_chips_own_factor_and_anchors_none() -> None:
    mixed = anchorable(5.0, "m", chips=("v100", "t4"), stack="amp", vendors=("NVIDIA", "NVIDIA"))
    runs = [
        mixed,
        anchorable(1.1, "a", chips=("v100",), stack="megatron"),
        anchorable(1.4, "b", chips=("t4",), stack="amp"),
        anchorable(2.0, "c", chips=("a100",), stack="amp"),
    ]
    volta, turing = leave_one_out(runs)[0]
    assert volta is not None and (volta.factor, volta.basis) == (1.1, "chip")
    assert turing is not None and (turing.factor, turing.basis) == (1.4, "chip and stack, of this kind")
    (t4,) = leave_one_out(runs)[2]
    assert t4 is not None and t4.factor == 2.0  # the mixed run's 5.0 is no anchor
