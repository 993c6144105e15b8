"""Tables of a plan: what they say in the cases that the command line's tests do not reach."""

from __future__ import annotations

from rich.console import Console, RenderableType

from planner.data.changes import with_cluster
from planner.data.cluster import Link
from planner.data.plan import Replica
from planner.data.problem import Problem
from planner.report.facts import decision_grid
from planner.report.tables import memory_table, plan_report, prediction_report, proof_grid
from planner.report.words import predicted
from tests.planner.stubs import made_up_evaluation, made_up_result, two_class_problem, two_stage_plan


def text_of(renderable: RenderableType, width: int = 80) -> str:
    """What a screen of that width shows, with the blanks pressed together."""
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(renderable)
    return " ".join(capture.get().split())


def test_closed_gap_is_called_proven_best() -> None:
    problem = two_class_problem()
    assert "proven best" in text_of(proof_grid(problem, made_up_result(problem, bound_s=2.0, gap=0.0)))


def test_gap_is_never_rounded_down() -> None:
    problem = two_class_problem()
    # 0.81% shown as 0.8% would promise more than is proven; 0.003% as 0.0% even more so.
    assert "0.9% faster" in text_of(proof_grid(problem, made_up_result(problem, gap=0.0081)))
    assert "0.7% faster" in text_of(proof_grid(problem, made_up_result(problem, gap=0.007)))
    assert "0.003% faster" in text_of(proof_grid(problem, made_up_result(problem, gap=0.00003)))


def test_plans_without_virtual_stages_are_told_to_be_closed_without_a_number() -> None:
    """It once said that none of them is more than 0.000% faster."""
    problem = two_class_problem()
    result = made_up_result(problem, gap=0.02)
    assert result.evaluation is not None
    whole_s = result.evaluation.step_s
    closed = text_of(proof_grid(problem, result.model_copy(update={"whole_bound_s": whole_s})), width=250)
    assert closed.count("none without virtual stages faster at all") == 1 and "0.000%" not in closed
    nearly = result.model_copy(update={"whole_bound_s": whole_s * 0.998})
    assert "none without virtual stages more than 0.2%" in text_of(proof_grid(problem, nearly), width=250)


def test_a_time_limit_that_was_felt_is_told() -> None:
    problem = two_class_problem()
    for hurried in (False, True):
        shown = text_of(proof_grid(problem, made_up_result(problem, hurried=hurried)), width=250)
        assert ("another run may find another plan" in shown) is hurried


def test_plan_without_a_bound_claims_nothing() -> None:
    problem = two_class_problem()
    shown = text_of(proof_grid(problem, made_up_result(problem, bound_s=None, gap=None, interrupted=True)))
    assert "none yet" in shown and "faster" not in shown


def test_overfull_stage_shows_more_than_a_hundred_percent() -> None:
    problem = two_class_problem()
    evaluation = made_up_evaluation(violations=("stage 0: too full",))
    full = evaluation.stages[0].model_copy(update={"peak_memory_gib": 92.16})
    evaluation = evaluation.model_copy(update={"stages": (full, evaluation.stages[1])})
    shown = text_of(prediction_report(problem, two_stage_plan(problem), evaluation, width=120), width=120)
    assert "92.2 of 76.8 120%" in shown
    assert "breaks a rule" in shown


def test_memory_is_listed_by_term_of_the_fullest_stages() -> None:
    evaluation = made_up_evaluation()
    few = text_of(memory_table(evaluation, wide=False))
    assert "Memory by stage" in few and "reserved" in few and "weights" in few
    full = evaluation.stages[0].model_copy(update={"peak_memory_gib": 92.16})
    many = evaluation.model_copy(update={"stages": (*[evaluation.stages[1]] * 20, full)})
    shown = text_of(memory_table(many, wide=False))
    assert "the 6 fullest stages" in shown and " 20 " in shown and "92.16" in shown


def test_a_predicted_time_carries_its_error() -> None:
    assert predicted(43.1, 0.097) == "43.10 s ±10%"


def test_every_stage_of_a_long_pipeline_is_shown() -> None:
    problem = two_class_problem()
    result = made_up_result(problem)
    assert result.plan is not None and result.evaluation is not None
    many = result.plan.model_copy(update={"stages": result.plan.stages * 32})
    seen = result.evaluation.model_copy(update={"stages": result.evaluation.stages * 32})
    long = result.model_copy(update={"plan": many, "evaluation": seen})
    shown = text_of(plan_report(problem, long, width=120), width=120)
    assert shown.count("8 x a100-sxm-80gb") == 32 and " 63 8 x h100-sxm-80gb" in shown


