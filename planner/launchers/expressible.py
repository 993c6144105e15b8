"""Whether a target can build a network at all, asked before any plan is made for it."""

from __future__ import annotations

from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.launchers.megatron.model import builds, inexpressible
from planner.launchers.stated_software import software_refusals
from planner.rules.target import TARGETS
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
    software = [*software_refusals(problem), *exchange_may_not_hide(problem)]
    if software and not reasons:
        raise InstanceError(f"target {target} cannot run this: {'; '.join(software)}", problem.name)
    if reasons:
        raise InstanceError(
            f"target {problem.target} cannot run this model: {'; '.join(reasons)}; "
            "`predict` evaluates a plan of your own",
            f"{problem.name}: model",
        )


def exchange_may_not_hide(problem: Problem) -> list[str]:
    """Why a search could end with a plan whose exchange of tokens does not hide as the software says.

    Behind computation it runs with virtual stages or without a pipeline (`planner.rules.experts`), which the
    search does not ask of every plan. FlagScale has no virtual stages, and beside predictions its core takes
    a pipeline (`planner.rules.versions`): neither way is left to it then.
    """
    if not _hides_exchange(problem):
        return []
    pin, forbid = problem.options.pin, problem.options.forbid
    is_staged = TARGETS[problem.target].virtual_stages
    if problem.model.mtp_num_layers > (1 if is_staged else 0):
        ways = "pin ep=1"
    elif pin.get("pp") == 1 or pin.get("vp", 1) > 1 or "vp=1" in forbid:
        return []
    else:
        ways = "pin pp=1 or a vp above 1, or ep=1" if is_staged else "pin pp=1 or ep=1"
    return [
        f"software {problem.stack.id} hides the exchange of tokens behind computation (ep_overlap), which "
        f"Megatron-LM does in some plans only: {ways}, or take software without ep_overlap"
    ]


def _hides_exchange(problem: Problem) -> bool:
    """Whether a launcher would have to run the exchange of tokens behind computation."""
    return (
        problem.stack.ep_overlap
        and problem.model.moe is not None
        and problem.options.pin.get("ep") != 1
        and TARGETS[problem.target].has_launcher
    )


def _hiding(problem: Problem) -> Problem:
    """The problem without the recomputation beside which the exchange of tokens hides nowhere."""
    if not _hides_exchange(problem):
        return problem
    wishes = ["recompute=full"]
    if "moe" in problem.stack.selective_modules:
        wishes.append("recompute=selective")
    forbid = tuple(dict.fromkeys((*problem.options.forbid, *wishes)))
    return problem.model_copy(update={"options": problem.options.model_copy(update={"forbid": forbid})})


def buildable(problem: Problem) -> Problem:
    """The problem with options that some version of the launcher can run together.

    Linear attention runs over context-parallel ranks from core 0.19 on, beside predictions before it.
    Megatron-Bridge builds no virtual stages of Mamba layers (0.6.2, models/hybrid/hybrid_provider.py,
    `provide`).
    """
    problem = _hiding(problem)
    if problem.target == "megatron-bridge" and problem.model.hybrid is not None:
        options = problem.options.model_copy(update={"max_virtual_stages": 1})
        return problem.model_copy(update={"options": options})
    if problem.target != "megatron-lm" or newest_buildable(problem) is None:
        return problem
    options = problem.options.model_copy(update={"max_context_parallel": 1})
    return problem.model_copy(update={"options": options})
