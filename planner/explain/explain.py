"""Ask everything about one answer, within a time limit for each question and one for all."""

from __future__ import annotations

from planner import api
from planner.data.changes import with_named_hosts
from planner.data.explanation import Alternative, Explanation, Gain, IdleReason, Relaxation
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation, Result
from planner.errors import InstanceError, PlanRefusedError
from planner.explain.asking import Hands, asked
from planner.explain.budget import Budget
from planner.explain.questions import QUESTION_S, Ask, Grounds, all_questions, idle_reasons, solved
from planner.explain.relaxations import first_plan, relaxations
from planner.explain.stages import critical_stage, stage_reasons
from planner.processes import cores
from planner.search.floors import Floors
from planner.search.shared import sharing

MOST_WORKERS = 2
"""Processes that answer questions where nobody says how many: with three the longest question decides."""
ALONE_S = 2.0
"""Where the plan was found within this, its questions are not worth the start of another process, which takes
half a second of a core [s]. Measured on the shipped problems."""


def explain(
    problem: Problem,
    plan: Plan | None = None,
    *,
    question_s: float = QUESTION_S,
    workers: int | None = None,
    spent_s: float = 0.0,
    on_question: Ask = lambda question: None,
) -> Explanation:
    """Why the plan of a problem is as it is, or what it takes to have one.

    Every further search begins with the plans at hand, priced anew for its problem. The time limit of the
    problem holds for all of them together.

    Parameters
    ----------
    plan
        The plan to explain; searched for where absent.
    question_s
        Time limit of each search [s].
    workers
        Processes that answer questions at most, this one included; one a core and two at most where absent.
        The answer does not depend on it. Where the plan was found soon, this process stays alone.
    spent_s
        Time that already counts against the limit of the problem [s].
    on_question
        Called with each question before it is worked on, by one thread at a time; where it raises
        KeyboardInterrupt, the answers so far are returned.

    Raises
    ------
    InstanceError
        Where the problem cannot be planned.
    PlanRefusedError
        Where the given plan breaks a rule.
    """
    hands = Hands(question_s, workers or min(MOST_WORKERS, cores()), Budget(problem, spent_s), on_question)
    with sharing():
        return _explained(with_named_hosts(problem), plan, hands)


def _explained(problem: Problem, plan: Plan | None, hands: Hands) -> Explanation:
    evaluation = None if plan is None else _checked(problem, plan)
    hands.on_question("the best plan")
    floors = Floors()
    result = _best(problem, plan, hands.limit_s, floors)
    if plan is None or evaluation is None:
        assert result is not None
        if result.plan is None or result.evaluation is None:
            return _without_plan(problem, result, hands)
        plan, evaluation = result.plan, result.evaluation
    hands.on_question("what binds each stage")
    stages = stage_reasons(problem, plan, evaluation)
    grounds = Grounds.of(problem, plan, evaluation, result, floors)
    questions = list(all_questions(grounds, plan))
    answers = asked(grounds, questions, hands, alone=result is None or result.seconds < ALONE_S)
    gains = [answer for answer in answers if isinstance(answer, Gain)]
    others = [answer for answer in answers if isinstance(answer, Alternative)]
    idle = [answer for answer in answers if isinstance(answer, IdleReason)]
    return Explanation(
        problem=problem.name,
        step_s=evaluation.step_s,
        best_step_s=grounds.best_s,
        bound_s=None if result is None else result.bound_s,
        critical_stage=critical_stage(evaluation),
        bubble_fraction=evaluation.breakdown_s.get("bubble", 0.0) / evaluation.step_s,
        stages=stages,
        gains=tuple(sorted(gains, key=lambda gain: -(gain.gain or 0.0))),
        alternatives=tuple(sorted(others, key=lambda other: other.step_s or float("inf"))),
        idle=tuple(idle_reasons(problem, plan, idle)),
        interrupted=len(answers) < len(questions),
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


def _without_plan(problem: Problem, result: Result, hands: Hands) -> Explanation:
    """The changes that give a plan."""

    def solve(changed: Problem) -> Result:
        if hands.budget.is_up:
            raise KeyboardInterrupt
        return first_plan(changed, hands.limit_s)

    found: list[Relaxation] = []
    interrupted = result.interrupted
    if result.termination == "infeasible":
        hands.on_question("the least changes that give a plan")
        try:
            for relaxation in relaxations(problem, solve):
                found.append(relaxation)
                hands.on_question(f"other changes than {relaxation.change}")
        except KeyboardInterrupt:
            interrupted = True
    return Explanation(
        problem=problem.name,
        step_s=None,
        critical_stage=None,
        bubble_fraction=None,
        relaxations=tuple(found),
        reason=result.reason,
        infeasible=result.termination == "infeasible",
        interrupted=interrupted,
    )
