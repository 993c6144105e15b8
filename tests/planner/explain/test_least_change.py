"""After a loss of nodes: a legal plan, nearly as fast as the best, that keeps what can be kept."""

from __future__ import annotations

from functools import cache

import pytest

from planner import api
from planner.data.changes import with_cluster, with_named_hosts, with_nodes
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError
from planner.explain.least_change import changed_degrees, least_change, on_the_way
from planner.explain.recompute import with_fitting_recompute
from tests.planner.explain.samples import plan_of


def problem_of(cluster: str, batch: int = 48) -> Problem:
    from planner.data import load

    base = api.load_problem("llama3-8b-h100-a100-16")
    update = {
        "cluster": load.load_cluster(cluster),
        "workload": base.workload.model_copy(update={"global_batch_size": batch, "seq_length": 4096}),
        "options": base.options.model_copy(update={"gap": 0.05, "virtual_gap": 0.05}),
    }
    return with_named_hosts(base.model_copy(update=update))


@cache
def loss(cluster: str, lost: int = 1) -> tuple[Problem, Plan, Result]:
    """A problem without nodes of its first class, the plan before, and the best one after."""
    problem = problem_of(cluster)
    before = api.plan(problem).plan
    smaller = with_nodes(problem.cluster, 0, problem.cluster.classes[0].num_nodes - lost)
    assert before is not None and smaller is not None
    after = with_cluster(problem, smaller)
    return after, before, api.plan(after)


CLUSTERS = ("3x8 h100-sxm-80gb, 1x8 a100-sxm-80gb", "4x8 h100-sxm-80gb")


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("within", [0.05, *(pytest.param(one, marks=pytest.mark.slow) for one in (0.0, 0.5))])
def test_plan_is_legal_and_no_slower_than_allowed(cluster: str, within: float) -> None:
    problem, before, best = loss(cluster)
    result, change = least_change(problem, before, best, within)
    assert result.plan is not None and best.evaluation is not None
    seen = api.predict(problem, result.plan)
    assert not seen.violations
    assert seen.step_s <= best.evaluation.step_s * (1 + within) * (1 + 1e-9)
    assert change.behind_best == pytest.approx(seen.step_s / best.evaluation.step_s - 1)
    assert change.degrees_changed == changed_degrees(before, result.plan)
    assert result.bound_s == best.bound_s


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_more_room_never_changes_more(cluster: str) -> None:
    problem, before, best = loss(cluster)
    found = [least_change(problem, before, best, within)[1] for within in (0.0, 0.05, 0.5)]
    ranks = [(len(one.degrees_changed), not one.keeps_classes, one.loaded_fraction) for one in found]
    assert ranks == sorted(ranks, reverse=True)


def test_plan_that_need_not_change_stays_as_it_is() -> None:
    problem, _, best = loss(CLUSTERS[0])
    assert best.plan is not None
    result, change = least_change(problem, best.plan, best, 0.05)
    assert result.plan == best.plan
    assert (change.loaded_fraction, change.layers_loaded, change.degrees_changed) == (0, 0, ())


def test_replica_that_is_lost_moves_no_layer() -> None:
    """One host a replica: without one the others go on as they are, at the cost of its share of the batch."""
    problem = problem_of("3x8 h100-sxm-80gb", batch=48)
    pinned = problem.options.model_copy(update={"pin": {"tp": 4, "pp": 2, "vp": 1}})
    before = api.plan(problem, pinned).plan
    assert before is not None
    smaller = with_nodes(problem.cluster, 0, 2)
    assert smaller is not None
    after = with_cluster(problem, smaller)
    best = api.plan(after, pinned.model_copy(update={"pin": {"pp": 2, "vp": 1}}))
    _, change = least_change(after, before, best, 1.0)
    assert change.degrees_changed == () and change.keeps_classes


def test_without_a_plan_there_is_nothing_to_compare() -> None:
    problem, before, best = loss(CLUSTERS[1])
    none = best.model_copy(update={"plan": None, "evaluation": None})
    with pytest.raises(InstanceError, match="no plan to compare with"):
        least_change(problem, before, none, 0.05)


def test_splits_on_the_way_lead_from_one_plan_to_the_other() -> None:
    after = plan_of("llama3-8b-h100-8", {"tp": 2, "pp": 4, "vp": 1})
    before = after.model_copy(
        update={
            "stages": tuple(
                stage.model_copy(update={"layers": layers})
                for stage, layers in zip(after.stages, [(0, 1), (2, 9), (10, 20), (21, 31)], strict=True)
            )
        }
    )
    seen = [[stage.num_layers for stage in plan.stages] for plan in on_the_way(before, after)]
    assert seen[0] == [2, 8, 11, 11]
    assert all(sum(layers) == 32 and min(layers) >= 1 for layers in seen)
    assert [s.num_layers for s in after.stages] not in seen  # it is judged by itself
    assert list(on_the_way(before, before)) == []


def test_recomputation_is_the_least_with_which_a_split_fits() -> None:
    """Against all numbers of layers, one after the other."""
    problem = api.load_problem("llama3-8b-h100-8")
    plan = plan_of("llama3-8b-h100-8", {"tp": 1, "pp": 2, "dp": 4, "mbs": 2, "vp": 1})
    split = plan.model_copy(
        update={
            "stages": tuple(
                stage.model_copy(update={"layers": layers, "recompute": "none", "recompute_layers": 0})
                for stage, layers in zip(plan.stages, [(0, 19), (20, 31)], strict=True)
            )
        }
    )
    forbid = problem.options.model_copy(update={"forbid": ("recompute=selective",)})
    found = with_fitting_recompute(problem.model_copy(update={"options": forbid}), split)
    assert found is not None and not api.predict(problem, found).violations
    first = found.stages[0]
    assert first.recompute == "full"
    fewer = first.model_copy(update={"recompute_layers": first.recompute_layers - 1})
    if first.recompute_layers == 1:
        fewer = first.model_copy(update={"recompute": "none", "recompute_layers": 0})
    less = found.model_copy(update={"stages": (fewer, *found.stages[1:])})
    assert any("memory" in words or "GiB" in words for words in api.predict(problem, less).violations)
