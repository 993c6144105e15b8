"""Bounds carried from one problem to another: none exceeds the best plan of its part, and none comes from a
problem in which something is worse."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from planner.cost.prices import ENDS, Degrees, Prices
from planner.cost.pricing import price
from planner.data.changes import with_class, with_cluster, with_more_memory, with_nodes
from planner.data.load import build_problem
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.explain.gains import faster_links, more_nodes
from planner.search import driver
from planner.search.degrees import DegreeTable, list_degrees
from planner.search.floors import _CONTAINED, _OF_ALL, ANY_VIRTUAL, Cell, Floors
from planner.simulate.evaluate import degrees_of, evaluate, evaluate_with_prices
from tests.random_problems import random_interleaved_problem

REL = 1e-9
COMPARED = [field.name for field in fields(Prices) if field.name not in (*_OF_ALL, *_CONTAINED)]
TIMES = [name for name in COMPARED if name.endswith("_s") and name != "scales_s"]


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
    assert floors.of_all_s == (found.bound_s or 0.0)
    assert assert_bounds_hold(floors, problem, most=6) == len(floors.proven)
    for _, one in faster_links(problem):
        assert assert_bounds_hold(floors, one, most=2) == len(floors.proven)
    for _, one in more_nodes(problem):
        assert_bounds_hold(floors, one, most=4)


def test_nothing_is_carried_where_memory_or_the_question_differs() -> None:
    problem = random_interleaved_problem(25)
    floors = Floors()
    driver.search(problem, floors=floors)
    assert len(carried(floors, problem)[1]) == len(floors.proven) > 0
    assert not carried(floors, with_more_memory(problem, 0, 1.0))[1]
    faster = with_class(problem, 0, intra_node_bandwidth_gb_per_s=1e6, nic_gbit_per_s=1e6, latency_us=0.01)
    assert_bounds_hold(floors, faster, most=4)
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
    floors.note(Cell(0, 2), 3.0)
    floors.note(Cell(0, 2), 2.0)
    assert floors.proven[Cell(0, 2)] == 3.0 and floors.proven[Cell(1, 2)] == 1.0
    further = Floors([floors, noted(problem)[0]])
    further.begin(problem, table, prices)
    assert further.known_s(Cell(0, 2)) == 3.0 and further.known_s(Cell(1, 2)) == 1.0
    assert further.known_s(Cell(0, 3)) == further.known_s(Cell(0, 2, ANY_VIRTUAL)) == 0.0
    choice, stages = np.array([0, 0, 1]), np.array([2, 3, 2])
    assert further.raised(choice, stages, np.array([2.0, 0.5, 4.0])).tolist() == [3.0, 0.5, 4.0]
    assert further.has_neighbour and not floors.has_neighbour


@pytest.mark.parametrize("name", COMPARED)
def test_a_part_is_carried_only_where_no_size_falls_and_less_where_a_time_does(name: str) -> None:
    problem = random_interleaved_problem(3)
    floors, table, prices = noted(problem)
    value = getattr(prices, name)
    if not isinstance(value, np.ndarray):
        higher = (*value, 0) if isinstance(value, tuple) else (value or 0) + 1
        other = replace(prices, **{name: True if value is False else higher})
        assert not list(floors.of(problem, table, other))
        return
    more = replace(prices, **{name: value + 1.0})
    assert len(list(floors.of(problem, table, more))) == len(table)
    lower = value + 1.0
    lower[0] -= 2.0
    found = {
        cell.choice: bound_s for cell, bound_s in floors.of(problem, table, replace(prices, **{name: lower}))
    }
    # The bound less a second, but for what rounding leaves of it.
    assert found.pop(0, None) == (pytest.approx(0.0, abs=1e-15) if name in TIMES else None)
    assert found == dict.fromkeys(range(1, len(table)), 1.0)


@pytest.mark.parametrize("seed", [23, 25])
def test_what_another_price_contains_changes_no_step(seed: int) -> None:
    """Of a plan of whole stages, only what its time is put down to."""
    problem = random_interleaved_problem(seed)
    plan = driver.search(problem).plan
    assert plan is not None
    prices = price(problem, degrees_of(plan))
    shown = np.ones((1, len(ENDS), len(problem.cluster.classes)))
    seen = [
        evaluate_with_prices(problem, plan, replace(prices, end_shown_s=value)) for value in (None, shown)
    ]
    assert seen[0].step_s == seen[1].step_s and seen[0].breakdown_s != seen[1].breakdown_s


@pytest.mark.parametrize("forbidden", [(), ("vp=1",)])
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (7, 14, 18, 19, 25))]
)
def test_no_plan_is_faster_than_shorter_times_leave_its_step(seed: int, forbidden: tuple[str, ...]) -> None:
    """Whole and virtual stages, each plan as the bound of its own part, links far or a little faster."""
    problem = random_interleaved_problem(seed)
    forbid = (*problem.options.forbid, *forbidden)
    options = problem.options.model_copy(update={"top": 8, "gap": 0.3, "virtual_gap": 0.3, "forbid": forbid})
    problem = problem.model_copy(update={"options": options})
    found = driver.search(problem)
    plans = [(found.plan, found.evaluation), *((other.plan, other.evaluation) for other in found.runners_up)]
    assert len(plans) > 1
    table = list_degrees(problem)
    own = price(problem, table.degrees)
    fast = with_class(problem, 0, intra_node_bandwidth_gb_per_s=1e6, nic_gbit_per_s=1e6, latency_us=0.01)
    for changed in (fast, *(one for _, one in faster_links(problem))):
        for plan, evaluation in plans:
            assert plan is not None and evaluation is not None
            floors = Floors()
            floors.begin(problem, table, own)
            floors.note(Cell(row_of(table, plan), len(plan.stages), plan.virtual_stages), evaluation.step_s)
            ((_, left_s),) = floors.of(changed, table, price(changed, table.degrees))
            assert left_s <= evaluate(changed, plan).step_s * (1 + REL)


def row_of(table: DegreeTable, plan: Plan) -> int:
    """The row of a plan's degrees."""
    d = table.degrees
    same = d.tensor_parallel == plan.tensor_parallel
    same &= (d.context_parallel == plan.context_parallel) & (d.data_parallel == plan.data_parallel)
    same &= (d.microbatch_size == plan.microbatch_size) & (d.sequence_parallel == plan.sequence_parallel)
    (row,) = np.flatnonzero(same & (table.num_microbatches == plan.num_microbatches)).tolist()
    return int(row)


