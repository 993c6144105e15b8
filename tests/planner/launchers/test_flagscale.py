"""FlagScale's heterogeneous mode: meshes, ranks and micro-batches of exported plans, and its own refusals."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import api
from planner.data.load import load_model, names
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers.directory import export_plan, files_of
from planner.launchers.flagscale_files import leaves_of, words_of
from planner.launchers.megatron.model import builds, inexpressible
from planner.launchers.placement import place_hosts, stage_of_rank
from planner.launchers.read.flagscale import read_flagscale
from planner.rules.flagscale import hetero_config
from planner.rules.flagscale_config import (
    HeteroConfig,
    config_violations,
    logical_ranks,
)
from planner.rules.megatron import violations
from planner.rules.meshes import microbatch_size_of
from tests.megatron_check.settings import expected_settings
from tests.planner.launchers import plans, real_megatron


def with_stages(plan: Plan, changes: dict[int, dict[str, Any]], **others: Any) -> Plan:
    """The plan for FlagScale with some stages changed."""
    stages = tuple(stage.model_copy(update=changes.get(s, {})) for s, stage in enumerate(plan.stages))
    return plan.model_copy(update={"stages": stages, "target": "flagscale", **others})


def degrees_by_stage() -> tuple[Problem, Plan]:
    """Tensor 8 and data 4 on H100, tensor 4 and data 8 on A100, with recomputation on two stages."""
    problem, plan = plans.mixed_128()
    slow = {"tensor_parallel": 4, "data_parallel": 8}
    changed = with_stages(plan, {2: {**slow, "recompute": "none"}, 3: slow}, microbatch_size=2)
    workload = problem.workload.model_copy(update={"global_batch_size": 32})
    return problem.model_copy(update={"workload": workload}), changed


def test_each_stage_is_a_mesh_with_a_device_type_of_its_own() -> None:
    problem, plan = degrees_by_stage()
    assert violations(problem, plan) == ()
    files = files_of(problem, plan, "flagscale")
    system = yaml.safe_load(files["train/hetero.yaml"])["system"]
    assert system["pipeline_model_parallel_size"] == 4
    assert system["hetero"]["hetero_process_meshes"] == [8, 1, 1, 4, 1] * 2 + [4, 1, 1, 8, 1] * 2
    assert system["hetero"]["hetero_pipeline_layer_split"] == [26, 28, 13, 13]
    types = system["hetero"]["hetero_device_types"]
    assert types == ["h100-sxm-80gb_0", "h100-sxm-80gb_1", "a100-sxm-80gb_2", "a100-sxm-80gb_3"]
    assert [microbatch_size_of(plan, stage) for stage in plan.stages] == [2, 2, 1, 1]


def test_recomputation_by_stage_covers_all_micro_batches() -> None:
    problem, plan = degrees_by_stage()
    tree = yaml.safe_load(files_of(problem, plan, "flagscale")["train/hetero.yaml"])
    recompute = tree["system"]["recompute"]
    assert recompute["recompute_granularity"] == "full"
    assert recompute["recompute_granularity_per_stage_micro_batch"] == [
        "[1,4,1]", "[1,4,0]", "[1,4,0]", "[1,4,1]",
    ]  # fmt: skip
    assert recompute["recompute_num_layers_per_stage_micro_batch"] == [
        "[1,4,4]", "[1,4,0]", "[1,4,0]", "[1,4,13]",
    ]  # fmt: skip


def stage_of_logical_rank(config: HeteroConfig, rank: int) -> int:
    """Stage that a logical rank runs: meshes take them one after the other, stages outermost in each."""
    stage = 0
    for tp, cp, _, dp, pp in config.meshes:
        if rank < tp * cp * dp * pp:
            return stage + rank // (tp * cp * dp)
        rank -= tp * cp * dp * pp
        stage += pp
    raise IndexError(rank)


@pytest.mark.parametrize("case", [degrees_by_stage, plans.stages_share_a_host])
def test_sorting_by_type_puts_every_rank_on_the_chips_of_its_stage(case: Any) -> None:
    # Read the hostfile as the runner does, sort ranks as RankMapper does, cut them into meshes.
    problem, plan = case()
    plan = with_stages(plan, {2: {"recompute": "none"}})
    lines = files_of(problem, plan, "flagscale")["hostfile"].splitlines()
    chips, kinds = [], []
    for line, place in zip(lines, place_hosts(problem, plan), strict=True):
        host, slots, kind = line.split()
        assert host == place.name
        count = int(slots.removeprefix("slots="))
        chips += [place.chip] * count
        kinds += [kind.removeprefix("type=")] * count
    config = hetero_config(problem, plan)
    for physical, logical in enumerate(logical_ranks(tuple(kinds), config.device_types)):
        stage = stage_of_logical_rank(config, logical)
        assert chips[physical] == plan.stages[stage].chip
        assert stage == stage_of_rank(plan, physical)


def test_a_type_named_twice_would_gather_its_ranks_in_front() -> None:
    # Meshes A, B, A on one rank each: FlagScale sorts the last rank before the second.
    assert logical_ranks(("A", "B", "A"), ("A", "B", "A")) == (0, 2, 1)
    assert logical_ranks(("A_0", "B_1", "A_2"), ("A_0", "B_1", "A_2")) == (0, 1, 2)


SOUND = HeteroConfig(
    process_meshes=(2, 1, 1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 1, 2, 1),
    layer_split=(6, 2, 4),
    device_types=("A_0", "A_1", "B_2"),
    num_layers=12,
    pipeline_parallel=3,
    microbatch_size=1,
    global_batch_size=32,
    world_size=12,
)


def test_a_mesh_of_several_stages_and_replicas_is_refused_for_its_wrong_groups() -> None:
    # The faulty case: FlagScale 16a2dd5 groups the ranks 0, 4, 10 of these two meshes into a pipeline.
    faulty = dataclasses.replace(
        SOUND, process_meshes=(2, 1, 1, 2, 2, 2, 1, 1, 2, 1), device_types=("A", "B")
    )
    assert config_violations(SOUND) == ()
    assert config_violations(faulty) == (
        "mesh 0: has 2 stages and data parallel 2, for which FlagScale forms wrong pipeline groups; "
        "write one mesh a stage",
    )
    one_replica = dataclasses.replace(
        faulty, process_meshes=(2, 1, 1, 1, 2, 4, 1, 1, 2, 1), world_size=12, microbatch_size=2
    )
    assert config_violations(one_replica) == ()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"process_meshes": (2, 1, 1, 2)}, "each mesh takes 5"),
    ({"pipeline_parallel": 4}, "its meshes have 3 stages"),
    ({"layer_split": (6, 6)}, "2 entries for 3 stages"),
    ({"layer_split": (6, 2, 3)}, "adds up to 11 layers, the model has 12"),
    ({"device_types": ("A", "B")}, "2 names for 3 meshes"),
    ({"device_types": ("A", "B", "A")}, "names A more than once"),
    ({"world_size": 16}, "needs 12 ranks, 16 are started"),
    ({"process_meshes": (2, 2, 1, 1, 1) * 3}, "context parallel 2"),
    ({"process_meshes": (2, 1, 2, 2, 1, 2, 1, 1, 2, 1, 2, 1, 1, 2, 1)}, "expert parallel is 1 on some"),
    ({"virtual_stages": 2}, "virtual_stages 2"),
    ({"process_meshes": (2, 1, 1, 2, 1, 1, 1, 1, 4, 1, 2, 1, 1, 2, 1)}, "data parallel 4 does not divide"),
    ({"global_batch_size": 31}, "is no multiple of the 2 sequences"),
    ({"expert_tensor_parallel": (1, 1)}, "has 2 entries for 3 meshes"),
    ({"recompute_lists": (("num_layers", ((3, 16, 1),)),)}, "needs recompute_granularity full"),
    (
        {
            "recompute_lists": (("granularity", ((2, 16, 1),)),),
            "recompute_granularity": "full",
            "recompute_method": "block",
        },
        "covers 2 stages of 3",
    ),
    (
        {
            "recompute_lists": (("granularity", ((3, 15, 1),)),),
            "recompute_granularity": "full",
            "recompute_method": "block",
        },
        "covers 15 micro-batches, a step has 16",
    ),
    (
        {
            "recompute_lists": (("method", ((3, 16, 2),)),),
            "recompute_granularity": "full",
            "recompute_method": "block",
        },
        "neither 0 nor 1",
    ),
    (
        {"tied_or_predicting": True, "process_meshes": (2, 1, 1, 2, 1) * 2 + (1, 1, 1, 4, 1)},
        "of the first mesh is 2, of the last 1",
    ),
    (
        {
            "tied_or_predicting": True,
            "process_meshes": (2, 1, 1, 2, 1) * 2 + (2, 1, 1, 3, 1),
            "microbatch_size": 3,
            "global_batch_size": 96,
            "world_size": 14,
        },
        "one must divide the other",
    ),
    (
        {
            "tied_or_predicting": True,
            "partial_reduce": False,
            "process_meshes": (2, 1, 1, 2, 1) * 2 + (2, 1, 1, 1, 1),
            "world_size": 10,
        },
        "must be on where the two differ",
    ),
]


@pytest.mark.parametrize(("changes", "complaint"), WRONG)
def test_what_flagscale_refuses_is_refused_with_a_sentence(changes: dict[str, Any], complaint: str) -> None:
    assert any(complaint in said for said in config_violations(dataclasses.replace(SOUND, **changes)))


@pytest.mark.parametrize(
    ("changes", "others", "complaint"),
    [
        ({2: {"recompute": "selective"}}, {}, "FlagScale has selective for all stages or none"),
        ({}, {"context_parallel": 2}, "target flagscale has none"),
        ({0: {"tensor_parallel": 4}}, {}, "counts from the first mesh, so write 4"),
        ({3: {"data_parallel": 3}}, {}, "data parallel 3 does not divide"),
        ({}, {"sequence_parallel": False}, "switch sequence_parallel on"),
    ],
)
def test_a_plan_that_flagscale_cannot_run_is_refused(
    changes: dict[int, dict[str, Any]], others: dict[str, Any], complaint: str
) -> None:
    problem, plan = degrees_by_stage()
    with pytest.raises(PlanRefusedError, match=complaint):
        files_of(problem, with_stages(plan, changes, **others), "flagscale")


def test_degrees_by_stage_are_priced_and_written() -> None:
    problem, plan = degrees_by_stage()
    assert any("stage 0" in said for said in api.predict(problem, plan).violations)  # too full
    lighter = {s: {"recompute": "full", "recompute_layers": n} for s, n in enumerate((26, 28))}
    plan = with_stages(plan, lighter)
    assert api.predict(problem, plan).violations == ()
    assert "Expected" in api.export_texts(plan, "flagscale", problem=problem)["README.md"]


def test_start_script_stops_when_the_files_no_longer_add_up(tmp_path: Path) -> None:
    out = export_plan(*degrees_by_stage(), "flagscale", tmp_path / "launch")
    assert [p.name for p in out.glob("*.sh")] == ["launch.sh"]
    check = [sys.executable, str(out / "lib" / "check_config.py"), str(out)]
    assert subprocess.run(check, check=False).returncode == 0
    for file, old, new, complaint in [
        ("train/hetero.yaml", "[26, 28, 13, 13]", "[26, 28, 13, 12]", "places 79 layers"),
        ("hostfile", "node015 slots=8", "node015 slots=4", "starts 124 processes"),
    ]:
        text = (out / file).read_text()
        assert old in text
        (out / file).write_text(text.replace(old, new))
        done = subprocess.run(
            ["bash", str(out / "launch.sh")],
            env=os.environ | {"PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        (out / file).write_text(text)
        assert done.returncode == 1
        assert complaint in done.stderr


def test_the_ranks_meet_on_the_first_host_that_is_listed(tmp_path: Path) -> None:
    out = export_plan(*degrees_by_stage(), "flagscale", tmp_path / "launch")
    hosts = out / "hostfile"
    hosts.write_text(hosts.read_text().replace("node000", "gpu07"))
    (tmp_path / "run.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    for given, expected in (({}, "gpu07"), ({"MASTER_ADDR": "10.0.0.1"}, "10.0.0.1")):
        clean = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
        done = subprocess.run(
            ["bash", str(out / "launch.sh")],
            env=clean | {"PYTHON": sys.executable, "FLAGSCALE_PATH": str(tmp_path)} | given,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"experiment.runner.master_addr={expected} " in done.stdout


SPOILT_YAML = [
    ("experiment: 3\n", "cannot be read"),
    ("experiment: {}\ndefaults: 7\n", "cannot be read"),
    ("system: [1\n", "cannot be read: while parsing a flow sequence"),
    ("enable_hetero: true\nhetero_process_meshes: x\n", "hetero_process_meshes: needs a list, got 'x'"),
    ("hetero_process_meshes: [2, 1, 1, 0, 1]\n", "needs a list of whole numbers above 0"),
    ("hetero_device_types: 3\n", "hetero_device_types: needs a list, got 3"),
    ("expert_tensor_parallel_size_per_process_mesh: [x]\n", "needs a list of whole numbers above 0"),
    ("recompute_method_per_stage_micro_batch: 3\n", "needs a list, got 3"),
    ("recompute_method_per_stage_micro_batch: ['[1,']\n", "needs stages, then micro-batches and a value"),
]
"""Configurations that once ended in a TypeError or several lines of the YAML reader's."""


