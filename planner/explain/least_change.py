"""After a change of the cluster: the plan that alters least, and is nearly as fast as the best.

Plans within a stated fraction of the best step time compete. The best of them keeps, in this order,

1. as many of tp, cp, ep, pp and virtual stages as can be (data parallelism and the number of micro-batches
   follow from the chips and the batch),
2. the classes of the stages,
3. the layers where they are: the fewest parameters to load anew on any host (`moves`),
4. micro-batch size, sequence parallelism and recomputation.

Candidates are the answers of the search with all of 1 pinned, with all but one pinned, and with none, and
between each of them and the plan in use the splits of the layers that lie on the way. All are judged by the
referee. That no other plan changes less is not proven; that none is faster by more than the gap is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner import api
from planner.data.explanation import Change
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation, Result
from planner.errors import InstanceError
from planner.explain.budget import Budget
from planner.explain.moves import Held, Moves, held, moves, on_hosts_that_hold_most
from planner.explain.recompute import with_fitting_recompute
from planner.report import words
from planner.tolerances import GAP_TOL

TOP = 6
"""Plans asked of each search: with degrees pinned they differ in data parallelism and micro-batch."""
LOOSENED = ({"tp", "etp"}, {"cp"}, {"ep"}, {"pp"}, {"vp"})
"""Degrees that are let go together, one set at a time."""


@dataclass(frozen=True)
class _Candidate:
    plan: Plan
    evaluation: Evaluation
    moves: Moves
    rank: tuple[float, ...]


def least_change(
    problem: Problem, before: Plan, best: Result, within: float, spent_s: float = 0.0
) -> tuple[Result, Change]:
    """The plan that changes least, as a result of its own, and what it changes.

    Parameters
    ----------
    problem
        After the change. Hosts bear the names that they have in `before`.
    before
        The plan in use.
    best
        The answer of the problem, with a plan.
    within
        How much slower than the best plan it may be: 0.05 is 5%.
    spent_s
        Time already spent that counts against the problem's time limit [s].

    Raises
    ------
    InstanceError
        Where there is no best plan.
    """
    if best.plan is None or best.evaluation is None:
        raise InstanceError("there is no plan to compare with", problem.name)
    look = _Look(problem, before, best.evaluation.step_s * (1 + within))
    look.at(best)
    budget = Budget(problem, spent_s)
    for number, pins in enumerate(_pins(problem, before)):
        if budget.is_up or (number > 0 and look.keeps_all_degrees):
            break
        options = problem.options.model_copy(update={"pin": {**pins, **problem.options.pin}, "top": TOP})
        look.at(api.plan(budget.given(problem.model_copy(update={"options": options}))))
    found = look.found
    assert found is not None  # the best plan at least
    step_s = found.evaluation.step_s
    gap = None if best.bound_s is None else max(0.0, 1 - best.bound_s / step_s)
    proven = gap is not None and gap <= max(problem.options.gap, GAP_TOL)
    result = best.model_copy(
        update={
            "plan": found.plan.model_copy(update={"problem": best.plan.problem}),
            "evaluation": found.evaluation,
            "gap": gap,
            "termination": "optimal" if proven else "feasible",
            "runners_up": (),
        }
    )
    return result, Change(
        within=within,
        behind_best=step_s / best.evaluation.step_s - 1,
        degrees_changed=changed_degrees(before, found.plan),
        keeps_classes=found.rank[1] == 0,
        loaded_fraction=found.moves.loaded_fraction,
        best_loaded_fraction=_settled_moves(problem, look.held, best.plan).loaded_fraction,
        layers_loaded=found.moves.layers,
        words=words.differences(before, found.plan),
    )


def _settled_moves(problem: Problem, before: Held, plan: Plan) -> Moves:
    """What a plan must load, its hosts chosen well."""
    model = problem.model
    return moves(model, before, on_hosts_that_hold_most(model, problem.cluster, before, plan))


class _Look:
    """Looks at candidates and keeps the one that changes least."""

    def __init__(self, problem: Problem, before: Plan, limit_s: float) -> None:
        self.problem, self.before, self.limit_s = problem, before, limit_s
        self.held: Held = held(problem.model, before)
        self.found: _Candidate | None = None

    @property
    def keeps_all_degrees(self) -> bool:
        """Whether a plan was found that changes no degree."""
        return self.found is not None and self.found.rank[0] == 0

    def at(self, result: Result) -> None:
        """All plans of an answer; in the place of each the first legal split on the way to it."""
        others = [other.plan for other in result.runners_up]
        for plan in [result.plan, *others] if result.plan is not None else []:
            nearer = (with_fitting_recompute(self.problem, one) for one in on_the_way(self.before, plan))
            if not any(self._offer(one) for one in nearer if one is not None):
                self._offer(plan)

    def _offer(self, plan: Plan) -> bool:
        """Judge a plan; whether it is legal and fast enough."""
        model = self.problem.model
        plan = on_hosts_that_hold_most(model, self.problem.cluster, self.held, plan)
        evaluation = api.predict(self.problem, plan)
        if evaluation.violations or evaluation.step_s > self.limit_s * (1 + GAP_TOL):
            return False
        moved = moves(model, self.held, plan)
        rank = (
            float(len(changed_degrees(self.before, plan))),
            float(_classes(plan) != _classes(self.before)),
            moved.loaded_fraction,
            float(_small_changes(self.before, plan)),
            evaluation.step_s,
        )
        if self.found is None or rank < self.found.rank:
            self.found = _Candidate(plan, evaluation, moved, rank)
        return True


def _classes(plan: Plan) -> list[str]:
    return [stage.node_class for stage in plan.stages]


def on_the_way(before: Plan, after: Plan) -> Iterator[Plan]:
    """The later plan with the layers of the earlier one, then with its cuts moved by up to 1, 2 ... layers.

    Nothing where the two have other stages, as then no cut of one stands for one of the other.
    """
    if before.pipelines is not None or after.pipelines is not None:
        return
    if _classes(before) != _classes(after) or before.virtual_stages != after.virtual_stages:
        return
    old, new = _cuts(before), _cuts(after)
    for most in range(max(abs(b - a) for a, b in zip(old, new, strict=True))):
        yield _cut(after, [a + min(max(b - a, -most), most) for a, b in zip(old, new, strict=True)])


def _cuts(plan: Plan) -> list[int]:
    """First layer of every virtual stage, in the order of the layers."""
    return [stage.chunks[k][0] for k in range(plan.virtual_stages) for stage in plan.stages]


def _cut(plan: Plan, cuts: Sequence[int]) -> Plan:
    """The plan with its layers cut elsewhere."""
    num_layers = sum(stage.num_layers for stage in plan.stages)
    ranges = [(first, end - 1) for first, end in pairwise([*cuts, num_layers])]
    p = len(plan.stages)
    stages = []
    for s, stage in enumerate(plan.stages):
        own = tuple(ranges[k * p + s] for k in range(plan.virtual_stages))
        stages.append(stage.model_copy(update={"layers": own if len(own) > 1 else own[0]}))
    return plan.model_copy(update={"stages": tuple(stages)})


def changed_degrees(before: Plan, plan: Plan) -> tuple[str, ...]:
    """Degrees that decide how layers and weights are cut, where they differ."""
    return tuple(name for name, value in _degrees(before).items() if _degrees(plan)[name] != value)


def _degrees(plan: Plan) -> dict[str, object]:
    return {
        "tp": [s.tensor_parallel_degrees for s in plan.stages]
        if plan.degrees_differ
        else plan.tensor_parallel,
        "cp": plan.context_parallel,
        "ep": (plan.expert_parallel, plan.expert_tensor_parallel == plan.tensor_parallel),
        "pp": plan.pipeline_parallel,
        "vp": plan.virtual_stages,
    }


def _small_changes(before: Plan, plan: Plan) -> int:
    """Flags that change without any weight being cut or moved otherwise."""
    return (
        (before.microbatch_size != plan.microbatch_size)
        + (before.sequence_parallel != plan.sequence_parallel)
        + (words.recompute_runs(before) != words.recompute_runs(plan))
    )


def _pins(problem: Problem, before: Plan) -> Iterator[dict[str, int]]:
    """Degrees to pin: all, then all but one; none where the plan in use has several values of a degree."""
    everything = _all_pins(problem, before)
    if everything:
        yield everything
    for loose in LOOSENED:
        pins = {name: value for name, value in everything.items() if name not in loose}
        if 0 < len(pins) < len(everything):
            yield pins


def _all_pins(problem: Problem, before: Plan) -> dict[str, int]:
    if before.degrees_differ or before.mixes_chips or before.pipelines is not None:
        return {}
    pins = {
        "tp": before.tensor_parallel,
        "cp": before.context_parallel,
        "pp": before.pipeline_parallel,
        "vp": before.virtual_stages,
    }
    if problem.model.moe is not None:
        pins |= {"ep": before.expert_parallel, "etp": before.expert_tensor_parallel}
    if problem.target != "megatron-lm":
        del pins["vp"]
    return pins
