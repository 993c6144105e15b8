"""Ask everything about one answer, within a time limit for each question."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from planner import api
from planner.data.changes import with_named_hosts
from planner.data.explanation import Explanation, Gain, IdleReason, Relaxation
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation, Result
from planner.errors import InstanceError, PlanRefusedError
from planner.explain.gains import changed_problems
from planner.explain.relaxations import first_plan, relaxations
from planner.explain.stages import critical_stage, stage_reasons
from planner.tolerances import GAP_TOL

QUESTION_S = 20.0
"""Time for each question where nobody says otherwise [s]."""

Ask = Callable[[str], None]


def explain(
    problem: Problem,
    plan: Plan | None = None,
    *,
    question_s: float = QUESTION_S,
    on_question: Ask = lambda question: None,
) -> Explanation:
    """Why the plan of a problem is as it is, or what it takes to have one.

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
    problem = with_named_hosts(problem)
    if plan is None:
        on_question("the best plan")
        result = _solve(problem, question_s)
        if result.plan is None:
            return _without_plan(problem, result, question_s, on_question)
        plan = result.plan
    evaluation = api.predict(problem, plan)
    if evaluation.violations:
        raise PlanRefusedError(
            f"the plan breaks a rule, so there is no point in it: {evaluation.violations[0]}"
        )
    on_question("what binds each stage")
    gains: list[Gain] = []
    idle: list[IdleReason] = []
    interrupted = False
    try:
        for change, changed in changed_problems(problem):
            on_question(change)
            gains.append(_gain(change, problem, changed, plan, evaluation, question_s))
        idle += _idle(problem, plan, evaluation, question_s, on_question)
    except KeyboardInterrupt:
        interrupted = True
    gains.sort(key=lambda gain: -(gain.gain or 0.0))
    return Explanation(
        problem=problem.name,
        step_s=evaluation.step_s,
        critical_stage=critical_stage(evaluation),
        bubble_fraction=evaluation.breakdown_s.get("bubble", 0.0) / evaluation.step_s,
        stages=stage_reasons(problem, plan, evaluation),
        gains=tuple(gains),
        idle=tuple(idle),
        interrupted=interrupted,
    )


def _solve(problem: Problem, question_s: float) -> Result:
    options = problem.options.model_copy(update={"time_limit_s": question_s, "top": 1})
    return api.plan(problem, options)


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


def _gain(
    change: str, problem: Problem, changed: Problem, plan: Plan, evaluation: Evaluation, question_s: float
) -> Gain:
    """Solve the changed problem; the old plan serves there too, so no change makes anything slower."""
    per_token = changed.workload.tokens_per_step / problem.workload.tokens_per_step
    try:
        result = _solve(changed, question_s)
    except InstanceError:
        return Gain(change=change, step_s=None, gain=None, gain_at_most=None)
    steps = [result.evaluation.step_s] if result.evaluation is not None else []
    if changed.workload == problem.workload:
        kept = api.predict(changed, plan)
        steps += [kept.step_s] if not kept.violations else [evaluation.step_s]
    if not steps:
        return Gain(change=change, step_s=None, gain=None, gain_at_most=None)
    step_s = min(steps)
    gain = 1 - step_s / per_token / evaluation.step_s
    most = None if result.bound_s is None else max(gain, 1 - result.bound_s / per_token / evaluation.step_s)
    return Gain(change=change, step_s=step_s, gain=gain, gain_at_most=most)


def _idle(
    problem: Problem, plan: Plan, evaluation: Evaluation, question_s: float, on_question: Ask
) -> list[IdleReason]:
    """Classes with idle nodes, and for those idle as a whole the best plan that uses them."""
    working = {host for stage in plan.stages for _, _, hosts in stage.places for host in hosts}
    found = []
    for c, node_class in enumerate(problem.cluster.classes):
        idle = sum(host not in working for host in problem.cluster.hosts_of(c))
        if not idle:
            continue
        step_s = bound_s = None
        if node_class.name in problem.options.spare:
            words = "kept idle as asked"
        elif idle < node_class.num_nodes:
            words = "its other nodes work; these fill no further stage of the plan"
        else:
            on_question(f"the best plan that uses {node_class.name}")
            options = problem.options.model_copy(update={"use": (*problem.options.use, node_class.name)})
            result = _solve(problem.model_copy(update={"options": options}), question_s)
            bound_s = result.bound_s
            if result.evaluation is None:
                words = f"no plan uses it: {result.reason}"
            else:
                step_s = result.evaluation.step_s
                words = _slower(step_s, bound_s, evaluation.step_s)
        found.append(
            IdleReason(
                node_class=node_class.name,
                idle_nodes=idle,
                num_nodes=node_class.num_nodes,
                step_s=step_s,
                bound_s=bound_s,
                words=words,
            )
        )
    return found


def _slower(step_s: float, bound_s: float | None, best_s: float) -> str:
    """How much slower the best plan with an idle class is, and whether that is proven."""
    slower = f"the best plan found that uses it is {100 * (step_s / best_s - 1):.1f}% slower"
    if bound_s is not None and bound_s > best_s * (1 + GAP_TOL):
        return f"{slower}, and none can be less than {100 * (bound_s / best_s - 1):.1f}% slower"
    return slower