@pytest.mark.parametrize(("text", "complaint"), SPOILT_YAML)
def test_a_configuration_that_makes_no_sense_is_refused_in_one_line(
    text: str, complaint: str, tmp_path: Path
) -> None:
    sound = {
        "enable_hetero": "true",
        "hetero_process_meshes": "[2, 1, 1, 4, 1]",
        "hetero_pipeline_layer_split": "[32]",
        "hetero_device_types": "[A]",
        "num_layers": "32",
        "micro_batch_size": "1",
        "global_batch_size": "64",
    }
    rest = "".join(f"{key}: {value}\n" for key, value in sound.items() if f"{key}:" not in text)
    (tmp_path / "train.yaml").write_text(text if "experiment" in text else rest + text)
    with pytest.raises(InstanceError, match=re.escape(complaint)) as error:
        read_flagscale(tmp_path / "train.yaml", "1x8 h100-sxm-80gb")
    assert "\n" not in str(error.value)


def test_pieces_of_several_layers_are_refused() -> None:
    problem, plan = degrees_by_stage()
    first = plan.stages[0]
    whole = {"recompute": "full", "recompute_layers": first.num_layers, "recompute_piece": 2}
    with pytest.raises(PlanRefusedError, match="stage 0: recompute_piece 2; target flagscale recomputes"):
        files_of(problem, with_stages(plan, {0: whole}), "flagscale")


