"""Every shipped instance loads, says where it comes from, and agrees with its sources."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from planner.data.catalog import KINDS, aliases, shipped_values
from planner.data.kinds import schema_line
from planner.data.load import load_chip, load_cluster, load_model, load_problem, load_stack, names
from planner.data.model_spec import ModelSpec

SHARED = Path(__file__).parents[4] / "shared"
FOLDER = Path(__file__).parents[3] / "instances"
outside = pytest.mark.skipif(not SHARED.exists(), reason="the collected sources lie outside the repository")


def test_there_are_enough_of_each_kind():
    for kind, least in {"chips": 60, "models": 41, "clusters": 25, "problems": 14, "stacks": 1}.items():
        assert len(names(kind)) >= least, kind


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_named_after_their_ids_and_start_with_their_schema(kind):
    for name in names(kind):
        values = shipped_values(kind, name)
        assert values["schema"] == schema_line(kind[:-1]), name
        assert values.get("id", values.get("name")) == name


def test_every_chip_says_where_its_figures_come_from():
    for name in names("chips"):
        chip = load_chip(name)
        assert len(chip.source) > 10, name
        assert chip.bf16_tflop_per_s or chip.fp16_tflop_per_s, name


def test_no_two_chips_share_a_name():
    spellings = [n.lower() for c in names("chips") for n in (c, *load_chip(c).aliases)]
    assert [n for n, count in Counter(spellings).items() if count > 1] == []


def test_aliases_lead_to_their_instances_whatever_the_case():
    assert load_chip("H100").id == load_chip("h100-80").id == "h100-sxm-80gb"
    assert load_chip("MI250X-GCD").id == "mi250x-gcd-64gb"
    assert load_model("llama3-405b").id == "llama3.1-405b"
    for kind in ("chips", "models"):
        assert set(aliases(kind).values()) <= set(names(kind))
        assert not set(aliases(kind)) & set(names(kind))


def test_usable_memory_is_what_the_driver_reports_where_known():
    # Measured: 85,017,493,504 bytes of an H100 SXM, 150,109,880,320 of an H200; below the nominal.
    assert abs(load_chip("h100-sxm-80gb").memory_bytes - 85_017_493_504) < 2**20
    assert abs(load_chip("h200-sxm-141gb").memory_bytes - 150_109_880_320) < 2**20
    assert load_chip("a100-sxm-80gb").memory_bytes == 80 * 2**30


DEVICE_NAMES = {
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H100 NVL": "h100-nvl-94gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA H20": "h20-96gb",
    "NVIDIA H800": "h800-80gb",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A800-SXM4-80GB": "a800-80gb",
    "NVIDIA B200": "b200-180gb",
    "NVIDIA GB200": "gb200-186gb",
    "NVIDIA GB300": "gb300-288gb",
    "Tesla V100-SXM2-16GB": "v100-sxm-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm-32gb",
    "Tesla V100S-PCIE-32GB": "v100s-32gb",
    "Tesla T4": "t4-16gb",
    "NVIDIA A10": "a10-24gb",
    "NVIDIA A40": "a40-48gb",
    "NVIDIA L40": "l40-48gb",
    "NVIDIA L40S": "l40s-48gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090-24gb",
    "NVIDIA GeForce RTX 3080 Ti": "rtx-3080ti-12gb",
    "NVIDIA TITAN RTX": "titan-rtx-24gb",
}


@pytest.mark.parametrize("device", DEVICE_NAMES)
def test_device_name_matches_one_chip_only(device):
    # B200 must not match GB200, nor L40 L40S, nor H20 H200: the preflight check would let them pass.
    patterns = {c: load_chip(c).device_name_pattern for c in names("chips")}
    assert [c for c, p in patterns.items() if p and re.search(p, device)] == [DEVICE_NAMES[device]]


def test_device_patterns_are_plain_enough_for_grep():
    # Start scripts use grep -E, which knows no look-around and no \d.
    for name in names("chips"):
        assert not re.search(r"\(\?|\\[a-zA-Z]", load_chip(name).device_name_pattern or "")


def test_every_cluster_names_known_chips_and_its_source():
    for name in names("clusters"):
        cluster = load_cluster(name)
        assert cluster.source, name
        for node_class in cluster.classes:
            assert load_chip(node_class.chip).id == node_class.chip


def test_every_problem_loads():
    sizes = {name: load_problem(name).cluster.num_chips for name in names("problems")}
    assert min(sizes.values()) == 8
    assert max(sizes.values()) == 10_240
    assert all(load_problem(name).target == "megatron-lm" for name in sizes)


def test_the_problem_of_the_readme_is_as_described():
    problem = load_problem("llama3-70b-h100-a100-128")
    described = [
        (c.chip, c.num_nodes, c.chips_per_node, c.nics_per_node, c.nic_gbit_per_s)
        for c in problem.cluster.classes
    ]
    assert described == [("h100-sxm-80gb", 8, 8, 8, 400), ("a100-sxm-80gb", 8, 8, 8, 200)]
    workload = problem.workload
    assert (workload.seq_length, workload.global_batch_size, workload.precision) == (8192, 512, "bf16")
    assert problem.stack.id == "megatron-core"


def test_every_stack_loads():
    for name in names("stacks"):
        assert load_stack(name).id == name


def test_every_number_of_a_chip_says_what_it_rests_on():
    for path in (FOLDER / "chips").glob("*.yaml"):
        for line in path.read_text().splitlines():
            if re.match(r"(memory|bf16|fp16|fp8|intra_node_bandwidth)\S*: [0-9]", line):
                assert "# " in line, f"{path.name}: {line}"


@outside
def test_chips_agree_with_the_collected_datasheets():
    table = (SHARED / "calibration" / "chips.csv").read_text().splitlines()
    rows = {row["chip"]: row for row in csv.DictReader(table)}
    for entry in csv.DictReader((SHARED / "chip_ids.csv").read_text().splitlines()):
        chip = load_chip(entry["id"])
        if not entry["chips_csv"]:
            assert chip.confidence == "guess"
            continue
        row = rows[entry["chips_csv"]]
        assert load_chip(entry["chips_csv"]) == chip
        for field, column in {
            "memory_gib": "memory_gib",
            "bf16_tflop_per_s": "bf16_dense_tflops",
            "fp16_tflop_per_s": "fp16_dense_tflops",
            "fp8_tflop_per_s": "fp8_dense_tflops",
            "memory_bandwidth_gb_per_s": "hbm_gbs",
            "intra_node_bandwidth_gb_per_s": "intra_node_link_gbs",
        }.items():
            assert getattr(chip, field) == (float(row[column]) if row[column] else None), (chip.id, field)


@outside
def test_models_agree_with_the_collected_shapes():
    for shape in yaml.safe_load((SHARED / "instances_raw" / "models.yaml").read_text())["models"]:
        model = load_model(shape["id"])
        assert (model.num_layers, model.hidden_size) == (shape["layers"], shape["hidden"])
        assert model.published_params == shape["params"]["published"]


def test_a_dense_block_without_width_is_refused() -> None:
    """It once passed, and its products of no width were taken the logarithm of."""
    model = load_model("llama3-8b").model_dump() | {"ffn_hidden_size": 0}
    with pytest.raises(ValueError, match="ffn_hidden_size is 0, but some layers have a feed-forward block"):
        ModelSpec(**model)
