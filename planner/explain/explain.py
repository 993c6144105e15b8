"""Ask everything about one answer, within a time limit for each question."""

from __future__ import annotations

from contextlib import suppress

from planner import api
from planner.data.changes import with_named_hosts
from planner.data.explanation import Explanation, Relaxation
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation, Result
from planner.errors import InstanceError, PlanRefusedError
from planner.explain.questions import QUESTION_S, Ask, Questions, solved
from planner.explain.relaxations import first_plan, relaxations
from planner.explain.stages import critical_stage, stage_reasons
from planner.search.floors import Floors
from planner.search.shared import sharing


def explain(
    problem: Problem,
    plan: Plan | None = None,
    *,
    question_s: float = QUESTION_S,
    on_question: Ask = lambda question: None,
) -> Explanation:
    """Why the plan of a problem is as it is, or what it takes to have one.

    Every further search begins with the plans at hand, priced anew for its problem.

    Parameters
    ----------
    plan
        The plan to explain; searched for where absent.
    question_s
        Time limit of each search [s].
    on_question
        Called with each question before it is worked on; where it raises KeyboardInterrupt, the answers so
        far are returned.

    Raises
    ------
    InstanceError
        Where the problem cannot be planned.
    PlanRefusedError
        Where the given plan breaks a rule.
    """
    with sharing():
        return _explained(with_named_hosts(problem), plan, question_s, on_question)


def _explained(problem: Problem, plan: Plan | None, question_s: float, on_question: Ask) -> Explanation:
    evaluation = None if plan is None else _checked(problem, plan)
    on_question("the best plan")
    floors = Floors()
    result = _best(problem, plan, question_s, floors)
    if plan is None or evaluation is None:
        assert result is not None
        if result.plan is None or result.evaluation is None:
            return _without_plan(problem, result, question_s, on_question)
        plan, evaluation = result.plan, result.evaluation
    on_question("what binds each stage")
    stages = stage_reasons(problem, plan, evaluation)
    questions = Questions(problem, plan, evaluation, result, question_s, on_question, floors)
    interrupted = False
    try:
        questions.ask()
    except KeyboardInterrupt:
        interrupted = True
    return Explanation(
        problem=problem.name,
        step_s=evaluation.step_s,
        best_step_s=questions.best_s,
        bound_s=None if result is None else result.bound_s,
        critical_stage=critical_stage(evaluation),
        bubble_fraction=evaluation.breakdown_s.get("bubble", 0.0) / evaluation.step_s,
        stages=stages,
        gains=tuple(sorted(questions.gains, key=lambda gain: -(gain.gain or 0.0))),
        alternatives=tuple(sorted(questions.alternatives, key=lambda other: other.step_s or float("inf"))),
        idle=tuple(questions.idle),
        interrupted=interrupted,
    )


def _checked(problem: Problem, plan: Plan) -> Evaluation:
    """What the referee says of a plan that breaks no rule."""
    evaluation = api.predict(problem, plan)
    if evaluation.violations:
        raise PlanRefusedError(
            f"the plan breaks a rule, so there is no point in it: {evaluation.violations[0]}"
        )
    return evaluation


def _best(problem: Problem, plan: Plan | None, question_s: float, floors: Floors) -> Result | None:
    """The search's answer, no worse than a plan at hand; None where that one is beyond what is searched."""
    try:
        return solved(problem, question_s, () if plan is None else (plan,), floors=floors)
    except InstanceError:
        if plan is None:
            raise
        return None


def _without_plan(problem: Problem, result: Result, question_s: float, on_question: Ask) -> Explanation:
    """The changes that give a plan."""

    def solve(changed: Problem) -> Result:
        return first_plan(changed, question_s)

    found: list[Relaxation] = []
    if result.termination == "infeasible":
        on_question("the least changes that give a plan")
        with suppress(KeyboardInterrupt):
            for relaxation in relaxations(problem, solve):
                found.append(relaxation)
                on_question(f"other changes than {relaxation.change}")
    return Explanation(
        problem=problem.name,
        step_s=None,
        critical_stage=None,
        bubble_fraction=None,
        relaxations=tuple(found),
        reason=result.reason,
        interrupted=result.interrupted,
    )
