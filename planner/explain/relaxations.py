"""The least single changes after which a problem without a plan has one.

Each kind of change is monotone: more of it never takes a plan away. So the least amount is found by
doubling and halving, a search at each step that ends with the first plan or with the proof that there
is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner import api
from planner.data.changes import with_cluster, with_more_memory, with_nodes, without_a_wish
from planner.data.explanation import Relaxation
from planner.data.problem import Problem
from planner.data.result import Result
from planner.errors import InstanceError

MOST_GIB = 1024.0
"""Memory that is given at most: more than any chip has [GiB]."""
STEP_GIB = 0.5
"""How finely memory is told [GiB]."""
MOST_TIMES_NODES = 16
"""Nodes are added up to so many times those that a class has."""

Solve = Callable[[Problem], Result]


@dataclass(frozen=True)
class _Found:
    """The least amount with a plan, and whether less is proven not to do."""

    amount: int
    step_s: float
    least: bool


def relaxations(problem: Problem, solve: Solve) -> Iterator[Relaxation]:
    """Single changes that give a plan, the user's own wishes first."""
    yield from _without_a_wish(problem, solve)
    classes = problem.cluster.classes
    every = tuple(range(len(classes)))
    for part in [every] if len(classes) == 1 else [every, *((c,) for c in every)]:
        found = _least(_more_memory(problem, part), MOST_GIB / STEP_GIB, solve)
        if found is not None:
            where = "every chip" if len(part) == len(classes) else f"each chip of {classes[part[0]].name}"
            yield Relaxation(
                change=f"more memory on {where}",
                amount=found.amount * STEP_GIB,
                unit="GiB",
                least=found.least,
                step_s=found.step_s,
            )
    for c, node_class in enumerate(classes):
        found = _least(_more_nodes(problem, c), MOST_TIMES_NODES * node_class.num_nodes, solve)
        if found is not None:
            yield Relaxation(
                change=f"more nodes of {node_class.name}",
                amount=found.amount,
                unit="node" if found.amount == 1 else "nodes",
                least=found.least,
                step_s=found.step_s,
            )
    yield from _shorter_sequences(problem, solve)


def _without_a_wish(problem: Problem, solve: Solve) -> Iterator[Relaxation]:
    """Each wish of the user that alone stands in the way."""
    options = problem.options
    words = {
        "pin": "without pinning {}",
        "forbid": "without forbidding {}",
        "spare": "with {} not spared",
        "use": "without insisting on {}",
    }
    freed = [(words[kind].format(wish), fewer) for kind, wish, fewer in without_a_wish(options)]
    wishes: list[tuple[str, dict[str, object]]] = []
    if options.max_pipeline_parallel is not None:
        wishes.append(("without a limit on pipeline stages", {"max_pipeline_parallel": None}))
    if options.max_tensor_parallel is not None:
        wishes.append(("without a limit on tensor parallelism", {"max_tensor_parallel": None}))
    if options.keep_class_order:
        wishes.append(("with the classes in any order", {"keep_class_order": False}))
    if options.memory_reserve_fraction > 0:
        wishes.append(("without a memory reserve", {"memory_reserve_fraction": 0.0}))
    freed += [(change, options.model_copy(update=fields)) for change, fields in wishes]
    for change, fewer in freed:
        result = solve(problem.model_copy(update={"options": fewer}))
        if result.evaluation is not None:
            yield Relaxation(change=change, amount=None, unit="", least=True, step_s=result.evaluation.step_s)


def _shorter_sequences(problem: Problem, solve: Solve) -> Iterator[Relaxation]:
    """The longest halving of the sequence that fits."""
    length = problem.workload.seq_length
    while length % 2 == 0 and length > 1:
        length //= 2
        workload = problem.workload.model_copy(update={"seq_length": length})
        result = solve(problem.model_copy(update={"workload": workload}))
        if result.evaluation is not None:
            yield Relaxation(
                change="sequences halved until they fit, to",
                amount=length,
                unit="tokens",
                least=False,
                step_s=result.evaluation.step_s,
            )
            return


def _more_memory(problem: Problem, classes: tuple[int, ...]) -> Callable[[int], Problem]:
    """The problem with so many steps of memory more on every chip of some classes."""

    def changed(steps: int) -> Problem:
        richer = problem
        for c in classes:
            richer = with_more_memory(richer, c, steps * STEP_GIB)
        return richer

    return changed


def _more_nodes(problem: Problem, c: int) -> Callable[[int], Problem]:
    """The problem with so many nodes more of a class."""

    def changed(nodes: int) -> Problem:
        cluster = with_nodes(problem.cluster, c, problem.cluster.classes[c].num_nodes + nodes)
        assert cluster is not None
        return with_cluster(problem, cluster)

    return changed


def _least(change: Callable[[int], Problem], most: float, solve: Solve) -> _Found | None:
    """Least amount from 1 to `most` with a plan, by doubling and halving; None where there is none."""
    too_little, enough, proven = 0, 1, True
    while True:
        result = solve(change(enough))
        if result.evaluation is not None:
            break
        proven = result.termination == "infeasible"
        too_little = enough
        if not proven or enough >= most:
            return None
        enough = min(2 * enough, int(most))
    step_s = result.evaluation.step_s
    while enough - too_little > 1:
        middle = (enough + too_little) // 2
        result = solve(change(middle))
        if result.evaluation is not None:
            enough, step_s = middle, result.evaluation.step_s
        else:
            too_little, proven = middle, result.termination == "infeasible"
    return _Found(enough, step_s, proven)


def first_plan(problem: Problem, time_limit_s: float | None) -> Result:
    """Any plan, or the proof that there is none; wrong input counts as none."""
    options = problem.options.model_copy(update={"gap": 0.99, "top": 1, "time_limit_s": time_limit_s})
    try:
        return api.plan(problem, options)
    except InstanceError as refusal:
        return Result.without_plan(problem.name, "no_solution_found", str(refusal), options.solver)
