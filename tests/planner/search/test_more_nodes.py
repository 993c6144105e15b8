"""More nodes of a class never make the best plan slower: what stays idle counts for nothing."""

from __future__ import annotations

import pytest

from planner.api import plan
from planner.data.changes import resized, with_cluster
from planner.data.problem import Problem, TargetName
from tests.random_problems import random_problem

REL = 1e-9


def with_fewer_nodes(problem: Problem, node_class: int) -> Problem:
    """The problem without one of the nodes of a class; its chips keep the pace of all of them."""
    classes = list(problem.cluster.classes)
    classes[node_class] = resized(classes[node_class], classes[node_class].num_nodes - 1)
    return with_cluster(problem, problem.cluster.model_copy(update={"classes": tuple(classes)}))


def with_two_nodes_or_more(problem: Problem) -> Problem:
    """The problem with another node of every class."""
    classes = tuple(resized(one, one.num_nodes + 1) for one in problem.cluster.classes)
    return with_cluster(problem, problem.cluster.model_copy(update={"classes": classes}))


def assert_another_node_never_hurts(seed: int, target: TargetName, **stack: object) -> None:
    most = 5 if target == "megatron-lm" else 3
    problem = with_two_nodes_or_more(random_problem(seed, most_layers=most))
    activation = "silu" if problem.model.gated_mlp else "gelu"  # as launchers have them
    changes = {
        "target": target,
        "stack": problem.stack.model_copy(update=stack),
        "model": problem.model.model_copy(update={"activation": activation}),
    }
    if target in ("flagscale", "unrestricted"):  # which may take long to close without a gap
        changes["options"] = problem.options.model_copy(update={"time_limit_s": 10.0})
    problem = problem.model_copy(update=changes)
    all_nodes = plan(problem)
    assert "options" in changes or all_nodes.termination in ("optimal", "infeasible")
    for node_class in range(2):
        fewer = plan(with_fewer_nodes(problem, node_class))
        if fewer.evaluation is None:
            continue
        assert all_nodes.evaluation is not None, f"seed {seed}: no plan on more nodes"
        assert all_nodes.bound_s is not None
        limit_s = fewer.evaluation.step_s * (1 + REL)
        assert all_nodes.bound_s <= limit_s, f"seed {seed}"
        assert all_nodes.evaluation.step_s <= limit_s or all_nodes.termination != "optimal", f"seed {seed}"


FEW = [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60) if seed != 3)]


@pytest.mark.parametrize("seed", FEW)
def test_another_node_never_hurts(seed: int) -> None:
    assert_another_node_never_hurts(seed, "megatron-lm")


@pytest.mark.slow
@pytest.mark.parametrize("far_gib", [None, 0.3, 0.9])
@pytest.mark.parametrize("seed", range(60, 80))
def test_another_node_never_hurts_whatever_communicators_take(seed: int, far_gib: float | None) -> None:
    """All groups of Megatron-LM; between nodes they take as much, less or more than inside one."""
    assert_another_node_never_hurts(seed, "megatron-lm", megatron_groups=True, far_communicator_gib=far_gib)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron-bridge", "flagscale", "unrestricted"])
@pytest.mark.parametrize("seed", [80, 81, 82, 83, 85, 86, 87, 88])
def test_another_node_never_hurts_under_other_launchers(seed: int, target: TargetName) -> None:
    assert_another_node_never_hurts(seed, target)