def test_bounds_shrink_with_the_passes_and_by_what_all_else_takes_less() -> None:
    problem = random_interleaved_problem(3)
    floors, table, prices = noted(problem)

    def left(**shorter: np.ndarray) -> float:
        (found,) = (
            b for cell, b in floors.of(problem, table, replace(prices, **shorter)) if cell.choice == 0
        )
        return found

    micro, layers = int(table.num_microbatches[0]), problem.model.num_layers
    assert left(**{name: 0.9 * getattr(prices, name) for name in TIMES}) == pytest.approx(0.9)
    assert left(layer_backward_s=0.9 * prices.layer_backward_s) == pytest.approx(0.9)
    assert left(send_s=prices.send_s - 1e-6) == pytest.approx(1 - 2 * (micro + 2) * 1e-6)
    assert left(head_backward_s=prices.head_backward_s - 1e-6) == pytest.approx(
        1 - micro * prices.head_backward_s.shape[-1] * 1e-6
    )
    assert left(layer_reduce_s=prices.layer_reduce_s - 1e-6) == pytest.approx(1 - layers * 1e-6)
    assert left(step_fixed_s=prices.step_fixed_s - 1e-6) == pytest.approx(1 - 1e-6)
    longer = {"layer_forward_s": 0.9 * prices.layer_forward_s, "send_s": 2 * prices.send_s}
    assert left(**longer) == pytest.approx(0.9), "what takes longer makes up for nothing"


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
