"""Experts on chips without grouped products: priced one by one, as their launch files run them."""

from __future__ import annotations

import numpy as np

from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.data.problem import Problem
from planner.launchers.megatron.plan_arguments import grouped_gemm_runs
from tests.planner.cost.problems import problem
from tests.planner.launchers import plans

DEGREES = Degrees.single(data_parallel=8, expert_parallel=4, expert_tensor_parallel=1)


def experts_on(cluster: str) -> Problem:
    return problem(cluster=cluster, model="mixtral-8x7b", precision="fp16")


def alone(of: Problem) -> Problem:
    changes = {"experts_apart": True, "experts_as_single_products": False}
    return of.model_copy(update={"stack": of.stack.model_copy(update=changes)})


def spared(of: Problem, name: str) -> Problem:
    return of.model_copy(update={"options": of.options.model_copy(update={"spare": (name,)})})


def test_experts_run_one_by_one_on_all_chips_where_one_has_no_grouped_products() -> None:
    # They were priced as grouped products on V100 and T4, whose launch files lack --moe-grouped-gemm.
    mixed = experts_on("1x8 v100-sxm-32gb, 1x8 a100-sxm-80gb")
    found, single = price(mixed, DEGREES), price(alone(mixed), DEGREES)
    assert np.array_equal(found.layer_forward_s, single.layer_forward_s)
    assert np.array_equal(found.layer_backward_s, single.layer_backward_s)
    assert any("one by one" in sentence for sentence in found.assumptions)
    # One argument says it for all ranks of a job: without that class the others run them grouped.
    without = price(spared(mixed, mixed.cluster.classes[0].name), DEGREES)
    grouped = price(experts_on("1x8 a100-sxm-80gb"), DEGREES)
    assert not any("one by one" in sentence for sentence in without.assumptions)
    assert np.array_equal(without.layer_forward_s[:, :, 1], grouped.layer_forward_s[:, :, 0])
    assert not np.array_equal(without.layer_forward_s, found.layer_forward_s)


def test_launch_files_run_experts_as_they_are_priced() -> None:
    of, plan = plans.experts()
    assert grouped_gemm_runs(of, plan)
    old = of.cluster.classes[0].model_copy(update={"name": "old", "chip": "v100-sxm-32gb"})
    chips = {**of.chips, "v100-sxm-32gb": experts_on("1x8 v100-sxm-32gb").chip_of(0)}
    cluster = of.cluster.model_copy(update={"classes": (*of.cluster.classes, old)})
    more = of.model_copy(update={"cluster": cluster, "chips": chips})
    assert not grouped_gemm_runs(more, plan)
    assert grouped_gemm_runs(spared(more, "old"), plan)
