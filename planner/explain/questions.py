"""The questions about one plan: what a change would bring, what its decisions are worth, what lies idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from planner import api
from planner.data.explanation import Alternative, Gain, IdleReason
from planner.data.plan import Plan
from planner.data.problem import Problem
from planner.data.result import Evaluation, Result
from planner.errors import InstanceError
from planner.explain.alternatives import alternative, other_problems
from planner.explain.gains import faster_links, more_memory_or_batch, more_nodes
from planner.search.floors import Floors
from planner.tolerances import GAP_TOL

QUESTION_S = 20.0
"""Time for each question where nobody says otherwise [s]."""

COARSER, COARSEST = 0.005, 0.99
"""Gap of virtual stages in a question over that of the best plan, and the largest asked for. Guesses."""

Ask = Callable[[str], None]
Answer = Gain | Alternative | IdleReason
Kind = Literal["alternative", "idle", "nodes", "gain"]
LONGEST_FIRST: tuple[Kind, ...] = get_args(Kind)
"""Kinds of questions, mostly the longest first. With a decision of the plan ruled out nothing that is proven
of the problem is taken over, with another node little, with faster links or more memory much. So it was on
six shipped problems."""


def solved(
    problem: Problem,
    question_s: float,
    seeds: Sequence[Plan] = (),
    beyond_s: float | None = None,
    floors: Floors | None = None,
) -> Result:
    """The best plan found in the time of a question, by a search that begins with plans at hand."""
    options = problem.options.model_copy(update={"time_limit_s": question_s, "top": 1, "workers": 1})
    return api.plan(problem, options, seeds=seeds, beyond_s=beyond_s, floors=floors)


def asked_of(problem: Problem, result: Result | None) -> Problem:
    """The problem as it is asked about: virtual stages a little less finely than the best is proven.

    What its own search has left open the searches of its neighbours would leave open too, at the same price;
    and of what it has proven a change of times leaves a little less.
    """
    if result is None or result.gap is None:
        return problem
    gap = min(max(problem.options.virtual_gap, result.gap) + COARSER, COARSEST)
    return problem.model_copy(update={"options": problem.options.model_copy(update={"virtual_gap": gap})})


@dataclass(frozen=True)
class Question:
    """A problem to solve, and what its answer tells."""

    kind: Kind
    words: str
    problem: Problem
    node_class: str = ""
    """Of a question about a class that is idle: its name."""


@dataclass(frozen=True)
class Grounds:
    """What is known of the problem, with which every question begins."""

    problem: Problem
    """As it is asked about (`asked_of`)."""
    best: Plan
    best_s: float
    """Step time of the best plan [s]."""
    bound_s: float
    """No plan is faster [s]; 0 where unknown."""
    floors: Floors
    """What is proven of parts of the problem."""

    @classmethod
    def of(
        cls, problem: Problem, plan: Plan, evaluation: Evaluation, result: Result | None, floors: Floors
    ) -> Grounds:
        """From the plan to explain and what its search has found, where there was one."""
        best, best_s = plan, evaluation.step_s
        if result is not None and result.plan is not None and result.evaluation is not None:
            best, best_s = result.plan, result.evaluation.step_s
        bound_s = 0.0 if result is None else result.bound_s or 0.0
        return cls(asked_of(problem, result), best, best_s, bound_s, floors)

    def answer(self, question: Question, limit_s: float) -> Answer:
        """Answer a question in so much time [s]; the same wherever and in whatever order it is asked."""
        if question.kind == "alternative":
            return alternative(
                question.words,
                question.problem,
                self.best,
                self.best_s,
                self.bound_s,
                lambda problem: self._other(problem, limit_s),
            )
        if question.kind == "idle":
            return self._idle(question, limit_s)
        return self._gain(question, limit_s)

    def _other(self, problem: Problem, limit_s: float) -> Result:
        """Plans that the best one is not among; what their bound is asked is whether all are slower."""
        return solved(problem, limit_s, [self.best], self.best_s)

    def _gain(self, question: Question, limit_s: float) -> Gain:
        """Solve the changed problem; the best plan serves there too, so no change makes anything slower."""
        change, changed = question.words, question.problem
        per_token = changed.workload.tokens_per_step / self.problem.workload.tokens_per_step
        seeds = [adapted(self.best, self.problem, changed)]
        try:
            result = solved(changed, limit_s, seeds, floors=Floors([self.floors]))
        except InstanceError:
            return Gain(change=change, step_s=None, gain=None, gain_at_most=None)
        steps = [result.evaluation.step_s] if result.evaluation is not None else []
        if changed.workload == self.problem.workload:
            kept = api.predict(changed, self.best)
            # A new node may be slower than all others: then it stays idle, and the plan is what it was.
            steps += [self.best_s] if kept.violations else [self.best_s, kept.step_s]
        if not steps:
            return Gain(change=change, step_s=None, gain=None, gain_at_most=None)
        step_s = min(steps)
        gain, most = 1 - step_s / per_token / self.best_s, None
        if result.bound_s is not None:
            most = max(gain, 1 - result.bound_s / per_token / self.best_s)
        return Gain(change=change, step_s=step_s, gain=gain, gain_at_most=most)

    def _idle(self, question: Question, limit_s: float) -> IdleReason:
        """What the best plan costs that uses a class which is idle as a whole."""
        result, step_s = self._other(question.problem, limit_s), None
        if result.evaluation is None:
            words = f"no plan uses it: {result.reason}"
        else:
            step_s = result.evaluation.step_s
            words = _slower(step_s, result.bound_s, self.best_s)
        name = question.node_class
        count = next(c.num_nodes for c in self.problem.cluster.classes if c.name == name)
        return IdleReason(
            node_class=name,
            idle_nodes=count,
            num_nodes=count,
            step_s=step_s,
            bound_s=result.bound_s,
            words=words,
        )


def all_questions(grounds: Grounds, plan: Plan) -> Iterator[Question]:
    """Everything that is asked: changes, other kinds of plans, classes that `plan` leaves idle as a whole."""
    problem = grounds.problem
    yield from (Question("nodes", *asked) for asked in more_nodes(problem))
    yield from (Question("gain", *asked) for asked in faster_links(problem))
    yield from (Question("gain", *asked) for asked in more_memory_or_batch(problem))
    yield from (Question("alternative", *asked) for asked in other_problems(problem, grounds.best))
    for node_class in problem.cluster.classes:
        name, options = node_class.name, problem.options
        if name not in options.spare and _idle_nodes(problem, plan)[name] == node_class.num_nodes:
            wanting = options.model_copy(update={"use": (*options.use, name)})
            asked = problem.model_copy(update={"options": wanting})
            yield Question("idle", f"the best plan that uses {name}", asked, name)


def idle_reasons(problem: Problem, plan: Plan, answers: Sequence[IdleReason]) -> Iterator[IdleReason]:
    """Why nodes of each class are idle, where any are and the reason is known."""
    of_class = {answer.node_class: answer for answer in answers}
    idle = _idle_nodes(problem, plan)
    for node_class in problem.cluster.classes:
        name, count = node_class.name, node_class.num_nodes
        if name in of_class:
            yield of_class[name]
        elif name in problem.options.spare or 0 < idle[name] < count:
            spared = name in problem.options.spare
            words = "its other nodes work; these fill no further stage of the plan"
            yield IdleReason(
                node_class=name,
                idle_nodes=idle[name],
                num_nodes=count,
                step_s=None,
                bound_s=None,
                words="kept idle as asked" if spared else words,
            )


def _idle_nodes(problem: Problem, plan: Plan) -> dict[str, int]:
    """How many nodes of each class have no work."""
    working = {host for stage in plan.stages for _, _, hosts in stage.places for host in hosts}
    cluster = problem.cluster
    return {
        node_class.name: sum(host not in working for host in cluster.hosts_of(c))
        for c, node_class in enumerate(cluster.classes)
    }


def adapted(plan: Plan, before: Problem, after: Problem) -> Plan:
    """A plan of one problem as one to begin with in another: its micro-batches follow the batch."""
    old, new = before.workload.global_batch_size, after.workload.global_batch_size
    if old == new or plan.num_microbatches * new % old or plan.pipelines is not None:
        return plan
    return plan.model_copy(update={"num_microbatches": plan.num_microbatches * new // old})


def _slower(step_s: float, bound_s: float | None, best_s: float) -> str:
    """How much slower the best plan with an idle class is, and whether that is proven."""
    slower = f"the best plan found that uses it is {100 * (step_s / best_s - 1):.1f}% slower"
    if bound_s is not None and bound_s > best_s * (1 + GAP_TOL):
        return f"{slower}, and none can be less than {100 * (bound_s / best_s - 1):.1f}% slower"
    return slower
