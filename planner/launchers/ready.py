"""The last look at a plan before it is written for a target, and the way out where it cannot be."""

from __future__ import annotations

from collections.abc import Callable

from planner.data.load import resolve_problem
from planner.data.plan import Plan
from planner.data.problem import Problem, TargetName
from planner.data.result import Evaluation
from planner.errors import InstanceError, PlanRefusedError
from planner.launchers.directory import check_version
from planner.launchers.flagscale import CORE_VERSION
from planner.launchers.nearest import nearest_plan
from planner.rules.versions import fitting_version, version_violations
from planner.units import format_seconds


def problem_inside(plan: Plan) -> Problem:
    """The problem that a plan carries.

    Raises
    ------
    InstanceError
        Where it carries none.
    """
    if plan.problem is None:
        raise InstanceError("the plan does not carry its problem; name the problem as well", "plan.problem")
    return resolve_problem(plan.problem, "plan.problem")


def ready_for_export(
    problem: Problem,
    plan: Plan,
    target: TargetName,
    version: str | None,
    *,
    in_words: Callable[[Plan, Plan], str],
) -> Evaluation:
    """What the referee says of a plan on a target.

    Parameters
    ----------
    in_words
        Says what a second plan decides differently from the first.

    Raises
    ------
    InstanceError
        Where the version is unknown, or goes with another target.
    PlanRefusedError
        Where the plan breaks a rule; with the nearest plan of the target that breaks none.
    """
    from planner.simulate.evaluate import evaluate

    check_version(target, version)
    made_for = plan.model_copy(update={"target": target})
    evaluation = evaluate(problem, made_for)
    core = core_version(problem, made_for, version)
    broken = evaluation.violations + (version_violations(problem, made_for, core) if core is not None else ())
    if broken:
        raise PlanRefusedError(_first_of(broken) + _way_out(problem, plan, target, core, in_words))
    return evaluation


def core_version(problem: Problem, plan: Plan, version: str | None = None) -> str | None:
    """Version of Megatron core that the files of a plan are written for; None where it is not ours to choose.

    That of `version`, for Megatron-LM the newest that accepts the plan, for FlagScale its own.
    """
    if version is not None:
        return version
    if plan.target == "flagscale":
        return CORE_VERSION
    return fitting_version(problem, plan) if plan.target == "megatron-lm" else None


def _first_of(broken: tuple[str, ...]) -> str:
    """The first violation, and how many more there are."""
    more = len(broken) - 1
    return f"the plan breaks a rule: {broken[0]}" + (f" (and {more} more)" if more else "")


def _way_out(
    problem: Problem,
    plan: Plan,
    target: TargetName,
    version: str | None,
    in_words: Callable[[Plan, Plan], str],
) -> str:
    """What to change so that the target can run the plan; empty where we know nothing."""
    try:
        found = nearest_plan(problem, plan, target, version)
    except InstanceError:  # a layer profile lacks the degrees of a repaired plan
        return ""
    if found is None:
        return ""
    changed, evaluation = found
    return (
        f"; nearest plan that {target} can run: {in_words(plan, changed)}, "
        f"{format_seconds(evaluation.step_s)} a step"
    )
