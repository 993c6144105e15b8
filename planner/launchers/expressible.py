"""Whether a target can build a network at all, asked before any plan is made for it."""

from __future__ import annotations

from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.launchers.megatron_model import builds, inexpressible
from planner.launchers.stated_software import software_refusals
from planner.rules.versions import newest_buildable


def check_expressible(problem: Problem) -> None:
    """Refuse a network, or software, that no plan of the target could run.

    Raises
    ------
    InstanceError
        With every feature that the launcher has no argument for, or what of the software it cannot run.
    """
    target = problem.target
    reasons = inexpressible(problem.model, **builds(target))
    software = software_refusals(problem)
    if software and not reasons:
        raise InstanceError(f"target {target} cannot run this: {'; '.join(software)}", problem.name)
    if reasons:
        raise InstanceError(
            f"target {problem.target} cannot run this model: {'; '.join(reasons)}; "
            "`predict` evaluates a plan of your own",
            f"{problem.name}: model",
        )


def buildable(problem: Problem) -> Problem:
    """The problem with options that some version of the launcher can run together.

    Linear attention runs over context-parallel ranks from core 0.19 on, beside predictions before it.
    Megatron-Bridge builds no virtual stages of Mamba layers (0.6.2, models/hybrid/hybrid_provider.py,
    `provide`).
    """
    if problem.target == "megatron-bridge" and problem.model.hybrid is not None:
        options = problem.options.model_copy(update={"max_virtual_stages": 1})
        return problem.model_copy(update={"options": options})
    if problem.target != "megatron-lm" or newest_buildable(problem) is None:
        return problem
    options = problem.options.model_copy(update={"max_context_parallel": 1})
    return problem.model_copy(update={"options": options})
