"""Which plan stands up best when the predictions are off by what they may be off?

The speed of every chip, the rate of every network and link, and the memory that a plan takes are drawn
anew, within the bands that measured runs give. Each draw is planned for itself; all plans found compete
on all draws. Numbers drawn (uniform, independent, the same for the same seed):

- a chip's work takes 1 + e as long, |e| at most the error band of its step times
  (instances/tables/error_bands.yaml);
- network of a class, link of a pair: their rate changes by as much, |e| at most LINK_BAND;
- memory of a chip: a plan takes up to MEMORY_BAND more than predicted, as if the chip had that much less.

The most robust plan fits in every draw and has the least worst step time; ties go to the nominal one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner import api
from planner.cost.bands import error_band
from planner.data.changes import with_class, with_faster_pair, with_named_hosts
from planner.data.explanation import Robustness, RobustPlan
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Result, RunnerUp
from planner.errors import InstanceError
from planner.explain.budget import Budget
from planner.report import words
from planner.tolerances import GAP_TOL
from planner.units import GIB

LINK_BAND = 0.2
"""How far a link's rate may be off; a guess."""
MEMORY_BAND = 0.03
"""How far a measured peak may lie above the predicted one: what the memory model is held to."""


@dataclass(frozen=True)
class _Judged:
    """A plan on all draws."""

    plan: Plan
    steps_s: tuple[float | None, ...]
    """Step time by draw [s]; None where it does not fit."""

    @property
    def worst_s(self) -> float | None:
        """Longest step time [s]; None where it does not always fit."""
        known = [step for step in self.steps_s if step is not None]
        return max(known) if len(known) == len(self.steps_s) else None


def draws(problem: Problem, count: int, seed: int = 0) -> Iterator[Problem]:
    """The problem with its numbers drawn anew, so many times."""
    for number in range(count):
        yield _draw(problem, random.Random(f"{seed}/{number}"))


def most_robust(
    problem: Problem,
    result: Result,
    count: int,
    *,
    spent_s: float = 0.0,
    on_draw: Callable[[str], None] = lambda words: None,
) -> tuple[Result, Robustness]:
    """The result with its most robust plan first, and how all candidates fared.

    Parameters
    ----------
    result
        The answer of the problem, with a plan.
    count
        Draws.
    spent_s
        Time already spent that counts against the problem's time limit [s].
    on_draw
        Called before each draw is planned, with its number in words.

    Raises
    ------
    InstanceError
        Where there is no plan, or no draw is wanted.
    """
    if result.plan is None or result.evaluation is None:
        raise InstanceError("there is no plan to begin with", problem.name)
    if count < 1:
        raise InstanceError("must be at least 1", "--robust")
    named = with_named_hosts(problem)
    drawn = list(draws(named, count, problem.options.seed))
    candidates = [result.plan, *(other.plan for other in result.runners_up)]
    budget = Budget(problem, spent_s)
    one_s = _prediction_s(drawn[0], result.plan)
    for number, changed in enumerate(drawn):
        # The plans found so far compete on all draws all the same, which takes time as well.
        if budget.left_s is not None and budget.left_s <= len(candidates) * count * one_s:
            break
        on_draw(f"{number + 1} of {count}")
        timed = budget.given(changed, count - number)
        found = api.plan(timed, timed.options.model_copy(update={"top": 1}))
        if found.plan is not None:
            candidates.append(found.plan.model_copy(update={"problem": result.plan.problem}))
    judged = [_judge(plan, drawn) for plan in _distinct(candidates)]
    # A plan made for a draw must also be legal, and fit, by the numbers as they are.
    nominal = [api.predict(named, one.plan) for one in judged]
    sound = [i for i, evaluation in enumerate(nominal) if not evaluation.violations]
    best = min(sound, key=lambda i: (_or_infinity(judged[i].worst_s), nominal[i].step_s, i))
    if judged[best].worst_s is None:
        best = max(sound, key=lambda i: (_fits(judged[i]), -nominal[i].step_s))
    fastest_s = [min(_or_infinity(judged[i].steps_s[k]) for i in sound) for k in range(count)]
    table = tuple(
        _row(judged[i], nominal[i].step_s, fastest_s, chosen=i == best, nominal=i == 0)
        for i in sorted(sound, key=lambda i: (i != best, nominal[i].step_s))
    )
    if best == 0:
        return result, Robustness(draws=count, plans=table)
    first = RunnerUp(plan=result.plan, evaluation=result.evaluation)
    gap = None
    if result.bound_s is not None:
        gap = max(0.0, 1 - result.bound_s / nominal[best].step_s)
    proven = gap is not None and gap <= max(problem.options.gap, GAP_TOL)
    changed_result = result.model_copy(
        update={
            "plan": judged[best].plan,
            "evaluation": nominal[best],
            "gap": gap,
            "termination": "optimal" if proven else "feasible",
            "runners_up": (first, *result.runners_up),
        }
    )
    return changed_result, Robustness(draws=count, plans=table)


