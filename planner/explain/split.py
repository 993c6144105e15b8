"""Train together, or split the cluster into one job a class?

Each class is planned alone with the same model and the whole batch, as independent trainings would be.
A smaller batch alone would only slow the single classes, so the comparison favours the split.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner import api
from planner.data.explanation import Alone, SplitComparison
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError
from planner.explain.budget import Budget
from planner.report.words import degrees_of


def compare_split(
    problem: Problem,
    result: Result,
    *,
    spent_s: float = 0.0,
    on_class: Callable[[str], None] = lambda name: None,
) -> SplitComparison:
    """The mixed plan of a result against one job on each class that it may use.

    Parameters
    ----------
    result
        The answer of the problem, with a plan.
    spent_s
        Time already spent that counts against the problem's time limit [s].
    on_class
        Called with the name of each class before it is planned alone.

    Raises
    ------
    InstanceError
        Where there is no plan, or the cluster has a single class.
    """
    names = [c.name for c in problem.cluster.classes if c.name not in problem.options.spare]
    if result.evaluation is None:
        raise InstanceError("there is no plan to compare with", problem.name)
    if len(names) < 2:
        raise InstanceError(f"a split needs two node classes, there is {names[0]} alone", "--compare-split")
    alone, budget = [], Budget(problem, spent_s)
    for number, name in enumerate(names):
        on_class(name)
        alone.append(_alone(budget.given(problem, len(names) - number), name))
    mixed = result.evaluation.tokens_per_s
    together = sum(a.tokens_per_s for a in alone)
    at_most = sum(np.inf if a.tokens_per_s_at_most is None else a.tokens_per_s_at_most for a in alone)
    gain = mixed / together if together else None
    least = mixed / at_most if 0 < at_most < np.inf else None
    most = None
    if together and result.bound_s:
        most = problem.workload.tokens_per_step / result.bound_s / together
    return SplitComparison(
        tokens_per_s=mixed,
        alone=tuple(alone),
        mixing_gain=gain,
        mixing_gain_at_least=least,
        mixing_gain_at_most=most,
        words=_verdict(gain, least, most, none_can=at_most == 0),
    )


def _alone(problem: Problem, name: str) -> Alone:
    others = tuple(c.name for c in problem.cluster.classes if c.name != name)
    options = problem.options.model_copy(update={"spare": others, "use": (), "top": 1})
    try:
        result = api.plan(problem.model_copy(update={"options": options}))
    except InstanceError as refusal:
        return Alone(node_class=name, tokens_per_s=0.0, tokens_per_s_at_most=0.0, words=str(refusal))
    at_most = problem.workload.tokens_per_step / result.bound_s if result.bound_s else None
    return Alone(
        node_class=name,
        tokens_per_s=0.0 if result.evaluation is None else result.evaluation.tokens_per_s,
        tokens_per_s_at_most=0.0 if result.termination == "infeasible" else at_most,
        words=result.reason or "no plan" if result.plan is None else degrees_of(result.plan),
    )


def _verdict(gain: float | None, least: float | None, most: float | None, *, none_can: bool = False) -> str:
    """Whether the proven range of the gain lies above 1, below it, or holds it.

    Parameters
    ----------
    none_can
        Whether it is proven that no class can train alone.
    """
    if none_can:
        return "train together: no class can train this model alone"
    if gain is None:
        return "not known: no class was found to train this model alone, which is no proof that none can"
    if least is not None and least > 1:
        return f"train together: the mix trains {100 * (gain - 1):.1f}% more tokens than separate jobs would"
    if most is not None and most < 1:
        return (
            f"one model trains fastest together; where there are several to train, separate jobs train "
            f"{100 * (1 / gain - 1):.1f}% more tokens in all"
        )
    return f"no difference is proven: the mix trains {100 * gain:.1f}% of the tokens of separate jobs"
