"""What sharing a tied embedding takes: the link between the ends, and nothing that a plan leaves idle."""

from __future__ import annotations

import pytest

from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.data.changes import with_class
from planner.data.cluster import Link
from planner.data.load import build_problem
from planner.data.problem import Problem
from planner.search.driver import search
from planner.simulate.evaluate import evaluate


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Two nodes with 400 Gbit/s a chip, two with 10 in all, and a model whose head is tied."""
    found = build_problem(
        cluster="2x8 h100-sxm-80gb, 2x4 t4-16gb", model="gpt2-xl", seq_length=1024, global_batch_size=16
    )
    assert found.model.tied_embeddings
    return with_class(found, 1, nics_per_node=1, nic_gbit_per_s=10.0)


def without_the_last_class(problem: Problem) -> Problem:
    classes = problem.cluster.classes[:-1]
    return problem.model_copy(update={"cluster": problem.cluster.model_copy(update={"classes": classes})})


def tied_s(problem: Problem) -> list[list[float]]:
    found: list[list[float]] = (
        price(problem, Degrees.single(tensor_parallel=2, data_parallel=2)).tied_sync_s[0].tolist()
    )
    return found


def test_a_slow_class_that_a_plan_leaves_idle_costs_it_nothing(problem: Problem) -> None:
    alone = without_the_last_class(problem)
    pinned = alone.options.model_copy(update={"pin": {"pp": 2, "vp": 1}})
    plan = search(alone.model_copy(update={"options": pinned})).plan
    assert plan is not None and len(plan.stages) == 2
    assert evaluate(problem, plan).step_s == evaluate(alone, plan).step_s


def test_the_slower_adapter_of_the_ends_counts(problem: Problem) -> None:
    (own, across), (back, slow) = tied_s(problem)
    assert own < across == back
    assert across == pytest.approx(slow, rel=1e-3)
    assert tied_s(without_the_last_class(problem)) == [[own]]


def test_what_both_ends_take_does_not_depend_on_which_class_comes_first(problem: Problem) -> None:
    """Nodes of 8 and of 4 chips: on the larger more ranks share the way between them."""
    classes = problem.cluster.classes[::-1]
    turned = problem.model_copy(update={"cluster": problem.cluster.model_copy(update={"classes": classes})})
    degrees = Degrees.single(tensor_parallel=8, data_parallel=2)
    forth, back = (price(of, degrees).tied_sync_s[0, 0, 1] for of in (problem, turned))
    assert forth == back


def test_both_ends_sum_gradients_of_their_own_width(problem: Problem) -> None:
    width = problem.stack.gradient_bytes
    stack = problem.stack.model_copy(update={"tied_gradient_bytes": width / 2})
    halved = tied_s(problem.model_copy(update={"stack": stack}))
    assert halved[0][1] == pytest.approx(tied_s(problem)[0][1] / 2, rel=1e-2)


def test_a_stated_link_between_the_ends_counts(problem: Problem) -> None:
    first, second = problem.cluster.classes
    link = Link(between=(first.name, second.name), gbit_per_s=1.0, latency_us=100.0)
    linked = Problem(**(dict(problem) | {"cluster": problem.cluster.model_copy(update={"links": (link,)})}))
    (own, across), (_, slow) = tied_s(problem)
    (own_now, across_now), (_, slow_now) = tied_s(linked)
    assert (own_now, slow_now) == (own, slow)
    assert across_now == pytest.approx(10 * across, rel=0.01)
