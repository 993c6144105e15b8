"""Plans to begin with: those against the user's wishes are left aside, the others make no answer worse."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from planner import api
from planner.data.load import build_problem
from planner.data.options import Options
from planner.data.plan import Plan, Replica, Stage
from planner.data.problem import Problem
from planner.data.result import Result
from planner.search.wishes import keeps_wishes


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build_problem(
        cluster="1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        model="llama3-8b",
        seq_length=4096,
        global_batch_size=16,
    )


@pytest.fixture(scope="module")
def best(problem: Problem) -> Result:
    return api.plan(problem.model_copy(update={"options": Options(gap=0.1, virtual_gap=0.1)}))


def against(plan: Plan) -> list[Mapping[str, object]]:
    """Options each of which a plan breaks."""
    classes = list(dict.fromkeys(stage.node_class for stage in plan.stages))
    values = {
        "tp": plan.tensor_parallel,
        "pp": plan.pipeline_parallel,
        "dp": plan.data_parallel,
        "mbs": plan.microbatch_size,
        "sp": int(plan.sequence_parallel),
        "cp": plan.context_parallel,
        "vp": plan.virtual_stages,
    }
    forbidden = [{"forbid": (f"{name}={value}",)} for name, value in values.items()]
    pinned = [{"pin": {name: 1 - value if name == "sp" else value + 1}} for name, value in values.items()]
    return [*forbidden, *pinned, {"spare": (classes[0],)}]


def test_a_plan_keeps_what_it_was_searched_for_and_no_wish_against_it(problem: Problem, best: Result) -> None:
    plan = best.plan
    assert plan is not None and keeps_wishes(problem, plan)
    for wishes in against(plan):
        asked = problem.model_copy(update={"options": Options(**wishes)})
        assert not keeps_wishes(asked, plan), wishes


def test_the_order_of_the_classes_and_recomputation_are_wishes_too(problem: Problem, best: Result) -> None:
    assert best.plan is not None
    full = best.plan.stages[0].model_copy(update={"recompute": "full", "recompute_layers": 1})
    changed = best.plan.model_copy(update={"stages": (full, *best.plan.stages[1:])})
    forbidding = problem.model_copy(update={"options": Options(forbid=("recompute=full",))})
    assert keeps_wishes(problem, changed) and not keeps_wishes(forbidding, changed)
    names = [node_class.name for node_class in problem.cluster.classes]
    stages = tuple(full.model_copy(update={"node_class": name}) for name in names)
    kept = problem.model_copy(update={"options": Options(keep_class_order=True)})
    assert keeps_wishes(kept, changed.model_copy(update={"stages": stages}))
    assert not keeps_wishes(kept, changed.model_copy(update={"stages": stages[::-1]}))


def test_classes_in_order_leave_no_stage_on_two_of_them(problem: Problem) -> None:
    """A baseline with such a stage once came back as the answer."""
    names = [(c.name, c.chip, problem.cluster.hosts_of(i)) for i, c in enumerate(problem.cluster.classes)]
    replicas = tuple(
        Replica(node_class=name, chip=chip, hosts=hosts, tensor_parallel=8) for name, chip, hosts in names
    )
    stage = Stage(
        layers=(0, problem.model.num_layers - 1),
        chip=names[0][1],
        node_class=names[0][0],
        hosts=tuple(host for _, _, hosts in names for host in hosts),
        tensor_parallel=8,
        data_parallel=2,
        replicas=replicas,
    )
    plan = Plan(
        target="megatron-lm",
        tensor_parallel=8,
        data_parallel=2,
        microbatch_size=1,
        num_microbatches=8,
        stages=(stage,),
    )
    kept = problem.model_copy(update={"options": Options(keep_class_order=True)})
    assert keeps_wishes(problem, plan) and not keeps_wishes(kept, plan)


def test_shorter_pieces_of_a_sequence_than_asked_for_are_against_the_wishes(
    problem: Problem, best: Result
) -> None:
    """A baseline that cut it into such pieces once came back as the answer."""
    assert best.plan is not None
    halves = best.plan.model_copy(update={"context_parallel": 2})
    asked = problem.model_copy(update={"options": Options(least_context_tokens=2048)})
    assert keeps_wishes(asked, halves) and not keeps_wishes(problem, halves)


def few_chips(target: str) -> Problem:
    """A problem that every launcher's search closes quickly."""
    problem = build_problem(
        cluster="1x2 h100-sxm-80gb, 1x2 a100-sxm-80gb",
        model="qwen2.5-7b",
        seq_length=2048,
        global_batch_size=2,
        target=target,
    )
    model = problem.model.model_copy(update={"num_layers": 8})
    return problem.model_copy(update={"model": model, "options": Options(top=1, gap=0.05)})


@pytest.mark.parametrize("wish", [pytest.param("pp=2", marks=pytest.mark.slow), "vp=1", "cp=1"])
def test_what_is_forbidden_comes_from_no_search_of_stages_with_degrees_of_their_own(wish: str) -> None:
    """FlagScale's search once forgot all of these, and its first plans a number of stages."""
    problem = few_chips("flagscale")
    asked = problem.model_copy(
        update={"options": problem.options.model_copy(update={"forbid": (wish,), "max_tensor_parallel": 2})}
    )
    result = api.plan(asked)
    assert result.plan is None or keeps_wishes(asked, result.plan)
    if wish != "pp=2":
        assert result.termination == "infeasible" and f"{wish} is forbidden" in (result.reason or "")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron-lm", "flagscale", "unrestricted", "megatron-bridge"])
def test_a_seed_makes_no_answer_worse_and_none_that_was_not_asked_for(target: str) -> None:
    """Once without a seed a forbidden number of stages came out of FlagScale's first plans."""
    problem = few_chips(target)
    cold = api.plan(problem)
    assert cold.plan is not None and cold.evaluation is not None
    warm = api.plan(problem, seeds=[cold.plan])
    assert warm.evaluation is not None and warm.evaluation.step_s <= cold.evaluation.step_s
    for wishes in against(cold.plan)[::2]:
        asked = problem.model_copy(update={"options": problem.options.model_copy(update=wishes)})
        other, alone = api.plan(asked, seeds=[cold.plan]), api.plan(asked)
        assert (other.plan is None) == (alone.plan is None)
        for result in (other, alone):
            assert result.plan is None or keeps_wishes(asked, result.plan), wishes
        if other.evaluation is not None and alone.bound_s is not None:
            assert other.evaluation.step_s >= alone.bound_s
