"""What the cost model and the referee say of measured runs, many at a time.

Runs that differ only in their degrees are priced in one call; that is most of the speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.calibrate.convert import Candidate
from planner.cost.prices import Degrees
from planner.cost.pricing import price
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.simulate.evaluate import degrees_of, evaluate_with_prices

COMMUNICATION = ("tp", "cp", "ep", "pp", "dp")
"""Parts of a step that a chip on its own does not have."""

LEFT_OUT = {"allocated": ("fragmentation", "context"), "reserved": ("context",), "device": ()}
"""Memory terms that a measured figure does not count, by its kind.

Allocated is what tensors take; reserved adds what the caching allocator holds; the device's tool also
sees context and communicators. Where the source does not say, the figure is read as the device's:
those known so far are a tool's total (Sailor's notes say so, FlagPerf prints used / total).
"""

UNSTATED_MEMORY_KIND = "device"


@dataclass(frozen=True)
class Prediction:
    """Predicted time and memory of one run."""

    step_s: float
    """Time of a step [s]."""
    memory_gib: float
    """Peak memory of the fullest chip, counted as the measured figure counts [GiB]."""
    breakdown_s: dict[str, float]
    """Parts of the step [s]."""
    memory_terms_gib: dict[str, float]
    """Terms of the fullest stage [GiB]."""
    assumptions: tuple[str, ...]
    """What the choice of plan assumed."""


def predict_runs(
    candidates: Sequence[Candidate], memory_kinds: Sequence[str | None]
) -> tuple[Prediction, ...]:
    """Predictions of candidates, in their order."""
    jobs = [(c, p) for c, candidate in enumerate(candidates) for p in range(len(candidate.plans))]
    groups: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for c, p in jobs:
        groups[_price_key(candidates[c].problem, candidates[c].plans[p])].append((c, p))
    evaluations: dict[tuple[int, int], Evaluation] = {}
    for members in groups.values():
        # One row of prices for every choice of degrees that occurs, whatever else differs.
        rows = {_degrees_key(candidates[c].plans[p]): candidates[c].plans[p] for c, p in members}
        row_of = {key: row for row, key in enumerate(rows)}
        prices = price(candidates[members[0][0]].problem, _stacked(tuple(rows.values())))
        for c, p in members:
            plan = candidates[c].plans[p]
            row = row_of[_degrees_key(plan)]
            evaluations[c, p] = evaluate_with_prices(candidates[c].problem, plan, prices, row)
    return tuple(
        _choose(candidate, [evaluations[c, p] for p in range(len(candidate.plans))], memory_kinds[c])
        for c, candidate in enumerate(candidates)
    )


def _price_key(problem: Problem, plan: Plan) -> tuple[object, ...]:
    """What prices depend on beside the degrees.

    Models, clusters and stacks are built once each, so that their identity tells them apart without
    comparing them field by field.
    """
    workload = problem.workload
    return (
        id(problem.model),
        id(problem.cluster),
        id(problem.stack),
        tuple(id(profile) for profile in problem.profiles),
        workload.seq_length,
        workload.precision,
        plan.dp_mode,
    )


def _degrees_key(plan: Plan) -> tuple[object, ...]:
    return (
        plan.tensor_parallel,
        plan.context_parallel,
        plan.expert_parallel,
        plan.expert_tensor_parallel,
        plan.data_parallel,
        plan.microbatch_size,
        plan.sequence_parallel,
    )


def _stacked(plans: Sequence[Plan]) -> Degrees:
    """Degrees of several plans, one a row."""
    rows = [degrees_of(plan) for plan in plans]
    arrays = {
        field.name: np.concatenate([getattr(row, field.name) for row in rows])
        for field in fields(Degrees)
        if field.name != "dp_mode"
    }
    return Degrees(**arrays, dp_mode=plans[0].dp_mode)


def _choose(candidate: Candidate, evaluations: list[Evaluation], memory_kind: str | None) -> Prediction:
    """The only plan, or of several the fastest that fits; the smallest where none does."""
    if len(evaluations) == 1:
        return _prediction(candidate, evaluations[0], memory_kind, ())
    fitting = [
        i
        for i, e in enumerate(evaluations)
        if all(stage.peak_memory_gib <= stage.limit_gib for stage in e.stages)
    ]
    if fitting:
        best = min(fitting, key=lambda i: evaluations[i].step_s)
        why = "the fastest setting that fits"
    else:
        best = min(
            range(len(evaluations)), key=lambda i: max(s.peak_memory_gib for s in evaluations[i].stages)
        )
        why = "no setting fits, the smallest"
    setting = candidate.plans[best].stages[0].recompute
    return _prediction(candidate, evaluations[best], memory_kind, (f"recompute {setting}: {why}",))


def _prediction(
    candidate: Candidate, evaluation: Evaluation, memory_kind: str | None, assumptions: tuple[str, ...]
) -> Prediction:
    left_out = LEFT_OUT[memory_kind or UNSTATED_MEMORY_KIND]
    step_s = evaluation.step_s
    if candidate.without_collectives:
        step_s -= sum(evaluation.breakdown_s.get(part, 0.0) for part in COMMUNICATION)

    def counted(terms: dict[str, float]) -> float:
        return sum(size for term, size in terms.items() if term not in left_out)

    fullest = max((stage.memory_gib for stage in evaluation.stages), key=counted)
    return Prediction(
        step_s=step_s,
        memory_gib=counted(fullest),
        breakdown_s=evaluation.breakdown_s,
        memory_terms_gib=fullest,
        assumptions=assumptions,
    )


def with_time_factors(candidate: Candidate, factors: dict[str, float]) -> Candidate:
    """The candidate with computation times scaled by chip, as an anchored stack would scale them."""
    stack = candidate.problem.stack
    scaled = stack.model_copy(
        update={
            "time_factor": {
                chip: stack.time_factor.get(chip, 1.0) * factors.get(chip, 1.0)
                for chip in candidate.problem.chips
            }
        }
    )
    return replace(candidate, problem=candidate.problem.model_copy(update={"stack": scaled}))