@pytest.mark.slow
def test_the_real_parser_reads_the_planned_networks(megatron_python: str, tmp_path: Path) -> None:
    """FlagScale hands its leaves to the parser of its Megatron-LM, core 0.17.1, which has the last word."""
    lines, expected = list[tuple[list[str], int]](), list[tuple[str, dict[str, Any]]]()
    for name in names("models"):
        model = plans.few_experts(load_model(name))
        if inexpressible(model, **builds("flagscale")) or model.num_attention_heads % 2:
            continue
        problem, plan = (of.model_copy(update={"target": "flagscale"}) for of in plans.two_stages(model))
        leaves = dict(leaves_of(yaml.safe_load(files_of(problem, plan, "flagscale")["train/hetero.yaml"])))
        # The heterogeneous mode places layers itself.
        leaves["pipeline_model_parallel_size"] = 1
        lines.append((list(words_of(leaves)), plan.world_size))
        placed = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
        settings = expected_settings(problem, plan).items()
        expected.append((name, {key: value for key, value in settings if key not in placed}))
    (tmp_path / "lines.json").write_text(json.dumps(lines))
    command = ("-m", "tests.megatron_check.read_words", str(tmp_path / "lines.json"))
    done = real_megatron.run(megatron_python, *command, older="0.17.1")
    assert done.returncode == 0, done.stderr[-2000:]
    for (name, settings), found in zip(expected, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert {key: found.get(key) for key in settings} == settings, name
        if "num_moe_experts" in settings:
            assert found["moe_aux_loss_coeff"] > 0, name
