"""Splitting the decision into outer choices and programs loses nothing: the joint program agrees."""

from __future__ import annotations

import numpy as np
import pytest

from formulations import joint, stage_selection
from formulations.joint_data import JointData, order_data
from formulations.options import SolveOptions
from planner.cost.pricing import price
from planner.data.cluster import Cluster
from planner.data.problem import Problem
from planner.search.coefficients import stage_coefficients
from planner.search.degrees import list_degrees
from planner.search.driver import search
from planner.search.orders import all_orders
from planner.units import MS
from tests.random_problems import random_problem


def small_problem(seed: int, stages: int) -> Problem:
    """Three nodes of one chip in each class, so that no host is shared; sends are short and overlap.

    Adapters are alike, so that a tied embedding costs all orders the same.
    """
    problem = random_problem(seed, most_layers=9)
    cells = {
        "chips_per_node": 1,
        "num_nodes": 3,
        "memory_gib": None,
        "nic_gbit_per_s": 400,
        "nics_per_node": 1,
    }
    classes = tuple(c.model_copy(update=cells) for c in problem.cluster.classes)
    batch = problem.workload.model_copy(update={"global_batch_size": 6})
    return problem.model_copy(
        update={
            "cluster": Cluster(id="small", classes=classes),
            "model": problem.model.model_copy(update={"num_layers": 9}),
            "workload": batch,
            "stack": problem.stack.model_copy(update={"p2p_overlap": True}),
            "options": problem.options.model_copy(
                update={
                    "gap": 0.0,
                    "pin": {"pp": stages, "tp": 1},
                    "max_microbatch_size": 2,
                    "forbid": (*problem.options.forbid, "stages=empty"),  # which the joint form leaves out
                }
            ),
        }
    )


def joint_instances(problem: Problem, stages: int) -> list[tuple[int, JointData]]:
    """The joint program of every row of degrees."""
    table = list_degrees(problem)
    prices = price(problem, table.degrees)
    found = []
    for choice in range(len(table)):
        size, m = int(table.stage_size[choice]), int(table.num_microbatches[choice])
        most = tuple(int(count) for count in table.max_stages[choice])
        if sum(most) < stages:
            continue
        of_class = tuple(
            stage_coefficients(problem, prices, choice, size, m, [k] * stages, with_sends=False)
            for k in range(len(most))
        )
        found.append((choice, JointData(of_class, prices.send_s[choice] / MS, most)))
    return found


def least_of_orders(problem: Problem, choice: int, data: JointData, stages: int) -> float:
    """What the search solves: one program for each order of the classes, with its own coefficients."""
    table = list_degrees(problem)
    prices = price(problem, table.degrees)
    best = float("inf")
    for on_first in range(stages + 1):
        counts = (on_first, stages - on_first)
        if any(count > most for count, most in zip(counts, data.most_stages, strict=True)):
            continue
        for order in all_orders(counts):
            size, m = int(table.stage_size[choice]), int(table.num_microbatches[choice])
            program = stage_coefficients(problem, prices, choice, size, m, order)
            assert np.allclose(program.send_ms, order_data(data, order).send_ms)
            result = stage_selection.solve(program, SolveOptions())
            if result.objective_ms is not None:
                best = min(best, result.objective_ms)
    return best


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "stages"), [(1, 2), (2, 3), (3, 3), (5, 2)])
def test_the_joint_program_finds_what_the_search_proves(seed: int, stages: int):
    problem = small_problem(seed, stages)
    joint_ms = []
    for choice, data in joint_instances(problem, stages):
        result = joint.solve(data, SolveOptions())
        value = float("inf") if result.objective_ms is None else result.objective_ms
        assert value == pytest.approx(least_of_orders(problem, choice, data, stages), rel=1e-6)
        joint_ms.append(value)
    searched = search(problem)
    assert searched.evaluation is not None and searched.bound_s is not None
    # Rows bound the referee from below: the search's plan lies at or above them, and little above.
    assert min(joint_ms) * MS <= searched.evaluation.step_s * (1 + 1e-9)
    assert min(joint_ms) * MS >= searched.evaluation.step_s * 0.98