def _prediction_s(problem: Problem, plan: Plan) -> float:
    """Time that one prediction takes here [s]."""
    started_s = time.monotonic()
    api.predict(problem, plan)
    return time.monotonic() - started_s


def _draw(problem: Problem, rng: random.Random) -> Problem:
    stack, model = problem.stack, problem.model
    factors = dict(stack.time_factor)
    for chip_id in dict.fromkeys(node_class.chip for node_class in problem.cluster.classes):
        band = error_band(problem.chips[chip_id], stack, model)
        factors[chip_id] = factors.get(chip_id, 1.0) * (1 + rng.uniform(-band, band))
    changed = problem.model_copy(update={"stack": stack.model_copy(update={"time_factor": factors})})
    classes = problem.cluster.classes
    for a in range(len(classes)):
        for b in range(a + 1, len(classes)):
            changed = with_faster_pair(changed, a, b, 1 + rng.uniform(-LINK_BAND, LINK_BAND))
    for c, node_class in enumerate(classes):
        changed = with_class(
            changed,
            c,
            nic_gbit_per_s=node_class.nic_gbit_per_s * (1 + rng.uniform(-LINK_BAND, LINK_BAND)),
            memory_gib=problem.usable_memory_bytes(c) / GIB / (1 + rng.uniform(0.0, MEMORY_BAND)),
        )
    return changed


def _distinct(plans: Sequence[Plan]) -> list[Plan]:
    """Plans without repetitions, the first of each."""
    seen: dict[str, Plan] = {}
    for plan in plans:
        seen.setdefault(plan.model_dump_json(exclude={"problem"}), plan)
    return list(seen.values())


def _judge(plan: Plan, drawn: Sequence[Problem]) -> _Judged:
    evaluations = [api.predict(problem, plan) for problem in drawn]
    return _Judged(plan, tuple(None if e.violations else e.step_s for e in evaluations))


def _row(
    judged: _Judged, step_s: float, fastest_s: Sequence[float], *, chosen: bool, nominal: bool
) -> RobustPlan:
    pairs = [(step, least) for step, least in zip(judged.steps_s, fastest_s, strict=True) if step is not None]
    losses = [step / least - 1 for step, least in pairs]
    return RobustPlan(
        words=f"{words.degrees_of(judged.plan)}; {words.chip_runs(judged.plan)}; "
        f"layers {words.layer_runs(judged.plan)}",
        chosen=chosen,
        nominal=nominal,
        step_s=step_s,
        worst_step_s=judged.worst_s,
        fits_fraction=_fits(judged),
        best_fraction=sum(loss <= GAP_TOL for loss in losses) / len(judged.steps_s),
        mean_loss=sum(losses) / len(losses) if losses else None,
        worst_loss=max(losses, default=None),
    )


def _fits(judged: _Judged) -> float:
    return sum(step is not None for step in judged.steps_s) / len(judged.steps_s)


def _or_infinity(step_s: float | None) -> float:
    return float("inf") if step_s is None else step_s
