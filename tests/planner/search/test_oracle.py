"""The search against brute force over all plans, judged by the referee."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from planner.cost.memory import activations as memory
from planner.cost.prices import Degrees
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.search import driver
from planner.search.programs import Solver
from planner.simulate.evaluate import evaluate
from tests import oracle_plans
from tests.oracle_plans import MAX_PLANS, brute_force
from tests.random_problems import (
    random_problem,
    with_an_old_class,
    with_communicators_of,
    with_deferred_sends,
    with_unlike_adapters,
)

REL = 1e-9


def assert_search_finds_the_best(
    seed: int,
    *,
    experts: bool = False,
    most_context: int = 1,
    target: TargetName = "megatron-lm",
    deferred: bool = False,
    unlike_adapters: bool = False,
    num_classes: int = 2,
    communicators: bool = False,
    old_class: bool = False,
    empty: bool = False,
    most_layers: int = 6,
) -> Plan | None:
    """Hold one problem against brute force; its plan. Stages without a layer, which take long, if `empty`."""
    problem = random_problem(
        seed,
        experts=experts,
        most_context=most_context,
        num_classes=num_classes,
        most_layers=most_layers,
    )
    if not empty:
        forbid = (*problem.options.forbid, "stages=empty")
        options = problem.options.model_copy(update={"forbid": forbid})
        problem = problem.model_copy(update={"options": options})
    problem = with_communicators_of(problem, seed) if communicators else problem
    problem = with_an_old_class(problem, seed) if old_class else problem
    problem = with_unlike_adapters(problem) if unlike_adapters else problem
    problem = with_deferred_sends(problem) if deferred else problem
    problem = problem.model_copy(update={"target": target})
    best = brute_force(problem)
    result = driver.search(problem)
    assert best.num_plans <= MAX_PLANS
    if best.what == ():
        assert result.termination == "infeasible", f"seed {seed}"
        return None
    assert result.plan is not None and result.evaluation is not None, f"seed {seed}: {best}"
    judged = evaluate(problem, result.plan)
    assert judged.violations == ()
    assert judged.step_s == pytest.approx(best.step_s, rel=REL), f"seed {seed}: {best.what}"
    assert result.termination == "optimal"
    assert result.bound_s is not None and result.bound_s <= best.step_s * (1 + REL)
    return result.plan


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_search_equals_brute_force_on_a_few_problems(seed: int) -> None:
    assert_search_finds_the_best(seed)


@pytest.mark.parametrize("seed", [202, *(pytest.param(s, marks=pytest.mark.slow) for s in (228, 230, 238))])
@pytest.mark.parametrize("by_programs", [False, True])
def test_the_best_plan_has_a_stage_without_a_layer(
    seed: int, by_programs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedding or the loss alone on a whole stage, which the search once left out of its space."""
    if by_programs:
        monkeypatch.setattr(Solver, "max_splits", 0)
    plan = assert_search_finds_the_best(seed, empty=True)
    assert plan is not None and any(last < first for stage in plan.stages for first, last in stage.chunks)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(100, 130), *range(203, 208), *range(209, 228)])
def test_search_equals_brute_force_with_stages_without_a_layer(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed > 200:
        monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed, empty=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(700, 728), *range(729, 740)])
def test_one_setting_of_recomputation_with_stages_without_a_layer_equals_brute_force(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed, empty=True, target="megatron-bridge")


@pytest.mark.parametrize("by_programs", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("seed", [423, pytest.param(438, marks=pytest.mark.slow)])
def test_the_best_plan_has_predictions_before_the_stage_with_the_loss(
    seed: int, by_programs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_programs:
        monkeypatch.setattr(Solver, "max_splits", 0)
    plan = assert_search_finds_the_best(seed, experts=True, empty=True, most_layers=3)
    assert plan is not None and plan.prediction_stage == len(plan.stages) - 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3000, 3090, 3))
