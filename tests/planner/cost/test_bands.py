"""The error that predictions are shown with."""

from __future__ import annotations

from importlib import resources

import yaml

from planner.cost.bands import SCALED_BAND, error_band
from planner.data.load import load_chip, load_model, load_stack
from tests.planner.cost.problems import prices, problem

BANDS = yaml.safe_load((resources.files("planner.instances") / "tables" / "error_bands.yaml").read_text())[
    "bands"
]


def line(chip: str, stack: str, kind: str) -> dict[str, float]:
    """The table's line of a group."""
    (found,) = [b for b in BANDS if (b["chip"], b["stack"], b["kind"]) == (chip, stack, kind)]
    return found  # type: ignore[no-any-return]


def test_a_band_is_that_of_runs_on_the_same_chip_and_software() -> None:
    chip, stack, model = load_chip("h100-sxm-80gb"), load_stack("nemo"), load_model("llama3-8b")
    assert error_band(chip, stack, model) == line("h100-sxm-80gb", "nemo", "dense")["unanchored"]
    experts = load_model("mixtral-8x7b")
    assert error_band(chip, stack, experts) == line("h100-sxm-80gb", "nemo", "moe")["unanchored"]


def test_a_measured_factor_narrows_the_band_to_that_of_anchored_runs() -> None:
    chip, model = load_chip("gb300-288gb"), load_model("llama3-70b")
    stack = load_stack("megatron-bridge").model_copy(update={"time_factor": {"gb300-288gb": 1.05}})
    assert error_band(chip, stack, model) == line("gb300-288gb", "megatron-bridge", "dense")["anchored"]


def test_software_that_nobody_measured_on_a_chip_takes_the_softwares_own_band() -> None:
    chip, stack, model = load_chip("l40s-48gb"), load_stack("megatron-core"), load_model("llama3-8b")
    assert error_band(chip, stack, model) == line("*", "megatron-core", "dense")["unanchored"]


def test_the_widest_class_of_a_mixed_cluster_sets_the_band() -> None:
    alone = prices(problem())
    mixed = prices(problem(cluster="1x8 h100-sxm-80gb, 1x8 mi300x-192gb"))
    assert mixed.error_band == prices(problem(cluster="1x8 mi300x-192gb")).error_band > alone.error_band


def test_bands_are_fractions_and_rest_on_enough_runs() -> None:
    assert all(b["runs"] >= 5 and 0 < b["anchored"] < 1 and 0 < b["unanchored"] < 1 for b in BANDS)


def test_chips_of_other_makers_are_trusted_no_more_than_their_own_runs() -> None:
    software, model = load_stack("megatron-core"), load_model("llama3-8b")
    (others,) = [b for b in BANDS if (b["chip"], b["stack"], b["tables"]) == ("*", "*", "other_maker")]
    for chip in ("mi300x-192gb", "gaudi3-128gb", "tpu-v5p-95gb"):
        assert error_band(load_chip(chip), software, model) == others["unanchored"]
    # One run of experts on all of them together says nothing.
    assert error_band(load_chip("mi300x-192gb"), software, load_model("mixtral-8x7b")) == SCALED_BAND
    assert error_band(load_chip("v100-sxm-32gb"), software, model) < others["unanchored"] < SCALED_BAND
