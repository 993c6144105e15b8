"""How unevenly tokens may come to the experts before a plan no longer fits.

Where no capacity drops tokens, routers load the ranks of an expert-parallel group unevenly, most of all in
the first steps of a training, and what the busiest rank keeps of its rows grows with its load. A plan is made
for `expert_imbalance` of the workload; how much more it bears is said beside it.
"""

from __future__ import annotations

from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.simulate.evaluate import evaluate
from planner.tolerances import MEMORY_TOL_BYTES
from planner.units import GIB

STEP = 0.01
"""What the answer is rounded down to."""


def most_expert_imbalance(problem: Problem, plan: Plan) -> float | None:
    """The largest `expert_imbalance`, in hundredths, with which every stage of a plan fits its memory.

    At most what there can be: all tokens of the group at the experts of one rank, E / (E / ep) = ep times an
    even share, or E / k where those are too few for the k experts that each token visits.

    Returns
    -------
    float or None
        None where every rank holds all experts, so that all are loaded alike, where a capacity limits what
        comes, and where the plan does not fit as it is.
    """
    moe, asked = problem.model.moe, problem.workload.expert_imbalance
    ranks = max(part.expert_parallel for part in plan.pipeline_plans)
    if moe is None or moe.capacity_factor is not None or ranks == 1 or not _fits(problem, plan, asked):
        return None
    most = max(asked, min(float(ranks), moe.num_experts / moe.top_k))
    fits, fails = 0, int((most - asked) / STEP) + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if _fits(problem, plan, asked + middle * STEP):
            fits = middle
        else:
            fails = middle
    return round(asked + fits * STEP, 2)


def with_most_imbalance(problem: Problem, plan: Plan, evaluation: Evaluation) -> Evaluation:
    """The evaluation of a plan that says how unevenly its experts may be loaded."""
    most = most_expert_imbalance(problem, plan)
    return evaluation.model_copy(update={"most_expert_imbalance": most})


def _fits(problem: Problem, plan: Plan, imbalance: float) -> bool:
    """Whether all stages fit where the busiest rank gets this many even shares."""
    workload = problem.workload.model_copy(update={"expert_imbalance": imbalance})
    evaluation = evaluate(problem.model_copy(update={"workload": workload}), plan)
    return all(
        stage.peak_memory_gib <= stage.limit_gib + MEMORY_TOL_BYTES / GIB for stage in evaluation.stages
    )
