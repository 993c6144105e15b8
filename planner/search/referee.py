"""Have the plans of a search evaluated: the referee's word on what the formulations answered."""

from __future__ import annotations

from planner.cost.prices import Prices
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import SolverError
from planner.simulate.evaluate import evaluate_with_prices


class Referee:
    """Evaluates plans as they were found; `planner.search.alike` has one that completes them first."""

    def __init__(self, problem: Problem, prices: Prices) -> None:
        self.problem, self.prices = problem, prices

    def recomputes_alike(self, choice: int) -> bool:
        """Whether all stages of a plan of a row of degrees recompute one number of layers in full."""
        return False

    def judged(self, plan: Plan, choice: int) -> tuple[Plan, Evaluation] | None:
        """The plan with what the referee says of it; `choice` is the row of its degrees.

        None where it cannot be completed within the rules.

        Raises
        ------
        SolverError
            Where it breaks a rule: our fault.
        """
        return confirmed(plan, evaluate_with_prices(self.problem, plan, self.prices, choice))


def confirmed(plan: Plan, evaluation: Evaluation) -> tuple[Plan, Evaluation]:
    """Both, where the plan breaks no rule.

    Raises
    ------
    SolverError
        Where it does: our fault.
    """
    if evaluation.violations:
        raise SolverError(f"the search made a plan that breaks rules: {'; '.join(evaluation.violations)}")
    return plan, evaluation
