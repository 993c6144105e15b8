"""Bounds carried from one problem to another: none exceeds the best plan of its part, and none comes from a
problem in which something is worse."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.cost.prices import Degrees, Prices
from planner.cost.pricing import price
from planner.data.changes import with_class, with_cluster, with_more_memory, with_nodes
from planner.data.load import build_problem
from planner.data.problem import Problem
from planner.explain.gains import faster_links, with_faster_links
from planner.search import driver
from planner.search.degrees import DegreeTable, list_degrees
from planner.search.floors import _OF_ALL, ANY_VIRTUAL, Cell, Floors, Proof
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


@pytest.mark.parametrize(
    "seed",
    [23, *(pytest.param(s, marks=pytest.mark.slow) for s in (9, 17, 19, 21, 22, 25, 27, 31))],
)
def test_what_is_proven_with_faster_links_or_fewer_nodes_holds(seed: int) -> None:
    problem = random_interleaved_problem(seed)
    floors = Floors()
    found = driver.search(problem, floors=floors)
    assert assert_bounds_hold(floors, problem, most=6) == len(floors.proven)
    faster = with_faster_links(problem)
    assert faster is not None
    step_s = 1.0 if found.evaluation is None else found.evaluation.step_s
    again = prove_again(faster, floors, step_s)
    assert len(carried(again, problem)[1]) == len(again.proven), "all that faster links leave true"
    for _, one in faster_links(problem):
        assert_bounds_hold(again, one, most=4)
    for c in range(len(problem.cluster.classes)):
        assert_bounds_hold(floors, larger(problem, c), most=4)


def test_nothing_is_carried_to_a_problem_with_something_better() -> None:
    problem = random_interleaved_problem(25)
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
    problem = random_interleaved_problem(25)
    floors = Floors()
    best = driver.search(problem, floors=floors).plan
    assert best is not None
    alone, again = (driver.search(problem, seeds=[best], floors=Floors(known)) for known in ([], [floors]))
    assert again.plan == alone.plan and again.termination == alone.termination == "optimal"
    assert again.bound_s is not None and alone.bound_s is not None and again.bound_s >= alone.bound_s
    assert again.statistics["opened"] < alone.statistics["opened"]


def noted(problem: Problem) -> tuple[Floors, DegreeTable, Prices]:
    """A bound of 1 s on every row of degrees with two stages."""
    table = list_degrees(problem)
    prices = price(problem, table.degrees)
    floors = Floors()
    floors.begin(problem, table, prices)
    for choice in range(len(table)):
        floors.note(Cell(choice, 2), 1.0)
    return floors, table, prices


def test_the_highest_bound_is_kept_and_nothing_is_known_of_other_parts() -> None:
    problem = random_interleaved_problem(3)
    floors, table, prices = noted(problem)
    floors.note(Cell(0, 2), 3.0, whole_numbers=True)
    floors.note(Cell(0, 2), 2.0)
    assert floors.proven[Cell(0, 2)] == Proof(3.0, whole_numbers=True)
    assert floors.proven[Cell(1, 2)] == Proof(1.0, whole_numbers=False)
    further = Floors([floors, noted(problem)[0]])
    further.begin(problem, table, prices)
    assert further.known_s(Cell(0, 2)) == 3.0 and further.known_s(Cell(1, 2)) == 1.0
    assert further.known_s(Cell(0, 3)) == further.known_s(Cell(0, 2, ANY_VIRTUAL)) == 0.0
    choice, stages = np.array([0, 0, 1]), np.array([2, 3, 2])
    assert further.raised(choice, stages, np.array([2.0, 0.5, 4.0])).tolist() == [3.0, 0.5, 4.0]
    assert further.has_neighbour and not floors.has_neighbour


@pytest.mark.parametrize("name", [field.name for field in fields(Prices) if field.name not in _OF_ALL])
def test_a_part_is_carried_only_where_no_price_falls(name: str) -> None:
    problem = random_interleaved_problem(3)
    floors, table, prices = noted(problem)
    value = getattr(prices, name)
    if not isinstance(value, np.ndarray):
        other = replace(prices, **{name: True if value is False else (value or 0) + 1})
        assert not list(floors.of(problem, table, other))
        return
    more = replace(prices, **{name: value + 1.0})
    assert len(list(floors.of(problem, table, more))) == len(table)
    lower = value + 1.0
    lower[0] -= 2.0
    assert [cell.choice for cell, _ in floors.of(problem, table, replace(prices, **{name: lower}))] == list(
        range(1, len(table))
    )


def test_a_time_may_move_from_one_part_of_a_piece_to_another() -> None:
    problem = random_interleaved_problem(3)
    floors, table, prices = noted(problem)
    moved = prices.layer_forward_s.copy()
    moved[..., 0] *= 0.5
    moved[..., -1] += moved[..., 0]
    assert len(list(floors.of(problem, table, replace(prices, layer_forward_s=moved)))) == len(table)


def test_nothing_is_carried_where_more_may_be_had() -> None:
    problem = random_interleaved_problem(3)
    floors, table, prices = noted(problem)
    assert not list(floors.of(problem, table, replace(prices, limit_bytes=prices.limit_bytes + 1.0)))
    assert len(list(floors.of(problem, table, replace(prices, limit_bytes=prices.limit_bytes - 1.0))))
    busy = replace(table, busy=(0,))
    assert list(floors.of(problem, busy, prices))
    own = Floors()
    own.begin(problem, busy, prices)
    own.note(Cell(0, 2), 1.0)
    assert not list(own.of(problem, table, prices)), "a class may stay idle again"
    other = replace(table, num_microbatches=table.num_microbatches + 1)
    assert not list(floors.of(problem, other, prices))
    twice = replace(
        table,
        degrees=Degrees(*(np.tile(getattr(table.degrees, f.name), 2) for f in fields(Degrees)[:-1])),
        num_microbatches=np.tile(table.num_microbatches, 2),
    )
    assert not list(floors.of(problem, twice, prices)), "degrees tell no rows apart"


@pytest.mark.parametrize(
    ("size", "stages", "carried"),
    [
        # One more stage on the grown class.
        (8, 6, False),
        # The class could hold all stages before.
        (8, 4, True),
        # Two stages a host: the class could hold all, each on a host of its own.
        (4, 4, True),
        # It could hold as many, but runs may now begin on one host more.
        (4, 6, False),
        # Two hosts a stage, which one node more does not make more.
        (16, 3, True),
    ],
)
def test_one_more_node_is_more_only_where_stages_may_have_it(size: int, stages: int, carried: bool) -> None:
    problem = build_problem(
        cluster="4x8 h100-sxm-80gb, 4x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=8192,
        global_batch_size=64,
    )
    table = list_degrees(problem)
    prices = price(problem, table.degrees)
    choice = int(np.flatnonzero(table.stage_size == size)[0])
    floors = Floors()
    floors.begin(problem, table, prices)
    floors.note(Cell(choice, stages), 1.0)
    grown = table.max_stages.copy()
    grown[choice, 1] = 5 * 8 // size
    found = list(floors.of(larger(problem, 1), replace(table, max_stages=grown), prices))
    assert found == ([(Cell(choice, stages), 1.0)] if carried else [])
    assert len(list(floors.of(problem, table, prices))) == 1


@pytest.mark.parametrize("seed", [22, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (7, 23))])
def test_what_is_proven_again_owes_nothing_to_the_first_proof(seed: int) -> None:
    """Parts that were said to hold no plan at all, up to a step that half of them may reach."""
    problem = random_interleaved_problem(seed)
    best = driver.search(problem).evaluation
    assert best is not None
    table = list_degrees(problem)
    said = Floors()
    said.begin(problem, table, price(problem, table.degrees))
    cells = [
        Cell(choice, stages, v)
        for choice in range(len(table))
        for stages in range(1, min(4, int(table.max_stages[choice].sum())) + 1)
        for v in (ANY_VIRTUAL, 1, 2)
    ]
    for cell in np.random.default_rng(seed).permutation(np.array(cells, dtype=object))[:24]:
        said.note(cell, np.inf, whole_numbers=cell.choice % 2 == 0)
    again = prove_again(problem, said, 1.3 * best.step_s)
    steps = {cell: best_of_cell_s(problem, table, cell) for cell in again.proven}
    for cell, proof in again.proven.items():
        assert proof.bound_s <= steps[cell] * (1 + REL), cell
    assert {ANY_VIRTUAL, 1} <= {cell.virtual_stages for cell in again.proven}
    assert any(np.isfinite(step) for step in steps.values())
    assert any(proof.bound_s > best.step_s for proof in again.proven.values())
