"""Deciding classes and layers together finds what the best order of the classes gives, and no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from formulations import joint, joint_cp
from formulations.joint_data import JointData, order_data, orders
from formulations.options import SolveOptions, SolverName
from formulations.stage_selection_data import objective_ms
from planner.errors import SolverError
from tests.formulations.instances import by_hand, leading_layers, random_data
from tests.formulations.solving import optimum


def random_joint(rng: np.random.Generator, num_stages: int, num_classes: int, num_layers: int) -> JointData:
    """Classes of other speeds and memories, links between them, and too few chips of some."""
    m = int(rng.integers(1, 9))
    first = random_data(rng, num_stages, num_layers, m)
    same = {"hidden_fraction": first.hidden_fraction, "constant_ms": first.constant_ms}
    others = [replace(random_data(rng, num_stages, num_layers, m), **same) for _ in range(num_classes - 1)]
    most = rng.integers(0, num_stages + 1, num_classes)
    most[int(rng.integers(num_classes))] = num_stages
    send = rng.choice([0.0, 0.05, 0.5]) * rng.random((num_classes, num_classes))
    return JointData((first, *others), send, tuple(int(count) for count in most))


def best_of_orders(data: JointData) -> float:
    """What the search does: one program for each order of the classes."""
    return min(optimum(order_data(data, order)) for order in orders(data))


def check(data: JointData, solver: SolverName = "highs") -> float:
    """The joint optimum, with its answer held against the data; by the integer twin with CP-SAT."""
    form = joint_cp if solver == "cp_sat" else joint
    result = form.solve(data, SolveOptions(solver=solver))
    if result.status == "infeasible":
        return float("inf")
    assert result.status == "optimal"
    assert result.classes is not None and result.choice is not None and result.objective_ms is not None
    assert result.classes in set(orders(data))
    assert sum(result.choice.layers) == data.of_class[0].num_layers
    fixed = order_data(data, result.classes)
    assert result.objective_ms == objective_ms(fixed, result.choice)
    assert result.bound_ms is not None
    assert result.objective_ms * (1 - 1e-6) <= result.bound_ms <= result.objective_ms
    return result.objective_ms


SOLVERS: tuple[SolverName, ...] = ("highs", "scip", "cbc", "cp_sat")


def test_the_joint_optimum_is_that_of_the_best_order():
    data = random_joint(np.random.default_rng(1), 3, 2, 7)
    best = best_of_orders(data)
    for solver in SOLVERS:
        assert check(data, solver) == pytest.approx(best, rel=1e-6), solver


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 38))
def test_the_joint_optimum_is_that_of_the_best_order_on_more(seed: int):
    rng = np.random.default_rng(seed)
    data = random_joint(rng, int(rng.integers(1, 5)), int(rng.integers(2, 4)), int(rng.integers(5, 11)))
    best = best_of_orders(data)
    for solver in (SOLVERS[seed % 3], "cp_sat"):
        assert check(data, solver) == pytest.approx(best, rel=1e-6), solver


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_the_integer_twin_is_true_and_within_its_rounding(seed: int):
    """CP-SAT's bound, in ticks rounded down, lies at most 1e-7 of the objective below the optimum."""
    rng, best = np.random.default_rng(200 + seed), float("inf")
    while best == float("inf"):
        data = random_joint(rng, int(rng.integers(1, 4)), 2, int(rng.integers(4, 8)))
        best = best_of_orders(data)
    result = joint_cp.solve(data, SolveOptions(solver="cp_sat"))
    assert result.bound_ms is not None
    assert best * (1 - 1.1e-7) <= result.bound_ms <= best * (1 + 1e-9)


def test_chips_and_links_decide_the_order_by_hand():
    """Two stages, four layers of 3 ms, one micro-batch, no memory limit: 12 ms and twice the send.

    The second class is twice as fast and has chips for one stage. With three layers on it the layers take
    3 + 4.5 = 7.5 ms; the send from the first class to it takes 1 ms, back 5 ms: first class first, 9.5 ms
    against 17.5. With chips for two stages all lies on it: 6 ms and two sends of 0.1.
    """
    slow = by_hand(2, 4, 1)
    fast = replace(slow, forward_ms=slow.forward_ms / 2, backward_ms=slow.backward_ms / 2)
    send = np.array([[0.1, 1.0], [5.0, 0.1]])
    result = joint.solve(JointData((slow, fast), send, (2, 1)), SolveOptions())
    assert result.classes == (0, 1) and result.choice is not None and result.choice.layers == (1, 3)
    assert result.objective_ms == pytest.approx(9.5)
    for solver in ("highs", "cp_sat"):
        assert check(JointData((slow, fast), send, (2, 2)), solver) == pytest.approx(6.2)
        assert check(JointData((slow, fast), send, (2, 0)), solver) == pytest.approx(12.2)
        assert check(JointData((slow, fast), send, (1, 0)), solver) == float("inf")


def test_memory_counts_on_the_class_that_was_chosen():
    """The fast class holds two layers of the four: the third costs the slow one, not a recomputation."""
    slow = by_hand(2, 4, 1)
    fast = replace(
        slow,
        forward_ms=slow.forward_ms / 2,
        backward_ms=slow.backward_ms / 2,
        limit_gib=np.full(2, 2.0),
    )
    data = JointData((slow, fast), np.zeros((2, 2)), (1, 1))
    assert check(data) == check(data, "cp_sat") == pytest.approx(2 * 3 + 2 * 1.5)
    # Recomputed in full, a layer keeps 0.5 GiB and takes 1 ms more: three fit, and 3 + 7.5 > 9.
    saving = [replace(of, full_saves_gib=np.full(2, 0.5)) for of in (slow, fast)]
    for solver in ("highs", "cp_sat"):
        assert check(replace(data, of_class=tuple(saving)), solver) == pytest.approx(9.0)


def test_constants_that_depend_on_the_class_are_refused():
    one = random_data(np.random.default_rng(0), 2, 6, 4)
    data = JointData((one, replace(one, constant_ms=one.constant_ms + 1)), np.zeros((2, 2)), (2, 2))
    for form in (joint, joint_cp):
        with pytest.raises(SolverError, match="one constant"):
            form.solve(data, SolveOptions())


def test_layers_of_several_kinds_are_refused():
    one = random_data(np.random.default_rng(0), 2, 6, 4)
    lead = replace(one, **leading_layers(2, 1, one.full_ms, one.layer_gib))
    for form in (joint, joint_cp):
        with pytest.raises(SolverError, match="one kind"):
            form.solve(JointData((lead,), np.zeros((1, 1)), (2,)), SolveOptions())
