"""Tag in the docstring, function that adds the group and constraint name are one word."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

import formulations
from formulations import (
    box_planes,
    chip_prices,
    fleet_split,
    interleaved_prices,
    joint,
    joint_cp,
    layer_partition,
    layer_partition_cp,
    layer_partition_prices,
    replica_mix,
    replica_mix_cp,
    row_search,
    stage_selection,
    stage_selection_cp,
    virtual_classes,
    virtual_selection,
)
from formulations.interleaved_paths import longest_paths
from formulations.joint_data import JointData
from formulations.joint_ticks import joint_ticks
from formulations.layer_partition_data import least_bottleneck
from formulations.layer_partition_ticks import partition_ticks
from formulations.solvers import GrowingProgram
from formulations.stage_selection_data import StageSelectionData
from formulations.stage_selection_tables import least_recompute
from formulations.stage_selection_ticks import times_in_ticks
from formulations.virtual_selection_tables import dealt_table, fewest_layers
from tests.formulations.instances import random_data
from tests.formulations.interleaved_instances import random_interleaved, random_part
from tests.formulations.test_layer_partition import random_data as random_partition


def stage_selection_names(data: StageSelectionData) -> Iterable[str]:
    model, var = stage_selection.build(replace(data, alike=(1, 3)))
    stage_selection.tighten_recompute(model, data, var)
    stage_selection.tighten_bottleneck(model, data, var)
    stage_selection.add_exclude(model, data, var, [2] * data.num_stages, 0)
    for row in row_search.first_rows(data):
        stage_selection.add_pipeline(model, data, var, *row)
    return list(model.constraints)


def stage_selection_cp_names(data: StageSelectionData) -> Iterable[str]:
    table = least_recompute(data)
    ticks = times_in_ticks(data, table)
    model, var = stage_selection_cp.build(data, ticks)
    stage_selection_cp.tighten_bottleneck(model, data, ticks, table, var)
    stage_selection_cp.tighten_incumbent(model, data, ticks, table, var, [])
    stage_selection_cp.add_exclude(model, var, [[2] * data.num_stages])
    stage_selection_cp.add_cutoff(model, data, ticks, var, 1e3)
    return [constraint.name for constraint in model.proto.constraints]


def fleet_split_names(data: StageSelectionData) -> Iterable[str]:
    options = ((fleet_split.Option(1.0, 1.0, (1,)),),)
    first, _ = fleet_split.build(fleet_split.FleetSplitData(options, (1,), "slowest"))
    second, _ = fleet_split.build(fleet_split.FleetSplitData(options, (1,), "slowest"), floor=0.5)
    return [*first.constraints, *second.constraints]


def box_planes_names(data: StageSelectionData) -> Iterable[str]:
    planes = box_planes.BoxPlanes(np.ones(2), np.ones(2), ((0, 1),))
    planes.next_point(np.zeros(2), 0.0, np.ones(2))
    return planes.program.row_names


def interleaved_prices_names(data: StageSelectionData) -> Iterable[str]:
    stages, chunks = np.ones(2), np.ones((2, 2))
    one = interleaved_prices.OrderedLayers(stages, stages, chunks, chunks, stages, stages, stages)
    program = interleaved_prices.PathProgram(one)
    program.add(*longest_paths(chunks, chunks, stages, 2, [0]))
    return program.program.row_names


def chip_prices_names(data: StageSelectionData) -> Iterable[str]:
    return list(chip_prices.build(chip_prices.ChipPricesData((1,), ((1.0,),), (1.0,)))[0].constraints)


def joint_names(data: StageSelectionData) -> Iterable[str]:
    model, _ = joint.build(JointData((data, data), np.ones((2, 2)), (2, 3)))
    return list(model.constraints)


def joint_cp_names(data: StageSelectionData) -> Iterable[str]:
    instance = JointData((data, data), np.ones((2, 2)), (2, 3))
    ticks = joint_ticks(instance, (least_recompute(data), least_recompute(data)))
    return [constraint.name for constraint in joint_cp.build(instance, ticks)[0].proto.constraints]


def layer_partition_names(data: StageSelectionData) -> Iterable[str]:
    instance = random_partition(3)
    model, var = layer_partition.build(instance)
    layer_partition.add_exclude(model, instance, var, [least_bottleneck(instance)[1] or ()])
    layer_partition.tighten_cutoff(model, instance, var, 1.0)
    return list(model.constraints)


def layer_partition_cp_names(data: StageSelectionData) -> Iterable[str]:
    instance = random_partition(3)
    ticks = partition_ticks(instance)
    model, var = layer_partition_cp.build(instance, ticks)
    layer_partition_cp.add_exclude(model, instance, var, [least_bottleneck(instance)[1] or ()])
    layer_partition_cp.add_cutoff(model, instance, ticks, var, 1e3)
    layer_partition_cp.tighten_cutoff(model, instance, var, 1.0)
    layer_partition_cp.tighten_incumbent(model, instance, ticks, var, [])
    return [constraint.name for constraint in model.proto.constraints]


def layer_partition_prices_names(data: StageSelectionData) -> Iterable[str]:
    program = GrowingProgram([-1.0, 0.0, 0.0])
    layer_partition_prices.add_weights(program, 1, 1)
    layer_partition_prices.add_path(program, np.ones(1), np.ones(1))
    return program.row_names


def replica_mix_names(data: StageSelectionData) -> Iterable[str]:
    mix = replica_mix.ReplicaMixData((replica_mix.Template((1,), 1, (1.0,)),), (1,), 1)
    return list(replica_mix.build(mix, 1.0)[0].constraints)


def replica_mix_cp_names(data: StageSelectionData) -> Iterable[str]:
    mix = replica_mix.ReplicaMixData((replica_mix.Template((1,), 1, (1.0,)),), (1,), 1)
    return [constraint.name for constraint in replica_mix_cp.build(mix, 1.0)[0].proto.constraints]


def virtual_selection_names(data: StageSelectionData) -> Iterable[str]:
    instance = random_interleaved(3)
    stepping = np.full(instance.num_stages, 1e-3)
    instance = replace(instance, stage=replace(instance.stage, step_layer_gib=stepping))
    table = dealt_table(instance)
    model, var = virtual_selection.build(instance)
    virtual_selection.tighten_recompute(model, instance, table, var)
    virtual_selection.tighten_capacity(model, instance, table, 1e3, var)
    virtual_selection.tighten_cutoff(model, instance, 1e3, var)
    virtual_selection.add_exclude(model, instance, var, fewest_layers(instance).tolist(), 0)
    times = np.ones((instance.num_stages, instance.virtual_stages))
    rows = longest_paths(times, times, instance.send_ms, instance.stage.num_microbatches, [0])
    virtual_selection.add_path(model, instance, var, rows[0], 0)
    return list(model.constraints)


def virtual_classes_names(data: StageSelectionData) -> Iterable[str]:
    parts = (random_part(seed).data(1e9) for seed in itertools.count())
    fitting = next(part for part in parts if part.fits.any(axis=(0, 2)).all() and not part.sends_block)
    p = fitting.sample.num_stages
    many = {
        c: replace(one, stage=replace(one.stage, num_microbatches=8 * p))
        for c, one in fitting.classes.items()
    }
    slow = replace(fitting, classes=many, hop_ms=fitting.hop_ms + 1e6, most=np.minimum(fitting.most, p - 1))
    model, var = virtual_classes.build(slow, whole_chunks=True)
    times, m = np.ones((p, slow.sample.virtual_stages)), slow.sample.stage.num_microbatches
    (row,) = longest_paths(times, times, np.ones(p), m, [0])
    virtual_classes.add_path(model, virtual_classes.passes_of(slow, var), row, 0)
    return list(model.constraints)


NAMES_OF: dict[str, Callable[[StageSelectionData], Iterable[str]]] = {
    "box_planes": box_planes_names,
    "chip_prices": chip_prices_names,
    "fleet_split": fleet_split_names,
    "interleaved_prices": interleaved_prices_names,
    "joint": joint_names,
    "joint_cp": joint_cp_names,
    "layer_partition": layer_partition_names,
    "layer_partition_cp": layer_partition_cp_names,
    "layer_partition_prices": layer_partition_prices_names,
    "replica_mix": replica_mix_names,
    "replica_mix_cp": replica_mix_cp_names,
    "stage_selection": stage_selection_names,
    "stage_selection_cp": stage_selection_cp_names,
    "virtual_classes": virtual_classes_names,
    "virtual_selection": virtual_selection_names,
}
"""Names of all constraints of a formulation, each group present; a new formulation adds its line."""


def formulation_modules() -> list[ModuleType]:
    """Modules whose docstring holds a model."""
    names = [module.name for module in pkgutil.iter_modules(formulations.__path__)]
    modules = [importlib.import_module(f"formulations.{name}") for name in names]
    return [module for module in modules if re.search(r"^Model ", module.__doc__ or "", re.MULTILINE)]


def tags(module: ModuleType) -> set[str]:
    """Words in brackets that end a line between `Model` and the next heading of the docstring."""
    doc = module.__doc__ or ""
    model = re.search(r"^Model .*?(?=^[A-Z])", doc[1:], re.MULTILINE | re.DOTALL)
    assert model is not None, module.__name__
    return set(re.findall(r"\s\((\w+)\)$", model.group(), re.MULTILINE))


def functions(module: ModuleType, prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in vars(module) if name.startswith(prefix)}


def test_every_formulation_is_held_here() -> None:
    assert {module.__name__.rpartition(".")[2] for module in formulation_modules()} == set(NAMES_OF)


@pytest.mark.parametrize("name", NAMES_OF)
def test_tag_function_and_constraint_name_are_one_word(name: str) -> None:
    module = importlib.import_module(f"formulations.{name}")
    assert tags(module) == functions(module, "add_")
    groups = tags(module) | {f"tighten_{cut}" for cut in functions(module, "tighten_")}
    data = random_data(np.random.default_rng(4), 3, 9, 6, memory=0.9)
    found = set()
    for constraint in NAMES_OF[name](data):
        fitting = [group for group in groups if constraint == group or constraint.startswith(f"{group}_")]
        assert len(fitting) == 1, f"{constraint}: {fitting}"
        found.add(fitting[0])
    assert found == groups


@pytest.mark.parametrize("name", NAMES_OF)
def test_every_add_function_says_its_constraint_in_words(name: str) -> None:
    module = importlib.import_module(f"formulations.{name}")
    for function in vars(module):
        if function.startswith(("add_", "tighten_")):
            assert getattr(module, function).__doc__, function