def test_parts_that_a_plan_cannot_have_are_left_out() -> None:
    problem = two_class_problem()
    evaluation = made_up_evaluation()
    parts = {**evaluation.breakdown_s, "ep": 0.0, "cp": 0.0}
    evaluation = evaluation.model_copy(update={"breakdown_s": parts})
    shown = text_of(prediction_report(problem, two_stage_plan(problem), evaluation, width=80))
    assert "exposed TP" in shown and "exposed CP" not in shown and "exposed EP" not in shown


def test_one_replica_is_not_counted() -> None:
    """It read "on each of 1 replicas"."""
    problem = two_class_problem()
    plan = two_stage_plan(problem).model_copy(update={"data_parallel": 1})
    shown = text_of(decision_grid(problem, plan))
    assert "of them a step sharding" in shown
    several = plan.model_copy(update={"data_parallel": 4})
    assert "of them a step on each of 4 replicas" in text_of(decision_grid(problem, several))


def test_degrees_are_spelled_out_with_what_shares_what() -> None:
    """Without tensor parallelism they read "a chip a layer, 2 share a sequence"."""
    problem = two_class_problem()
    plan = two_stage_plan(problem).model_copy(update={"tensor_parallel": 1, "context_parallel": 2})
    assert "each layer whole on a chip, 2 chips share a sequence" in text_of(
        decision_grid(problem, plan), 120
    )
    wide = plan.model_copy(update={"tensor_parallel": 4})
    assert "4 chips share a layer, 2 share a sequence" in text_of(decision_grid(problem, wide), 120)


def test_search_that_ends_above_the_wanted_gap_says_so() -> None:
    problem = two_class_problem()
    shown = text_of(proof_grid(problem, made_up_result(problem, gap=0.05, termination="feasible")), width=120)
    assert "ended above the wanted gap of 1.0%" in shown
    assert "wanted gap" not in text_of(proof_grid(problem, made_up_result(problem, gap=0.008)), width=120)


def slow_between_classes(gbit_per_s: float) -> Problem:
    """The problem of two classes with a link of its own between them."""
    problem = two_class_problem()
    names = tuple(node_class.name for node_class in problem.cluster.classes)
    link = Link(between=names, gbit_per_s=gbit_per_s, latency_us=10_000, transport="tcp")  # type: ignore[arg-type]
    return with_cluster(problem, problem.cluster.model_copy(update={"links": (link,)}))


def test_what_crosses_a_slow_link_is_named() -> None:
    problem, plan = slow_between_classes(25), two_stage_plan(two_class_problem())
    shown = text_of(decision_grid(problem, plan, made_up_evaluation(2.0)), width=200)
    # 64 sequences of 8,192 tokens, each 4,096 values of 2 bytes, there and back: 8.6 GB in 2 s.
    crossing = "slow links h100-sxm-80gb to a100-sxm-80gb: activations and their gradients, "
    assert crossing + "8.6 GB a step, on average 34 Gbit/s both ways together" in shown
    whole = plan.model_copy(update={"sequence_parallel": False})  # each of 4 ranks sends all of it
    assert "34 GB a step" in text_of(decision_grid(problem, whole, made_up_evaluation(2.0)), width=200)
    for other in (two_class_problem(), slow_between_classes(10_000)):
        assert "slow links" not in text_of(decision_grid(other, plan, made_up_evaluation(2.0)), width=200)


def test_borders_of_virtual_stages_and_replicas_on_both_sides_of_a_slow_link_count() -> None:
    problem, plan = slow_between_classes(25), two_stage_plan(two_class_problem())
    chunks = tuple(
        stage.model_copy(update={"layers": ((s, s), (s + 2, s + 2))}) for s, stage in enumerate(plan.stages)
    )
    twice = plan.model_copy(update={"stages": chunks, "virtual_stages": 2})
    # Three borders: 0 to 1, 1 back to 0, 0 to 1.
    assert "26 GB a step" in text_of(decision_grid(problem, twice, made_up_evaluation(2.0)), width=200)
    sides = tuple(
        Replica(node_class=stage.node_class, chip=stage.chip, hosts=stage.hosts, tensor_parallel=4)
        for stage in plan.stages
    )
    both = tuple(stage.model_copy(update={"replicas": sides}) for stage in plan.stages)
    shown = text_of(
        decision_grid(problem, plan.model_copy(update={"stages": both}), made_up_evaluation(2.0)), width=200
    )
    assert "gradients and parameters of stages 0, 1" in shown and "activations" not in shown