def test_search_equals_brute_force_with_predictions_before_the_stage_with_the_loss(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed, experts=True, empty=True, most_layers=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_search_equals_brute_force(seed: int) -> None:
    assert_search_finds_the_best(seed)


@pytest.mark.parametrize(
    ("seed", "target"),
    [
        (90001, "megatron-lm"),
        *(
            pytest.param(seed, "megatron-lm", marks=pytest.mark.slow)
            for seed in (90000, *range(90002, 90010))
        ),
        *(pytest.param(seed, "megatron-bridge", marks=pytest.mark.slow) for seed in range(90000, 90005)),
    ],
)
def test_an_embedding_at_both_ends_is_shared_over_their_own_adapters(
    seed: int, target: TargetName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two classes and of three, with no split tried by enumeration."""
    monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed, target=target, unlike_adapters=True, num_classes=2 + seed % 2)


@pytest.mark.parametrize(
    "seed", [900, 901, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(902, 932))]
)
def test_search_equals_brute_force_where_one_class_keeps_its_scores(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the programs, too; also where the others may split the sequence."""
    if seed % 3 == 0:
        monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(
        seed,
        old_class=True,
        experts=seed % 4 == 3,
        most_context=1 + seed % 2,
        num_classes=2 + (seed % 5 == 0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(600, 608))
def test_one_setting_of_recomputation_fits_the_class_that_keeps_its_scores(seed: int) -> None:
    assert_search_finds_the_best(seed, target="megatron-bridge", old_class=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(800, 824))
def test_search_equals_brute_force_whatever_communicators_take(seed: int) -> None:
    assert_search_finds_the_best(seed, communicators=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3000346])
def test_places_planned_ahead_are_full_in_the_enumeration_too(seed: int) -> None:
    """It once counted those that are taken, and called a plan best that the referee refuses."""
    assert_search_finds_the_best(seed, experts=True, communicators=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 300))
def test_programs_alone_equal_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no split tried by enumeration every order goes through the mixed-integer program."""
    monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 330))
def test_search_equals_brute_force_where_activations_wait_for_gradients(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no split tried by enumeration, so that bounds, walks and programs know of the wait."""
    monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed, deferred=True)


@pytest.mark.parametrize("seed", [400, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (401, 402))])
def test_search_equals_brute_force_on_a_few_problems_with_experts(seed: int) -> None:
    """Expert parallelism, experts split or not by tensor parallelism, leading dense layers."""
    assert_search_finds_the_best(seed, experts=True)


def test_recomputing_leading_layers_alone_holds_no_layer_of_the_rest_again() -> None:
    """One dense layer recomputed fits by little; a layer of experts, recomputed, would not pass beside it."""
    assert_search_finds_the_best(40139, experts=True)


@pytest.mark.parametrize("by_programs", [False, True])
def test_a_stage_of_leading_layers_alone_passes_no_buffers_of_the_rest(
    by_programs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Core attention of the one dense layer recomputed, it fits; a layer of experts would not beside it.

    The search counted buffers of both kinds on every first stage, and proved a slower plan best. What passes
    in attention, more than in the experts of so small a model, is left out, and what permutation keeps.
    """
    monkeypatch.setattr(memory, "passing_bytes", lambda *_: 0.0)
    monkeypatch.setattr(memory, "router_bytes", lambda *_: 5.0)
    problem = random_problem(500108, experts=True)
    classes = tuple(  # what fits here and nowhere else, without communicators
        one.model_copy(update={"memory_gib": memory_gib})
        for one, memory_gib in zip(problem.cluster.classes, (2.4756, 2.7788), strict=True)
    )
    changes = {
        "cluster": problem.cluster.model_copy(update={"classes": classes}),
        "stack": problem.stack.model_copy(update={"communicator_gib": 0.0}),
        "options": problem.options.model_copy(
            update={"pin": {"pp": 2}, "forbid": (*problem.options.forbid, "stages=empty")}
        ),
    }
    problem = problem.model_copy(update=changes)
    every_order = oracle_plans.orders_of

    def of_two_stages(problem: Problem, degrees: Degrees) -> Iterator[tuple[int, ...]]:
        return (order for order in every_order(problem, degrees) if len(order) == 2)

    monkeypatch.setattr(oracle_plans, "orders_of", of_two_stages)
    if by_programs:
        monkeypatch.setattr(Solver, "max_splits", 0)
    best, result = brute_force(problem), driver.search(problem)
    assert best.what[-1] == [(1, "selective", 0), (2, "selective", 0)]
    assert result.plan is not None and result.bound_s is not None
    assert evaluate(problem, result.plan).step_s == pytest.approx(best.step_s, rel=REL)
    assert result.bound_s <= best.step_s * (1 + REL)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(410, 440))
def test_search_equals_brute_force_with_experts(seed: int) -> None:
    assert_search_finds_the_best(seed, experts=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(450, 480))
def test_search_equals_brute_force_with_context_parallelism(seed: int) -> None:
    assert_search_finds_the_best(seed, experts=seed % 2 == 0, most_context=4)


@pytest.mark.parametrize(
    "seed", [221, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(200, 221))]
)
def test_search_with_one_setting_of_recomputation_equals_brute_force(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron-Bridge: all stages recompute alike, in some of these problems more than one of them needs."""
    if seed % 2:
        monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed, experts=seed % 3 == 0, target="megatron-bridge")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(700, 730))
def test_programs_with_one_number_of_recomputed_layers_equal_brute_force(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every order goes through programs, those with whole layers recomputed over ranges of their number."""
    monkeypatch.setattr(Solver, "max_splits", 0)
    assert_search_finds_the_best(seed, target="megatron-bridge")
