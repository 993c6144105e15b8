"""Bounds carried from one problem to another: none exceeds the best plan of its part, and none comes from a
problem in which something is worse."""

from __future__ import annotations

import numpy as np
import pytest

from planner import api
from planner.cost.pricing import price
from planner.data.changes import with_class, with_cluster, with_more_memory, with_nodes
from planner.data.problem import Problem
from planner.explain.gains import with_faster_links
from planner.search import driver
from planner.search.degrees import DegreeTable, list_degrees
from planner.search.floors import ANY_VIRTUAL, Cell, Floors
from planner.search.prover import prove_again
from tests.random_problems import random_interleaved_problem

REL = 1e-9


def larger(problem: Problem, c: int) -> Problem:
    """The problem with one more node of a class."""
    cluster = with_nodes(problem.cluster, c, problem.cluster.classes[c].num_nodes + 1)
    assert cluster is not None
    return with_cluster(problem, cluster)


def carried(floors: Floors, problem: Problem) -> tuple[DegreeTable, dict[Cell, float]]:
    """What of some bounds holds in a problem, with its rows of degrees."""
    table = list_degrees(problem)
    here = Floors([floors])
    here.begin(problem, table, price(problem, table.degrees))
    return table, here.carried


def best_of_cell_s(problem: Problem, table: DegreeTable, cell: Cell) -> float:
    """Step of the best plan of a part, searched for by itself [s]; infinite where there is none."""
    degrees, c = table.degrees, cell.choice
    pin = {
        "tp": int(degrees.tensor_parallel[c]),
        "cp": int(degrees.context_parallel[c]),
        "dp": int(degrees.data_parallel[c]),
        "mbs": int(degrees.microbatch_size[c]),
        "sp": int(degrees.sequence_parallel[c]),
        "pp": cell.stages,
    }
    if cell.virtual_stages != ANY_VIRTUAL:
        pin["vp"] = cell.virtual_stages
    wishes = {"pin": pin} if "vp" in pin else {"pin": pin, "forbid": (*problem.options.forbid, "vp=1")}
    found = driver.search(
        problem.model_copy(update={"options": problem.options.model_copy(update=wishes)})
    ).evaluation
    return np.inf if found is None else found.step_s


def assert_bounds_hold(floors: Floors, problem: Problem, most: int = 12) -> int:
    """Hold the bounds that a problem takes over against its best plans, the highest first; how many."""
    table, bounds = carried(floors, problem)
    for cell in sorted(bounds, key=lambda one: -bounds[one])[:most]:
        assert bounds[cell] <= best_of_cell_s(problem, table, cell) * (1 + REL), (problem.name, cell)
    return len(bounds)


@pytest.mark.parametrize("seed", [3, *(pytest.param(s, marks=pytest.mark.slow) for s in range(20, 32))])
def test_what_is_proven_with_faster_links_or_fewer_nodes_holds(seed: int) -> None:
    problem = random_interleaved_problem(seed)
    floors = Floors()
    found = driver.search(problem, floors=floors)
    faster = with_faster_links(problem)
    assert faster is not None
    step_s = 1.0 if found.evaluation is None else found.evaluation.step_s
    again = prove_again(faster, floors, step_s)
    assert assert_bounds_hold(again, problem) == len(again.proven), "all that faster links leave true"
    for c in range(len(problem.cluster.classes)):
        assert_bounds_hold(floors, larger(problem, c), most=4)


def test_nothing_is_carried_to_a_problem_with_something_better() -> None:
    problem = random_interleaved_problem(3)
    floors = Floors()
    driver.search(problem, floors=floors)
    assert len(carried(floors, problem)[1]) == len(floors.proven) > 0
    assert not carried(floors, with_more_memory(problem, 0, 1.0))[1]
    faster = with_class(problem, 0, intra_node_bandwidth_gb_per_s=1e6, nic_gbit_per_s=1e6, latency_us=0.01)
    assert len(carried(floors, faster)[1]) < len(floors.proven)
    fewer = problem.options.model_copy(update={"forbid": (), "max_pipeline_parallel": 1})
    assert not carried(floors, problem.model_copy(update={"options": fewer}))[1]
    batch = problem.workload.global_batch_size
    other = problem.workload.model_copy(update={"global_batch_size": 2 * batch})
    assert not carried(floors, problem.model_copy(update={"workload": other}))[1]


def test_a_search_that_begins_with_bounds_ends_with_an_answer_as_good() -> None:
    problem = api.load_problem("llama3-8b-h100-a100-16")
    floors = Floors()
    best = driver.search(problem, floors=floors).plan
    assert best is not None
    alone, again = (driver.search(problem, seeds=[best], floors=Floors(known)) for known in ([], [floors]))
    assert again.plan == alone.plan and again.termination == alone.termination == "optimal"
    assert again.bound_s is not None and alone.bound_s is not None and again.bound_s >= alone.bound_s
    assert again.statistics["opened"] < alone.statistics["opened"]
