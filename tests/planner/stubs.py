"""A small problem with a plan and made-up figures, for tests of what stands above search and referee."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from planner.data.load import build_problem
from planner.data.plan import Plan, Stage
from planner.data.problem import Problem
from planner.data.result import Evaluation, Result, RunnerUp, StageEvaluation


def two_class_problem(**changes: Any) -> Problem:
    """One node of eight H100 and one of eight A100, for an 8B model."""
    flags: dict[str, Any] = {
        "cluster": "1x8 h100-sxm-80gb, 1x8 a100-sxm-80gb",
        "model": "llama3-8b",
        "seq_length": 8192,
        "global_batch_size": 64,
        **changes,
    }
    return build_problem(**flags)


def two_stage_plan(problem: Problem, *, first_layers: int = 12) -> Plan:
    """Stage 0 on the A100 node, stage 1 on the H100 node."""
    last = problem.model.num_layers - 1
    classes = {c.chip: (c, problem.cluster.hosts_of(i)) for i, c in enumerate(problem.cluster.classes)}
    ranges = {"a100-sxm-80gb": (0, first_layers - 1), "h100-sxm-80gb": (first_layers, last)}
    stages = tuple(
        Stage(
            layers=layers,
            chip=chip,
            node_class=classes[chip][0].name,
            hosts=classes[chip][1],
            tensor_parallel=4,
            data_parallel=2,
            recompute="full" if chip.startswith("a100") else "none",
            recompute_layers=3 if chip.startswith("a100") else 0,
        )
        for chip, layers in ranges.items()
    )
    return Plan(
        target="megatron-lm",
        tensor_parallel=4,
        data_parallel=2,
        microbatch_size=1,
        num_microbatches=32,
        sequence_parallel=True,
        stages=stages,
    )


def made_up_evaluation(step_s: float = 2.0, *, violations: tuple[str, ...] = ()) -> Evaluation:
    """Round figures: the parts are 80, 5, 2, 3, 8 and 2 percent of the step."""
    shares = {"compute": 0.8, "tp": 0.05, "pp": 0.02, "dp": 0.03, "bubble": 0.08, "optimizer": 0.02}
    stage = StageEvaluation(
        forward_s=0.0123,
        backward_s=0.0246,
        send_s=0.0001,
        busy_s=1.8,
        bubble_s=0.1,
        in_flight=2,
        memory_gib={"weights": 20.0, "activations": 41.4},
        peak_memory_gib=61.4,
        limit_gib=76.8,
    )
    return Evaluation(
        step_s=step_s,
        breakdown_s={part: share * step_s for part, share in shares.items()},
        tokens_per_s=64 * 8192 / step_s,
        mfu=0.42,
        error_band=0.06,
        stages=(stage, stage.model_copy(update={"send_s": 0.0})),
        violations=violations,
        assumptions=("the link between the classes is the slower of their adapters",),
    )


def made_up_result(problem: Problem, **changes: Any) -> Result:
    """A plan with one runner-up and a gap of 0.8%."""
    fields: dict[str, Any] = {
        "problem": problem.name,
        "plan": two_stage_plan(problem),
        "evaluation": made_up_evaluation(),
        "bound_s": 1.984,
        "gap": 0.008,
        "termination": "optimal",
        "seconds": 1.5,
        "solver": "highs",
        "version": "0.1.0",
        "runners_up": (
            RunnerUp(plan=two_stage_plan(problem, first_layers=11), evaluation=made_up_evaluation(2.1)),
        ),
        **changes,
    }
    return Result(**fields)


def without_plan(problem: Problem, termination: str, reason: str) -> Result:
    """A search that ended without a plan."""
    nothing = {"plan": None, "evaluation": None, "bound_s": None, "gap": None, "runners_up": ()}
    return made_up_result(problem, termination=termination, reason=reason, **nothing)


def replace_search(monkeypatch: pytest.MonkeyPatch, search: Callable[..., Result]) -> None:
    """Let `plan` call this in the place of the search."""

    def stub(problem: Problem, on_progress: Any = None, *warmth: Any) -> Result:
        return search(problem, on_progress)

    monkeypatch.setitem(sys.modules, "planner.search.driver", SimpleNamespace(search=stub))


def replace_referee(monkeypatch: pytest.MonkeyPatch, evaluate: Callable[..., Evaluation]) -> None:
    """Let whoever asks the referee get this answer."""
    monkeypatch.setitem(sys.modules, "planner.simulate.evaluate", SimpleNamespace(evaluate=evaluate))


def replace_both(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Problem], Result]) -> None:
    """A search that answers with `answer`, and a referee that agrees with every word of it."""
    seen: dict[str, Result] = {}

    def search(problem: Problem, on_progress: Any = None) -> Result:
        seen["result"] = answer(problem)
        return seen["result"]

    def evaluate(problem: Problem, plan: Plan) -> Evaluation:
        result = seen["result"]
        bare = plan.model_copy(update={"problem": None})
        for other in result.runners_up:
            if other.plan == bare:
                return other.evaluation
        assert result.evaluation is not None
        return result.evaluation

    replace_search(monkeypatch, search)
    replace_referee(monkeypatch, evaluate)
