"""What changed between two plans, and why one is faster than the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner import api
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation
from planner.errors import InstanceError
from planner.report import words
from planner.units import format_percent, format_seconds

SMALL_FRACTION = 0.001
"""Parts of a step that change by less than this of it are not worth a word."""


@dataclass(frozen=True)
class Side:
    """A plan with the problem that it answers."""

    label: str
    problem: Problem
    plan: Plan
    evaluation: Evaluation


@dataclass(frozen=True)
class Comparison:
    """Two plans side by side, seen from the first.

    Parameters
    ----------
    question
        What the second problem asks otherwise: heading, before, after.
    decisions
        What the second plan decides otherwise, in words; empty where nothing.
    parts
        Parts of the step: name, before [s], after [s], the largest change first.
    reasons
        Sentences that say why.
    """

    a: Side
    b: Side
    question: tuple[tuple[str, str, str], ...]
    decisions: str
    parts: tuple[tuple[str, float, float], ...]
    reasons: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "schema": "hetplan/comparison/v1",
            "a": _side_json(self.a),
            "b": _side_json(self.b),
            "step_change": self.b.evaluation.step_s / self.a.evaluation.step_s - 1,
            "question": {name: {"a": before, "b": after} for name, before, after in self.question},
            "decisions": self.decisions,
            "breakdown_s": {name: {"a": before, "b": after} for name, before, after in self.parts},
            "reasons": list(self.reasons),
        }


def compare(a: Side, b: Side) -> Comparison:
    """Put two plans side by side.

    Where the problems differ, each plan is also tried on the other's problem: that says whether the
    plan had to change, and what keeping it would cost.
    """
    question = _question(a.problem, b.problem)
    same_plan = _bare(a.plan) == _bare(b.plan)
    decisions = "" if same_plan else _decisions(a.plan, b.plan)
    parts = _parts(a.evaluation, b.evaluation)
    reasons = [_speed(a, b), *_memory(a, b)]
    if question and not same_plan:
        reasons += [_carried_over("A", a, "B", b), _carried_over("B", b, "A", a)]
    return Comparison(a, b, question, decisions, parts, tuple(reasons))


def with_batch_cut_anew(plan: Plan, problem: Problem) -> Plan:
    """The plan with as many micro-batches as the batch of a problem asks for, where that divides."""
    if plan.degrees_differ or plan.pipelines is not None:
        return plan
    count, rest = divmod(problem.workload.global_batch_size, plan.microbatch_size * plan.data_parallel)
    return plan if rest or not count else plan.model_copy(update={"num_microbatches": count})


def _question(a: Problem, b: Problem) -> tuple[tuple[str, str, str], ...]:
    reserves = [format_percent(problem.options.memory_reserve_fraction) for problem in (a, b)]
    found = [
        ("model", a.model.id, b.model.id),
        ("cluster", words.nodes_of(a.cluster), words.nodes_of(b.cluster)),
        ("sequence", f"{a.workload.seq_length:,}", f"{b.workload.seq_length:,}"),
        ("batch", f"{a.workload.global_batch_size:,}", f"{b.workload.global_batch_size:,}"),
        ("precision", a.workload.precision, b.workload.precision),
        ("target", a.target, b.target),
        ("stack", a.stack.id, b.stack.id),
        ("reserve", reserves[0], reserves[1]),
    ]
    differing = [entry for entry in found if entry[1] != entry[2]]
    if not differing and a.model_copy(update={"name": b.name, "options": b.options}) != b:
        differing.append(("figures", "of chips, links, model or software", "other ones"))
    return tuple(differing)


def _decisions(a: Plan, b: Plan) -> str:
    """What the second plan decides otherwise; a count of micro-batches alone follows from the batch."""
    if _bare(a).model_copy(update={"num_microbatches": b.num_microbatches}) == _bare(b):
        return f"{b.num_microbatches} micro-batches a step (not {a.num_microbatches}), as the batch asks"
    return words.differences(a, b)


def _bare(plan: Plan) -> Plan:
    return plan.model_copy(update={"problem": None})


def _parts(a: Evaluation, b: Evaluation) -> tuple[tuple[str, float, float], ...]:
    names = list(dict.fromkeys([*a.breakdown_s, *b.breakdown_s]))
    parts = [(name, a.breakdown_s.get(name, 0.0), b.breakdown_s.get(name, 0.0)) for name in names]
    return tuple(sorted((p for p in parts if p[1] or p[2]), key=lambda part: -abs(part[2] - part[1])))


def _speed(a: Side, b: Side) -> str:
    """How much faster or slower the second is, and which parts of the step make it so."""
    before, after = a.evaluation.step_s, b.evaluation.step_s
    if abs(after - before) <= SMALL_FRACTION * before:
        return f"both take {format_seconds(before)} a step"
    ratio = before / after if after < before else after / before
    word = "fast" if after < before else "slow"
    share = format_percent(abs(after / before - 1))  # of A's step, as in the table beside
    much = f"{ratio:.1f} times as {word} as" if ratio >= 2 else f"{share} {word}er than"
    changes = [
        f"{format_seconds(abs(y - x))} {'less' if y < x else 'more'} {name}"
        for name, x, y in _parts(a.evaluation, b.evaluation)
        if abs(y - x) > SMALL_FRACTION * max(before, after)
    ]
    return f"B is {much} A: {', '.join(changes)}" if changes else f"B is {much} A"


def _memory(a: Side, b: Side) -> list[str]:
    """How full the fullest stage is on either side, where they differ by a percent of the chip."""
    shares = [max(s.peak_memory_gib / s.limit_gib for s in side.evaluation.stages) for side in (a, b)]
    if abs(shares[0] - shares[1]) < 0.01:
        return []
    return [f"the fullest stage takes {100 * shares[0]:.0f}% of its memory, then {100 * shares[1]:.0f}%"]


def _carried_over(plan_name: str, plan_of: Side, problem_name: str, problem_of: Side) -> str:
    """What becomes of one side's plan on the other side's problem, the batch cut anew where it differs."""
    plan = _bare(plan_of.plan)
    if problem_of.problem.workload.global_batch_size != plan_of.problem.workload.global_batch_size:
        plan = with_batch_cut_anew(plan, problem_of.problem)
    head = f"the plan of {plan_name} on the problem of {problem_name}"
    try:
        found = api.predict(problem_of.problem, plan)
    except InstanceError as refusal:
        return f"{head} does not fit: {refusal}"
    if found.violations:
        return f"{head} breaks a rule: {found.violations[0]}"
    slower = found.step_s / problem_of.evaluation.step_s - 1
    if abs(slower) <= SMALL_FRACTION:
        return f"{head} takes {format_seconds(found.step_s)}, as long as {problem_name}'s own"
    word = "slower" if slower > 0 else "faster"
    share = format_percent(abs(slower))
    return f"{head} takes {format_seconds(found.step_s)}, {share} {word} than {problem_name}'s own"


def _side_json(side: Side) -> dict[str, Any]:
    evaluation = side.evaluation
    return {
        "label": side.label,
        "problem": side.problem.name,
        "step_s": evaluation.step_s,
        "tokens_per_s": evaluation.tokens_per_s,
        "mfu": evaluation.mfu,
        "chips_used": side.plan.world_size,
        "plan": words.degrees_of(side.plan),
        "violations": list(evaluation.violations),
    }
