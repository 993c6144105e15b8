"""Whether a target can build a network at all, asked before any plan is made for it."""

from __future__ import annotations

from planner.data.problem import Problem
from planner.errors import InstanceError
from planner.launchers.megatron_model import inexpressible


def check_expressible(problem: Problem) -> None:
    """Refuse a network that no plan of the target could run.

    Raises
    ------
    InstanceError
        With every feature that the launcher has no argument for.
    """
    target = problem.target
    reasons = inexpressible(
        problem.model, builds_hybrids=target == "megatron-lm", builds_linear=target != "flagscale"
    )
    if reasons:
        raise InstanceError(
            f"target {problem.target} cannot run this model: {'; '.join(reasons)}; "
            "`predict` evaluates a plan of your own",
            f"{problem.name}: model",
        )
