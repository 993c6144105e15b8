"""The size that a docstring states is that of the program (some once dated from forms with fewer rows)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from formulations import (
    joint,
    joint_cp,
    layer_partition,
    layer_partition_cp,
    stage_selection,
    stage_selection_cp,
)
from formulations.joint_data import JointData
from formulations.joint_ticks import joint_ticks
from formulations.layer_partition_ticks import partition_ticks
from formulations.stage_selection_data import StageSelectionData
from formulations.stage_selection_tables import least_recompute
from formulations.stage_selection_ticks import times_in_ticks
from tests.formulations.instances import random_data
from tests.formulations.test_layer_partition import random_data as random_partition

Counted = Iterator[tuple[int, int]]
"""Rows of a program, and the most that its docstring allows."""


def pipelines() -> Iterator[tuple[int, StageSelectionData]]:
    """p and a pipeline of p stages, with micro-batches for all families of rows and for few of them."""
    rng = np.random.default_rng(4)
    for p, m in ((2, 7), (4, 11), (6, 4)):
        yield p, random_data(rng, p, 3 * p, m, memory=0.9)


def on_classes() -> Iterator[tuple[int, int, JointData]]:
    """p, |K| and the same with classes to choose from."""
    for k, (p, data) in enumerate(pipelines(), start=1):
        yield p, k, JointData((data,) * k, np.ones((k, k)), (p,) * k)


def of_stage_selection() -> Counted:
    for p, data in pipelines():
        yield len(stage_selection.build(data)[0].constraints), 14 * p + 1


def of_stage_selection_cp() -> Counted:
    for p, data in pipelines():
        model, _ = stage_selection_cp.build(data, times_in_ticks(data, least_recompute(data)))
        yield len(model.proto.constraints), p * p + 23 * p


def of_joint() -> Counted:
    for p, k, data in on_classes():
        yield len(joint.build(data)[0].constraints), p * p + 12 * p * k + 27 * p


def of_joint_cp() -> Counted:
    for p, k, data in on_classes():
        ticks = joint_ticks(data, tuple(least_recompute(of_class) for of_class in data.of_class))
        yield len(joint_cp.build(data, ticks)[0].proto.constraints), p * p + 8 * p * k + 21 * p


def of_layer_partition() -> Counted:
    for data in map(random_partition, range(3)):
        p = data.num_stages
        yield len(layer_partition.build(data)[0].constraints), p * data.num_layers + p * p + 24 * p


def of_layer_partition_cp() -> Counted:
    for data in map(random_partition, range(3)):
        p = data.num_stages
        model, _ = layer_partition_cp.build(data, partition_ticks(data))
        yield len(model.proto.constraints), p * data.num_layers + p * p + 24 * p


SAID: dict[str, tuple[str, Callable[[], Counted]]] = {
    "joint": ("p^2 + 12 p |K| + 27 p rows", of_joint),
    "joint_cp": ("p^2 + 8 p |K| + 21 p rows", of_joint_cp),
    "layer_partition": ("p L + p^2 + 24 p rows", of_layer_partition),
    "layer_partition_cp": ("p L + p^2 + 24 p rows", of_layer_partition_cp),
    "stage_selection": ("14p + 1 rows", of_stage_selection),
    "stage_selection_cp": ("p^2 + 23p rows", of_stage_selection_cp),
}


@pytest.mark.parametrize("name", SAID)
def test_program_has_the_rows_that_its_docstring_states(name: str) -> None:
    said, counted = SAID[name]
    assert said in " ".join((importlib.import_module(f"formulations.{name}").__doc__ or "").split())
    found = list(counted())
    assert all(rows <= most for rows, most in found), found
    assert any(rows >= 0.8 * most for rows, most in found), found
