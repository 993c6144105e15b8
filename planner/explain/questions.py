"""The questions about one plan: what a change would bring, what its decisions are worth, what lies idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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


def solved(
    problem: Problem,
    question_s: float,
    seeds: Sequence[Plan] = (),
    beyond_s: float | None = None,
    floors: Floors | None = None,
) -> Result:
    """The best plan found in the time of a question, by a search that begins with plans at hand."""
    options = problem.options.model_copy(update={"time_limit_s": question_s, "top": 1})
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


class Questions:
    """All that is asked of one plan; answers are kept as they come, so that an interrupt loses none."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        evaluation: Evaluation,
        result: Result | None,
        question_s: float,
        on_question: Ask,
        floors: Floors,
    ) -> None:
        self.problem, self.plan = asked_of(problem, result), plan
        self.question_s, self.on_question = question_s, on_question
        self.best, self.best_s = plan, evaluation.step_s
        self.bound_s = 0.0 if result is None else result.bound_s or 0.0
        if result is not None and result.plan is not None and result.evaluation is not None:
            self.best, self.best_s = result.plan, result.evaluation.step_s
        self.floors = floors
        """What is proven of parts of the problem."""
        self.gains: list[Gain] = []
        self.alternatives: list[Alternative] = []
        self.idle: list[IdleReason] = []

    def ask(self) -> None:
        """Ask everything."""
        self._ask_gains(more_nodes(self.problem))
        self._ask_gains(faster_links(self.problem))
        self._ask_gains(more_memory_or_batch(self.problem))
        for words, other in other_problems(self.problem, self.best):
            self.on_question(words)
            found = alternative(words, other, self.best, self.best_s, self.bound_s, self._solve_other)
            self.alternatives.append(found)
        for c in range(len(self.problem.cluster.classes)):
            self._ask_idle(c)

    def _ask_gains(self, changes: Iterable[tuple[str, Problem]]) -> None:
        for change, changed in changes:
            self.on_question(change)
            self.gains.append(self._gain(change, changed))

    def _solve(self, problem: Problem) -> Result:
        seeds = [adapted(self.best, self.problem, problem)]
        return solved(problem, self.question_s, seeds, floors=Floors([self.floors]))

    def _solve_other(self, problem: Problem) -> Result:
        """Plans that the best one is not among; what their bound is asked is whether all are slower."""
        return solved(problem, self.question_s, [self.best], self.best_s)

    def _gain(self, change: str, changed: Problem) -> Gain:
        """Solve the changed problem; the best plan serves there too, so no change makes anything slower."""
        per_token = changed.workload.tokens_per_step / self.problem.workload.tokens_per_step
        try:
            result = self._solve(changed)
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

    def _ask_idle(self, c: int) -> None:
        """Why nodes of a class are idle, if any are; a class that is idle as a whole is planned for."""
        problem, node_class = self.problem, self.problem.cluster.classes[c]
        working = {host for stage in self.plan.stages for _, _, hosts in stage.places for host in hosts}
        idle = sum(host not in working for host in problem.cluster.hosts_of(c))
        if not idle:
            return
        step_s = bound_s = None
        if node_class.name in problem.options.spare:
            words = "kept idle as asked"
        elif idle < node_class.num_nodes:
            words = "its other nodes work; these fill no further stage of the plan"
        else:
            self.on_question(f"the best plan that uses {node_class.name}")
            options = problem.options.model_copy(update={"use": (*problem.options.use, node_class.name)})
            result = self._solve_other(problem.model_copy(update={"options": options}))
            bound_s = result.bound_s
            if result.evaluation is None:
                words = f"no plan uses it: {result.reason}"
            else:
                step_s = result.evaluation.step_s
                words = _slower(step_s, bound_s, self.best_s)
        self.idle.append(
            IdleReason(
                node_class=node_class.name,
                idle_nodes=idle,
                num_nodes=node_class.num_nodes,
                step_s=step_s,
                bound_s=bound_s,
                words=words,
            )
        )


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
